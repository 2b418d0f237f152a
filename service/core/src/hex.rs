//! Bytes as lower-case hex digits.

use std::fmt;

const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// How many bytes are written at once.
const CHUNK: usize = 32;

/// Displayed with two digits for each byte. `{:02x}` takes many times as long, and the records of the gate are mostly hex.
pub(crate) struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.chunks(CHUNK) {
            let mut text = [0; 2 * CHUNK];
            for (digits, byte) in text.chunks_exact_mut(2).zip(chunk) {
                digits[0] = DIGITS[usize::from(byte >> 4)];
                digits[1] = DIGITS[usize::from(byte & 15)];
            }
            f.write_str(str::from_utf8(&text[..2 * chunk.len()]).unwrap_or_default())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(Hex(&[]).to_string(), "");
        assert_eq!(Hex(&[0, 1, 0x9a, 0xff]).to_string(), "00019aff");
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let digits: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(Hex(&all).to_string(), digits);
    }
}
