//! Choices made from the bytes of an input. Bytes that are used up are zeros.

pub struct Bytes<'i>(pub &'i [u8]);

impl<'i> Bytes<'i> {
    /// A text for the parser, and the bytes behind the first zero for what is done with it.
    pub fn split(input: &'i [u8]) -> (&'i [u8], Self) {
        let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
        (&input[..end], Self(input.get(end + 1..).unwrap_or_default()))
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number of any magnitude: small ones, and those near the ends.
    pub fn number(&mut self) -> u64 {
        let byte = u64::from(self.byte());
        match self.byte() % 4 {
            0 => byte,
            1 => byte << (byte % 56),
            2 => u64::MAX - byte,
            _ => 1_700_000_000_000 + byte * 100,
        }
    }

    pub fn chance(&mut self) -> bool {
        self.byte().is_multiple_of(2)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
