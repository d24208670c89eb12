//! Parameter servers alone.

use std::net::SocketAddr;

use xdp_agg_ps::PsClient;

use xdp_agg_client::{Builder, Op};

use crate::collective::{About, BoxError, Collective};
use crate::error::Error;

/// Elements of a block, 4 KiB of `f32`. A server has a block's sum when all workers' have come, and
/// they come beside those of all buckets: with long blocks its link stands still at first.
pub(crate) const BLOCK: usize = 1024;

/// Bytes that all workers together may have pushed to a server in a call, and whose sums have not
/// come.
const AHEAD: usize = 128 << 10;

/// A worker's part of [`AHEAD`]. A sum leaves when the slowest worker has pushed. Connections whose
/// windows grow freely share a link unevenly, and bursts of one keep the others' blocks waiting:
/// the server's link out stands still meanwhile. With equal short windows all workers come abreast.
pub(crate) fn window(world: u16) -> usize {
    (AHEAD / usize::from(world.max(1))).max(2 * BLOCK * size_of::<f32>())
}

/// Every process pushes its whole vector to `p` parameter servers, and takes the sums in:
/// `T_PS` of PASSING's section 4.1.
#[derive(Debug)]
pub struct Ps {
    client: PsClient,
}

impl Ps {
    /// Joins the job of these settings at these servers.
    ///
    /// # Errors
    /// Settings that are missing, servers that do not answer, workers that do not come.
    pub fn connect(settings: &Builder, servers: &[SocketAddr]) -> Result<Self, Error> {
        let place = settings.each_for_itself()?;
        let (deadline, join_deadline) = settings.get_deadlines();
        let options = xdp_agg_ps::Options {
            deadline: deadline.max(join_deadline),
            block: BLOCK,
            window: window(place.world_size),
            ..xdp_agg_ps::Options::new(settings.get_job(), place.rank, place.world_size)
        };
        let mut client = PsClient::connect_with(servers, options)?;
        client.set_deadline(deadline);
        Ok(Self { client })
    }
}

/// What the servers do of an operation.
pub(crate) fn operation(op: Op) -> Result<xdp_agg_ps::Op, BoxError> {
    match op {
        Op::Sum => Ok(xdp_agg_ps::Op::Sum),
        Op::Average => Ok(xdp_agg_ps::Op::Average),
        Op::Min | Op::Max => Err(format!("parameter servers sum; {op} is not theirs").into()),
    }
}

impl Collective for Ps {
    fn about(&self) -> About {
        (self.client.rank(), self.client.world(), "ps")
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        Ok(self.client.all_reduce(data, operation(op)?)?)
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        Ok(self.client.all_reduce(data, operation(op)?)?)
    }
}
