//! Fuzzing the kernel program: mutated frames through `BPF_PROG_TEST_RUN`. After every frame, all
//! that the program may write is compared with a model of what it should have done.
//!
//! A run is told by its seed alone. The state begins anew every `ROUND` inputs. So a failure is
//! told with the inputs since then, reduced to those that it takes.

mod model;
mod mutate;
pub mod targets;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, EngineError, JobSetup};
use xdp_agg_common::maps::{MAX_JOBS, Reject};
use xdp_agg_fuzz::driver;

use model::{JOBS, Model, SLOTS, World, untimed};
use mutate::Mutator;

/// Inputs after which the state begins anew.
const ROUND: u64 = 4096;
/// Inputs between two looks at the counters.
const COUNTERS_EVERY: u64 = 32;
/// Runs that reducing a failure may take.
const REDUCE_RUNS: u32 = 200;
/// Calls of the progress callback are this many inputs apart.
const PROGRESS_EVERY: u64 = 10_000;

type Frames = Vec<Vec<u8>>;

/// What is fuzzed, and from where on.
#[derive(Clone, Debug)]
pub struct FuzzConfig {
    /// Number of inputs.
    pub inputs: u64,
    /// The same seed makes the same inputs.
    pub seed: u64,
    /// A directory of failures, each a file: all are run first, and a new one is added.
    pub corpus: Option<PathBuf>,
    /// For tests of the fuzzer: after an input for which this is true it changes a slot behind the
    /// program's back, and has to find that.
    #[doc(hidden)]
    pub disturb: Option<fn(&[u8]) -> bool>,
}

/// What a run came to: it looked at all kinds of inputs only if all of these are large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuzzReport {
    /// Frames that the program was given.
    pub inputs: u64,
    /// Passed on to the stack untouched.
    pub passed: u64,
    /// Refused, by [`Reject`].
    pub refused: [u64; Reject::COUNT],
    /// Probes that were answered.
    pub probes: u64,
    /// Contributions that were stored or added.
    pub contributions: u64,
    /// Blocks that were completed.
    pub blocks: u64,
    /// Contributions that changed nothing and were answered or stale.
    pub repetitions: u64,
    /// Results of a parent that were taken in.
    pub deliveries: u64,
    /// Answers of a parent that were handed on to a member.
    pub relays: u64,
}

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum FuzzError {
    /// The program could not be loaded or run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The corpus could not be read or written.
    #[error("{path}: {error}", path = path.display())]
    Corpus {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The program did something else than the model.
    #[error(
        "{origin}: the kernel program does not do what the model does: {what}; after {count} \
         inputs from a fresh state, the last of them {last:02x?}",
        count = frames.len(),
        last = frames.last().map_or(&[][..], |frame| &frame[..frame.len().min(128)])
    )]
    Found {
        /// Seed and number of the input, or the file of the corpus.
        origin: String,
        /// What differed.
        what: String,
        /// The frames that it takes from a fresh state on, reduced.
        frames: Vec<Vec<u8>>,
    },
}

/// Gives the kernel program `config.inputs` frames, all of the corpus first. `progress` is told the
/// number of inputs every now and then.
///
/// # Errors
/// See [`FuzzError`]; a difference is the fuzzer's find.
pub fn fuzz_kernel(
    config: &FuzzConfig,
    progress: &mut dyn FnMut(u64),
) -> Result<FuzzReport, FuzzError> {
    let mut bed = Bed::open(config.disturb)?;
    if let Some(directory) = &config.corpus {
        for (path, frames) in read_corpus(directory)? {
            if let Some(what) = bed.replay(&frames)? {
                let origin = path.display().to_string();
                return Err(FuzzError::Found { origin, what, frames });
            }
        }
    }
    let mut mutator = Mutator::new(SmallRng::seed_from_u64(config.seed));
    let mut round = Vec::new();
    bed.reset()?;
    for nth in 0..config.inputs {
        if round.len() as u64 == ROUND {
            round.clear();
            bed.reset()?;
        }
        let frame = mutator.frame(&bed.model);
        let found = bed.input(&frame)?;
        round.push(frame);
        if let Some(what) = found {
            let (frames, what) = bed.reduce(round, what)?;
            let origin = format!("seed {}, input {nth}", config.seed);
            if let Some(directory) = &config.corpus {
                write_corpus(&directory.join(format!("{}-{nth}.frames", config.seed)), &frames)?;
            }
            return Err(FuzzError::Found { origin, what, frames });
        }
        if nth.is_multiple_of(PROGRESS_EVERY) {
            progress(nth);
        }
    }
    Ok(bed.report)
}

/// The program, and the model beside it.
struct Bed {
    engine: XdpEngine,
    model: Model,
    epoch: u16,
    report: FuzzReport,
    disturb: Option<fn(&[u8]) -> bool>,
}

impl Bed {
    fn open(disturb: Option<fn(&[u8]) -> bool>) -> Result<Self, EngineError> {
        let engine = XdpEngine::detached(model::PORT, SLOTS, None)?;
        let (model, report) = (Model::default(), FuzzReport::default());
        let mut bed = Self { engine, model, epoch: 0, report, disturb };
        bed.reset()?;
        Ok(bed)
    }

