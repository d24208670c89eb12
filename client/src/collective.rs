//! What every implementation of all-reduce offers, so that programs and benchmarks can swap them.

use serde::{Deserialize, Serialize};

/// How the workers' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// The sum.
    Sum,
    /// The sum divided by the world size, after summing. Integers are divided towards zero.
    Average,
}

impl Op {
    /// The name in messages and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Average => "average",
        }
    }
}

/// Element types that can be all-reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// 32-bit integers.
    I32,
}

/// An all-reduce among the workers of one job. Blocking, in place; every worker makes the same
/// calls in the same order with the same lengths.
pub trait Collective: Send {
    /// This worker's number, below [`Collective::world_size`].
    fn rank(&self) -> u16;

    /// Number of workers.
    fn world_size(&self) -> u16;

    /// `xdp-agg`, `tcp-ring`, …: the name in tables.
    fn system(&self) -> &'static str;

    /// All-reduces floats in place.
    ///
    /// # Errors
    /// The implementation's; after one the buffer's contents are unspecified.
    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError>;

    /// All-reduces integers in place.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_f32`].
    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError>;
}

/// An error of any implementation.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
