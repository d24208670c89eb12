//! CSC beside the ring, and both beside what the machine's copies allow.
//!
//! ```text
//! cargo run -p xdp-agg-intranode --release --example csc_bench -- --processes 4 --bytes 4M,32M
//! ```
//!
//! Each process is this program again. Everything is measured in one run, the algorithms in turns,
//! so that other load on the machine meets all of them. `--bytes` is the size of the whole buffer:
//! an all-gather's output, a reduce-scatter's input.
//!
//! The bound of the last columns: the bytes that the algorithm copies, divided by the measured copy
//! bandwidth of all processes at once, in buffers of the same size. A reduction's reads and writes
//! count half a copied byte each.

use std::hint::black_box;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use xdp_agg_intranode::add::add;
use xdp_agg_intranode::csc::Csc;
use xdp_agg_intranode::ring::Ring;
use xdp_agg_intranode::send_receive::SendReceive;
use xdp_agg_intranode::{Buffer, Error, Group, Options};
use xdp_agg_topology::size::of_vector;

const RANK: &str = "CSC_BENCH_RANK";
const JOB: &str = "CSC_BENCH_JOB";

/// CSC beside the ring, and both beside what the machine's copies allow.
#[derive(Clone, Debug, Parser)]
struct Settings {
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Of the whole buffer
    #[arg(long, value_delimiter = ',', value_parser = of_vector, default_value = "4M,32M")]
    bytes: Vec<usize>,
    #[arg(long, default_value_t = 40)]
    repetitions: usize,
    #[arg(long, value_parser = of_vector, default_value = "32M")]
    segment: usize,
    /// Of the area for CSC
    #[arg(long, value_parser = of_vector, default_value = "4M")]
    room: usize,
    /// Of the ring's mailboxes: all are tried, the best counts
    #[arg(long, value_delimiter = ',', value_parser = of_vector, default_value = "64K,256K,1M")]
    chunks: Vec<usize>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Copy,
    CscGather,
    CscGatherShared,
    CscGatherView,
    RingGather(usize),
    SendReceiveGather,
    CscScatter,
    RingScatter(usize),
    SendReceiveScatter,
}

fn main() {
    let settings = Settings::parse();
    match std::env::var(RANK) {
        Ok(rank) => {
            let rank = rank.parse().expect("a rank");
            if let Err(error) = measure(&settings, rank) {
                eprintln!("local rank {rank}: {error}");
                std::process::exit(1);
            }
        }
        Err(_) => lead(&settings),
    }
}

fn subjects(settings: &Settings) -> Vec<Subject> {
    let rings = |of: fn(usize) -> Subject| settings.chunks.iter().copied().map(of);
    let mut subjects = vec![Subject::Copy, Subject::CscGather];
    subjects.extend([Subject::CscGatherShared, Subject::CscGatherView]);
    subjects.extend(rings(Subject::RingGather));
    subjects.push(Subject::SendReceiveGather);
    subjects.push(Subject::CscScatter);
    subjects.extend(rings(Subject::RingScatter));
    subjects.push(Subject::SendReceiveScatter);
    subjects
}

/// One process: measures all subjects in turns, and prints `bytes subject nanoseconds cpu`.
fn measure(settings: &Settings, rank: usize) -> Result<(), Error> {
    let job = std::env::var(JOB).expect("a job");
    let mut options = Options::new(&job, rank, settings.processes);
    options.segment = settings.segment;
    let group = Group::join(&options)?;
    let mut sockets = SendReceive::connect(&group, &job)?;
    for &bytes in &settings.bytes {
        let bytes = bytes / settings.processes / 64 * 64 * settings.processes;
        let mut bench = Bench::new(&group, settings, bytes)?;
        for repetition in 0..=settings.repetitions {
            for subject in subjects(settings) {
                group.barrier()?;
                let (start, cpu) = (Instant::now(), cpu());
                let measured = bench.run(subject, &mut sockets)?;
                let cpu = self::cpu() - cpu;
                // All have to be done: the last one's time is the operation's.
                group.barrier()?;
                let took = start.elapsed();
                // The first time touches memory.
                if measured && repetition > 0 {
                    println!("{bytes} {subject:?} {} {}", took.as_nanos(), cpu.as_nanos());
                }
            }
        }
    }
    std::io::stdout().flush().expect("a pipe");
    Ok(())
}

