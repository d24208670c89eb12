//! How a strategy is opened, and what the replay needs of one.
//!
//! A strategy is one of the systems that the paper of PASSING compares, by its name. Everything it
//! needs to know comes from the environment: rank and world size, `LOCAL_RANK` and
//! `LOCAL_WORLD_SIZE`, `XDP_AGG_*`, and `MASTER_ADDR` and `MASTER_PORT` for the ring.

use std::collections::VecDeque;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use xdp_agg_baselines::{BoxError, Collective, Har, Ps, PsRing, atp, servers_from_env};
use xdp_agg_client::{
    Builder, Chosen, Communicator, Handle, Op, addresses, deadline_from_env, variable,
};
use xdp_agg_mesh::{DEFAULT_DEADLINE, Groups, Mesh};
use xdp_agg_topology::file::bounded;
use xdp_agg_topology::plan::racks;
use xdp_agg_topology::{Topology, TopologyFile};
pub(crate) use xdp_agg_workloads::model::System as Strategy;

use super::pattern::EXACT_SCALE;

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

/// Most lanes of a strategy whose calls block: connections and memory are taken for each.
const LANES_MAX: usize = 8;

/// Connects this process with all others of its job. `buckets` are in flight at a time, also where
/// a strategy's calls block: each has a lane of its own then, as far as [`LANES_MAX`] allows.
///
/// # Errors
/// Settings that are missing or wrong, others that do not come, or a strategy that this build does
/// not have.
pub(crate) fn open(strategy: Strategy, buckets: usize) -> Result<Box<dyn Replay>> {
    let lanes = buckets.clamp(1, LANES_MAX);
    let settings = |lane: usize| -> Result<Builder> {
        let settings = Builder::from_env()?;
        let job = format!("{}/lane {lane}", settings.get_job());
        Ok(settings.job(job))
    };
    let servers = || servers_from_env();
    let (algorithm, lanes): (String, Lanes) = match strategy {
        Strategy::Switchml => return Ok(Box::new(Aggregated::open(false)?)),
        Strategy::Passing => return Ok(Box::new(Aggregated::open(true)?)),
        Strategy::Ring => ("ring".into(), each(meshes(None, lanes)?, Ok)?),
        Strategy::HAr => {
            ("rings of rings".into(), each(meshes(regions()?, lanes)?, |mesh| Ok(Har::new(mesh)))?)
        }
        Strategy::Ps => (
            "parameter servers".into(),
            each(0..lanes, |lane| Ok(Ps::connect(&settings(lane)?, &servers()?)?))?,
        ),
        Strategy::Psring => (
            "in host, parameter servers".into(),
            each(0..lanes, |lane| Ok(PsRing::connect(&settings(lane)?, &servers()?)?))?,
        ),
        Strategy::Atp => return Ok(Box::new(Colliding::open()?)),
    };
    Ok(Box::new(Threaded::new(algorithm, lanes)?))
}

type Lanes = Vec<Box<dyn Collective>>;

/// A collective of each of these.
fn each<T, C: Collective + 'static>(
    of: impl IntoIterator<Item = T>,
    mut open: impl FnMut(T) -> Result<C>,
) -> Result<Lanes> {
    of.into_iter().map(|of| Ok(Box::new(open(of)?) as Box<dyn Collective>)).collect()
}

