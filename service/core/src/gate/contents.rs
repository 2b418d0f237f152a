//! Contents in one form: whatever the order of keys and the spacing, equal contents are equal bytes.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::numbers;

/// From this magnitude on a number is refused: a double cannot distinguish it from its neighbour, so two orders would
/// share one id. 2^53.
pub const NUMBER_BOUND: u64 = 1 << 53;
/// Deepest nesting of arrays and objects.
const DEPTH_MAX: usize = 64;
/// Longest contents, in bytes of JSON; a guard for callers without one of their own.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// A JSON text in RFC 8785's canonical form.
///
/// Numbers are doubles, as everywhere in RFC 8785: `1`, `1.0` and `1e0` are one number and so are `0` and `-0`. A number
/// that canonical JSON would round is refused. Sums of money belong in integers of the smallest unit or in strings.
#[derive(Clone, PartialEq, Eq)]
pub struct Canonical(Vec<u8>);

/// Why a JSON text has no canonical form. `path` begins with the field's name: `contents.items[2].amount`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentsError {
    #[error("{path}: not JSON: {reason}")]
    NotJson { path: String, reason: String },
    #[error("{path}: the key appears twice in one object")]
    DuplicateKey { path: String },
    #[error(
        "{path}: a number of magnitude 2^53 or more, or with more digits than a double has, loses digits in canonical JSON, so that \
         two operations could share one id: send it as a string"
    )]
    NumberNotExact { path: String },
    #[error("{path}: the number is too large for a double")]
    NumberOutOfRange { path: String },
    #[error("{path}: nested deeper than {max} levels")]
    TooDeep { path: String, max: usize },
    #[error("{path}: longer than {max_bytes} bytes")]
    TooLong { path: String, max_bytes: usize },
    #[error(
        "{path}: says nothing (an empty text, object or list, or only nulls), so it would identify every operation that lost its contents"
    )]
    SaysNothing { path: String },
}

impl Canonical {
    /// Reads JSON text. `field` names it in errors.
    ///
    /// # Errors
    /// The text is not JSON, or has no canonical form that is its own: duplicate keys, numbers that are not exact in it, nesting
    /// without end.
    pub fn parse(field: &str, json: &[u8]) -> Result<Self, ContentsError> {
        read(field, json, Use::Hashed).and_then(|value| Self::of(field, &value))
    }

    /// As [`parse`](Self::parse), for what identifies an operation.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or if there is nothing in it but nulls and empty texts, objects and lists: an identity that its sender has
    /// lost is that of every other sender that has lost one.
    pub fn parse_identity(field: &str, json: &[u8]) -> Result<Self, ContentsError> {
        match read(field, json, Use::Hashed)? {
            value if says_nothing(&value) => Err(ContentsError::SaysNothing { path: field.to_owned() }),
            value => Self::of(field, &value),
        }
    }

    /// As [`parse`](Self::parse), for bytes of which only a digest is taken: a number that canonical JSON would round keeps its digits, as a
    /// string. Other strings begin with a mark, so that none is such a number.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), but of numbers only those that are too large for a double.
    pub fn parse_for_digest(field: &str, json: &[u8]) -> Result<Self, ContentsError> {
        read(field, json, Use::Digested).and_then(|value| Self::of(field, &value))
    }

    fn of(field: &str, value: &Value) -> Result<Self, ContentsError> {
        serde_json_canonicalizer::to_vec(value)
            .map(Self)
            .map_err(|error| ContentsError::NotJson { path: field.to_owned(), reason: error.to_string() })
    }

    /// A text that stands in for contents: the same as a JSON string of it.
    pub fn of_text(text: &str) -> Self {
        // Serialising a string cannot fail.
        Self(serde_json_canonicalizer::to_vec(&text).unwrap_or_default())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Whether there is nothing in it but nulls and empty texts, objects and lists.
pub fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(says_nothing),
        Value::Object(fields) => fields.values().all(says_nothing),
    }
}

