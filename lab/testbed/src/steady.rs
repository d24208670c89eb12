//! Workers whose every sum can be checked from outside: the program `steady_worker`, and what it
//! says.
//!
//! The call's number, the worker's rank and a seed determine what a worker puts into a call, and
//! the call's shape. So any reader can tell what the sum of any ranks must be.

use std::hash::{Hash, Hasher};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fnv::FnvHasher;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use xdp_agg_client::Op;

use crate::error::Error;
use crate::process::{Finished, Process, Sink};

/// Scale of the floats: with whole numbers below 2^29 / 1024 nothing is rounded.
pub const SCALE: f64 = 1024.0;

/// What a call is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements.
    pub len: usize,
    /// Floats or integers.
    pub floats: bool,
    /// Sum or average.
    pub op: Op,
}

/// A number that follows from three others.
fn mix(a: u64, b: u64, c: u64) -> u64 {
    let z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(c.wrapping_mul(0x94d0_49bb_1331_11eb));
    SplitMix64::seed_from_u64(z).next_u64()
}

impl Shape {
    /// The shape of a call: lengths from 1 to `longest`, short ones as often as long ones.
    pub fn of(seed: u64, sequence: u64, longest: usize) -> Self {
        let random = mix(seed, sequence, 0);
        let most = longest.max(1) as f64;
        // Uniform in the logarithm, and every fourth call as long as they get.
        let share = (random >> 16 & 0xffff) as f64 / 65_535.0;
        let len = if random & 3 == 0 { longest.max(1) } else { most.powf(share) as usize };
        let op = if random >> 3 & 1 == 0 { Op::Sum } else { Op::Average };
        Self { len: len.max(1), floats: random >> 2 & 1 == 0, op }
    }
}

/// What a worker puts into a call.
pub fn element(seed: u64, sequence: u64, rank: u16, index: usize) -> i32 {
    let random = mix(seed ^ sequence, u64::from(rank) + 1, index as u64);
    (random % 200_001) as i32 - 100_000
}

/// A worker's whole input.
pub fn input(seed: u64, sequence: u64, rank: u16, len: usize) -> Vec<i32> {
    (0..len).map(|index| element(seed, sequence, rank, index)).collect()
}

/// A result, and what it is said to be of.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Bits of the elements, as integers or floats.
    pub bits: &'a [u32],
    /// What was called.
    pub shape: Shape,
    /// Number of the call.
    pub sequence: u64,
    /// Bit `r`: rank `r` is in every block.
    pub contributors: u64,
    /// Bit `r`: rank `r` is in some blocks.
    pub partial: u64,
    /// Elements of a block.
    pub block_len: usize,
}

impl Claim<'_> {
    /// Elements that are not what they must be: in each block, the exact sum (or average) of those
    /// that contributed to all, and of some of those that contributed to some.
    pub fn wrong(&self, seed: u64) -> u64 {
        let blocks = self.bits.chunks(self.block_len.max(1)).enumerate();
        blocks.map(|(block, bits)| self.wrong_in_block(seed, block, bits)).sum()
    }

    fn wrong_in_block(&self, seed: u64, block: usize, bits: &[u32]) -> u64 {
        let first = block * self.block_len;
        let mut some = self.partial & !self.contributors;
        let all = some;
        let mut best = bits.len() as u64;
        loop {
            let ranks = self.contributors | some;
            let sum = |index| {
                let of = |rank| element(seed, self.sequence, rank, first + index);
                (0..64).filter(|rank| ranks >> rank & 1 == 1).map(of).sum::<i32>()
            };
            let wrong = (0..bits.len()).filter(|i| bits[*i] != self.bits_of(sum(*i), ranks));
            best = best.min(wrong.count() as u64);
            if best == 0 || some == 0 {
                return best;
            }
            some = (some - 1) & all;
        }
    }

    /// The bits of a result whose sum is this, of these ranks.
    fn bits_of(&self, sum: i32, ranks: u64) -> u32 {
        let count = ranks.count_ones().max(1);
        let average = self.shape.op == Op::Average;
        match self.shape.floats {
            false if average => (sum / count.cast_signed()) as u32,
            false => sum as u32,
            true => {
                // As `docs` of the client say: one division of the whole sum, rounded once.
                let divisor = if average { SCALE * f64::from(count) } else { SCALE };
                ((f64::from(sum) * SCALE * (1.0 / divisor)) as f32).to_bits()
            }
        }
    }
}

