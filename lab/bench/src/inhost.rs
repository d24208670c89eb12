//! One process of a benchmark of collectives inside a host: CSC, rings, and the product with and
//! without the host's shared memory, in turns, so that other load on the machine meets all alike.
//!
//! Each result is checked once per size, element by element.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use serde::{Deserialize, Serialize};
use xdp_agg_client::{Builder, Communicator, Op};
use xdp_agg_intranode::add::add;
use xdp_agg_intranode::csc::Csc;
use xdp_agg_intranode::ring::Ring;
use xdp_agg_intranode::send_receive::SendReceive;
use xdp_agg_intranode::{Group, Options};

/// Most bytes of the area for CSC: as much as is a half for an all-gather of 128 MiB.
const MOST_ROOM: usize = 256 << 20;
/// Bytes of the area for CSC in pieces, which stay in the caches.
const PIECES: usize = 1 << 20;
/// Pieces of the ring's mailboxes: all are tried.
const MAILBOXES: [usize; 2] = [64 << 10, 256 << 10];
/// Bytes that all timed calls of one system and size move, about; at least [`FEWEST`] are timed.
const BUDGET: usize = 1 << 30;
const FEWEST: u32 = 3;

/// One process of a benchmark of collectives inside a host.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-inhost", version)]
pub struct Args {
    /// Sizes of the whole buffer in bytes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Timed calls; large buffers get fewer.
    #[arg(long)]
    iters: u32,
    /// The product without the host's shared memory is measured up to this size in bytes.
    #[arg(long)]
    out_up_to: usize,
    /// Where the times go.
    #[arg(long)]
    report: PathBuf,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// All processes copy a buffer of that size at once.
    Copy,
    /// All wait for all.
    Barrier,
    /// Each process's part of the buffer to all.
    AllGather,
    /// The sum of all buffers, a part of it to each.
    ReduceScatter,
    /// The sum of all buffers to all.
    AllReduce,
    /// One process's buffer to all.
    Broadcast,
}

/// How it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The C library.
    Memory,
    /// CSC, in one piece if 256 MiB have room for it.
    Csc,
    /// CSC in pieces.
    CscPieces,
    /// A ring of mailboxes in shared memory.
    RingShared {
        /// Bytes of a place.
        piece: usize,
    },
    /// A ring of sends and receives.
    RingSockets,
    /// A communicator, whose calls stay in the host.
    InHost,
    /// A communicator whose calls go through the aggregator or over TCP.
    OutOfHost,
}

/// A system's times, of one process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// What was called.
    pub operation: Operation,
    /// How.
    pub system: System,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// Of each call: nanoseconds of the machine's clock at its begin and its end.
    pub times: Vec<(u64, u64)>,
    /// How often a call of CSC waited for all.
    pub synchronizations: f64,
    /// Elements that were not as they should be.
    pub wrong: u64,
}

