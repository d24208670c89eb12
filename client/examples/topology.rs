//! Sums over the aggregators that a topology file names, by the strategy that it, or the second
//! argument, wants. All workers compute the same plan from the same file.
//!
//! Run it as `all_reduce`, one process a host: `topology two-racks.toml [rat]`. `xdp-agg topology
//! plan two-racks.toml` shows the plan before.

use std::env::args;
use std::error::Error;
use std::fs;

use xdp_agg_client::{Builder, Op};
use xdp_agg_topology::{Strategy, TopologyFile};

fn main() -> Result<(), Box<dyn Error>> {
    let file = args().nth(1).ok_or("usage: topology FILE [STRATEGY]")?;
    let strategy = args().nth(2).map(|name| name.parse::<Strategy>()).transpose()?;
    let topology = TopologyFile::parse(&fs::read_to_string(&file)?)?;
    let communicator = Builder::from_env()?.topology(topology.topology(), strategy)?.connect()?;
    let chosen = communicator.chosen();
    println!("rank {}: {}, because {}", communicator.rank(), chosen.strategy, chosen.reason);
    let mut gradients = vec![1.0_f32; 1_000_000];
    communicator.all_reduce(&mut gradients, Op::Sum)?;
    println!("rank {}: {} workers summed", communicator.rank(), gradients[0]);
    Ok(())
}
