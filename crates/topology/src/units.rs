//! Rates as people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bits a second, more than 0. Written with the largest unit that divides it: `10gbit`,
/// `2500mbit`, `64kbit`, `9600bit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

/// Units of a rate, largest first.
const UNITS: [(&str, u64); 4] =
    [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];
/// Most bits a second: 100 Tbit/s, beyond any link, so that sums over 4096 of them fit.
const MOST: u64 = 100_000_000_000_000;

/// What a rate looks like.
pub(crate) const EXPECTED: &str = "a number and a unit in lower case (bit, kbit, mbit or gbit, a \
                                   second), more than 0 and at most 100000gbit, such as \
                                   \"2.5gbit\"";

/// A text that is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no rate; expected {EXPECTED}")]
pub struct BadRate(pub String);

impl Rate {
    /// A rate of this many bits a second; None for 0 and for more than 100 Tbit/s.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 || bits > MOST { None } else { Some(Self(bits)) }
    }

    /// The nearest rate to this many bits a second, within the bounds of a rate.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the range of a rate before"
    )]
    pub const fn nearest(bits: f64) -> Self {
        Self(bits.round().clamp(1.0, MOST as f64) as u64)
    }

    /// This many gigabits a second, from 1 to 100 000; beyond, the nearest.
    #[must_use]
    pub const fn gbit(n: u32) -> Self {
        Self::nearest(n as f64 * 1e9)
    }

    /// Bits a second.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes(self) -> f64 {
        self.0 as f64 / 8.0
    }
}

impl FromStr for Rate {
    type Err = BadRate;

    fn from_str(text: &str) -> Result<Self, BadRate> {
        let bad = || BadRate(text.into());
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .ok_or_else(bad)?;
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(bad());
        }
        let number: f64 = number.parse().map_err(|_| bad())?;
        let bits = number * unit as f64;
        if !(1.0..=MOST as f64).contains(&bits) {
            return Err(bad());
        }
        Ok(Self::nearest(bits))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) =
            UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)).unwrap_or(&UNITS[3]);
        f.pad(&format!("{}{name}", self.0 / unit))
    }
}

impl TryFrom<String> for Rate {
    type Error = BadRate;

    fn try_from(text: String) -> Result<Self, BadRate> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_alike() {
        for text in ["10gbit", "2500mbit", "64kbit", "9600bit", "100000gbit"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
        assert_eq!("2.5gbit".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("0.5kbit".parse(), Ok(Rate(500)));
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        let wrong = [
            "",
            "10",
            "gbit",
            "10Gbit",
            "1e30gbit",
            "0gbit",
            "-1gbit",
            "+1gbit",
            "infgbit",
            "nangbit",
            "100001gbit",
        ];
        for text in wrong {
            assert_eq!(text.parse::<Rate>(), Err(BadRate(text.into())), "{text}");
            let said = BadRate(text.into()).to_string();
            assert!(said.contains("lower case (bit, kbit, mbit or gbit"), "{said}");
            assert!(said.contains("at most 100000gbit"), "{said}");
        }
    }
}
