//! Does a command print what the page shows below it?
//!
//! A ```` ```json ```` block shows answers: each may leave fields out, and what differs from run to run need only look
//! alike. A ```` ```text ```` block shows the exact output.

use serde_json::{Deserializer, Value};

use crate::book::Block;

/// What is wrong with the output, if anything is.
pub fn difference(shown: &Block, printed: &str) -> Option<String> {
    let same = match shown.fence.as_str() {
        "json" => answers_match(&answers(&shown.text), &answers(printed)),
        _ => shown.text.trim() == printed.trim(),
    };
    (!same).then(|| format!("shown:\n{}\nprinted:\n{printed}", shown.text))
}

/// The values of a text, one after the other. The rest after a syntax error is a string that no answer equals.
fn answers(text: &str) -> Vec<Value> {
    let values = Deserializer::from_str(text).into_iter::<Value>();
    values.map(|value| value.unwrap_or_else(|error| Value::from(format!("not JSON: {error}")))).collect()
}

/// In any order, because commands in the background answer when they like.
fn answers_match(shown: &[Value], printed: &[Value]) -> bool {
    let mut left: Vec<&Value> = printed.iter().collect();
    let all_found = shown.iter().all(|answer| {
        let found = left.iter().position(|candidate| alike(answer, candidate, ""));
        found.map(|index| left.remove(index)).is_some()
    });
    all_found && left.is_empty()
}

fn alike(shown: &Value, printed: &Value, field: &str) -> bool {
    match (shown, printed) {
        (Value::Object(shown), Value::Object(printed)) => {
            shown.iter().all(|(name, value)| printed.get(name).is_some_and(|found| alike(value, found, name)))
        }
        (Value::Array(shown), Value::Array(printed)) => {
            shown.len() == printed.len() && shown.iter().zip(printed).all(|(one, other)| alike(one, other, field))
        }
        (Value::Number(_), Value::Number(_)) if field.ends_with("_ms") => true,
        (Value::Number(one), Value::Number(other)) => one == other || (is_token(one) && is_token(other)),
        (Value::String(one), Value::String(other)) => texts_alike(one, other),
        _ => shown == printed,
    }
}

/// Tokens grow with the time.
fn is_token(number: &serde_json::Number) -> bool {
    number.as_u64().is_some_and(|number| number > 1_000_000_000_000)
}

/// `…` at the end of a shown text stands for any rest.
fn texts_alike(shown: &str, printed: &str) -> bool {
    shape(shown) == shape(printed)
        || shown.strip_suffix('…').is_some_and(|begin| printed.starts_with(begin))
        || (uuid::Uuid::parse_str(shown).is_ok() && uuid::Uuid::parse_str(printed).is_ok())
}

/// The text with each time, and each number that is long or a duration, replaced.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) {
        shape.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && !"-:.TZ".contains(letter)).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let varies = number.len() >= 10 || behind.starts_with(" ms");
        shape.push_str(if varies { "N" } else { number });
        rest = behind;
    }
    shape + rest
}
