//! Types of elements, reductions and precisions, by name.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A name that stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no {what}: choose one of {choose}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    choose: &'static str,
}

/// Names of an enumeration, for `Display`, `FromStr` and `Serialize`.
macro_rules! named {
    (
        $type:ident, $what:literal, $choose:literal,
        $($variant:ident: $name:literal $(| $other:literal)*;)*
    ) => {
        impl $type {
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                match name {
                    $($name $(| $other)* => Ok(Self::$variant),)*
                    _ => Err(UnknownName { what: $what, name: name.into(), choose: $choose }),
                }
            }
        }
    };
}

/// What the elements of lent memory are, in the order of bytes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

named! {
    DataType, "type of elements", "f32, f16, bf16, f64, i32, i64, i16, i8, u8, bool",
    F32: "f32"; F16: "f16"; Bf16: "bf16"; F64: "f64"; I32: "i32"; I64: "i64"; I16: "i16";
    I8: "i8"; U8: "u8"; Bool: "bool";
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
pub enum Reduction {
    /// Integers wrap.
    Sum,
    /// The sum, divided by the world size; integers towards zero.
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

named! {
    Reduction, "reduction", "sum, average (or mean, avg), min, max, and, or",
    Sum: "sum"; Average: "average" | "mean" | "avg"; Min: "min"; Max: "max"; And: "and"; Or: "or";
}

/// How exact a sum of floats is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Each element is the exact sum, rounded: at most one unit in the last place off, whatever
    /// stands beside it ([`xdp_agg_numbers::exact`]). Long vectors take about twice the bytes.
    Exact,
    /// As the communicator's scaling says: with block scaling, fixed point by the largest
    /// magnitude of each block of 352 elements (at MTU 1500). The fast way for gradients.
    Gradient,
}

named! { Precision, "precision", "exact, gradient", Exact: "exact"; Gradient: "gradient"; }
