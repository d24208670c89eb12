//! Sums of floats without any rounding before the end: each element as digits of a wide integer.
//!
//! A float is an integer times a power of two. Elements of a [`GROUP`] are written to one common
//! power, the lowest that any worker needs, and their integers are cut into digits that 32-bit
//! lanes add without overflow. The exact sum comes back and is rounded once, to the nearest float.
//! The error is at most half a unit in the last place (1 is promised), whatever stands beside the
//! element. A wide range of magnitudes takes more digits, up to the whole range of the type, but
//! costs no precision.
//!
//! Workers agree on a group's [`Span`] first: the largest of what each of them [`survey`]s.
//! Infinities and NaNs are counted in three further rows, so that they stay with their element.

mod parts;
#[cfg(test)]
mod tests;

use crate::element::Element;
use parts::{Parts, compose, decompose, scaled};

/// Elements that share a span: 1 KiB of f32.
pub const GROUP: usize = 256;
/// Numbers that describe a span to the other workers: the largest of each is that of the sum.
pub const KEYS: usize = 3;
/// Rows for elements that are not finite: how many NaNs, positive and negative infinities.
const SPECIALS: usize = 3;
/// Added to every position that exists, so that 0 means that there is no position.
const OFFSET: i32 = 1 << 16;

/// The binary digits that the elements of a group have: bit positions, as exponents of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// One past the highest.
    top: i32,
    /// The lowest. Not below `top` where there are no digits.
    low: i32,
    /// There is an infinity or a NaN.
    special: bool,
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { top, low, special } = self;
        write!(f, "{low}..{top}{}", if *special { "+" } else { "" })
    }
}

impl Span {
    /// Of zeros.
    pub const EMPTY: Self = Self { top: 0, low: 0, special: false };

    /// What every element of a type has room in: needs no agreement.
    #[must_use]
    pub fn whole<T: Element>() -> Self {
        let (top, low) = parts::range(T::TYPE);
        Self { top, low, special: true }
    }

    /// For the other workers.
    #[must_use]
    pub fn keys(self) -> [i32; KEYS] {
        let [top, low] =
            if self.is_empty() { [0; 2] } else { [self.top + OFFSET, OFFSET - self.low] };
        [top, low, self.special.into()]
    }

    /// From the largest keys of all workers.
    #[must_use]
    pub fn from_keys([top, low, special]: [i32; KEYS]) -> Self {
        let special = special > 0;
        if top <= 0 || low <= 0 {
            return Self { special, ..Self::EMPTY };
        }
        Self { top: top - OFFSET, low: OFFSET - low, special }
    }

    /// Without room for infinities and NaNs.
    #[must_use]
    pub const fn of_numbers(self) -> Self {
        Self { special: false, ..self }
    }

    /// The span of both.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.special |= other.special;
        if !other.is_empty() {
            self.join(other.top, other.low);
        }
        self
    }

    /// All that is in the other has room in this.
    #[must_use]
    pub const fn holds(self, other: Self) -> bool {
        let fits = other.is_empty() || other.top <= self.top && other.low >= self.low;
        fits && (self.special || !other.special)
    }

    const fn is_empty(self) -> bool {
        self.top <= self.low
    }

    fn join(&mut self, top: i32, low: i32) {
        if self.is_empty() {
            (self.top, self.low) = (top, low);
        } else {
            (self.top, self.low) = (self.top.max(top), self.low.min(low));
        }
    }
}

/// The span of some elements: of a group, or of a part of it.
#[must_use]
pub fn survey<T: Element>(elements: &[T]) -> Span {
    let mut span = Span::EMPTY;
    for element in elements {
        match decompose(*element) {
            Parts::Finite { magnitude: 0, .. } => {}
            Parts::Finite { magnitude, exponent, .. } => {
                let top = exponent + (u64::BITS - magnitude.leading_zeros()) as i32;
                span.join(top, exponent + magnitude.trailing_zeros() as i32);
            }
            Parts::Nan | Parts::Infinite { .. } => span.special = true,
        }
    }
    span
}

