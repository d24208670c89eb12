//! The allocator of the segment beside the system's (`malloc`): time, and how much of the room is
//! of use.
//!
//! ```text
//! cargo run -p xdp-agg-intranode --release --example allocator_bench
//! ```
//!
//! Each row fills an empty segment until there is no room: what was asked for then is its share "at
//! once". Half of that is freed, and then one buffer is made and one is freed in turns, at random.
//! The time is that of both together. In the end it is filled once more: the share "in the end".

use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_intranode::{Group, Options};
use xdp_agg_topology::size::of_vector;

/// The allocator of the segment: time, and how much of the room is of use.
#[derive(Clone, Debug, Parser)]
struct Settings {
    /// Of the segment
    #[arg(long, value_parser = of_vector, default_value = "1G")]
    segment: usize,
    /// Buffers that are made and freed in turns
    #[arg(long, default_value_t = 20_000)]
    turns: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Sizes: as likely in each octave between the two.
const SIZES: [(&str, usize, usize); 4] = [
    ("8 KiB to 64 KiB", 8 << 10, 64 << 10),
    ("8 KiB to 4 MiB", 8 << 10, 4 << 20),
    ("128 KiB to 32 MiB", 128 << 10, 32 << 20),
    ("1 MiB to 32 MiB, whole MiB", 1 << 20, 32 << 20),
];

fn size(random: &mut SmallRng, (_, least, most): (&str, usize, usize)) -> usize {
    let octaves = (most as f64 / least as f64).log2();
    let size = (least as f64 * random.random_range(0.0..octaves).exp2()) as usize;
    if least >= 1 << 20 { size.next_multiple_of(1 << 20) } else { size }
}

fn main() {
    let settings = Settings::parse();
    let (cpus, mib) = (std::thread::available_parallelism().map_or(0, usize::from), 1 << 20);
    println!("{} MiB, {} turns, {cpus} CPUs; medians", settings.segment / mib, settings.turns);
    println!("| sizes | ns | at once | in the end | ns of malloc |");
    println!("|---|---|---|---|---|");
    for sizes in SIZES {
        let rounds = (0..settings.rounds).map(|round| measure(&settings, sizes, round as u64));
        let rounds: Vec<[f64; 4]> = rounds.collect();
        let [ns, once, end, malloc] = [0, 1, 2, 3].map(|column| {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        });
        println!("| {} | {ns:.0} | {once:.3} | {end:.3} | {malloc:.0} |", sizes.0);
    }
}

/// Nanoseconds of a turn, the two shares, and nanoseconds of a turn of `malloc`.
fn measure(settings: &Settings, sizes: (&str, usize, usize), seed: u64) -> [f64; 4] {
    let mut options = Options::new(format!("allocator-{}", std::process::id()), 0, 1);
    options.segment = settings.segment;
    let group = Group::join(&options).expect("a group of one");
    let random = || SmallRng::seed_from_u64(seed);
    let segment = turns(settings, sizes, &mut random(), |len| group.buffer(len).ok());
    // As much as the segment has, of memory that nobody touches.
    let room = std::cell::Cell::new(group.room());
    let malloc = |len: usize| {
        let left = room.get().checked_sub(len)?;
        room.set(left);
        Some(Counted { _memory: Vec::<u8>::with_capacity(len), len, room: &room })
    };
    let of_malloc = turns(settings, sizes, &mut random(), malloc);
    [segment[0], segment[1] / group.room() as f64, segment[2] / group.room() as f64, of_malloc[0]]
}

/// Memory of `malloc`, which gives its length back.
struct Counted<'a> {
    _memory: Vec<u8>,
    len: usize,
    room: &'a std::cell::Cell<usize>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.room.set(self.room.get() + self.len);
    }
}

/// Nanoseconds of a turn, and the bytes that could be had from an empty and from a used room.
fn turns<B>(
    settings: &Settings,
    sizes: (&str, usize, usize),
    random: &mut SmallRng,
    make: impl Fn(usize) -> Option<B>,
) -> [f64; 3] {
    let mut held: Vec<(B, usize)> = Vec::new();
    let fill = |held: &mut Vec<(B, usize)>, random: &mut SmallRng| {
        loop {
            let len = size(random, sizes);
            match make(len) {
                Some(buffer) => held.push((buffer, len)),
                None => return held.iter().map(|(_, len)| *len as f64).sum::<f64>(),
            }
        }
    };
    let once = fill(&mut held, random);
    let half = held.len() / 2;
    while held.len() > half {
        held.swap_remove(random.random_range(0..held.len()));
    }
    let start = Instant::now();
    for _ in 0..settings.turns {
        let len = size(random, sizes);
        if let Some(buffer) = make(len) {
            held.push((buffer, len));
        }
        if held.len() > half {
            drop(black_box(held.swap_remove(random.random_range(0..held.len()))));
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / settings.turns as f64;
    let end = fill(&mut held, random);
    [ns, once, end]
}
