//! Element types, operations, scalings and widths: the words in which a format is chosen.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Element types that can be all-reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_type)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats of IEEE 754: 5 bits of exponent.
    F16,
    /// 16-bit floats with the 8 bits of exponent of 32-bit ones.
    Bf16,
    /// 64-bit floats.
    F64,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
}

impl ElementType {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::F64, Self::I32, Self::I64];

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Not an integer.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::I32 | Self::I64)
    }

    /// The name in options, messages and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn no_type(name: &str) -> UnknownName {
    UnknownName::new("element type", name, "f32, f16, bf16, f64, i32 or i64")
}

/// How the processes' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_op)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// The sum.
    Sum,
    /// The sum divided by the number of processes, after summing. Integers are divided towards
    /// zero.
    Average,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Average, Self::Min, Self::Max];

    /// The name in messages, options and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Sum or average: values are added, not compared.
    #[must_use]
    pub const fn adds(self) -> bool {
        matches!(self, Self::Sum | Self::Average)
    }
}

fn no_op(name: &str) -> UnknownName {
    UnknownName::new("operation", name, "sum, average, min or max")
}

/// How floats become integers, and back, where they are added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scaling {
    /// One factor for all blocks (PASSING, section 3.2). What does not fit is clamped and counted.
    Fixed(f64),
    /// A power of two for each block, from the largest magnitude at any worker, agreed ahead of
    /// the data. Nothing can be clamped.
    Block,
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(scale) => write!(f, "fixed:{scale:e}"),
            Self::Block => f.write_str("block"),
        }
    }
}

impl FromStr for Scaling {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let scale = name.strip_prefix("fixed:").and_then(|scale| scale.parse().ok());
        match (name, scale) {
            ("block", _) => Ok(Self::Block),
            (_, Some(scale)) => Ok(Self::Fixed(scale)),
            _ => {
                let choose = "block, or fixed with a factor, such as fixed:1e7";
                Err(UnknownName::new("scaling", name, choose))
            }
        }
    }
}

impl TryFrom<String> for Scaling {
    type Error = UnknownName;

    fn try_from(name: String) -> Result<Self, UnknownName> {
        name.parse()
    }
}

impl From<Scaling> for String {
    fn from(scaling: Scaling) -> Self {
        scaling.to_string()
    }
}

/// Bits of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneWidth {
    /// 16 bits: half the bytes of 32.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl LaneWidth {
    /// 16, 32 or 64.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::W16 => 16,
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }

    /// 2, 4 or 8.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }
}

impl fmt::Display for LaneWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits())
    }
}

impl FromStr for LaneWidth {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "16" => Ok(Self::W16),
            "32" => Ok(Self::W32),
            "64" => Ok(Self::W64),
            _ => Err(UnknownName::new("lane width", name, "16, 32 or 64 bits")),
        }
    }
}

/// A word that is not one of those that were expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no {what}: choose {choose}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    choose: &'static str,
}

impl UnknownName {
    /// The error for this name of a thing; `choose`: those that there are.
    #[must_use]
    pub fn new(what: &'static str, name: &str, choose: &'static str) -> Self {
        Self { what, name: name.into(), choose }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_are_read_as_they_are_written() {
        for element in ElementType::ALL {
            assert_eq!(element.to_string().parse(), Ok(element));
        }
        let wrong = "f8".parse::<ElementType>().unwrap_err().to_string();
        assert!(wrong.contains("choose f32, f16"), "{wrong}");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for op in Op::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        for scaling in [Scaling::Block, Scaling::Fixed(1e7), Scaling::Fixed(0.1)] {
            assert_eq!(scaling.to_string().parse(), Ok(scaling));
        }
        assert_eq!(Scaling::Fixed(1e7).to_string(), "fixed:1e7");
        for width in [LaneWidth::W16, LaneWidth::W32, LaneWidth::W64] {
            assert_eq!(width.to_string().parse(), Ok(width));
        }
        for wrong in ["fixed", "fixed:", "fixed:x", "blocks", ""] {
            assert!(wrong.parse::<Scaling>().unwrap_err().to_string().contains("fixed:1e7"));
        }
        assert!("mean".parse::<Op>().unwrap_err().to_string().contains("sum, average, min or max"));
    }
}
