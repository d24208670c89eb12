//! Averages a vector over all workers, and sums integers while the caller does something else.
//!
//! Every worker runs it. A launcher sets the ranks; `XDP_AGG_ADDR` names the daemon:
//!
//! ```text
//! xdp-agg serve --engine userspace &
//! export XDP_AGG_ADDR=127.0.0.1:9870
//! torchrun --no-python --nproc-per-node 2 target/debug/examples/all_reduce
//! ```

use std::error::Error;

use xdp_agg_client::{Communicator, Op};

fn main() -> Result<(), Box<dyn Error>> {
    let communicator = Communicator::from_env()?;
    let rank = communicator.rank();

    let mut gradients = vec![f32::from(rank); 100_000];
    let report = communicator.all_reduce(&mut gradients, Op::Average)?;
    println!("rank {rank}: the average is {} ({} blocks)", gradients[0], report.blocks);

    // The call owns the vector until it has ended.
    let counts = communicator.all_reduce_async(vec![1_i64; 10], Op::Sum)?;
    println!("rank {rank}: the call is under way");
    let (counts, _) = counts.wait(communicator.deadline())?;
    println!("rank {rank}: {} workers counted", counts[0]);
    Ok(())
}
