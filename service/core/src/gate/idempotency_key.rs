//! The header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07).

/// Longest value, in bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 8_192;

/// The key's text. `None` if the value is neither a string in quotes (RFC 9651) nor a text without quotes, is empty or too long.
pub fn idempotency_key(value: &str) -> Option<String> {
    if value.len() > IDEMPOTENCY_KEY_MAX_BYTES {
        return None;
    }
    let text = value.trim();
    let text = text.strip_prefix('"').map_or_else(|| bare(text), quoted);
    text.filter(|text| !text.is_empty())
}

/// `rest` follows the opening quote; nothing may follow the closing one.
fn quoted(rest: &str) -> Option<String> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.as_str().is_empty().then_some(text),
            '\\' => text.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => text.push(c),
        }
    }
}

fn bare(text: &str) -> Option<String> {
    (!text.contains('"')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        for value in ["\"8e03-978e\"", "8e03-978e", "  \"8e03-978e\" "] {
            assert_eq!(idempotency_key(value).as_deref(), Some("8e03-978e"), "{value}");
        }
        assert_eq!(idempotency_key(r#""a\"b\\c""#).as_deref(), Some(r#"a"b\c"#));
        assert_eq!(idempotency_key("two words").as_deref(), Some("two words"));
    }

    #[test]
    fn other_values_are_refused() {
        for value in ["", "\"\"", "\"open", "\"a\"b", "\"a\";p=1", r#""\n""#, "a\"b"] {
            assert_eq!(idempotency_key(value), None, "{value}");
        }
        assert!(idempotency_key(&"k".repeat(IDEMPOTENCY_KEY_MAX_BYTES)).is_some());
        assert!(idempotency_key(&"k".repeat(IDEMPOTENCY_KEY_MAX_BYTES + 1)).is_none());
    }
}