    /// A new epoch of both jobs, whose paths are learned.
    fn reset(&mut self) -> Result<(), EngineError> {
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        let setups: [JobSetup; 3] = JOBS.map(|job| model::setup(job, self.epoch));
        for (setup, mode) in setups.iter().zip(model::MODES) {
            self.engine.prepare(setup)?;
            for rank in setup.members.keys() {
                let mut probe = mutate::probe(setup, *rank);
                self.engine.test_run(&mut probe, 1)?;
            }
            if setup.uplink.is_some() {
                self.engine.test_run(&mut mutate::probe_reply(setup), 1)?;
            }
            self.engine.start(setup.job_id, Some(mode))?;
        }
        self.model = Model::new(&setups, self.world()?);
        self.model.counters = self.counters()?;
        Ok(())
    }

    /// All that the program may write, but for counters.
    fn world(&self) -> Result<World, EngineError> {
        let engine = &self.engine;
        let mut world = World::default();
        for (at, job) in JOBS.into_iter().enumerate() {
            world.confs[at] = engine.conf(job)?;
            for (rank, member) in (0..).zip(&mut world.members[at]) {
                *member = engine.member(job, rank)?;
            }
        }
        world.uplink = engine.uplink(JOBS[model::FORWARDER])?;
        for (index, slot) in (0..).zip(&mut world.slots) {
            *slot = engine.raw_slot(index)?;
        }
        Ok(world)
    }

    fn counters(&mut self) -> Result<model::Counters, EngineError> {
        let all = self.engine.counters()?;
        let [a, b, c] = JOBS.map(usize::from);
        Ok([a, b, c, MAX_JOBS].map(|index| all[index]))
    }

    /// Gives the program one frame. What it did otherwise than the model.
    fn input(&mut self, frame: &[u8]) -> Result<Option<String>, EngineError> {
        let mut out = frame.to_vec();
        let action = self.engine.test_run(&mut out, 1)?.action;
        let expected = self.model.receive(frame, &mut self.report);
        self.report.inputs += 1;
        if self.disturb.is_some_and(|disturb| disturb(frame)) {
            let mut slot = self.engine.raw_slot(1)?;
            slot.head.state.seen ^= 1 << 63;
            self.engine.set_raw_slot(1, slot)?;
        }
        if action != expected.action {
            return Ok(Some(format!("it returned {action}, expected {}", expected.action)));
        }
        if out != expected.frame {
            let at = out.iter().zip(&expected.frame).position(|(a, b)| a != b);
            return Ok(Some(format!(
                "the frame it left behind has {} bytes, expected {}, and differs from byte {at:?} \
                 on",
                out.len(),
                expected.frame.len()
            )));
        }
        let world = self.world()?;
        if let Some(what) = self.model.compare(&world, &expected) {
            return Ok(Some(what));
        }
        if self.report.inputs.is_multiple_of(COUNTERS_EVERY) {
            let counters = self.counters()?;
            if untimed(counters) != untimed(self.model.counters) {
                return Ok(Some(format!(
                    "its counters are {counters:?}, expected {:?}",
                    self.model.counters
                )));
            }
        }
        Ok(None)
    }

    /// Runs frames from a fresh state on. What went wrong, if anything did.
    fn replay(&mut self, frames: &[Vec<u8>]) -> Result<Option<String>, EngineError> {
        self.reset()?;
        for frame in frames {
            // The epoch is another one in every run; frames are kept as in the first.
            let frame = mutate::exchange(frame, 1, self.epoch);
            if let Some(what) = self.input(&frame)? {
                return Ok(Some(what));
            }
        }
        let counters = self.counters()?;
        let same = untimed(counters) == untimed(self.model.counters);
        Ok((!same).then(|| format!("its counters are {counters:?}, the model's are not")))
    }

    /// Leaves out what a failure does not need, as long as it stays one.
    fn reduce(&mut self, frames: Frames, what: String) -> Result<(Frames, String), EngineError> {
        let kept = |frame: &Vec<u8>| mutate::exchange(frame, self.epoch, 1);
        let frames: Vec<_> = frames.iter().map(kept).collect();
        let (mut best, mut told) = (frames, what);
        let mut part = best.len().saturating_sub(1);
        let mut runs = 0;
        while part > 0 && runs < REDUCE_RUNS {
            let mut from = 0;
            let before = best.len();
            while from + 1 < best.len() && runs < REDUCE_RUNS {
                let mut fewer = best.clone();
                // The last one, which failed, stays.
                fewer.drain(from..(from + part).min(best.len() - 1));
                runs += 1;
                match self.replay(&fewer)? {
                    Some(what) => (best, told) = (fewer, what),
                    None => from += part,
                }
            }
            part = if best.len() < before { part.min(best.len()) } else { part } / 2;
        }
        Ok((best, told))
    }
}

/// Frames of a file: each behind its length (16 bits, little-endian).
fn read_corpus(directory: &Path) -> Result<Vec<(PathBuf, Frames)>, FuzzError> {
    let read = |(path, bytes): (PathBuf, Vec<u8>)| {
        let mut frames = Vec::new();
        let mut rest = &bytes[..];
        while let Some((len, behind)) = rest.split_first_chunk::<2>() {
            let len = usize::from(u16::from_le_bytes(*len)).min(behind.len());
            frames.push(behind[..len].to_vec());
            rest = &behind[len..];
        }
        (path, frames)
    };
    let files = driver::corpus(directory)
        .map_err(|error| FuzzError::Corpus { path: directory.to_owned(), error })?;
    let is_failure = |path: &Path| path.extension().is_some_and(|end| end == "frames");
    Ok(files.into_iter().filter(|(path, _)| is_failure(path)).map(read).collect())
}

fn write_corpus(path: &Path, frames: &[Vec<u8>]) -> Result<(), FuzzError> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend((frame.len() as u16).to_le_bytes());
        bytes.extend(frame);
    }
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|error| FuzzError::Corpus { path: path.to_owned(), error })
}
