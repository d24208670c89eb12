//! The small program in front of the aggregator's, and the rounds of packets that it makes.

use anyhow::{Context, Result, bail};
use aya::EbpfLoader;
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, TestRun as _, TestRunOptions, Xdp};
use xdp_agg::engine::xdp::XdpEngine;

use super::bench::{MIDDLE, REPEATS, WORKER_PORT, nanos};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/bench.bpfel.o");
/// Room for what a test run leaves of a frame.
const FRAME_MAX: usize = 4096;
/// What the program does next: `Step` of `xdp-agg-ebpf/src/bench.rs`, as words.
type Step = [u64; 4];
/// All headers of a frame, as words.
type Front = [u64; 8];

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
    step: Array<MapData, Step>,
    headers: Array<MapData, Front>,
    next: ProgramArray<MapData>,
    aggregator: ProgramFd,
    floor: ProgramFd,
    floor_ns: f64,
}

impl Feeder {
    pub(super) fn open(engine: &XdpEngine) -> Result<Self> {
        let mut bpf = EbpfLoader::new().load(OBJECT).context("loading the benchmark's program")?;
        for name in ["step", "floor"] {
            let program = bpf.program_mut(name).with_context(|| format!("no program {name}"))?;
            let program: &mut Xdp = program.try_into()?;
            program.load().with_context(|| format!("loading {name}"))?;
        }
        let mut take = |name| bpf.take_map(name).with_context(|| format!("no map {name}"));
        let (step, headers, next) = (take("STEP")?, take("HEADERS")?, take("NEXT")?);
        Ok(Self {
            step: step.try_into()?,
            headers: headers.try_into()?,
            next: next.try_into()?,
            aggregator: engine.program()?,
            floor: xdp(&bpf, "floor")?.fd()?.try_clone()?,
            bpf,
            floor_ns: 0.0,
        })
    }

    /// What a test run of nothing takes.
    pub(super) fn floor(&self, frame: &[u8]) -> Result<f64> {
        Ok(self.test_run("floor", frame, REPEATS)?.1)
    }

    /// Measures what `step` itself takes, which [`Self::run`] takes off.
    pub(super) fn step_floor(&mut self, frame: &[u8], slots: u32) -> Result<()> {
        self.go_on_in(false)?;
        self.floor_ns = 0.0;
        let rounds = Rounds { block: 0, rank: 0, rounds: MIDDLE, next: Next::Rank };
        self.floor_ns = self.run(frame, slots, rounds)?;
        self.go_on_in(true)
    }

    /// Mean time of a contribution in these rounds.
    pub(super) fn run(&mut self, frame: &[u8], slots: u32, rounds: Rounds) -> Result<f64> {
        let blocks_per_round = if rounds.next == Next::Generation { slots as u16 } else { 0 };
        let ranks_per_round = u16::from(rounds.next == Next::Rank);
        let word = |a: u32, b: u16, c: u16| u64::from(a) | u64::from(b) << 32 | u64::from(c) << 48;
        let step = [
            0,
            rounds.block,
            word(slots.trailing_zeros(), rounds.rank, WORKER_PORT),
            word(frame.len() as u32, blocks_per_round, ranks_per_round),
        ];
        self.step.set(0, step, 0)?;
        self.headers.set(0, front(frame), 0)?;
        let packets = slots * u32::from(rounds.rounds);
        let (action, ns) = self.test_run("step", frame, packets)?;
        if action == 0 {
            bail!("the benchmark's program could not go on");
        }
        Ok(ns - self.floor_ns)
    }

    /// What a program returned, and the mean time of a run in nanoseconds.
    fn test_run(&self, name: &str, frame: &[u8], repeat: u32) -> Result<(u32, f64)> {
        let mut out = [0; FRAME_MAX];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::default()
        };
        let run = xdp(&self.bpf, name)?.test_run(options).context("a test run")?;
        Ok((run.return_value, nanos(run.duration)))
    }

    fn go_on_in(&mut self, aggregator: bool) -> Result<()> {
        let program = if aggregator { &self.aggregator } else { &self.floor };
        Ok(self.next.set(0, program, 0)?)
    }
}

fn xdp<'a>(bpf: &'a aya::Ebpf, name: &str) -> Result<&'a Xdp> {
    let program = bpf.program(name).with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}

fn front(frame: &[u8]) -> Front {
    let mut words = frame.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    std::array::from_fn(|_| words.next().unwrap_or_default())
}
