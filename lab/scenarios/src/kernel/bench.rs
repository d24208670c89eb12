//! What a packet costs in the kernel program: `BPF_PROG_TEST_RUN`, nanoseconds a packet.
//!
//! A test run repeats one packet, but a contribution counts only once. So most cases run the small
//! program `step` (`xdp-agg-ebpf/src/bench.rs`). It writes the next contribution's headers into the
//! packet and goes on, by a tail call, in the aggregator's program as it is attached to interfaces.
//! `step` in front of an empty program is measured too, and taken off. Blocks take turns packet by
//! packet, so every packet meets another slot.

use std::time::Duration;

use anyhow::{Result, bail};
use etherparse::PacketBuilder;
use serde::Serialize;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, JobSetup};
use xdp_agg_common::lanes::{CHUNK_LEN, MAX_CHUNKS};
use xdp_agg_common::maps::{JobConf, JobCounters, ResultMode};
use xdp_agg_common::wire::{DATA_PORT, HEADER_LEN, Header, Kind, MAX_WORKERS, Reduction};
use xdp_agg_testbed::flood::pin_to_cpu;

use super::counts;
use super::feeder::{Feeder, Next, Rounds};

/// Repetitions of a packet that changes nothing.
pub(super) const REPEATS: u32 = 4096;
/// The cases whose lanes are compared and not added.
const COMPARING: [(BenchCase, Reduction); 2] =
    [(BenchCase::Max16, Reduction::Max16), (BenchCase::Min32, Reduction::Min32)];
/// Rounds of a case that many ranks take part in; rank 0 goes first, three ranks come last.
pub(super) const MIDDLE: u16 = MAX_WORKERS as u16 - 4;
const AGGREGATOR: u32 = 0x0a01_00fe;
const WORKER: u32 = 0x0a01_0001;
pub(super) const WORKER_PORT: u16 = 40_000;

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct BenchConfig {
    /// Block sizes in chunks of 64 bytes, 1 to [`MAX_CHUNKS`].
    pub(super) chunks: Vec<u16>,
    /// Slots that take turns, a power of two: 64 stay in a core's own caches, 4096 do not.
    pub(super) slots: u32,
    /// Samples of each case, at least 1; their median is told. A sample is a mean of many packets.
    pub(super) samples: u32,
}

impl Default for BenchConfig {
    /// The smallest block, the one of MTU 1500 and the largest; slots as a fast network keeps busy.
    fn default() -> Self {
        Self { chunks: vec![1, 22, MAX_CHUNKS as u16], slots: 256, samples: 31 }
    }
}

/// A way that a packet can take through the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum BenchCase {
    /// What the test run itself takes (an empty program). All others have it taken off.
    Floor,
    /// Somebody else's packet: TCP, passed on.
    Foreign,
    /// A wrong cookie: parsed, found out, counted, dropped.
    WrongCookie,
    /// Admitted but for its size, which is checked last: parsing, admission and a counter.
    WrongSize,
    /// As above, and then to the slot, which refuses: slot, lock and slot machine, but no lanes.
    WrongBlock,
    /// The first contribution to a block.
    Store,
    /// A further contribution.
    Add,
    /// The last contribution, which becomes the result for all.
    Complete,
    /// A repetition while others are missing.
    Pending,
    /// A repetition of a block that is complete: the result again.
    Resend,
    /// A contribution to a block that is past.
    Stale,
    /// As `Add`, where the largest of 16-bit lanes are wanted.
    Max16,
    /// As `Add`, where the smallest of 32-bit lanes are wanted.
    Min32,
}

impl BenchCase {
    /// The name in tables.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// One case at one block size. Times are of one packet, without the test run's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct BenchRow {
    /// What the packet did.
    pub(super) case: BenchCase,
    /// Its payload in bytes.
    pub(super) payload: u32,
    /// Slots that took turns.
    pub(super) slots: u32,
    /// Median of the samples, in nanoseconds.
    pub(super) ns_median: f64,
    /// The lower and upper quartile of the samples, in nanoseconds.
    pub(super) ns_quartiles: (f64, f64),
    /// Number of samples.
    pub(super) samples: u32,
}

