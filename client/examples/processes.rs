//! Several processes a host: they sum over shared memory first, and one copy of the vector leaves
//! the host.
//!
//! torchrun's and mpirun's variables say which processes share a host, so the library needs to be
//! told nothing. Here they are given by hand, as a launcher of one's own would:
//!
//! ```text
//! xdp-agg serve --engine userspace &
//! for rank in 0 1 2 3; do processes 127.0.0.1:9870 $rank 4 4 & done    # one host of four
//! ```
//!
//! On two hosts of two, ranks 0 and 1 run on the one and 2 and 3 on the other, all with `4 2`.

use std::env::args;
use std::error::Error;

use xdp_agg_client::{Communicator, Op};

const USAGE: &str = "usage: processes DAEMON:PORT RANK WORLD_SIZE LOCAL_WORLD_SIZE";

fn main() -> Result<(), Box<dyn Error>> {
    let [daemon, rank, world_size, local_size] =
        args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| USAGE)?;
    let (rank, local_size): (u16, u16) = (rank.parse()?, local_size.parse()?);
    let local_rank = rank.checked_rem(local_size).ok_or(USAGE)?;
    let communicator = Communicator::builder()
        .aggregator(daemon.parse()?)
        .rank(rank)
        .world_size(world_size.parse()?)
        .local(local_rank, local_size)
        .connect()?;
    let mut gradients = vec![1.0_f32; 100_000];
    communicator.all_reduce(&mut gradients, Op::Sum)?;
    println!("rank {rank}: {} processes, {local_size} a host, summed", gradients[0]);
    Ok(())
}