/// That many meshes of the same ranks. They meet once: in the first mesh all tell where they listen
/// for the others.
fn meshes(groups: Option<Groups>, count: usize) -> Result<Vec<Mesh>> {
    let builder = || -> Result<xdp_agg_mesh::Builder> {
        let builder = xdp_agg_mesh::Builder::from_env()?.deadline(deadline()?);
        Ok(match &groups {
            Some(groups) => builder.groups(groups.clone()),
            None => builder,
        })
    };
    let mut meshes = vec![builder()?.open()?];
    let Some(own) = meshes[0].local_address() else { return Ok(meshes) };
    let IpAddr::V4(own) = own else { bail!("{own}: meshes beside the first want IPv4") };
    for lane in 1..count {
        let listener = TcpListener::bind((own, 0)).context("listening for another mesh")?;
        let port = u32::from(listener.local_addr()?.port());
        let (rank, world) = (usize::from(meshes[0].rank()), usize::from(meshes[0].world_size()));
        let mut told = vec![0_u32; world * 2];
        told[rank * 2..][..2].copy_from_slice(&[own.to_bits(), port]);
        meshes[0].all_gather(&mut told)?;
        let address = |told: &[u32; 2]| (Ipv4Addr::from_bits(told[0]), told[1] as u16).into();
        let addresses: Vec<SocketAddr> = told.as_chunks().0.iter().map(address).collect();
        // All know it, and nobody else needs to be kept away in a network of a test.
        let cookie =
            told.iter().fold(lane as u64, |all, word| all.rotate_left(7) ^ u64::from(*word));
        let mesh = builder()?.addresses(addresses).listener(listener).cookie(cookie);
        meshes.push(mesh.occasion(format!("lane {lane}")).open()?);
    }
    Ok(meshes)
}

/// The regions of `XDP_AGG_TOPOLOGY`, if it is set.
fn regions() -> Result<Option<Groups>> {
    let Some(file) = std::env::var_os("XDP_AGG_TOPOLOGY") else { return Ok(None) };
    let topology = read(Path::new(&file))?.inferred();
    let racks = racks(&topology);
    Ok(Some(Groups::new(topology.world() as u16, racks).map_err(|text| anyhow!(text))?))
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
        let communicator = Builder::from_env()?.in_host(in_host).learning(false).connect()?;
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

/// ATP, whose thread takes any number of buckets at a time.
struct Colliding {
    client: atp::Client,
    in_flight: usize,
}

impl Colliding {
    fn open() -> Result<Self> {
        let switch = addresses(SWITCH, &needed(SWITCH)?, atp::PORT)?;
        let mtu = variable("XDP_AGG_MTU")?.map_or(Ok(1500), |text| {
            text.parse().map_err(|_| crate::WrongConfig(format!("XDP_AGG_MTU: {text:?}: no MTU")))
        })?;
        let window = variable(WINDOW)?.map(|text| {
            let window = text.parse().ok().filter(|window| *window > 0);
            window.ok_or_else(|| {
                crate::WrongConfig(format!("{WINDOW}: {text:?}; expected a number of blocks"))
            })
        });
        let window = window.transpose()?;
        let options = atp::Options { switch: switch[0], mtu, scale: EXACT_SCALE, window };
        let client = atp::Client::open(&Builder::from_env()?, options)?;
        Ok(Self { client, in_flight: 0 })
    }
}

/// Where ATP's switch listens for this host's workers.
const SWITCH: &str = "XDP_AGG_ATP_SWITCH";
/// Most blocks of a worker of ATP that are under way, where that is less than slots allow.
const WINDOW: &str = "XDP_AGG_ATP_WINDOW";

fn needed(name: &'static str) -> Result<String> {
    let missing = || {
        crate::WrongConfig(format!(
            "{name} is not set; expected host:port of the switch (`xdp-agg-atp switch`) for the \
             workers of this host"
        ))
    };
    Ok(variable(name)?.ok_or_else(missing)?)
}

impl Replay for Colliding {
    fn rank(&self) -> u16 {
        self.client.rank()
    }

    fn world_size(&self) -> u16 {
        self.client.world()
    }

    fn algorithm(&self) -> String {
        "switch, parameter servers".to_owned()
    }

    fn start(&mut self, bucket: Vec<f32>) -> Result<()> {
        self.in_flight += 1;
        Ok(self.client.start(bucket)?)
    }

    fn wait(&mut self) -> Result<Vec<f32>> {
        self.in_flight = self.in_flight.checked_sub(1).context("no bucket is in flight")?;
        Ok(self.client.wait()?)
    }

    fn counters(&self) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }
}

