//! How a strategy is opened, and what the replay needs of one.
//!
//! A strategy is one of the systems that the paper of PASSING compares, by its name. Everything it
//! needs to know comes from the environment: rank and world size, `LOCAL_RANK` and
//! `LOCAL_WORLD_SIZE`, `XDP_AGG_*`, and `MASTER_ADDR` and `MASTER_PORT` for the ring.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use xdp_agg_baselines::{Atp, BoxError, Collective, Har, Ps, PsRing, servers_from_env};
use xdp_agg_client::{Builder, Chosen, Communicator, Handle, Op, deadline_from_env};
use xdp_agg_mesh::{DEFAULT_DEADLINE, Groups, Mesh};
use xdp_agg_topology::file::bounded;
use xdp_agg_topology::plan::{Lost, racks};
use xdp_agg_topology::{Topology, TopologyFile};
pub(crate) use xdp_agg_workloads::model::System as Strategy;

/// All-reduces in flight, as training has them: several are started while the layers before them
/// are being computed, and waited for at the end.
pub(crate) trait Replay {
    /// This process' number.
    fn rank(&self) -> u16;

    /// Number of processes.
    fn world_size(&self) -> u16;

    /// What sums, for tables.
    fn algorithm(&self) -> String;

    /// Starts to sum a bucket over all processes, and returns without waiting for it. All processes
    /// start the same buckets in the same order.
    ///
    /// # Errors
    /// The strategy's; after one no more can be started.
    fn start(&mut self, bucket: Vec<f32>) -> Result<()>;

    /// Waits for the oldest bucket that has not been waited for, and gives it back, summed.
    ///
    /// # Errors
    /// The strategy's, or none was started.
    fn wait(&mut self) -> Result<Vec<f32>>;

    /// By which strategy of trees it sums, and why, if it does.
    fn chosen(&self) -> Option<Chosen> {
        None
    }

    /// What it counts, for the JSON report.
    ///
    /// # Errors
    /// Counters that cannot be written as JSON.
    fn counters(&self) -> Result<serde_json::Value>;
}

/// Connects this process with all others of its job.
///
/// # Errors
/// Settings that are missing or wrong, others that do not come, or a strategy that this build does
/// not have.
pub(crate) fn open(strategy: Strategy) -> Result<Box<dyn Replay>> {
    Ok(match strategy {
        Strategy::Ring => {
            let ring = Mesh::from_env()?;
            Box::new(Threaded::new("ring".to_owned(), Box::new(ring))?)
        }
        Strategy::HAr => Box::new(Threaded::new("rings of rings".to_owned(), Box::new(har()?))?),
        Strategy::Switchml => Box::new(Aggregated::open(false)?),
        Strategy::Passing => Box::new(Aggregated::open(true)?),
        Strategy::Ps => {
            let ps = Ps::connect(&Builder::from_env()?, &servers_from_env()?)?;
            Box::new(Threaded::new("parameter servers".to_owned(), Box::new(ps))?)
        }
        Strategy::Psring => {
            let psring = PsRing::connect(&Builder::from_env()?, &servers_from_env()?)?;
            Box::new(Threaded::new("in host, parameter servers".to_owned(), Box::new(psring))?)
        }
        Strategy::Atp => {
            let atp = Atp::connect(Builder::from_env()?, &servers_from_env()?)?;
            let engine = atp.engine();
            Box::new(Threaded::new(format!("{engine}, parameter servers"), Box::new(atp))?)
        }
    })
}

/// Rings inside the regions of `XDP_AGG_TOPOLOGY` and across them, or those of the hosts.
fn har() -> Result<Har> {
    let mut mesh = xdp_agg_mesh::Builder::from_env()?.deadline(deadline()?);
    if let Some(file) = std::env::var_os("XDP_AGG_TOPOLOGY") {
        let topology = read(Path::new(&file))?.inferred();
        let racks = racks(&topology, &Lost::default());
        let groups = Groups::new(topology.world() as u16, racks).map_err(|text| anyhow!(text))?;
        mesh = mesh.groups(groups);
    }
    Ok(Har::new(mesh.open()?))
}

/// The topology of a file.
fn read(file: &Path) -> Result<Topology> {
    let text = File::open(file).and_then(bounded).map_err(|error| {
        let name = file.display();
        crate::WrongConfig(format!("cannot read the topology file {name}: {error}"))
    })?;
    let file_of = TopologyFile::parse(&text).with_context(|| file.display().to_string())?;
    Ok(file_of.topology().clone())
}

/// The longest that one call may take, from `XDP_AGG_DEADLINE` as all strategies read it.
fn deadline() -> Result<Duration> {
    Ok(deadline_from_env()?.unwrap_or(DEFAULT_DEADLINE))
}