/// Everything for one size.
struct Bench {
    csc: Csc,
    viewer: Option<Csc>,
    rings: Vec<(usize, Ring)>,
    in_place: Option<Buffer>,
    part: usize,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Bench {
    fn new(group: &Arc<Group>, settings: &Settings, bytes: usize) -> Result<Self, Error> {
        let n = settings.processes;
        let csc = Csc::new(group, settings.room)?;
        let mut rings = Vec::new();
        for &chunk in &settings.chunks {
            rings.push((chunk, Ring::new(group, chunk)?));
        }
        // Algorithms that need the whole buffer in the segment are measured where it has room for
        // that.
        let fits = bytes <= group.room() / 7;
        let viewer = fits.then(|| Csc::new(group, 2 * bytes + 128 * n)).transpose()?;
        let in_place = fits.then(|| group.buffer(bytes / n)).transpose()?;
        let (input, output) = (vec![1; bytes], vec![2; bytes]);
        Ok(Self { csc, viewer, rings, in_place, part: bytes / n, input, output })
    }

    /// Runs it once, if it can be.
    fn run(&mut self, subject: Subject, sockets: &mut SendReceive) -> Result<bool, Error> {
        let part = self.part;
        let (input, output) = (&self.input, &mut self.output);
        match subject {
            Subject::Copy => output.copy_from_slice(input),
            Subject::CscGather => self.csc.all_gather(&input[..part], output)?,
            Subject::CscGatherShared => match &self.in_place {
                Some(buffer) => self.csc.all_gather_shared(buffer, output)?,
                None => return Ok(false),
            },
            Subject::CscGatherView => match &mut self.viewer {
                Some(viewer) => _ = black_box(&viewer.all_gather_view(&input[..part])?[0]),
                None => return Ok(false),
            },
            Subject::RingGather(chunk) => {
                ring(&mut self.rings, chunk).all_gather(&input[..part], output)?;
            }
            Subject::SendReceiveGather => sockets.all_gather(&input[..part], output)?,
            Subject::CscScatter => {
                self.csc.reduce_scatter(input, &mut output[..part], 4, &mut add::<f32>)?;
            }
            Subject::RingScatter(chunk) => {
                let ring = ring(&mut self.rings, chunk);
                ring.reduce_scatter(input, &mut output[..part], 4, &mut add::<f32>)?;
            }
            Subject::SendReceiveScatter => {
                sockets.reduce_scatter(input, &mut output[..part], 4, &mut add::<f32>)?;
            }
        }
        black_box(&self.output);
        Ok(true)
    }
}

fn ring(rings: &mut [(usize, Ring)], chunk: usize) -> &mut Ring {
    let found = rings.iter_mut().find(|(its, _)| *its == chunk);
    &mut found.expect("one of each chunk").1
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts the processes and prints the table.
fn lead(settings: &Settings) {
    let job = format!("csc-bench-{}", std::process::id());
    let (stolen, start) = (steal(), Instant::now());
    let run = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(std::env::args().skip(1)).env(RANK, rank.to_string()).env(JOB, &job);
        let output = command.stderr(Stdio::inherit()).output().expect("a process");
        assert!(output.status.success(), "local rank {rank} failed");
        String::from_utf8(output.stdout).expect("it prints text")
    };
    let said: Vec<String> = std::thread::scope(|scope| {
        let run = &run;
        let ranks = (0..settings.processes).map(|rank| scope.spawn(move || run(rank)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("a process")).collect()
    });
    report(settings, &said);
    let cpus = std::thread::available_parallelism().map_or(0, |cpus| cpus.get());
    println!(
        "\n{cpus} CPUs, {} processes, segment {} MiB, {:.1} s, {} ticks stolen by others",
        settings.processes,
        settings.segment >> 20,
        start.elapsed().as_secs_f64(),
        steal() - stolen,
    );
}

/// Milliseconds of one repetition by all processes, and CPU milliseconds of all.
#[derive(Clone, Copy, Debug)]
struct Sample {
    took: f64,
    cpu: f64,
}

fn samples(said: &[String], bytes: usize, subject: Subject) -> Vec<Sample> {
    let name = format!("{subject:?}");
    let of = |said: &String| -> Vec<Sample> {
        let mine = said.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let fits = words.next()?.parse() == Ok(bytes) && words.next()? == name;
            let mut number = || Some(words.next()?.parse::<f64>().ok()? / 1e6);
            fits.then(|| Some(Sample { took: number()?, cpu: number()? })).flatten()
        });
        mine.collect()
    };
    let each: Vec<_> = said.iter().map(of).collect();
    (0..each[0].len())
        .map(|i| Sample {
            took: each.iter().map(|samples| samples[i].took).fold(0.0, f64::max),
            cpu: each.iter().map(|samples| samples[i].cpu).sum(),
        })
        .collect()
}