/// Blocking collectives, each on a thread of its own, so that their caller computes meanwhile.
/// Buckets go to these lanes in turn, so as many as there are lanes are summed at a time.
pub(crate) struct Threaded {
    rank: u16,
    world_size: u16,
    algorithm: String,
    lanes: Vec<Lane>,
    /// Buckets that were started, and those that were waited for.
    started: usize,
    waited: usize,
}

/// A collective and its thread.
struct Lane {
    /// None when no more shall come.
    buckets: Option<Sender<Vec<f32>>>,
    sums: Receiver<Result<Vec<f32>, BoxError>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    fn new(number: usize, mut collective: Box<dyn Collective>) -> Result<Self> {
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
        let thread = thread::Builder::new().name(format!("all-reduce {number}")).spawn(work)?;
        Ok(Self { buckets: Some(buckets), sums, thread: Some(thread) })
    }
}

impl Threaded {
    /// Starts a thread for each of the collectives, which are of the same ranks.
    ///
    /// # Errors
    /// The operating system has no more threads, or there is no collective.
    pub(crate) fn new(algorithm: String, lanes: Lanes) -> Result<Self> {
        let first = lanes.first().context("a strategy has at least one lane")?;
        let (rank, world_size) = (first.rank(), first.world_size());
        let lanes = (0..).zip(lanes).map(|(number, lane)| Lane::new(number, lane));
        let lanes = lanes.collect::<Result<_>>()?;
        Ok(Self { rank, world_size, algorithm, lanes, started: 0, waited: 0 })
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
        let lane = &self.lanes[self.started % self.lanes.len()];
        self.started += 1;
        let sender = lane.buckets.as_ref().context("the strategy has ended")?;
        sender.send(bucket).context("the thread that sums has ended")
    }

    fn wait(&mut self) -> Result<Vec<f32>> {
        if self.waited == self.started {
            bail!("no bucket is in flight");
        }
        let lane = &self.lanes[self.waited % self.lanes.len()];
        self.waited += 1;
        let sum = lane.sums.recv().context("the thread that sums has ended")?;
        sum.map_err(|error| anyhow!(error))
    }

    fn counters(&self) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }
}

impl Drop for Lane {
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
    use std::sync::{Arc, Barrier};

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

    /// A replay of one lane.
    pub(crate) fn one_lane(collective: impl Collective + 'static) -> Threaded {
        Threaded::new("alone".to_owned(), vec![Box::new(collective)]).expect("a thread")
    }

    /// Sums when another one sums as well, and not before.
    struct Meeting(Alone, Arc<Barrier>);

    impl Collective for Meeting {
        fn about(&self) -> About {
            self.0.about()
        }

        fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
            self.1.wait();
            self.0.all_reduce_f32(data, op)
        }

        fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
            self.0.all_reduce_i32(data, op)
        }
    }

    /// With one lane this never ends: the first bucket waits for the third.
    #[test]
    fn as_many_buckets_as_lanes_are_summed_at_a_time() {
        let meeting = Arc::new(Barrier::new(3));
        let lane = |_| Meeting(Alone { world: 2, offset: 0.0 }, Arc::clone(&meeting));
        let lanes = each(0..3, |number| Ok(lane(number))).expect("they open");
        let mut replay = Threaded::new("alone".to_owned(), lanes).expect("threads");
        for value in [1.0, 2.0, 3.0] {
            replay.start(vec![value; 2]).expect("it runs");
        }
        for sum in [3.0, 6.0, 9.0] {
            assert_eq!(replay.wait().expect("it sums"), [sum; 2]);
        }
        assert!(replay.wait().is_err(), "none is in flight");
    }

    #[test]
    fn buckets_come_back_in_order_and_errors_are_told() {
        let mut replay = one_lane(Alone { world: 2, offset: 0.0 });
        replay.start(vec![1.0; 2]).expect("it runs");
        replay.start(vec![2.0; 3]).expect("it runs");
        assert_eq!(replay.wait().expect("it sums"), [3.0; 2]);
        assert_eq!(replay.wait().expect("it sums"), [6.0; 3]);
    }
}
