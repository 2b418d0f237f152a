//! JSON objects, written field by field: what each commit writes. A derived `Serialize` looks for characters to escape in the name of every
//! field, and takes three times as many instructions.

use serde::Serialize;

/// An object that is being written.
pub struct Object<'a>(&'a mut String);

impl<'a> Object<'a> {
    pub fn begin(text: &'a mut String) -> Self {
        text.push('{');
        Self(text)
    }

    pub fn end(self) {
        self.0.push('}');
    }

    /// Writes the name of a field, which has no character to escape. The caller appends its value.
    // So that the length of each name is known, and it is copied without a call.
    #[inline(always)]
    pub fn field(&mut self, name: &'static str) -> &mut String {
        self.0.push_str(if self.0.ends_with('{') { "\"" } else { ",\"" });
        self.0.push_str(name);
        self.0.push_str("\":");
        self.0
    }

    #[inline]
    pub fn number(&mut self, name: &'static str, number: u64) {
        self.field(name).push_str(itoa::Buffer::new().format(number));
    }

    /// Writes a field unless it is zero.
    #[inline]
    pub fn number_if_any(&mut self, name: &'static str, number: u64) {
        if number > 0 {
            self.number(name, number);
        }
    }

    pub fn text(&mut self, name: &'static str, value: &str) {
        push_text(self.field(name), value);
    }

    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn value(&mut self, name: &'static str, value: &impl Serialize) -> serde_json::Result<()> {
        let value = serde_json::to_string(value)?;
        self.field(name).push_str(&value);
        Ok(())
    }

    /// Writes a field if there is a value.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn value_if_any(&mut self, name: &'static str, value: Option<&impl Serialize>) -> serde_json::Result<()> {
        value.map_or(Ok(()), |value| self.value(name, value))
    }
}

/// Appends a text as a value, just as serde_json writes it.
pub fn push_text(text: &mut String, value: &str) {
    // Over all bytes and without a branch, so that many are compared at once.
    let has_escapes = |found: bool, byte: u8| found | (byte < b' ') | (byte == b'"') | (byte == b'\\');
    if value.bytes().fold(false, has_escapes) {
        text.push_str(&serde_json::Value::from(value).to_string());
    } else {
        text.push('"');
        text.push_str(value);
        text.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json_whatever_the_texts_are() {
        let texts = ["", "plain", "\"", "\\", "a\nb", "\u{0}", "\u{7f}", "é🔒", "\u{2028}"];
        for value in texts {
            let mut text = String::new();
            let mut object = Object::begin(&mut text);
            object.text("text", value);
            object.number("number", u64::MAX);
            object.number_if_any("zero", 0);
            object.value("list", &[value]).unwrap();
            object.value_if_any("none", None::<&u8>).unwrap();
            object.end();
            let expected = serde_json::json!({"text": value, "number": u64::MAX, "list": [value]});
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected, "{text}");
        }
    }
}
