//! One size of one collective, by all ways, in turns: what disturbs one disturbs all alike.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, anyhow};
use statrs::statistics::{Data, Median};
use xdp_agg_client::collectives::{Algorithm, Choice, Kind, Way};
use xdp_agg_client::{Communicator, Op};
use xdp_agg_mesh::model::{self, Network};

/// Turns in which every way is measured.
const ROUNDS: u32 = 3;
/// Further turns of those that may be the best.
const FINAL_ROUNDS: u32 = 4;
/// A way whose median is at most this many times the best one's may be the best.
const CLOSE: f64 = 1.3;
/// Bytes above which there are fewer calls.
const MANY_CALLS: usize = 1 << 20;

/// What measures.
pub(super) struct Bench<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) root: u16,
    /// Calls of a way.
    pub(super) iters: u32,
    pub(super) checked: bool,
    /// What of a call's time is agreeing on it.
    pub(super) extra_us: f64,
    /// Ways to leave out.
    pub(super) only: &'a [String],
}

/// What one way takes.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) kind: Kind,
    pub(super) bytes: usize,
    pub(super) choice: Choice,
    /// What a copy of as many bytes in this host's memory takes.
    pub(super) copy_us: f64,
    /// Every call's longest time at any rank.
    pub(super) times_us: Vec<f64>,
    /// The table in force takes it.
    pub(super) chosen: bool,
    /// Its chunk is the one that model (5) makes best.
    pub(super) by_model: bool,
    /// The root copies the data from other memory first, as in model (6).
    pub(super) copied: bool,
    pub(super) wrong: u64,
}

/// What pipelined chains cost, fitted to these measurements.
pub(super) fn chains<'a>(
    ranks: u16,
    extra_us: f64,
    all: impl Iterator<Item = &'a Measured>,
) -> Option<Network> {
    let points = all.filter(|one| one.kind == Kind::Broadcast).filter_map(|one| {
        let Way::Mesh(chain @ Algorithm::PipelinedChain { .. }) = one.choice.way else {
            return None;
        };
        let us = one.median_us() - extra_us;
        let cost = model::of(chain, ranks.into(), one.bytes as f64);
        (us > 0.0 && us >= extra_us).then_some((cost, us / 1e6))
    });
    model::fit(&points.collect::<Vec<_>>())
}

impl Measured {
    /// Median of the calls.
    pub(super) fn median_us(&self) -> f64 {
        Data::new(self.times_us.clone()).median()
    }
}

