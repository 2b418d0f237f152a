//! Numbers as JSON texts write them, compared as decimals.

/// The numbers of a JSON text, in their order.
pub(super) fn of(json: &[u8]) -> Vec<&str> {
    let mut numbers = Vec::new();
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => at = end_of_string(json, at + 1),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = json[at..].iter().take_while(|byte| is_part(byte)).count();
                numbers.push(std::str::from_utf8(&json[at..at + length]).unwrap_or_default());
                at += length;
            }
            _ => at += 1,
        }
    }
    numbers
}

/// Behind the closing quote of a string whose opening quote is before `at`.
fn end_of_string(json: &[u8], mut at: usize) -> usize {
    while at < json.len() && json[at] != b'"' {
        at += if json[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Whether two texts are one number, digit by digit. Zero has no sign.
pub(super) fn are_equal(one: &str, other: &str) -> bool {
    decimal(one).is_some_and(|one| Some(one) == decimal(other))
}

/// The sign, the digits without zeros at either end, and the power of ten of the last one.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_negative = whole.starts_with('-');
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - significant.len()).ok()?;
    let significant = significant.trim_start_matches('0').to_owned();
    if significant.is_empty() {
        return Some((false, significant, 0));
    }
    let exponent: i64 = exponent.parse().ok()?;
    let last = exponent.checked_add(zeros)?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    Some((is_negative, significant, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_strings_are_no_numbers() {
        assert_eq!(of(br#"{"a1":-1.5e+3,"b\"2":["3",4],"\\":5} "#), ["-1.5e+3", "4", "5"]);
        assert_eq!(of(br#"["open"#), [""; 0]);
    }

    #[test]
    fn one_number_written_in_several_ways_is_equal_and_another_one_is_not() {
        for (one, other) in [("1", "1.0"), ("100", "1e2"), ("-0.50", "-5E-1"), ("0", "-0.0e7"), ("12e-1", "1.2")] {
            assert!(are_equal(one, other), "{one} {other}");
        }
        for (one, other) in
            [("1", "-1"), ("1", "10"), ("0.1", "0.10000001"), ("1e-400", "0"), ("1e99999999999999999999", "1")]
        {
            assert!(!are_equal(one, other), "{one} {other}");
        }
    }
}