/// How integers are cut into digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    /// Bits of a digit.
    width: u32,
}

impl Digits {
    /// Digits that may be as large as `largest`: what each worker may contribute to a sum of 32-bit
    /// integers ([`Format::integer_range`](crate::Format::integer_range)).
    ///
    /// # Panics
    /// There is room for less than a bit.
    #[must_use]
    pub fn new(largest: i64) -> Self {
        let largest = largest.min(i64::from(i32::MAX));
        assert!(largest > 0, "a digit has one bit at least");
        Self { width: (largest + 1).ilog2() }
    }

    /// Rows that a group of this span has: as many integers for each of its elements.
    #[must_use]
    pub fn rows(self, span: Span) -> usize {
        self.digits(span) + if span.special { SPECIALS } else { 0 }
    }

    /// As wide as its rows are: a third of the further bits are above.
    #[must_use]
    pub fn filled(self, span: Span) -> Span {
        if span.is_empty() {
            return span;
        }
        let spare = (self.digits(span) as u32 * self.width) as i32 - (span.top - span.low);
        let above = spare / 3;
        Span { top: span.top + above, low: span.low - (spare - above), ..span }
    }

    fn digits(self, span: Span) -> usize {
        let bits = u32::try_from(span.top - span.low).unwrap_or(0);
        bits.div_ceil(self.width) as usize
    }

    /// Writes the elements of a group as rows: all elements' lowest digits, then the next ones.
    ///
    /// # Panics
    /// `rows` has not [`Self::rows`] integers for each element.
    pub fn encode<T: Element>(self, span: Span, elements: &[T], rows: &mut [i32]) {
        let len = elements.len();
        assert_eq!(rows.len(), self.rows(span) * len, "rows of a group");
        let digits = self.digits(span);
        if digits > 2 || span.special {
            rows.fill(0);
        }
        for (at, element) in elements.iter().enumerate() {
            match decompose(*element) {
                Parts::Finite { negative, magnitude, exponent } => {
                    let number = Number { negative, magnitude, shift: exponent - span.low };
                    self.write(number, digits, rows, (at, len));
                }
                Parts::Nan => rows[digits * len + at] = 1,
                Parts::Infinite { negative } => {
                    rows[(digits + 1 + usize::from(negative)) * len + at] = 1;
                }
            }
        }
    }

    fn write(self, number: Number, digits: usize, rows: &mut [i32], (at, len): (usize, usize)) {
        let Number { negative, magnitude, shift } = number;
        let sign = if negative { -1 } else { 1 };
        // Below the lowest bit that is agreed on there are zeros alone.
        let magnitude =
            if shift < 0 { magnitude.unbounded_shr(shift.unsigned_abs()) } else { magnitude };
        let shift = shift.max(0) as u32;
        let mask = (1_u64 << self.width) - 1;
        match digits {
            0 => {}
            1 => rows[at] = sign * (magnitude << shift) as i32,
            2 => {
                let wide = magnitude << shift;
                rows[at] = sign * (wide & mask) as i32;
                rows[len + at] = sign * (wide >> self.width) as i32;
            }
            _ => {
                let mut row = (shift / self.width) as usize;
                let mut wide = u128::from(magnitude) << (shift % self.width);
                while wide > 0 {
                    rows[row * len + at] = sign * (wide as u64 & mask) as i32;
                    wide >>= self.width;
                    row += 1;
                }
            }
        }
    }

    /// Makes elements of the rows' sums, each divided by `divisor` and rounded.
    ///
    /// # Panics
    /// As [`Self::encode`].
    pub fn decode<T: Element>(self, span: Span, rows: &[i32], divisor: u32, elements: &mut [T]) {
        let len = elements.len();
        assert_eq!(rows.len(), self.rows(span) * len, "rows of a group");
        let digits = self.digits(span);
        let (digits_of, specials) = rows.split_at(digits * len);
        match digits {
            0 => elements.fill(compose(0.0)),
            1 | 2 => self.decode_narrow(span.low, digits_of, divisor, elements),
            _ => self.decode_wide(span.low, digits_of, divisor, elements),
        }
        if span.special {
            mark_specials(specials, elements);
        }
    }