/// Where the time of an adding packet goes: differences of rows, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct BenchAccount {
    /// Payload in bytes.
    pub(super) payload: u32,
    /// Finding out that a packet is ours, and parsing it: `wrong-cookie`, which includes counting.
    pub(super) parse: f64,
    /// The rest of admission: `wrong-size` - `wrong-cookie`.
    pub(super) admit: f64,
    /// Slot, lock and slot machine: `wrong-block` - `wrong-size`.
    pub(super) slot: f64,
    /// Adding lanes: `add` - `wrong-block`.
    pub(super) lanes: f64,
    /// All of it: `add`.
    pub(super) add: f64,
}

/// Measures every case at every block size, on one CPU (the calling thread stays pinned to it).
///
/// # Errors
/// No privilege, an old kernel, or a configuration out of its range.
pub(super) fn kernel_bench(config: &BenchConfig) -> Result<Vec<BenchRow>> {
    let fits = |chunks: &u16| (1..=MAX_CHUNKS as u16).contains(chunks);
    if !config.slots.is_power_of_two()
        || !(2..=32768).contains(&config.slots)
        || !config.chunks.iter().all(fits)
    {
        bail!(
            "the kernel benchmark wants 2 to 32768 slots, a power of two, and blocks of 1 to \
             {MAX_CHUNKS} chunks; it got {config:?}"
        );
    }
    pin_to_cpu(0)?;
    let mut bench = Bench::open(config)?;
    let mut rows = Vec::new();
    let mut epochs = 1..;
    for chunks in &config.chunks {
        rows.extend(bench.measure(epochs.next().unwrap_or(1), *chunks)?);
        for (case, reduction) in COMPARING {
            let epoch = epochs.next().unwrap_or(1);
            rows.push(bench.measure_comparing(epoch, *chunks, case, reduction)?);
        }
    }
    Ok(rows)
}

/// The account of each block size in `rows`.
pub(super) fn accounts(rows: &[BenchRow]) -> Vec<BenchAccount> {
    let of = |case, payload| {
        let row = rows.iter().find(|row| row.case == case && row.payload == payload);
        row.map(|row| row.ns_median)
    };
    let adds = rows.iter().filter(|row| row.case == BenchCase::Add);
    adds.filter_map(|row| {
        let payload = row.payload;
        let parse = of(BenchCase::WrongCookie, payload)?;
        let size = of(BenchCase::WrongSize, payload)?;
        let block = of(BenchCase::WrongBlock, payload)?;
        let add = row.ns_median;
        Some(BenchAccount {
            payload,
            parse,
            admit: size - parse,
            slot: block - size,
            lanes: add - block,
            add,
        })
    })
    .collect()
}

/// The aggregator's program and the one that feeds it.
pub(super) struct Bench {
    engine: XdpEngine,
    feeder: Feeder,
    slots: u32,
    samples: u32,
}

impl Bench {
    pub(super) fn open(config: &BenchConfig) -> Result<Self> {
        let engine = XdpEngine::detached(DATA_PORT, config.slots, None)?;
        let feeder = Feeder::open(&engine)?;
        Ok(Self { engine, feeder, slots: config.slots, samples: config.samples.max(1) })
    }

    fn measure(&mut self, epoch: u16, chunks: u16) -> Result<Vec<BenchRow>> {
        self.start_job(epoch, chunks)?;
        let before = self.counted()?;
        let header = header(epoch, Kind::Contribution);
        let mut samples: Vec<(BenchCase, Vec<f64>)> = Vec::new();
        for generation in 0..=u64::from(self.samples) {
            let mut sample = self.plain_sample(&header, chunks, generation)?;
            sample.extend(self.stepped_sample(&header, chunks, generation)?);
            if generation == 0 {
                // The first round finds cold caches, and slots in their first generation.
                samples = sample.iter().map(|(case, _)| (*case, Vec::new())).collect();
                continue;
            }
            for ((_, all), (_, one)) in samples.iter_mut().zip(sample) {
                all.push(one);
            }
        }
        self.engine.stop(0)?;
        let after = self.counted()?;
        counts::check(&before, &after, self.slots, self.samples)?;
        let payload = u32::from(chunks) * CHUNK_LEN as u32;
        Ok(samples.into_iter().map(|(case, all)| row(case, payload, self.slots, all)).collect())
    }

