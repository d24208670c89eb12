//! What every implementation of all-reduce offers, so that programs and benchmarks can swap them.

use xdp_agg_client::{Communicator, Op};
use xdp_agg_mesh::Mesh;

/// Rank, number of workers, and name.
pub type About = (u16, u16, &'static str);

/// An all-reduce among the workers of one job. Blocking, in place; every worker makes the same
/// calls in the same order with the same lengths.
pub trait Collective: Send {
    /// What [`Self::rank`], [`Self::world_size`] and [`Self::system`] say.
    fn about(&self) -> About;

    /// This worker's number, below [`Collective::world_size`].
    fn rank(&self) -> u16 {
        self.about().0
    }

    /// Number of workers.
    fn world_size(&self) -> u16 {
        self.about().1
    }

    /// `xdp-agg`, `tcp-ring`, …: the name in tables.
    fn system(&self) -> &'static str {
        self.about().2
    }

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
    fn about(&self) -> About {
        (Self::rank(self), Self::world_size(self), "xdp-agg")
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
    fn about(&self) -> About {
        (Self::rank(self), Self::world_size(self), "tcp-ring")
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        Ok(Self::all_reduce(self, data, op)?)
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        Ok(Self::all_reduce(self, data, op)?)
    }
}