/// A digest of a result, to compare workers by.
pub fn digest(bits: &[u32]) -> u64 {
    let mut state = FnvHasher::default();
    bits.hash(&mut state);
    state.finish()
}

/// A line of a steady worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// It is a member.
    Joined {
        /// Its rank.
        rank: u16,
        /// The epoch.
        epoch: u16,
        /// The next call.
        sequence: u64,
    },
    /// A call has ended well.
    Call {
        /// Number of the call.
        sequence: u64,
        /// Elements.
        len: usize,
        /// Elements that are not what they must be.
        wrong: u64,
        /// Digest of the result.
        digest: u64,
        /// Bit `r`: rank `r` is in every block.
        contributors: u64,
        /// Bit `r`: rank `r` is in some blocks.
        partial: u64,
        /// New epochs while it was under way.
        reforms: u32,
        /// `aggregator`, `ring` or `mixed`.
        path: String,
        /// How long it took.
        ms: f64,
    },
    /// A call, or joining, has ended with an error.
    Failed {
        /// Number of the call.
        sequence: u64,
        /// Its kind: `member_lost`, `aggregator_lost`, `deadline`, …
        kind: String,
        /// The ranks that it names.
        ranks: Vec<u16>,
        /// Its words.
        text: String,
        /// How long it took.
        ms: f64,
    },
    /// All calls are done.
    Done,
}

/// What a steady worker is to do.
#[derive(Clone, Debug)]
pub struct Work {
    /// Calls end with this number.
    pub calls: u64,
    /// Inputs and shapes follow from it.
    pub seed: u64,
    /// Most elements of a call.
    pub longest: usize,
    /// After an error it connects again instead of ending.
    pub reconnects: bool,
    /// How long it waits between calls.
    pub pause: Duration,
    /// Children that it forks whenever it has joined. They do nothing, for half a minute.
    pub children: u32,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            calls: u64::MAX,
            seed: 1,
            longest: 100_000,
            reconnects: false,
            pause: Duration::ZERO,
            children: 0,
        }
    }
}

impl Work {
    /// Arguments of the program.
    pub fn add_to(&self, command: &mut Command) {
        let Self { calls, seed, longest, reconnects, pause, children } = self;
        command.args(["--calls", &calls.to_string(), "--seed", &seed.to_string()]);
        command.args(["--longest", &longest.to_string()]);
        command.args(["--pause-ms", &pause.as_millis().to_string()]);
        command.args(["--children", &children.to_string()]);
        if *reconnects {
            command.arg("--reconnects");
        }
    }
}

/// What a worker has said until now, and when.
type Said = Vec<(Instant, Line)>;

/// A running steady worker.
#[derive(Debug)]
pub struct Steady {
    /// The process.
    pub process: Process,
    said: Arc<(Mutex<Said>, Condvar)>,
}

