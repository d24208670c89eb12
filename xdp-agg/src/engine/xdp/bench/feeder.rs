//! The small program in front of the aggregator's, and the rounds of packets that it makes.

use aya::maps::{Array, ProgramArray};
use aya::{EbpfLoader, programs::Xdp};
use xdp_agg_common::lanes::{Chunk, Lane};

use super::super::XdpEngine;
use super::super::object::{self, other};
use super::super::sys::Step;
use super::{MIDDLE, REPEATS, WORKER_PORT, nanos};
use crate::engine::EngineError;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../bpf/bench.bpfel.o");

/// Rounds of contributions: one packet a slot, then the next round.
pub(super) struct Rounds {
    pub(super) block: u64,
    pub(super) rank: u16,
    pub(super) rounds: u16,
    pub(super) next: Next,
}

/// What the next round is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The same blocks, the next rank.
    Rank,
    /// The blocks that take over the slots, the same rank.
    Generation,
}

/// The program `step`, its maps, and the program that it goes on in.
pub(super) struct Feeder {
    bpf: aya::Ebpf,
    step: Array<aya::maps::MapData, Step>,
    headers: Array<aya::maps::MapData, Chunk>,
    next: ProgramArray<aya::maps::MapData>,
    aggregator: aya::programs::ProgramFd,
    floor: aya::programs::ProgramFd,
    floor_ns: f64,
}

impl Feeder {
    pub(super) fn open(engine: &XdpEngine) -> Result<Self, EngineError> {
        const WHAT: &str = "the benchmark's program";
        let mut bpf = EbpfLoader::new().load(OBJECT).map_err(object::load_error)?;
        for name in ["step", "floor"] {
            let program = object::xdp_mut(&mut bpf, name)?;
            program.load().map_err(|error| object::load_error(error.into()))?;
        }
        let floor = program_fd(object::xdp(&bpf, "floor")?)?;
        let aggregator = program_fd(engine.object.ingress()?)?;
        let mut take = |name| bpf.take_map(name).ok_or_else(|| object::no_such(name));
        Ok(Self {
            step: take("STEP")?.try_into().map_err(|error| other(WHAT, error))?,
            headers: take("HEADERS")?.try_into().map_err(|error| other(WHAT, error))?,
            next: take("NEXT")?.try_into().map_err(|error| other(WHAT, error))?,
            bpf,
            aggregator,
            floor,
            floor_ns: 0.0,
        })
    }

    /// What a test run of nothing takes.
    pub(super) fn floor(&self, mut frame: Vec<u8>) -> Result<f64, EngineError> {
        let program = object::xdp(&self.bpf, "floor")?;
        Ok(nanos(object::test_run(program, &mut frame, REPEATS)?.1))
    }

    /// Measures what `step` itself takes, which [`Self::run`] takes off.
    pub(super) fn step_floor(&mut self, frame: &[u8], slots: u32) -> Result<(), EngineError> {
        self.go_on_in(false)?;
        self.floor_ns = 0.0;
        let rounds = Rounds { block: 0, rank: 0, rounds: MIDDLE, next: Next::Rank };
        self.floor_ns = self.run(frame, slots, rounds)?;
        self.go_on_in(true)
    }

    /// Mean time of a contribution in these rounds.
    pub(super) fn run(
        &mut self,
        frame: &[u8],
        slots: u32,
        rounds: Rounds,
    ) -> Result<f64, EngineError> {
        let step = Step {
            done: 0,
            first_block: rounds.block,
            blocks_log2: slots.trailing_zeros(),
            first_rank: rounds.rank,
            first_port: WORKER_PORT,
            frame_len: frame.len() as u32,
            blocks_per_round: if rounds.next == Next::Generation { slots as u16 } else { 0 },
            ranks_per_round: u16::from(rounds.next == Next::Rank),
        };
        let set = |error| other("the benchmark's maps", error);
        self.step.set(0, step, 0).map_err(set)?;
        self.headers.set(0, front(frame), 0).map_err(set)?;
        let program = object::xdp(&self.bpf, "step")?;
        let mut frame = frame.to_vec();
        let packets = slots * u32::from(rounds.rounds);
        let (action, duration) = object::test_run(program, &mut frame, packets)?;
        if action == 0 {
            return Err(super::super::wrong("the benchmark's program could not go on".into()));
        }
        Ok(nanos(duration) - self.floor_ns)
    }

    fn go_on_in(&mut self, aggregator: bool) -> Result<(), EngineError> {
        let program = if aggregator { &self.aggregator } else { &self.floor };
        self.next.set(0, program, 0).map_err(|error| other("the benchmark's maps", error))
    }
}

fn program_fd(program: &Xdp) -> Result<aya::programs::ProgramFd, EngineError> {
    let fd = program.fd().map_err(|error| other("a program", error))?;
    fd.try_clone().map_err(|error| other("a program", error))
}

fn front(frame: &[u8]) -> Chunk {
    let mut chunk = Chunk::default();
    for (lane, bytes) in chunk.iter_mut().zip(frame.as_chunks::<8>().0) {
        *lane = Lane::new(u64::from_le_bytes(*bytes));
    }
    chunk
}