/// Median, and the 10th and 90th of a hundred.
fn quantiles(samples: &[Sample]) -> (f64, f64, f64) {
    let mut took: Vec<f64> = samples.iter().map(|sample| sample.took).collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.1), at(0.9))
}

/// Bytes that one process copies, as a share of the whole buffer.
fn copied(subject: Subject, n: f64) -> f64 {
    match subject {
        Subject::Copy => 1.0,
        // The own part in, all parts out.
        Subject::CscGather => 1.0 / n + 1.0,
        Subject::CscGatherShared => 1.0,
        Subject::CscGatherView => 1.0 / n,
        // Each of the others' parts in and out, the own part out.
        Subject::RingGather(_) | Subject::SendReceiveGather => 2.0 * (n - 1.0) / n + 1.0 / n,
        // The others' parts in; then n reads and a write of 1/n, at half a copied byte each.
        Subject::CscScatter => (n - 1.0) / n + 0.5 * (1.0 + 1.0 / n),
        // In each round one part in, and two reads and a write of another.
        Subject::RingScatter(_) | Subject::SendReceiveScatter => (n - 1.0) / n * (1.0 + 1.5),
    }
}

fn report(settings: &Settings, said: &[String]) {
    let n = settings.processes;
    for &bytes in &settings.bytes {
        let bytes = bytes / n / 64 * 64 * n;
        let median = |subject| quantiles(&samples(said, bytes, subject)).0;
        let copy = median(Subject::Copy);
        let bandwidth = n as f64 * bytes as f64 / (copy * 1e6);
        println!("\n{:.1} MiB, {n} processes; all copy at once: {bandwidth:.2} GB/s", mib(bytes));
        println!("| what | ms | 10 % .. 90 % | CPU ms | GB/s | bound ms | × bound |");
        println!("|---|---|---|---|---|---|---|");
        for subject in subjects(settings) {
            let samples = samples(said, bytes, subject);
            if samples.is_empty() {
                continue;
            }
            let (middle, low, high) = quantiles(&samples);
            let cpu = samples.iter().map(|sample| sample.cpu).sum::<f64>() / samples.len() as f64;
            let bound = copied(subject, n as f64) * copy;
            println!(
                "| {subject:?} | {middle:.3} | {low:.3} .. {high:.3} | {cpu:.3} | {:.2} | \
                 {bound:.3} | {:.2} |",
                bytes as f64 / (middle * 1e6),
                middle / bound,
            );
        }
        let best = |of: fn(usize) -> Subject| {
            settings.chunks.iter().map(|&chunk| median(of(chunk))).fold(f64::MAX, f64::min)
        };
        let (gather, scatter) = (median(Subject::CscGather), median(Subject::CscScatter));
        println!(
            "CSC over the best ring of mailboxes:       all-gather {:.2}, reduce-scatter {:.2}\n\
             CSC over the ring of sends and receives:  all-gather {:.2}, reduce-scatter {:.2}",
            best(Subject::RingGather) / gather,
            best(Subject::RingScatter) / scatter,
            median(Subject::SendReceiveGather) / gather,
            median(Subject::SendReceiveScatter) / scatter,
        );
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Ticks that other machines on this host had while ours wanted to run.
fn steal() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut words = stat.lines().next().unwrap_or_default().split_whitespace();
    words.nth(8).and_then(|word| word.parse().ok()).unwrap_or(0)
}
