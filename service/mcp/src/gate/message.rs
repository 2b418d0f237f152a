//! Messages, of which only what must be read is read: all else keeps its bytes and its order.

use indexmap::IndexMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// A JSON object whose values are as they came.
pub type Object = IndexMap<String, Box<RawValue>>;

/// A field, if it is there and has this type.
pub fn field<T: DeserializeOwned>(object: &Object, name: &str) -> Option<T> {
    serde_json::from_str(object.get(name)?.get()).ok()
}

pub fn set(object: &mut Object, name: &str, value: &impl Serialize) {
    if let Ok(value) = to_raw_value(value) {
        object.insert(name.to_owned(), value);
    }
}

/// The messages of a line, and whether it is a batch, which older versions of the protocol have. `None` if it is not JSON-RPC.
pub fn messages(line: &str) -> Option<(Vec<Object>, bool)> {
    if line.trim_start().starts_with('[') {
        return Some((serde_json::from_str(line).ok()?, true));
    }
    Some((vec![serde_json::from_str(line).ok()?], false))
}

pub fn text(message: &Object) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

/// The id of a request, in one spelling; `None` if there is none.
pub fn id(message: &Object, name: &str) -> Option<String> {
    field::<Value>(message, name).filter(|id| !id.is_null()).map(|id| id.to_string())
}

pub fn error(id: Option<&RawValue>, code: i64, words: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": words } }).to_string()
}

/// The answer to a call whose id is that: with the server's `result` or `error`, or with one of ours.
pub fn answer(id: &RawValue, name: &str, value: &impl Serialize) -> String {
    let mut message = Object::new();
    set(&mut message, "jsonrpc", &"2.0");
    message.insert("id".to_owned(), id.to_owned());
    set(&mut message, name, value);
    text(&message)
}
