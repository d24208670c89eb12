//! The in-host part of an all-reduce: vectors that are copied into the segment and out of it,
//! beside vectors that lie in it, and results that are read in place.
//!
//! ```text
//! cargo run -p xdp-agg-intranode --release --example call_bench -- --processes 4 --bytes 4M,32M
//! ```
//!
//! Each process is this program again. All that a call does in a host is done, with the kernels of
//! the product: peaks and keys, sums of all processes' blocks into lanes, and lanes back into
//! elements. What would be sent and received is left out. All subjects take turns in one run.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use xdp_agg_intranode::{
    Buffer, Error, Exchange, Feeder, Geometry, Group, Key, Marks, Options, Results, Shape,
};
use xdp_agg_quantize::{Element, Format, Op, Scaling};
use xdp_agg_topology::size::of_vector;

const RANK: &str = "CALL_BENCH_RANK";
const JOB: &str = "CALL_BENCH_JOB";
/// Chunks of a block, and bytes of their lanes: those of packets at MTU 1500.
const CHUNKS: usize = 22;
const LANES: usize = CHUNKS * 64;

/// The in-host part of an all-reduce, with and without copies.
#[derive(Clone, Debug, Parser)]
struct Settings {
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Of the vector of f32
    #[arg(long, value_delimiter = ',', value_parser = of_vector, default_value = "4M,32M")]
    bytes: Vec<usize>,
    #[arg(long, default_value_t = 20)]
    repetitions: usize,
}

/// Where vector and results are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Both are copied.
    Staged,
    /// The vector lies in the segment, and results go to its place.
    Buffer,
    /// The vector is copied; results are read in place.
    View,
    /// Nothing is copied.
    BufferView,
}

const SUBJECTS: [Subject; 4] =
    [Subject::Staged, Subject::Buffer, Subject::View, Subject::BufferView];

impl Subject {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Staged => "copied in and out",
            Self::Buffer => "vector in the segment",
            Self::View => "copied in, read in place",
            Self::BufferView => "vector in the segment, read in place",
        }
    }
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

