//! What the listing commands print: tables, values between tabs, or JSON.

use std::fmt::Display;
use std::io::{IsTerminal, stdout};

use comfy_table::{Table, presets};
use serde_json::Value;

/// A table on a terminal, values between tabs otherwise; JSON, an item a line, if it is asked for.
pub fn list(is_json: bool, items: &[Value], columns: &[&str], cells: impl Fn(&Value) -> Vec<String>) {
    if is_json {
        for item in items {
            println!("{item}");
        }
        return;
    }
    if !stdout().is_terminal() {
        for item in items {
            println!("{}", cells(item).join("\t"));
        }
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().copied());
    for item in items {
        table.add_row(cells(item));
    }
    println!("{table}");
}

/// One answer: in words, or as JSON if it is asked for.
pub fn said(is_json: bool, answer: &Value, words: impl FnOnce() -> String) {
    if is_json { println!("{answer}") } else { println!("{}", plain(&words())) }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// A text of a server without what would control the terminal, or show it in another order.
pub fn plain(text: &str) -> String {
    let is_hidden = |character: char| {
        (character.is_control() && !['\n', '\t'].contains(&character))
            || matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(is_hidden, "\u{fffd}")
}

/// Says on standard error what is wrong.
pub fn complain(what: impl Display) {
    eprintln!("latchgate: {}", plain(&what.to_string()));
}