    /// Sums that fit into 64 bits.
    fn decode_narrow<T: Element>(self, low: i32, rows: &[i32], by: u32, elements: &mut [T]) {
        let (first, second) = rows.split_at(elements.len());
        for (at, (element, digit)) in elements.iter_mut().zip(first).enumerate() {
            let above = second.get(at).map_or(0, |digit| i64::from(*digit));
            let sum = (above << self.width) + i64::from(*digit);
            *element = compose(scaled(sum as f64, low, by));
        }
    }

    fn decode_wide<T: Element>(self, low: i32, rows: &[i32], by: u32, elements: &mut [T]) {
        let len = elements.len();
        let mut wide = Vec::with_capacity(rows.len() / len.max(1) + 2);
        for (at, element) in elements.iter_mut().enumerate() {
            let digits = (0..rows.len() / len).map(|row| rows[row * len + at]);
            let (value, power) = self.collect(digits, &mut wide);
            *element = compose(scaled(value, low + power, by));
        }
    }

    /// The number that digits make, as a float that is rounded once, and the power of two that
    /// belongs to it.
    fn collect(self, digits: impl Iterator<Item = i32>, wide: &mut Vec<u32>) -> (f64, i32) {
        let negative = self.carry(digits, wide);
        let Some(highest) = wide.iter().rposition(|digit| *digit != 0) else { return (0.0, 0) };
        // As many digits as surely fit; what is below only tells on which side of a tie it is.
        let fit = (u128::BITS / self.width) as usize - 1;
        let lowest = (highest + 1).saturating_sub(fit);
        let top = wide[lowest..=highest].iter().rev();
        let top = top.fold(0_u128, |sum, digit| sum << self.width | u128::from(*digit));
        let sticky = wide[..lowest].iter().any(|digit| *digit != 0);
        let value = (top | u128::from(sticky)) as f64;
        (if negative { -value } else { value }, (lowest as u32 * self.width) as i32)
    }

    /// Makes digits that are neither below 0 nor too large; true where the number was negative.
    fn carry(self, digits: impl Iterator<Item = i32>, wide: &mut Vec<u32>) -> bool {
        let mask = (1_i64 << self.width) - 1;
        wide.clear();
        let mut carry = 0_i64;
        for digit in digits {
            let sum = i64::from(digit) + carry;
            wide.push((sum & mask) as u32);
            carry = sum >> self.width;
        }
        let negative = carry < 0;
        // What is above the last digit takes two more at the most, and its sign the rest.
        for _ in 0..32_u32.div_ceil(self.width) {
            wide.push((carry & mask) as u32);
            carry >>= self.width;
        }
        if negative {
            let mut add = 1;
            for digit in wide.iter_mut() {
                let sum = (u64::from(*digit) ^ mask as u64) + add;
                *digit = (sum & mask as u64) as u32;
                add = sum >> self.width;
            }
        }
        negative
    }
}

/// A finite element that is to be written.
#[derive(Clone, Copy)]
struct Number {
    negative: bool,
    magnitude: u64,
    /// Where its lowest bit is above the span's.
    shift: i32,
}

/// Sums of NaNs and infinities, as IEEE 754 adds: opposite infinities are a NaN.
fn mark_specials<T: Element>(rows: &[i32], elements: &mut [T]) {
    let len = elements.len();
    for (at, element) in elements.iter_mut().enumerate() {
        let [nan, plus, minus] = [0, 1, 2].map(|row| rows[row * len + at] > 0);
        match (nan || plus && minus, plus, minus) {
            (true, _, _) => *element = compose(f64::NAN),
            (_, true, _) => *element = compose(f64::INFINITY),
            (_, _, true) => *element = compose(f64::NEG_INFINITY),
            _ => {}
        }
    }
}