/// Summed by the aggregator: each process is a worker of its own (SwitchML), or the processes of a
/// host are one together (PASSING).
struct Aggregated {
    communicator: Communicator,
    in_flight: VecDeque<Handle<f32>>,
    deadline: Duration,
}

impl Aggregated {
    fn open(in_host: bool) -> Result<Self> {
        let communicator = Builder::from_env()?.in_host(in_host).connect()?;
        Ok(Self { communicator, in_flight: VecDeque::new(), deadline: deadline()? })
    }
}

impl Replay for Aggregated {
    fn rank(&self) -> u16 {
        self.communicator.rank()
    }

    fn world_size(&self) -> u16 {
        self.communicator.world_size()
    }

    fn algorithm(&self) -> String {
        super::algorithm(&self.communicator)
    }

    fn chosen(&self) -> Option<Chosen> {
        Some(self.communicator.chosen().clone())
    }

    fn start(&mut self, bucket: Vec<f32>) -> Result<()> {
        self.in_flight.push_back(self.communicator.all_reduce_async(bucket, Op::Sum)?);
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<f32>> {
        let oldest = self.in_flight.pop_front().context("no bucket is in flight")?;
        Ok(oldest.wait(self.deadline)?.0)
    }

    fn counters(&self) -> Result<serde_json::Value> {
        Ok(serde_json::to_value(self.communicator.counters())?)
    }
}

/// A blocking collective on a thread of its own, so that its caller computes meanwhile. Buckets are
/// summed one after the other.
pub(crate) struct Threaded {
    rank: u16,
    world_size: u16,
    algorithm: String,
    /// None when no more shall come.
    buckets: Option<Sender<Vec<f32>>>,
    sums: Receiver<Result<Vec<f32>, BoxError>>,
    thread: Option<JoinHandle<()>>,
}

impl Threaded {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system has no more threads.
    pub(crate) fn new(algorithm: String, mut collective: Box<dyn Collective>) -> Result<Self> {
        let (rank, world_size) = (collective.rank(), collective.world_size());
        let (buckets, to_sum) = channel::<Vec<f32>>();
        let (summed, sums) = channel();
        let work = move || {
            for mut bucket in to_sum {
                let result = collective.all_reduce_f32(&mut bucket, Op::Sum);
                if summed.send(result.map(|()| bucket)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("all-reduce".into()).spawn(work)?;
        let (buckets, thread) = (Some(buckets), Some(thread));
        Ok(Self { rank, world_size, algorithm, buckets, sums, thread })
    }
}

impl Replay for Threaded {
    fn rank(&self) -> u16 {
        self.rank
    }

    fn world_size(&self) -> u16 {
        self.world_size
    }

    fn algorithm(&self) -> String {
        self.algorithm.clone()
    }

    fn start(&mut self, bucket: Vec<f32>) -> Result<()> {
        let sender = self.buckets.as_ref().context("the strategy has ended")?;
        sender.send(bucket).context("the thread that sums has ended")
    }

    fn wait(&mut self) -> Result<Vec<f32>> {
        let sum = self.sums.recv().context("the thread that sums has ended")?;
        sum.map_err(|error| anyhow!(error))
    }

    fn counters(&self) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        drop(self.buckets.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was reported by itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use xdp_agg_baselines::About;

    /// A world of `world` processes of which all others contribute what this one does, plus the
    /// difference of their ranks: enough to check sums of the pattern.
    pub(crate) struct Alone {
        pub(crate) world: u16,
        pub(crate) offset: f32,
    }

    impl Collective for Alone {
        fn about(&self) -> About {
            (0, self.world, "alone")
        }

        fn all_reduce_f32(&mut self, data: &mut [f32], _: Op) -> Result<(), BoxError> {
            let factor = f32::from(self.world * (self.world + 1) / 2);
            // The barrier's one element is the same on all ranks.
            let factor = if data.len() == 1 { f32::from(self.world) } else { factor };
            data.iter_mut().for_each(|element| *element = *element * factor + self.offset);
            Ok(())
        }

        fn all_reduce_i32(&mut self, _: &mut [i32], _: Op) -> Result<(), BoxError> {
            Err("floats only".into())
        }
    }

    #[test]
    fn buckets_come_back_in_order_and_errors_are_told() {
        let alone = Box::new(Alone { world: 2, offset: 0.0 });
        let mut replay = Threaded::new("alone".to_owned(), alone).expect("a thread");
        replay.start(vec![1.0; 2]).expect("it runs");
        replay.start(vec![2.0; 3]).expect("it runs");
        assert_eq!(replay.wait().expect("it sums"), [3.0; 2]);
        assert_eq!(replay.wait().expect("it sums"), [6.0; 3]);
    }
}
