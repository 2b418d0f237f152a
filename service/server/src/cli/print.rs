//! What the listing commands print: tables, values between tabs, or JSON.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _, stdout};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{Table, presets};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The exit code when standard output takes nothing.
pub const NOT_PRINTED: u8 = 74;

/// Writes a line to standard output. If that cannot be done, the process ends with the exit code for it.
pub fn println_or_exit(line: impl Display) {
    if let Err(error) = printed(line) {
        not_printed(&error);
    }
}

/// # Errors
/// When the line cannot be written, to a full disk say.
pub fn printed(line: impl Display) -> io::Result<()> {
    let mut stdout = stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Ends the process. A reader that has gone, as `head` does, needs no message.
pub fn not_printed(error: &io::Error) -> ! {
    if error.kind() != io::ErrorKind::BrokenPipe {
        complain(format_args!("the output cannot be written: {error}"));
    }
    std::process::exit(NOT_PRINTED.into())
}

/// A table on a terminal, values between tabs otherwise; JSON, an item a line, if it is asked for. `what` they are, for an empty list.
pub fn list(is_json: bool, what: &str, items: &[Value], columns: &[&str], cells: impl Fn(&Value) -> Vec<String>) {
    if is_json {
        for item in items {
            println_or_exit(item);
        }
        return;
    }
    if items.is_empty() {
        eprintln!("There are no {what}.");
        return;
    }
    if !stdout().is_terminal() {
        for item in items {
            println_or_exit(cells(item).join("\t"));
        }
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|column| coloured(column, column)));
    for item in items {
        table.add_row(columns.iter().zip(cells(item)).map(|(column, cell)| coloured(column, &cell)));
    }
    let mut lines = table.lines();
    lines.next().iter().for_each(|header| println_or_exit(bold(header)));
    lines.for_each(|line| println_or_exit(line.trim_end()));
}

/// On a terminal, unless NO_COLOR is set (<https://no-color.org>).
fn has_colours() -> bool {
    AutoStream::choice(&stdout()) != ColorChoice::Never
}

fn bold(text: &str) -> String {
    let style = Style::new().bold();
    if has_colours() { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// The end of a colour.
const PLAIN: &str = "\x1b[39m";

/// A cell in the colour of what it says. Every cell of a table gets as many characters more, with or without a colour, so that the columns
/// stay aligned.
pub fn coloured(column: &str, cell: &str) -> String {
    if !has_colours() {
        return cell.to_owned();
    }
    let begin = colour_of(column, cell).map_or_else(|| PLAIN.to_owned(), |colour| colour.render_fg().to_string());
    format!("{begin}{cell}{PLAIN}")
}

/// Green is held or used, yellow waits for something, red is what a person should look at.
fn colour_of(column: &str, cell: &str) -> Option<AnsiColor> {
    use AnsiColor::{Green, Red, Yellow};
    match (column, cell) {
        ("STATE" | "EVENT", state) => match state {
            "active" | "enabled" | "granted" | "held" | "succeeded" => Some(Green),
            "closed" | "filling" | "held_too_long" | "moving" | "not held, but not granted yet" | "revoking" => {
                Some(Yellow)
            }
            "disabled"
            | "expired"
            | "forced"
            | "revoked"
            | "started, lease expired"
            | "unknown"
            | "unreadable"
            | "waited" => Some(Red),
            _ => None,
        },
        ("HOLDERS", owners) if owners != column => Some(Green),
        ("CLOSED" | "HOLD-OFF" | "REVOKED", text) if text != column => Some(Yellow),
        ("TROUBLE", text) if text != column => Some(Red),
        ("SUSPECTED DOUBLE RUNS", count) if count != "0" && count != column => Some(Red),
        _ => None,
    }
}

/// A time; on a terminal how long ago it was, or how long it is until then, by this machine's clock.
pub fn when(at: &Value) -> String {
    let time = at.as_str().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
    let Some(time) = time.filter(|_| stdout().is_terminal()) else { return text(at) };
    let ago = OffsetDateTime::now_utc() - time;
    let shown = rough(ago.unsigned_abs());
    if ago.is_negative() { format!("in {shown}") } else { format!("{shown} ago") }
}

/// A number of things: `1 waiter`, `2 waiters`.
pub fn counted(count: &Value, what: &str) -> String {
    if *count == 1 { format!("1 {what}") } else { format!("{} {what}s", text(count)) }
}

/// One answer: in words, or as JSON if it is asked for.
pub fn print_answer(is_json: bool, answer: &Value, words: impl FnOnce() -> String) {
    if is_json { println_or_exit(answer) } else { println_or_exit(plain(&words())) }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// A value for a table, whose rows are lines and whose cells tabs separate.
pub fn one_line(value: &Value) -> String {
    text(value).replace(['\n', '\t'], " ")
}

/// A text of a server without what would control the terminal, or show it in another order.
pub fn plain(text: &str) -> String {
    let is_hidden = |character: char| {
        (character.is_control() && !['\n', '\t'].contains(&character))
            || matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(is_hidden, "\u{fffd}")
}

/// A time in its largest unit: `2 min`.
pub fn rough(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Says on standard error what is wrong.
pub fn complain(what: impl Display) {
    eprintln!("latchgate: {}", plain(&what.to_string()));
}