/// Checks JSON text that is kept as it is and given to other callers: every reader of JSON must be able to read it. Large numbers
/// and keys that appear twice are allowed.
///
/// # Errors
/// The text is not JSON, has a number that is too large for a double, or is nested deeper than contents may be.
pub fn check_result(field: &str, json: &[u8]) -> Result<(), ContentsError> {
    read(field, json, Use::Kept).map(drop)
}

fn read(field: &str, json: &[u8], purpose: Use) -> Result<Value, ContentsError> {
    if json.len() > BYTES_MAX {
        return Err(ContentsError::TooLong { path: field.to_owned(), max_bytes: BYTES_MAX });
    }
    let walk = Walk {
        path: RefCell::new(field.to_owned()),
        fault: RefCell::new(None),
        numbers: RefCell::new(if purpose == Use::Kept { Vec::new() } else { numbers::of(json) }.into_iter()),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Node { walk: &walk, depth: 0, purpose }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        let path = walk.path.take();
        let is_out_of_range = error.to_string().starts_with("number out of range");
        match (walk.fault.take(), purpose) {
            (Some(fault), _) => fault,
            // More than a double can hold: 1e400, for example.
            (None, Use::Hashed) if is_out_of_range => ContentsError::NumberNotExact { path },
            (None, _) if is_out_of_range => ContentsError::NumberOutOfRange { path },
            (None, _) => ContentsError::NotJson { path, reason: error.to_string() },
        }
    })
}

/// What a JSON text is read for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its canonical form makes an id, so it must have exactly one.
    Hashed,
    /// Its canonical form makes a digest, which is another one for each other number.
    Digested,
    Kept,
}

/// Where the reader is, and what it stumbled over: serde's errors carry neither.
struct Walk<'t> {
    path: RefCell<String>,
    fault: RefCell<Option<ContentsError>>,
    /// The numbers that are still to come, as they are written.
    numbers: RefCell<std::vec::IntoIter<&'t str>>,
}

impl Walk<'_> {
    fn fail<E: serde::de::Error>(&self, fault: impl FnOnce(String) -> ContentsError) -> E {
        *self.fault.borrow_mut() = Some(fault(self.path.borrow().clone()));
        E::custom("refused")
    }

    /// Appends a step to the path and returns where to cut it off again.
    fn enter(&self, step: PathStep<'_>) -> usize {
        let mut path = self.path.borrow_mut();
        let length = path.len();
        let written = match step {
            PathStep::Index(index) => write!(path, "[{index}]"),
            PathStep::Key(key) if is_plain(key) => write!(path, ".{key}"),
            PathStep::Key(key) => write!(path, "[{}]", Value::from(key)),
        };
        debug_assert!(written.is_ok(), "a String takes any text");
        length
    }

    fn leave(&self, length: usize) {
        self.path.borrow_mut().truncate(length);
    }
}

enum PathStep<'a> {
    Index(usize),
    Key(&'a str),
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

/// One value at `depth`, read with every check.
#[derive(Clone, Copy)]
struct Node<'a> {
    walk: &'a Walk<'a>,
    depth: usize,
    purpose: Use,
}