    /// Blocks whose contributions are compared: all ranks' contributions, of which most are timed.
    fn measure_comparing(
        &mut self,
        epoch: u16,
        chunks: u16,
        case: BenchCase,
        reduction: Reduction,
    ) -> Result<BenchRow> {
        self.start_job(epoch, chunks)?;
        let before = self.counted()?;
        let frame = frame(&Header { reduction, ..header(epoch, Kind::Contribution) }, chunks);
        let mut samples = Vec::new();
        for generation in 0..=u64::from(self.samples) {
            let block = generation * u64::from(self.slots);
            self.feeder.step_floor(&frame, self.slots)?;
            let mut run = |rank, rounds| {
                let rounds = Rounds { block, rank, rounds, next: Next::Rank };
                self.feeder.run(&frame, self.slots, rounds)
            };
            run(0, 1)?;
            samples.push(run(1, MIDDLE)?);
            run(MIDDLE + 1, MAX_WORKERS as u16 - MIDDLE - 1)?;
        }
        self.engine.stop(0)?;
        counts::check_comparing(&before, &self.counted()?, self.slots, self.samples)?;
        // The first finds cold caches.
        samples.remove(0);
        Ok(row(case, u32::from(chunks) * CHUNK_LEN as u32, self.slots, samples))
    }

    pub(super) const fn engine(&self) -> &XdpEngine {
        &self.engine
    }

