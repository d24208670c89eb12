//! Bytes as a supply of values: what a binary target reads its script from.

/// Reads values off the front of bytes; behind their end everything is 0.
#[derive(Clone, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// From these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes are read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next byte, below `end`.
    pub fn below(&mut self, end: u8) -> u8 {
        self.byte() % end.max(1)
    }

    /// The next `len` bytes, or all that there are.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of mostly few bits: the next byte says how many bytes of it follow.
    pub fn number(&mut self) -> u64 {
        let first = self.byte();
        let len = match first {
            0..=223 => return first.into(),
            224..=239 => 2,
            240..=247 => 4,
            _ => 8,
        };
        self.take(len).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
