//! Several processes a host: they sum over shared memory first, and one copy of the vector leaves
//! the host.
//!
//! torchrun's and mpirun's variables say which processes share a host, so the library needs to be
//! told nothing. Here the ranks of each host are given by hand, as a launcher of one's own would:
//!
//! ```text
//! xdp-agg serve --engine userspace &
//! for rank in 0 1 2 3; do processes 127.0.0.1:9870 $rank 4 2 & done    # two "hosts" of two
//! ```

use std::env::args;
use std::error::Error;

use xdp_agg_client::{Communicator, Op};

const USAGE: &str = "usage: processes DAEMON:PORT RANK WORLD_SIZE LOCAL_WORLD_SIZE";

fn main() -> Result<(), Box<dyn Error>> {
    let [daemon, rank, world_size, local_size] =
        args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| USAGE)?;
    let (rank, local_size): (u16, u16) = (rank.parse()?, local_size.parse()?);
    let host = rank.checked_div(local_size).ok_or(USAGE)?;
    let communicator = Communicator::builder()
        .aggregator(daemon.parse()?)
        // "Hosts" that are one machine must not meet in one segment; real ones cannot.
        .job(format!("processes of {host}"))
        .rank(rank % local_size)
        .world_size(local_size)
        .local(rank % local_size, local_size)
        .connect()?;
    let mut gradients = vec![1.0_f32; 100_000];
    communicator.all_reduce(&mut gradients, Op::Sum)?;
    println!("rank {rank} of {world_size}: {} processes here summed", gradients[0]);
    Ok(())
}