    pub(super) const fn feeder(&mut self) -> &mut Feeder {
        &mut self.feeder
    }

    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) fn counted(&mut self) -> Result<JobCounters> {
        Ok(self.engine.counters()?[0])
    }

    /// Packets that change nothing, so that one can be repeated as it is.
    fn plain_sample(
        &mut self,
        header: &Header,
        chunks: u16,
        generation: u64,
    ) -> Result<Vec<(BenchCase, f64)>> {
        let floor = self.feeder.floor(&frame(header, chunks))?;
        let mut tcp = frame(header, chunks);
        tcp[23] = 6;
        let cookie = frame(&Header { cookie: header.cookie ^ 1, ..*header }, chunks);
        // No payload at all is refused by the check that refuses too much of it.
        let size = frame(header, 0);
        // Two generations ahead of what the slot holds.
        let ahead = (generation + 3) * u64::from(self.slots);
        let block = frame(&Header { block: ahead, ..*header }, chunks);
        let mut sample = vec![(BenchCase::Floor, floor)];
        for (case, mut frame) in [
            (BenchCase::Foreign, tcp),
            (BenchCase::WrongCookie, cookie),
            (BenchCase::WrongSize, size),
            (BenchCase::WrongBlock, block),
        ] {
            let run = self.engine.test_run(&mut frame, REPEATS)?;
            sample.push((case, nanos(run.duration) - floor));
        }
        Ok(sample)
    }

    /// One generation of blocks, from the first contributions to the results and beyond.
    ///
    /// A test run begins with cold caches: the kernel waits between two of them, and others run.
    /// Where a case is one round of packets only, another round warms the slots up first: the run
    /// of both, less a run of the first alone.
    fn stepped_sample(
        &mut self,
        header: &Header,
        chunks: u16,
        generation: u64,
    ) -> Result<Vec<(BenchCase, f64)>> {
        let slots = u64::from(self.slots);
        let first = generation * slots;
        let before = first.saturating_sub(slots);
        let frame = frame(header, chunks);
        self.feeder.step_floor(&frame, self.slots)?;
        let mut run = |block, rank, rounds, next| {
            self.feeder.run(&frame, self.slots, Rounds { block, rank, rounds, next })
        };
        // Results of the generation before, once cold; then again in front of the new blocks.
        let cold = run(before, 0, 1, Next::Rank)?;
        let store = if generation == 0 {
            run(first, 0, 1, Next::Rank)?
        } else {
            2.0 * run(before, 0, 2, Next::Generation)? - cold
        };
        let add = run(first, 1, MIDDLE, Next::Rank)?;
        let pending = run(first, 0, MIDDLE, Next::Rank)?;
        let cold = run(first, MIDDLE + 1, 1, Next::Rank)?;
        let complete = 2.0 * run(first, MIDDLE + 2, 2, Next::Rank)? - cold;
        let resend = run(first, 0, MIDDLE, Next::Rank)?;
        let stale = run(before, 0, MIDDLE, Next::Rank)?;
        Ok(vec![
            (BenchCase::Store, store),
            (BenchCase::Add, add),
            (BenchCase::Complete, complete),
            (BenchCase::Pending, pending),
            (BenchCase::Resend, resend),
            (BenchCase::Stale, stale),
        ])
    }

    /// A job of all ranks, whose paths were learned.
    pub(super) fn start_job(&mut self, epoch: u16, chunks: u16) -> Result<()> {
        let workers = MAX_WORKERS as u16;
        let probe = header(epoch, Kind::Probe);
        let conf = JobConf {
            members: u64::MAX,
            cookie: probe.cookie,
            addr: AGGREGATOR,
            slots: self.slots,
            port: DATA_PORT,
            epoch,
            workers,
            max_chunks: chunks,
            ..JobConf::default()
        };
        let member = |rank| (rank, std::net::SocketAddrV4::new(WORKER.into(), WORKER_PORT + rank));
        let members = (0..workers).map(member).collect();
        self.engine.prepare(&JobSetup::new(0, conf, members))?;
        for rank in 0..workers {
            let mut frame = frame(&Header { rank, ..probe }, 1);
            self.engine.test_run(&mut frame, 1)?;
        }
        self.engine.start(0, Some(ResultMode::Fanout))?;
        Ok(())
    }
}

pub(super) fn header(epoch: u16, kind: Kind) -> Header {
    let reduction = Reduction::Add;
    Header { kind, flags: 0, reduction, job: 0, cookie: 0x5eed, epoch, rank: 0, block: 0, tag: 1 }
}

/// A frame of the worker at [`WORKER`]; all lanes are 1.
pub(super) fn frame(header: &Header, chunks: u16) -> Vec<u8> {
    let mut ours = [0; HEADER_LEN];
    header.emit(&mut ours);
    let lanes = 1_u32.to_le_bytes().repeat(usize::from(chunks) * CHUNK_LEN / 4);
    let data = [&ours[..], &lanes].concat();
    let frame = PacketBuilder::ethernet2([0; 6], [0; 6])
        .ipv4(WORKER.to_be_bytes(), AGGREGATOR.to_be_bytes(), 64)
        .udp(WORKER_PORT + header.rank, DATA_PORT);
    let mut bytes = Vec::with_capacity(frame.size(data.len()));
    frame.write(&mut bytes, &data).expect("a vector takes it, and it is shorter than 64 KiB");
    bytes
}

pub(super) fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

fn row(case: BenchCase, payload: u32, slots: u32, all: Vec<f64>) -> BenchRow {
    let samples = all.len() as u32;
    let (ns_median, ns_quartiles) = median_and_quartiles(all);
    BenchRow { case, payload, slots, ns_median, ns_quartiles, samples }
}

/// The median, and the lower and upper quartile.
pub(super) fn median_and_quartiles(mut all: Vec<f64>) -> (f64, (f64, f64)) {
    all.sort_unstable_by(f64::total_cmp);
    let at = |part: usize| all[(all.len() - 1) * part / 4];
    (at(2), (at(1), at(3)))
}