impl Steady {
    /// Starts one. The command is the program in its namespace, with the environment of a worker.
    pub fn spawn(name: &str, mut command: Command, work: &Work) -> Result<Self, Error> {
        work.add_to(&mut command);
        let said: Arc<(Mutex<Said>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&said);
        let hook = move |line: &str| {
            if let Ok(line) = serde_json::from_str(line) {
                let (lines, changed) = &*theirs;
                lines.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
                changed.notify_all();
            }
        };
        let process =
            Process::spawn_with(name, command, Sink::Lines(Box::new(hook)), Sink::Capture)?;
        Ok(Self { process, said })
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has said until now.
    pub fn said(&self) -> Vec<(Instant, Line)> {
        self.lock().clone()
    }

    /// How many such lines it has said until now.
    pub fn count(&self, is_it: impl Fn(&Line) -> bool) -> usize {
        self.lock().iter().filter(|(_, line)| is_it(line)).count()
    }

    /// Waits for a line, among those that came before, too.
    ///
    /// # Errors
    /// It has not come in time.
    pub fn wait(
        &self,
        what: &str,
        limit: Duration,
        condition: impl Fn(Instant, &Line) -> bool,
    ) -> Result<(Instant, Line), Error> {
        let deadline = Instant::now() + limit;
        let mut said = self.lock();
        // A worker may have said millions of lines: none is looked at twice.
        let mut seen = 0;
        loop {
            if let Some((at, line)) = said[seen..].iter().find(|(at, line)| condition(*at, line)) {
                return Ok((*at, line.clone()));
            }
            seen = said.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(said);
                let (name, words) = (self.process.name(), self.process.last_words());
                let text = format!("{name} has not said in {limit:?}: {what}{words}");
                return Err(Error::Process(text));
            }
            let waited = self.said.1.wait_timeout(said, left);
            said = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until it has done this number of calls.
    ///
    /// # Errors
    /// It has not in time.
    pub fn wait_calls(&self, calls: usize, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        loop {
            let done = |(_, line): &(Instant, Line)| matches!(line, Line::Call { .. });
            if self.lock().iter().filter(|line| done(line)).count() >= calls {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (name, words) = (self.process.name(), self.process.last_words());
                let text = format!("{name} has not done {calls} calls in {limit:?}{words}");
                return Err(Error::Process(text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills it.
    pub fn kill(self) -> Result<Finished, Error> {
        self.process.kill()
    }
}

/// What several workers said, held against each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Calls that ended well, counted at every worker.
    pub calls: u64,
    /// Elements that were wrong, at every worker.
    pub wrong: u64,
    /// Calls whose result was not the same at two workers.
    pub different: u64,
}

/// Holds what workers said against each other.
pub fn judge(workers: &[Vec<(Instant, Line)>]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut results = std::collections::BTreeMap::new();
    for (_, line) in workers.iter().flatten() {
        let Line::Call { sequence, wrong, digest, contributors, partial, .. } = line else {
            continue;
        };
        verdict.calls += 1;
        verdict.wrong += wrong;
        let result = (*digest, *contributors, *partial);
        let first = *results.entry(*sequence).or_insert(result);
        verdict.different += u64::from(first != result);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bits: &[u32], contributors: u64, partial: u64) -> u64 {
        let shape = Shape { len: bits.len(), floats: false, op: Op::Sum };
        Claim { bits, shape, sequence: 3, contributors, partial, block_len: 4 }.wrong(1)
    }

    fn sum(ranks: &[u16], index: usize) -> u32 {
        ranks.iter().map(|rank| element(1, 3, *rank, index)).sum::<i32>() as u32
    }

    #[test]
    fn a_block_is_of_all_or_of_some_and_never_of_both() {
        let of = |ranks: &'static [u16]| (0..8).map(|i| sum(ranks, i)).collect::<Vec<_>>();
        assert_eq!(claim(&of(&[0, 1]), 0b11, 0), 0);
        assert_eq!(claim(&of(&[0, 1]), 0b01, 0), 8);
        // The first block with rank 1, the second one without.
        let mixed: Vec<u32> =
            (0..8).map(|i| if i < 4 { sum(&[0, 1], i) } else { sum(&[0], i) }).collect();
        assert_eq!(claim(&mixed, 0b01, 0b10), 0);
        assert_eq!(claim(&mixed, 0b01, 0), 4);
        let torn: Vec<u32> =
            (0..8).map(|i| if i < 2 { sum(&[0, 1], i) } else { sum(&[0], i) }).collect();
        assert_eq!(claim(&torn, 0b01, 0b10), 2);
    }

    #[test]
    fn averages_divide_by_those_who_contributed() {
        let floats = Shape { len: 1, floats: true, op: Op::Average };
        let sum = element(1, 0, 0, 0) + element(1, 0, 2, 0);
        let bits = [(f64::from(sum) / 2.0) as f32].map(f32::to_bits);
        let claim = Claim {
            bits: &bits,
            shape: floats,
            sequence: 0,
            contributors: 0b101,
            partial: 0,
            block_len: 352,
        };
        assert_eq!(claim.wrong(1), 0);
        assert_eq!(Claim { contributors: 0b111, ..claim }.wrong(1), 1);
    }

    #[test]
    fn shapes_are_of_all_kinds() {
        let shapes: Vec<_> = (0..200).map(|call| Shape::of(7, call, 50_000)).collect();
        for (floats, op) in [(true, Op::Sum), (true, Op::Average), (false, Op::Sum)] {
            assert!(shapes.iter().any(|shape| shape.floats == floats && shape.op == op));
        }
        assert!(shapes.iter().any(|shape| shape.len < 10));
        assert!(shapes.iter().any(|shape| shape.len == 50_000));
    }
}