/// Measures all, and writes the times.
///
/// # Errors
/// A setting, a process that is lost, a file that cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let settings = Builder::from_env()?.learning(false);
    let join = |name: &str, stay: bool| -> Result<Communicator> {
        let job = format!("{}-{name}", settings.get_job());
        Ok(settings.clone().job(job).host_collectives(stay).connect()?)
    };
    let (inside, outside) = (join("in", true)?, join("out", false)?);
    let (rank, n) = (usize::from(inside.rank()), usize::from(inside.world_size()));
    let longest = args.bytes.iter().copied().max().unwrap_or(0);
    let mut options = Options::new(format!("{}-host", settings.get_job()), rank, n);
    options.segment = room_of(n, longest) + PIECES + 4 * n * (1 << 20) + (8 << 20);
    let group = Group::join(&options)?;
    let name = format!("{}-{}", settings.get_job(), std::os::unix::process::parent_id());
    let mut sockets = SendReceive::connect(&group, &name)?;
    let mut all = Vec::new();
    for &bytes in &args.bytes {
        // Whole elements and whole lines in each part.
        let bytes = (bytes / n).next_multiple_of(64) * n;
        let mut bench = Bench::new(&group, (&inside, &outside), bytes)?;
        let iters = args.iters.min((BUDGET / bytes) as u32).max(FEWEST);
        let subjects = subjects(bytes <= args.out_up_to);
        let first = all.len();
        all.extend(subjects.iter().map(|(operation, system)| Measured {
            operation: *operation,
            system: *system,
            bytes,
            times: Vec::new(),
            synchronizations: 0.0,
            wrong: 0,
        }));
        for repetition in 0..=iters {
            for measured in &mut all[first..] {
                bench.prepare(measured.operation);
                let before = bench.synchronizations();
                group.barrier()?;
                let begin = clock();
                bench.call(measured.operation, measured.system, &mut sockets)?;
                let end = clock();
                measured.synchronizations = (bench.synchronizations() - before) as f64;
                // The first time touches memory.
                if repetition > 0 {
                    measured.times.push((begin, end));
                } else {
                    measured.wrong = bench.wrong(measured.operation, measured.system);
                }
            }
        }
    }
    let json = serde_json::to_vec(&all)?;
    fs::write(&args.report, json).with_context(|| format!("writing {}", args.report.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Room for CSC of a buffer of this size in one piece, as far as that goes: each process writes for
/// each of the others, in two halves.
fn room_of(n: usize, bytes: usize) -> usize {
    (2 * n * bytes).next_multiple_of(1 << 16).clamp(2 * n * n * 64, MOST_ROOM)
}

fn subjects(out: bool) -> Vec<(Operation, System)> {
    use Operation::{AllGather, AllReduce, Barrier, Broadcast, Copy, ReduceScatter};
    let mut all = vec![(Copy, System::Memory), (Barrier, System::Memory)];
    for operation in [AllGather, ReduceScatter, AllReduce, Broadcast] {
        let has_ring = matches!(operation, AllGather | ReduceScatter);
        if operation != Broadcast {
            all.extend([(operation, System::Csc), (operation, System::CscPieces)]);
        }
        if has_ring {
            all.extend(MAILBOXES.map(|piece| (operation, System::RingShared { piece })));
            all.push((operation, System::RingSockets));
        }
        all.push((operation, System::InHost));
        if out {
            all.push((operation, System::OutOfHost));
        }
    }
    all
}

/// Everything for one size.
struct Bench<'a> {
    group: Arc<Group>,
    inside: &'a Communicator,
    outside: &'a Communicator,
    csc: Csc,
    pieces: Csc,
    rings: Vec<(usize, Ring)>,
    n: usize,
    rank: usize,
    /// Elements of a part.
    part: usize,
    input: Vec<f32>,
    output: Vec<f32>,
}

/// An element of a process's buffer. Sums of them are whole numbers, and exact in all systems.
fn number(rank: usize, i: usize) -> f32 {
    (i % 1009) as f32 + rank as f32 * 31.0
}

impl<'a> Bench<'a> {
    fn new(
        group: &Arc<Group>,
        (inside, outside): (&'a Communicator, &'a Communicator),
        bytes: usize,
    ) -> Result<Self> {
        let (n, rank) = (group.local_size(), group.local_rank());
        let csc = Csc::new(group, room_of(n, bytes))?;
        let pieces = Csc::new(group, PIECES.min(room_of(n, bytes)))?;
        let mut rings = Vec::new();
        for piece in MAILBOXES {
            rings.push((piece, Ring::new(group, piece)?));
        }
        let len = bytes / 4;
        let input = (0..len).map(|i| number(rank, i)).collect();
        let (group, part, output) = (Arc::clone(group), len / n, vec![0.0; len]);
        Ok(Self { group, inside, outside, csc, pieces, rings, n, rank, part, input, output })
    }

    /// What is called in place begins with the input.
    fn prepare(&mut self, operation: Operation) {
        if !matches!(operation, Operation::Copy | Operation::Barrier) {
            self.output.copy_from_slice(&self.input);
        }
    }

    fn synchronizations(&self) -> u64 {
        self.csc.synchronizations() + self.pieces.synchronizations()
    }

    fn call(
        &mut self,
        operation: Operation,
        system: System,
        sockets: &mut SendReceive,
    ) -> Result<()> {
        let own = self.rank * self.part..(self.rank + 1) * self.part;
        let input: &[u8] = bytes_of(&self.input);
        let part: &[u8] = bytes_of(&self.input[own]);
        let communicator = if system == System::InHost { self.inside } else { self.outside };
        let csc = if system == System::Csc { &mut self.csc } else { &mut self.pieces };
        let piece = if let System::RingShared { piece } = system { piece } else { MAILBOXES[0] };
        let ring = self.rings.iter_mut().find(|(its, _)| *its == piece);
        let ring = &mut ring.context("a ring of each piece")?.1;
        let data = &mut self.output;
        match (operation, system) {
            (Operation::Copy, _) => bytes_of_mut(data).copy_from_slice(input),
            (Operation::Barrier, _) => self.group.barrier()?,
            (Operation::AllGather, System::Csc | System::CscPieces) => {
                csc.all_gather(part, bytes_of_mut(data))?;
            }
            (Operation::AllGather, System::RingShared { .. }) => {
                ring.all_gather(part, bytes_of_mut(data))?;
            }
            (Operation::AllGather, System::RingSockets) => {
                sockets.all_gather(part, bytes_of_mut(data))?;
            }
            (Operation::AllGather, _) => communicator.all_gather(data)?,
            (Operation::ReduceScatter, system) => {
                let to = &mut bytes_of_mut(data)[..part.len()];
                match system {
                    System::Csc | System::CscPieces => {
                        csc.reduce_scatter(input, to, 4, &mut add::<f32>)?;
                    }
                    System::RingShared { .. } => {
                        ring.reduce_scatter(input, to, 4, &mut add::<f32>)?;
                    }
                    System::RingSockets => {
                        sockets.reduce_scatter(input, to, 4, &mut add::<f32>)?;
                    }
                    _ => _ = communicator.reduce_scatter(data, Op::Sum)?,
                }
            }
            (Operation::AllReduce, System::Csc | System::CscPieces) => {
                csc.all_reduce(bytes_of_mut(data), 4, &mut add::<f32>)?;
            }
            (Operation::AllReduce, _) => _ = communicator.all_reduce(data, Op::Sum)?,
            (Operation::Broadcast, _) => communicator.broadcast(data, 0)?,
        }
        black_box(&self.output);
        Ok(())
    }

    /// Elements that are not as they should be.
    fn wrong(&self, operation: Operation, system: System) -> u64 {
        let sum = |i: usize| (0..self.n).map(|rank| number(rank, i)).sum::<f32>();
        let own = self.rank * self.part;
        let all = self.output.iter().enumerate();
        let is_wrong = |(i, x): &(usize, &f32)| match operation {
            Operation::Copy => **x != number(self.rank, *i),
            Operation::Barrier => false,
            Operation::AllGather => **x != number(i / self.part, *i),
            Operation::AllReduce => **x != sum(*i),
            Operation::Broadcast => **x != number(0, *i),
            Operation::ReduceScatter => {
                // The product leaves a part in its place, the others at the start.
                let place = match system {
                    System::InHost | System::OutOfHost => own,
                    _ => 0,
                };
                (place..place + self.part).contains(i) && **x != sum(i - place + own)
            }
        };
        all.filter(is_wrong).count() as u64
    }
}

fn bytes_of(data: &[f32]) -> &[u8] {
    bytemuck::cast_slice(data)
}

fn bytes_of_mut(data: &mut [f32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(data)
}

/// Nanoseconds of the clock that all processes of a machine share.
fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
