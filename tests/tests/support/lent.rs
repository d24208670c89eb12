//! Jobs whose workers make calls on lent memory.

use xdp_agg_client::lent::{
    Caller, DataType, Memory, Options, Outcome, Precision, Reduction, Settings, Task,
};
use xdp_agg_client::{Builder, Error};
use xdp_agg_testbed::at_once;

use super::{ENGINES, Lab, network};

/// A job of `hosts` hosts with `size` processes each, in order of rank.
pub struct Job<'a> {
    lab: &'a Lab,
    size: u16,
    pub callers: Vec<Caller>,
}

impl<'a> Job<'a> {
    pub fn start(
        lab: &'a Lab,
        (hosts, size): (u16, u16),
        tune: impl Fn(Builder) -> Builder + Sync,
    ) -> Self {
        Self::named(lab, "lent", (hosts, size), tune)
    }

    /// The same, beside other jobs.
    pub fn named(
        lab: &'a Lab,
        name: &str,
        (hosts, size): (u16, u16),
        tune: impl Fn(Builder) -> Builder + Sync,
    ) -> Self {
        let connect = |rank: u16| {
            let settings = lab.worker(name, rank, hosts * size);
            let settings = settings.scaling(xdp_agg_client::Scaling::Block);
            let settings = tune(settings.local(rank % size, size));
            let host = lab.topology.worker(usize::from(rank / size));
            let connected = host.run(move || Caller::connect(settings, Settings::default()));
            connected.expect("entering").unwrap_or_else(|error| panic!("rank {rank}: {error}"))
        };
        Self { lab, size, callers: at_once(0..hosts * size, connect) }
    }

    /// Does the same at all ranks at once, each on its host: a call may open connections.
    pub fn at_all<T: Send>(&self, work: impl Fn(u16, &Caller) -> T + Sync) -> Vec<T> {
        at_once((0..).zip(&self.callers), |(rank, caller)| {
            let host = self.lab.topology.worker(usize::from(rank / self.size));
            host.run(|| work(rank, caller)).expect("entering")
        })
    }

    /// A call at all ranks; what each of them has then.
    pub fn call<T: Send + Sync + Copy>(
        &self,
        input: impl Fn(u16) -> Vec<T> + Sync,
        data_type: DataType,
        task: Task,
        precision: Option<Precision>,
    ) -> Vec<(Vec<T>, Outcome)> {
        self.at_all(|rank, caller| {
            let mut data = input(rank);
            let outcome = call(caller, &mut data, data_type, task, precision);
            (data, outcome.unwrap_or_else(|error| panic!("rank {rank}, {data_type}: {error}")))
        })
    }

    pub fn world(&self) -> u16 {
        self.callers.len() as u16
    }
}

pub fn call<T>(
    caller: &Caller,
    data: &mut [T],
    data_type: DataType,
    task: Task,
    precision: Option<Precision>,
) -> Result<Outcome, Error> {
    // SAFETY: the slice outlives the call, and is of that type.
    let memory = unsafe { Memory::new(data.as_mut_ptr().cast(), data.len(), data_type) };
    let options = Options { precision, ..Options::default() };
    // SAFETY: as above.
    unsafe { caller.call(memory, &task, &options, &mut || false) }
}

/// Both engines, and one and two processes on each of two hosts: the engine's name, how many they
/// are, and their job.
pub fn everywhere(test: impl Fn(&str, u16, &Job<'_>)) {
    for engine in ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        for size in [1, 2] {
            test(engine, size, &Job::start(&lab, (2, size), |settings| settings));
        }
    }
}

pub const SUM: Task = Task::AllReduce(Reduction::Sum);
pub const AVERAGE: Task = Task::AllReduce(Reduction::Average);

/// Some magnitudes beside each other, so that sums of a few stay exact in a double.
pub fn mixed(rank: u16, len: usize) -> Vec<f32> {
    let number = |i: usize| {
        let random = (i as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(u32::from(rank) * 77);
        let mantissa = (random >> 8) as f32 / 1e7 - 0.8;
        mantissa * [1.0, 1e6, 1e-3, 3e-2, 0.0, -5e4][i % 6]
    };
    (0..len).map(number).collect()
}

pub fn sums(world: u16, len: usize, of: impl Fn(u16) -> Vec<f32>) -> Vec<f64> {
    let mut sums = vec![0.0; len];
    for rank in 0..world {
        sums.iter_mut().zip(of(rank)).for_each(|(sum, x)| *sum += f64::from(x));
    }
    sums
}

/// As near as gradients need: by the largest of a block, and rounded.
pub fn close(x: f32, sum: f64) -> bool {
    (f64::from(x) - sum).abs() <= 2e-2 + sum.abs() * 1e-6
}
