//! Averages in a job that goes on when a worker is lost: the average is over those that are left.
//!
//! Run it as `all_reduce`, with `--nproc-per-node 3`. The last rank ends in the middle, without a
//! word. The others go on without it and say so.

use std::error::Error;
use std::process;

use xdp_agg_client::{Builder, Op, WorkerLoss};

/// Calls of each worker.
const CALLS: u32 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let communicator = Builder::from_env()?.on_worker_loss(WorkerLoss::Shrink).connect()?;
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for call in 0..CALLS {
        if rank + 1 == world_size && world_size > 1 && call == CALLS / 2 {
            process::exit(0);
        }
        // A sum and a count, so that the average is right whoever contributed to it.
        let mut sums = [f32::from(rank), 1.0];
        let report = communicator.all_reduce(&mut sums, Op::Sum)?;
        let missing: Vec<u16> = report.missing_ranks(world_size).collect();
        println!("rank {rank}, call {call}: average {}, without {missing:?}", sums[0] / sums[1]);
    }
    Ok(())
}
