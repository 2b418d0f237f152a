//! Messages, of which only what must be read is read: all else keeps its bytes and its order.

use indexmap::IndexMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

/// A JSON object whose values are as they came.
pub type Object = IndexMap<String, Box<RawValue>>;

/// Without its end. It may be no UTF-8.
pub type Line = Vec<u8>;

pub type Lines = mpsc::Sender<Line>;

/// A field, if it is there and has this type.
pub fn field<T: DeserializeOwned>(object: &Object, name: &str) -> Option<T> {
    serde_json::from_str(object.get(name)?.get()).ok()
}

pub fn set(object: &mut Object, name: &str, value: &impl Serialize) {
    if let Ok(value) = to_raw_value(value) {
        object.insert(name.to_owned(), value);
    }
}

pub fn text(message: &impl Serialize) -> Line {
    serde_json::to_vec(message).unwrap_or_default()
}

/// The answer to the request with this id: `name` is `result` or `error`.
pub fn answer(id: &RawValue, name: &str, value: &Value) -> Line {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{name}":{value}}}"#).into_bytes()
}
