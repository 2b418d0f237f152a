//! The call of a gated tool, as the client has sent it.

use indexmap::IndexMap;
use latchgate_core::gate::{Canonical, Sha256Digest};
use serde_json::value::RawValue;

use super::answers::refusal;
use super::message::{Line, Object, answer, field, set, text};
use super::tools::{KEY, Tool};

const KEY_BYTES_MAX: usize = 256;

/// A call on its way.
pub struct Call {
    pub id: Box<RawValue>,
    pub id_at_server: String,
    /// As the server gets it.
    pub message: Object,
    pub tool: String,
    pub known: Tool,
    /// Of their canonical form: a node takes no long ones.
    pub arguments_sha256: String,
    pub key: Option<String>,
}

impl Call {
    /// # Errors
    /// The answer to a call whose key or arguments are not ones.
    pub fn parse(mut message: Object, id_at_server: String, tool: String, known: Tool) -> Result<Self, Line> {
        let (id, mut params): (_, Object) = (message["id"].clone(), field(&message, "params").unwrap_or_default());
        let invalid = |why: String| {
            answer(&id, "result", &refusal(&format!("{why}. The tool was not called."), "invalid-request", None))
        };
        let given = params.get("arguments").map_or("null", |given| given.get());
        let arguments = serde_json::from_str::<Option<Object>>(given);
        let mut arguments = arguments.map_err(|error| invalid(format!("arguments: {error}")))?.unwrap_or_default();
        let is_short = |key: &String| (1..=KEY_BYTES_MAX).contains(&key.len());
        let key = field(&arguments, KEY).filter(is_short);
        if !known.has_own_key && arguments.shift_remove(KEY).is_some() && key.is_none() {
            return Err(invalid(format!("{KEY} must be a text of 1 to {KEY_BYTES_MAX} bytes")));
        }
        // Whether the tool has an argument of this name itself may not be known yet.
        let is_identified = |(name, _): &(&String, _)| key.is_none() || *name != KEY;
        let identified: IndexMap<_, _> = arguments.iter().filter(is_identified).collect();
        // Half of a surrogate pair, to which some programs cut a text, and a number that is too large are no values.
        let canonical = Canonical::parse_for_digest("arguments", &text(&identified));
        let canonical = canonical.map_err(|error| invalid(error.to_string()))?;
        let arguments_sha256 = Sha256Digest::of(canonical.as_bytes()).to_string();
        // As they were read: of two members with one name, the server gets the last one.
        set(&mut params, "arguments", &arguments);
        set(&mut message, "params", &params);
        set(&mut message, "id", &id_at_server);
        Ok(Self { id, id_at_server, message, tool, known, arguments_sha256, key })
    }
}
