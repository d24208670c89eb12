//! Types of elements, reductions and precisions, by name.

use serde::Serialize;
use xdp_agg_quantize::UnknownName;

use super::PRECISION;
use crate::error::Error;

/// What the elements of lent memory are, in the order of bytes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_type)]
pub enum DataType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary64.
    F64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Signed, 16 bits.
    I16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// A byte, 0 or 1. A sum is `or`.
    Bool,
}

impl DataType {
    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Its sums are rounded.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }
}

/// How the ranks' elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_reduction)]
pub enum Reduction {
    /// Integers wrap.
    Sum,
    /// The sum, divided by the world size; integers towards zero.
    #[strum(to_string = "average", serialize = "mean", serialize = "avg")]
    Average,
    /// A NaN goes before all numbers, as in `minimum` of IEEE 754-2019.
    Min,
    /// As `maximum`.
    Max,
    /// Of bool alone.
    And,
    /// Of bool alone.
    Or,
}

/// How exact a sum of floats is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_precision)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Each element is the exact sum, rounded: at most one unit in the last place off, whatever
    /// stands beside it ([`xdp_agg_quantize::exact`]). Long vectors take about twice the bytes.
    Exact,
    /// As the communicator's scaling says: with block scaling, fixed point by the largest
    /// magnitude of each block of 352 elements (at MTU 1500). The fast way for gradients.
    Gradient,
}

impl Precision {
    /// From the value of `XDP_AGG_PRECISION`.
    ///
    /// # Errors
    /// [`Error::Config`]: no precision has this name.
    pub fn of_setting(value: &str) -> Result<Self, Error> {
        let wrong =
            |error: UnknownName| Error::Config { name: PRECISION, problem: error.to_string() };
        value.trim().parse().map_err(wrong)
    }
}

fn no_type(name: &str) -> UnknownName {
    let choose = "one of f32, f16, bf16, f64, i32, i64, i16, i8, u8, bool";
    UnknownName::new("type of elements", name, choose)
}

fn no_reduction(name: &str) -> UnknownName {
    let choose = "one of sum, average (or mean, avg), min, max, and, or";
    UnknownName::new("reduction", name, choose)
}

fn no_precision(name: &str) -> UnknownName {
    UnknownName::new("precision", name, "one of exact, gradient")
}
