//! What the listing commands print: tables, values between tabs, or JSON.

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
    if is_json { println!("{answer}") } else { println!("{}", words()) }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