impl Bench<'_> {
    /// The ways of a collective of `bytes` bytes.
    fn ways(&self, kind: Kind, bytes: usize) -> Vec<Way> {
        let chunks: Vec<u32> = [16, 64, 256, 1024]
            .map(|kib| kib << 10)
            .into_iter()
            .filter(|chunk| *chunk as usize * 2 <= bytes && bytes / *chunk as usize <= 1024)
            .collect();
        let chains = chunks.iter().map(|chunk| Algorithm::PipelinedChain { chunk: *chunk });
        let shared = self.communicator.local_size() > 1;
        let topology = chunks.iter().filter(|_| shared);
        let topology = topology.map(|chunk| Algorithm::TopologyChain { chunk: *chunk });
        let trees = [Algorithm::Binomial, Algorithm::Knomial { k: 4 }];
        let mut mesh: Vec<Algorithm> = match kind {
            Kind::Broadcast => {
                let simple = [Algorithm::Direct, Algorithm::Chain, Algorithm::ScatterAllGather];
                trees.into_iter().chain(simple).chain([Algorithm::Knomial { k: 8 }]).collect()
            }
            Kind::Reduce => trees.to_vec(),
            Kind::ReduceScatter | Kind::AllGather | Kind::AllReduce => Vec::new(),
        };
        if matches!(kind, Kind::Broadcast | Kind::Reduce) {
            mesh.extend(chains.chain(topology));
        }
        let hierarchical = mesh.iter().filter(|by| {
            use Algorithm::{Binomial, Direct, PipelinedChain, ScatterAllGather};
            let chain = matches!(by, PipelinedChain { .. });
            let tree = matches!(by, Direct | Binomial | ScatterAllGather);
            shared && kind == Kind::Broadcast && (chain || tree)
        });
        let hierarchical = hierarchical.copied().map(Way::Hierarchical).collect::<Vec<_>>();
        let rings = matches!(kind, Kind::ReduceScatter | Kind::AllGather | Kind::AllReduce);
        let ring = rings.then_some(Way::Ring);
        let mesh = mesh.into_iter().map(Way::Mesh).chain(hierarchical);
        let all = [Way::Aggregator].into_iter().chain(mesh).chain(ring);
        let wanted = |way: &Way| self.only.is_empty() || self.only.iter().any(|n| n == way.name());
        all.filter(wanted).collect()
    }

    fn plan(&self, (kind, bytes): (Kind, usize), way: Way, copy_us: f64) -> Measured {
        let choice = Choice { way, checked: self.checked };
        Measured {
            kind,
            bytes,
            choice,
            copy_us,
            times_us: Vec::new(),
            chosen: false,
            by_model: false,
            copied: false,
            wrong: 0,
        }
    }

    /// A chain with the chunk that the model makes best, by what was measured before.
    fn by_model(&self, one: (Kind, usize), before: &[Measured], now: &[Measured]) -> Option<Way> {
        let ranks = self.communicator.world_size();
        let (kind, bytes) = one;
        // A size that is too short for chunks has no chain to compare with.
        let chains_now =
            |one: &&Measured| matches!(one.choice.way, Way::Mesh(Algorithm::PipelinedChain { .. }));
        if kind != Kind::Broadcast || now.iter().filter(chains_now).count() < 2 {
            return None;
        }
        let network = chains(ranks, self.extra_us, before.iter().chain(now))?;
        let chunk = model::best_chunk(ranks.into(), bytes as f64, network)?;
        let way = Way::Mesh(Algorithm::PipelinedChain { chunk });
        now.iter().all(|one| one.choice.way != way).then_some(way)
    }

    /// Measures a size by all ways; the same numbers at all ranks. `before`: other sizes.
    pub(super) fn measure(
        &self,
        kind: Kind,
        bytes: usize,
        before: &[Measured],
    ) -> Result<Vec<Measured>> {
        let in_force = self.communicator.choice(kind, bytes);
        let mut ways = self.ways(kind, bytes);
        if !ways.contains(&in_force.way) {
            ways.push(in_force.way);
        }
        let (size, copy_us) = ((kind, bytes), copy_us(bytes));
        let mut all: Vec<Measured> =
            ways.into_iter().map(|way| self.plan(size, way, copy_us)).collect();
        for one in &mut all {
            one.chosen = one.choice.way == in_force.way;
        }
        let binomial = Way::Mesh(Algorithm::Binomial);
        if kind == Kind::Broadcast && all.iter().any(|one| one.choice.way == binomial) {
            all.push(Measured { copied: true, ..self.plan(size, binomial, copy_us) });
        }
        let mut data = vec![0_i32; bytes / 4];
        let fewer = (bytes / MANY_CALLS).max(1) as u32;
        let iters = (self.iters / fewer).clamp(2, self.iters).div_ceil(ROUNDS);
        for round in 0..ROUNDS {
            for one in &mut all {
                if round == 0 {
                    one.wrong += self.verify(one, &mut data)?;
                }
                self.time(one, iters, &mut data)?;
            }
        }
        let best = all.iter().map(Measured::median_us).fold(f64::INFINITY, f64::min);
        let mut close: Vec<bool> =
            all.iter().map(|one| one.chosen || one.median_us() <= best * CLOSE).collect();
        if let Some(way) = self.by_model(size, before, &all) {
            all.push(Measured { by_model: true, ..self.plan(size, way, copy_us) });
            close.push(true);
        }
        for round in 0..FINAL_ROUNDS {
            for (one, _) in all.iter_mut().zip(&close).filter(|(_, close)| **close) {
                self.time(one, iters, &mut data)?;
                if round + 1 == FINAL_ROUNDS {
                    one.wrong += self.verify(one, &mut data)?;
                }
            }
        }
        Ok(all)
    }

    /// What it costs that all agree on a call.
    pub(super) fn check_us(&self) -> Result<f64> {
        let mut times = Vec::new();
        // The first ones find everything cold, unlike the calls that this is taken off.
        for _ in 0..self.iters.max(10) {
            self.communicator.barrier()?;
        }
        for _ in 0..self.iters.max(10) {
            let start = Instant::now();
            self.communicator.barrier()?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Data::new(self.longest(&times)?).median())
    }

    fn call(&self, one: &Measured, data: &mut [i32]) -> Result<()> {
        let (communicator, root, choice) = (self.communicator, self.root, one.choice);
        match one.kind {
            Kind::Broadcast => communicator.broadcast_by(data, root, choice)?,
            Kind::Reduce => communicator.reduce_by(data, Op::Sum, root, choice)?,
            Kind::ReduceScatter => {
                communicator.reduce_scatter_by(data, Op::Sum, choice)?;
            }
            Kind::AllGather => communicator.all_gather_by(data, choice)?,
            Kind::AllReduce => drop(communicator.all_reduce_by(data, Op::Sum, choice)?),
        }
        Ok(())
    }

    fn time(&self, one: &mut Measured, iters: u32, data: &mut [i32]) -> Result<()> {
        // Small numbers: sums of sums would not fit at some time.
        data.fill(0);
        self.call(one, data)?;
        let is_source = one.copied && self.communicator.rank() == self.root;
        let source = vec![0_i32; if is_source { data.len() } else { 0 }];
        let mut times = Vec::with_capacity(iters as usize);
        for _ in 0..iters {
            data.fill(0);
            self.communicator.barrier()?;
            let start = Instant::now();
            if is_source {
                data.copy_from_slice(black_box(&source));
            }
            self.call(one, data)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        one.times_us.extend(self.longest(&times)?);
        Ok(())
    }

    /// The longest of all ranks, call by call.
    fn longest(&self, times: &[f64]) -> Result<Vec<f64>> {
        let mut all = times.to_vec();
        self.communicator.all_reduce(&mut all, Op::Max)?;
        Ok(all)
    }

    /// Elements that are not what they must be, at all ranks together.
    fn verify(&self, one: &Measured, data: &mut [i32]) -> Result<u64> {
        let (rank, world) = (self.communicator.rank(), self.communicator.world_size());
        let len = data.len();
        for (i, x) in data.iter_mut().enumerate() {
            *x = value(rank, i);
        }
        self.call(one, data)?;
        let sum = |i: usize| (0..world).map(|rank| value(rank, i)).sum::<i32>();
        let own = self.communicator.part(rank, len);
        let wrong = match one.kind {
            Kind::Broadcast => (0..len).filter(|i| data[*i] != value(self.root, *i)).count(),
            Kind::Reduce if rank != self.root => 0,
            Kind::Reduce | Kind::AllReduce => (0..len).filter(|i| data[*i] != sum(*i)).count(),
            Kind::ReduceScatter => own.filter(|i| data[*i] != sum(*i)).count(),
            Kind::AllGather => {
                let parts = (0..world).map(|rank| (rank, self.communicator.part(rank, len)));
                let wrong = |(rank, part): (u16, std::ops::Range<usize>)| {
                    part.filter(|i| data[*i] != value(rank, *i)).count()
                };
                parts.map(wrong).sum()
            }
        };
        let mut total = [wrong.min(1 << 20) as i32];
        self.communicator.all_reduce(&mut total, Op::Sum)?;
        u64::try_from(total[0]).map_err(|_| anyhow!("a count below 0: {}", total[0]))
    }
}

/// What a copy of `bytes` bytes in memory takes: the median of five.
fn copy_us(bytes: usize) -> f64 {
    let (source, mut target) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    // Short ones are too short for the clock.
    let each = (MANY_CALLS / bytes.max(1)).max(1);
    let times = [(); 5].map(|()| {
        let start = Instant::now();
        for _ in 0..each {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        }
        start.elapsed().as_secs_f64() * 1e6 / each as f64
    });
    Data::new(times).median()
}

/// A rank's element: whole numbers whose sums are far from any limit.
fn value(rank: u16, i: usize) -> i32 {
    (i % 1021) as i32 * (i32::from(rank) + 1) + 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_time_for_its_bytes() {
        let (short, long) = (copy_us(4096), copy_us(16 << 20));
        assert!(short > 0.0 && long > short * 100.0, "{short} {long}");
    }
}
