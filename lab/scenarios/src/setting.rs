//! The setting of a benchmark as a person types it: rate, loss, sizes.

use std::fmt;
use std::str::FromStr;

use xdp_agg_topology::{self as topology, size};

/// The rate of every link, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Bits a second. None: not limited.
    pub(crate) bits: Option<u64>,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self { bits: None });
        }
        let rate: topology::Rate = text.to_ascii_lowercase().parse().map_err(|_| {
            format!("{text:?} is no rate; expected none, or bits a second such as 500mbit or 1gbit")
        })?;
        if !(1_000_000..=1_000_000_000_000).contains(&rate.bits()) {
            return Err(format!("{text:?} is out of range: 1mbit to 1000gbit"));
        }
        Ok(Self { bits: Some(rate.bits()) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits.and_then(topology::Rate::from_bits) {
            None => f.write_str("none"),
            Some(rate) => rate.fmt(f),
        }
    }
}

/// A share of the packets, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Lost packets of a million.
    pub(crate) ppm: u32,
}

impl Loss {
    /// In percent.
    pub(crate) fn percent(self) -> f64 {
        f64::from(self.ppm) / 1e4
    }
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent: f64 =
            text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| {
                format!("{text:?} is no share; expected percent, such as 1 or 0.1%")
            })?;
        if !(0.0..=50.0).contains(&percent) {
            return Err(format!("{text:?} is out of range: 0 to 50 percent"));
        }
        Ok(Self { ppm: (percent * 1e4).round() as u32 })
    }
}

/// Bytes of a vector of 32-bit elements, as [`size::bytes`] reads them.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = size::bytes(text).map_err(|error| error.to_string())?;
    if !bytes.is_multiple_of(4) {
        return Err(format!("{text:?}: elements have four bytes, so a size is a multiple of 4"));
    }
    Ok(bytes)
}

/// A size as [`parse_bytes`] reads it, as short as it can be said exactly.
pub(crate) fn short_bytes(bytes: u64) -> String {
    for (unit, factor) in [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_survive_their_text() {
        for text in ["none", "500mbit", "1gbit", "1500kbit", "10gbit"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
        assert_eq!("2.5Gbit".parse::<Rate>().expect("it is one").bits, Some(2_500_000_000));
        for text in ["", "500", "500mbps", "1kbit", "-1gbit", "9999gbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn loss_is_in_percent() {
        assert_eq!("1".parse(), Ok(Loss { ppm: 10_000 }));
        assert_eq!("0.1%".parse(), Ok(Loss { ppm: 1000 }));
        assert!("51".parse::<Loss>().is_err());
        assert!("-1".parse::<Loss>().is_err());
    }

    #[test]
    fn sizes_are_1024_based_and_of_whole_elements() {
        assert_eq!(parse_bytes("97M"), Ok(101_711_872));
        assert_eq!(short_bytes(101_711_872), "97M");
        assert_eq!(short_bytes(4100), "4100");
        assert!(parse_bytes("4097").is_err());
    }
}