/// One process: measures all subjects in turns, and prints `bytes subject nanoseconds cpu`.
fn measure(settings: &Settings, rank: usize) -> Result<(), Error> {
    let job = std::env::var(JOB).expect("a job");
    let largest = settings.bytes.iter().max().copied().unwrap_or(0);
    let mut options = Options::new(&job, rank, settings.processes);
    // Each process's buffer, and two results: one may still be read.
    options.buffers = (settings.processes + 2) * (largest + (64 << 10));
    let group = Group::join(&options)?;
    let mut sequence = 0;
    for &bytes in &settings.bytes {
        let mut bench = Bench::new(&group, bytes / 4)?;
        for repetition in 0..=settings.repetitions {
            for subject in SUBJECTS {
                bench.fill(rank);
                group.barrier()?;
                let (start, cpu) = (Instant::now(), cpu());
                bench.run(subject, sequence)?;
                let (took, cpu) = (start.elapsed(), self::cpu() - cpu);
                sequence += 1;
                // The first time touches memory.
                if repetition > 0 {
                    println!("{bytes} {subject:?} {} {}", took.as_nanos(), cpu.as_nanos());
                }
            }
        }
    }
    Ok(())
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Bench {
    group: Arc<Group>,
    format: Format,
    own: Vec<f32>,
    buffer: Buffer,
    lanes: Vec<u8>,
}

impl Bench {
    fn new(group: &Arc<Group>, len: usize) -> Result<Self, Error> {
        let format = Format::new(f32::TYPE, Op::Average, Scaling::Block, None, 2);
        Ok(Self {
            group: Arc::clone(group),
            format: format.expect("a format"),
            own: vec![0.0; len],
            buffer: group.buffer(len * 4)?,
            lanes: vec![0; LANES],
        })
    }

    fn fill(&mut self, rank: usize) {
        for (i, x) in self.own.iter_mut().enumerate() {
            *x = (i % 1000) as f32 * 1e-3 + rank as f32;
        }
        self.buffer.copy_from_slice(bytemuck::cast_slice(&self.own));
    }

    fn run(&mut self, subject: Subject, sequence: u64) -> Result<(), Error> {
        let (block, format) = (CHUNKS * self.format.lanes_per_chunk(), self.format);
        let len = self.own.len();
        let n = self.group.local_size();
        let geometry = Geometry::new(len, block, self.group.slice_blocks(block * 4), n);
        let shape = Shape {
            sequence,
            len,
            element_size: 4,
            digest: 0,
            description: format!("{subject:?}"),
            key: Some(Key::new(move |peaks| format.key(peaks))),
        };
        let (feeder, exchange, results) = match subject {
            Subject::Staged | Subject::Buffer => {
                let (feeder, exchange) = self.group.begin(&shape, geometry)?;
                (feeder, exchange, None)
            }
            Subject::View | Subject::BufferView => {
                let place = self.group.reserve_view(len * 4)?;
                let (feeder, exchange, results) = self.group.begin_view(&shape, geometry, place)?;
                (feeder, exchange, Some(results))
            }
        };
        self.carry(subject, feeder, &exchange)?;
        self.check(subject, results, n);
        Ok(())
    }

    /// Carries the call out, on this thread.
    fn carry(
        &mut self,
        subject: Subject,
        mut feeder: Feeder,
        exchange: &Exchange,
    ) -> Result<(), Error> {
        let in_segment = matches!(subject, Subject::Buffer | Subject::BufferView);
        if in_segment {
            let memory = self.buffer.as_mut_ptr();
            let vector = self.group.find(memory, self.buffer.len()).expect("it lies there");
            // SAFETY: nobody touches the buffer before this function ends.
            unsafe { feeder.adopt(vector, false) };
        }
        let format = self.format;
        let mut peak = |block: &[u8]| format.peak::<f32>(bytemuck::cast_slice(block));
        let mut carried = 0;
        while !feeder.done() || !exchange.finished() {
            let own: &mut [u8] = bytemuck::cast_slice_mut(&mut self.own);
            let progress = match subject {
                _ if in_segment => feeder.poll_in_segment(&mut peak, &mut |_, _| true),
                Subject::View => feeder.poll_reading(own, &mut peak, &mut |_, _| true),
                _ => feeder.poll(own, &mut peak),
            }?;
            let can = carried < exchange.staged().min(exchange.scanned());
            if can {
                block(&format, exchange, carried, &mut self.lanes);
                carried += 1;
            }
            if !can && !progress.did {
                feeder.wait(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    /// One element of the result, which is an average over two hosts of which one has nothing.
    fn check(&self, subject: Subject, results: Option<Results>, n: usize) {
        let view = results.map(|results| results.view().expect("the call is done"));
        let result: &[f32] = match (&view, subject) {
            (Some(view), _) => bytemuck::cast_slice(view),
            (None, Subject::Buffer) => bytemuck::cast_slice(&self.buffer),
            (None, _) => &self.own,
        };
        let Some(x) = result.get(result.len() / 2) else { return };
        let i = result.len() / 2;
        let each = (0..n).map(|rank| (i % 1000) as f32 * 1e-3 + rank as f32);
        let expected = each.sum::<f32>() / n as f32;
        assert!((x - expected).abs() < 1e-4, "{subject:?}: {x} instead of {expected}");
        black_box(result);
    }
}

/// What an owner does with a block, but for the network.
fn block(format: &Format, exchange: &Exchange, j: u64, lanes: &mut [u8]) {
    let key = exchange.key(j);
    let inputs = exchange.inputs(j);
    let sources: Vec<&[f32]> = inputs.iter().map(|input| bytemuck::cast_slice(input)).collect();
    let lanes = &mut lanes[..format.payload(sources[0].len())];
    black_box(format.encode(key, &sources, lanes));
    let processes = sources.len() as u32;
    drop(inputs);
    exchange.with_output(j, |out| {
        format.decode::<f32>(key, lanes, 1, processes, bytemuck::cast_slice_mut(out));
    });
    exchange.hand_out(j, true);
    exchange.finish(j, Marks::default());
}

/// Starts the processes and prints the table.
fn lead(settings: &Settings) {
    let job = format!("call-bench-{}", std::process::id());
    let run = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(std::env::args().skip(1)).env(RANK, rank.to_string()).env(JOB, &job);
        let output = command.stderr(Stdio::inherit()).output().expect("a process");
        assert!(output.status.success(), "local rank {rank} failed");
        String::from_utf8(output.stdout).expect("it prints text")
    };
    let said: Vec<String> = std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> =
            (0..settings.processes).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a process")).collect()
    });
    let n = settings.processes;
    for &bytes in &settings.bytes {
        println!("\n{:.1} MiB, {n} processes, {} calls each:", mib(bytes), settings.repetitions);
        println!("| what | CPU ms of all processes, median | 10 % .. 90 % | ms | × copied |");
        println!("|---|---|---|---|---|");
        let median = |subject| quantiles(samples(&said, bytes, subject).1).1;
        for subject in SUBJECTS {
            let (took, cpu) = samples(&said, bytes, subject);
            let (low, middle, high) = quantiles(cpu);
            println!(
                "| {} | {middle:.2} | {low:.2} .. {high:.2} | {:.2} | {:.2} |",
                subject.in_words(),
                quantiles(took).1,
                middle / median(Subject::Staged),
            );
        }
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Of each repetition: milliseconds of the slowest process, and CPU milliseconds of all.
fn samples(said: &[String], bytes: usize, subject: Subject) -> (Vec<f64>, Vec<f64>) {
    let name = format!("{subject:?}");
    let of = |said: &String| -> Vec<[f64; 2]> {
        let mine = said.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let fits = words.next()?.parse() == Ok(bytes) && words.next()? == name;
            let mut number = || Some(words.next()?.parse::<f64>().ok()? / 1e6);
            fits.then(|| Some([number()?, number()?])).flatten()
        });
        mine.collect()
    };
    let each: Vec<_> = said.iter().map(of).collect();
    let slowest = |i: usize| each.iter().map(|of| of[i][0]).fold(0.0, f64::max);
    let all = |i: usize| each.iter().map(|of| of[i][1]).sum::<f64>();
    (0..each[0].len()).map(|i| (slowest(i), all(i))).unzip()
}

/// The 10th of a hundred, the median, and the 90th.
fn quantiles(mut samples: Vec<f64>) -> (f64, f64, f64) {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
    (at(0.1), at(0.5), at(0.9))
}