impl Node<'_> {
    fn child<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == DEPTH_MAX {
            return Err(self.walk.fail(|path| ContentsError::TooDeep { path, max: DEPTH_MAX }));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }

    fn number<E: serde::de::Error>(self, value: Value, is_in_bounds: bool) -> Result<Value, E> {
        if self.purpose == Use::Kept {
            return Ok(value);
        }
        let written = self.walk.numbers.borrow_mut().next().unwrap_or_default();
        // serde_json may miss the nearest double by one.
        let value = if value.is_f64() { written.parse::<f64>().map_or(Value::Null, Value::from) } else { value };
        if is_in_bounds && numbers::are_equal(written, &value.to_string()) {
            Ok(value)
        } else if self.purpose == Use::Digested {
            Ok(format!("number {written}").into())
        } else {
            Err(self.walk.fail(|path| ContentsError::NumberNotExact { path }))
        }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(if self.purpose == Use::Digested { format!("text {value}").into() } else { value.into() })
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.number(value.into(), value < NUMBER_BOUND)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into(), value.unsigned_abs() < NUMBER_BOUND)
    }

    #[allow(clippy::cast_precision_loss, reason = "2^53 is a double exactly")]
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.number(value.into(), value.abs() < NUMBER_BOUND as f64)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let node = self.child()?;
        let mut values = Vec::new();
        loop {
            let outside = self.walk.enter(PathStep::Index(values.len()));
            let Some(value) = items.next_element_seed(node)? else {
                self.walk.leave(outside);
                return Ok(Value::Array(values));
            };
            self.walk.leave(outside);
            values.push(value);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let node = self.child()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let outside = self.walk.enter(PathStep::Key(&key));
            if self.purpose != Use::Kept && object.contains_key(&key) {
                return Err(self.walk.fail(|path| ContentsError::DuplicateKey { path }));
            }
            let value = entries.next_value_seed(node)?;
            self.walk.leave(outside);
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(json: &str) -> String {
        format!("{:?}", Canonical::parse("contents", json.as_bytes()).unwrap())
    }

    fn refusal(json: &str) -> ContentsError {
        Canonical::parse("contents", json.as_bytes()).unwrap_err()
    }

    #[test]
    fn the_order_of_keys_and_spacing_do_not_matter() {
        assert_eq!(canonical(r#"{"a":1,"b":2}"#), r#"{"a":1,"b":2}"#);
        assert_eq!(canonical(" { \"b\" : 2,\n\"a\" : 1 } "), r#"{"a":1,"b":2}"#);
    }

    #[test]
    fn rfc_8785_examples_come_out_as_printed() {
        // Section 3.2.2, without the numbers that are rounded.
        let input = r#"{"numbers":[333333333.3333333,4.50,2e-3,0.000000000000000000000000001],
            "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
        let expected = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(canonical(input), expected);
        // Section 3.2.3: keys in the order of their UTF-16 code units.
        let input = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
            "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#;
        let output = canonical(input);
        let places = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"].map(|word| output.find(word));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{output}");
    }

    #[test]
    fn one_number_has_one_form() {
        for text in ["1", "1.0", "1e0", "10e-1"] {
            assert_eq!(canonical(text), "1");
        }
        assert_eq!(canonical("-0"), "0");
        assert_eq!(canonical("-0.0"), "0");
        assert_eq!(canonical("9007199254740991"), "9007199254740991");
        assert_eq!(canonical("-9007199254740991"), "-9007199254740991");
        assert_eq!(
            canonical("[0.10, 5e-324, \"1e-400 \\\" 2.5\", 2251799813685249.5, 0e9]"),
            r#"[0.1,5e-324,"1e-400 \" 2.5",2251799813685249.5,0]"#
        );
    }

    #[test]
    fn a_string_is_not_the_number_it_spells() {
        assert_eq!(canonical("\"1\""), "\"1\"");
        assert_eq!(Canonical::of_text("or\"der"), Canonical::parse("contents", br#""or\"der""#).unwrap());
    }

    #[test]
    fn numbers_that_canonical_json_does_not_keep_exactly_are_refused_by_path() {
        for number in [
            "9007199254740992",
            "-9007199254740992",
            "9007199254740993",
            "18446744073709551616",
            "1e300",
            "-1e400",
            "4503599627370497.25",
            "333333333.33333329",
            "1e-400",
            "-0.1000000000000000055511151231257827",
        ] {
            let path = "contents.items[2].amount".to_owned();
            let json = format!(r#"{{"id":1,"items":[1,{{}},{{"amount":{number}}}]}}"#);
            assert_eq!(refusal(&json), ContentsError::NumberNotExact { path });
        }
    }

    #[test]
    fn for_a_digest_each_number_and_each_text_keeps_a_form_of_its_own() {
        let read = |json: &str| Canonical::parse_for_digest("arguments", json.as_bytes()).unwrap();
        let apart = [
            "9007199254740992",
            "9007199254740993",
            "\"9007199254740992\"",
            "\"number 9007199254740992\"",
            "1e300",
            "0.1",
            "\"0.1\"",
        ];
        let forms: std::collections::HashSet<_> = apart.iter().map(|json| format!("{:?}", read(json))).collect();
        assert_eq!(forms.len(), apart.len(), "{forms:?}");
        assert_eq!(read(r#"{"b":[1.0],"a":"\u0062"}"#), read(r#"{"a":"b","b":[1]}"#));
        let refused = |json: &str| Canonical::parse_for_digest("arguments", json.as_bytes()).unwrap_err();
        assert!(matches!(refused(r#"{"a":1,"a":1}"#), ContentsError::DuplicateKey { .. }));
        assert!(matches!(refused("1e400"), ContentsError::NumberOutOfRange { .. }));
    }

    #[test]
    fn duplicate_keys_are_refused_by_path_however_they_are_written() {
        let path = |path: &str| ContentsError::DuplicateKey { path: path.to_owned() };
        assert_eq!(refusal(r#"{"a":1,"a":1}"#), path("contents.a"));
        assert_eq!(refusal(r#"[{"x y":{"\u0061":1,"b":[2],"a":3}}]"#), path(r#"contents[0]["x y"].a"#));
        assert_eq!(canonical(r#"[{"a":1},{"a":1}]"#), r#"[{"a":1},{"a":1}]"#);
    }

    #[test]
    fn nesting_has_a_floor() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(canonical(&nested(DEPTH_MAX)), nested(DEPTH_MAX));
        assert!(matches!(refusal(&nested(DEPTH_MAX + 1)), ContentsError::TooDeep { max: DEPTH_MAX, .. }));
        assert!(matches!(refusal(&"[".repeat(100_000)), ContentsError::TooDeep { .. }));
    }

    #[test]
    fn an_identity_says_something() {
        let read = |json: &str| Canonical::parse_identity("contents", json.as_bytes());
        for json in ["null", r#""""#, "{}", "[]", r#"{"order":null}"#, r#"{"a":[{"b":""},[],null]}"#, r#"[null,""]"#] {
            assert_eq!(read(json), Err(ContentsError::SaysNothing { path: "contents".to_owned() }), "{json}");
        }
        for json in ["0", "false", r#"" ""#, r#"{"a":null,"b":[0]}"#] {
            assert_eq!(read(json), Canonical::parse("contents", json.as_bytes()), "{json}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_where_it_ends() {
        for (json, place) in [
            ("", "contents"),
            ("{} {}", "contents"),
            ("nul", "contents"),
            ("[1,]", "contents"),
            ("\"\\ud800\"", "contents"),
        ] {
            let ContentsError::NotJson { path, .. } = refusal(json) else { panic!("{json} was refused otherwise") };
            assert!(path.starts_with(place), "{path}");
        }
    }

    #[test]
    fn a_result_has_the_bounds_of_contents_except_those_of_the_id() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for json in ["18446744073709551615", "1e300", r#"{"a":1,"a":2}"#, "null", &nested(DEPTH_MAX)] {
            assert_eq!(check_result("result", json.as_bytes()), Ok(()), "{json}");
        }
        let refused = |json: &str| check_result("result", json.as_bytes()).unwrap_err();
        let path = "result.a[1]".to_owned();
        assert_eq!(refused(r#"{"a":[1,1e999]}"#), ContentsError::NumberOutOfRange { path });
        assert!(matches!(refused(&nested(DEPTH_MAX + 1)), ContentsError::TooDeep { .. }));
        assert!(matches!(refused(&"[".repeat(30_000)), ContentsError::TooDeep { .. }));
        for json in [r#""\ud800""#, r#"{"\udfff":1}"#, r#"["\ud800\u0041"]"#] {
            assert!(matches!(refused(json), ContentsError::NotJson { .. }), "{json}");
        }
    }
}
