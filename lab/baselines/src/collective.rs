//! What every implementation of all-reduce offers, so that programs and benchmarks can swap them.

use xdp_agg_client::{Communicator, Op};
use xdp_agg_mesh::Mesh;

/// An all-reduce among the workers of one job. Blocking, in place; every worker makes the same
/// calls in the same order with the same lengths.
pub trait Collective: Send {
    /// This worker's number, below [`Collective::world_size`].
    fn rank(&self) -> u16;

    /// Number of workers.
    fn world_size(&self) -> u16;

    /// `xdp-agg`, `tcp-ring`, …: the name in tables.
    fn system(&self) -> &'static str;

    /// What goes through the aggregator, if anything does.
    fn communicator(&self) -> Option<&Communicator> {
        None
    }

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

impl Collective for Communicator {
    fn rank(&self) -> u16 {
        Self::rank(self)
    }

    fn world_size(&self) -> u16 {
        Self::world_size(self)
    }

    fn system(&self) -> &'static str {
        "xdp-agg"
    }

    fn communicator(&self) -> Option<&Communicator> {
        Some(self)
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        Self::all_reduce(self, data, op)?;
        Ok(())
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        Self::all_reduce(self, data, op)?;
        Ok(())
    }
}

impl Collective for Mesh {
    fn rank(&self) -> u16 {
        Self::rank(self)
    }

    fn world_size(&self) -> u16 {
        Self::world_size(self)
    }

    fn system(&self) -> &'static str {
        "tcp-ring"
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        Ok(Self::all_reduce(self, data, op)?)
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        Ok(Self::all_reduce(self, data, op)?)
    }
}
