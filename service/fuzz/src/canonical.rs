//! RFC 8785, written from its text and sharing no code with the product: to compare with.

use serde_json::Value;

pub fn canonical(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => of_number(number.as_f64().expect("a double")),
        Value::String(text) => of_text(text),
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            // Section 3.2.3: by the UTF-16 code units of the names.
            fields.sort_by_key(|(name, _)| name.encode_utf16().collect::<Vec<_>>());
            let fields = fields.into_iter().map(|(name, value)| format!("{}:{}", of_text(name), canonical(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
    }
}

/// Section 3.2.2.2.
fn of_text(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\t' => "\\t".to_owned(),
        '\n' => "\\n".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\r' => "\\r".to_owned(),
        c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Section 3.2.2.3, which is ECMAScript's `Number::toString`: `n` is the position of the decimal point behind the first digit.
fn of_number(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    // As many digits as the shortest that are read as this number; of those the nearest, and of two equally near the even one.
    let shortest = format!("{:e}", number.abs());
    let count = shortest.split('e').next().expect("digits").replace('.', "").len();
    let scientific = format!("{:.*e}", count - 1, number.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let digits = mantissa.replace('.', "");
    let (k, n) = (i32::try_from(digits.len()).expect("few digits"), exponent.parse::<i32>().expect("a number") + 1);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).expect("not negative"));
    let at = |position: i32| digits.split_at(usize::try_from(position).expect("not negative"));
    let text = if k <= n && n <= 21 {
        digits.clone() + &zeros(n - k)
    } else if 0 < n && n <= 21 {
        let (whole, part) = at(n);
        format!("{whole}.{part}")
    } else if -6 < n && n <= 0 {
        format!("0.{}{digits}", zeros(-n))
    } else {
        let (first, rest) = at(1);
        let point = if rest.is_empty() { "" } else { "." };
        format!("{first}{point}{rest}e{}{}", if n > 0 { "+" } else { "-" }, (n - 1).abs())
    };
    if number < 0.0 { format!("-{text}") } else { text }
}
