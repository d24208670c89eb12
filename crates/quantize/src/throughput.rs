//! How fast the kernels are on this machine, beside what it copies: for `benches/kernels.rs` and
//! for reports.
//!
//! Cases take turns, round by round, so that a busy neighbour hits all of them. The median of the
//! rounds counts, and the best is beside it. "Moved" bytes are those read and those written, as
//! of a copy.

use std::hint::black_box;
use std::time::Instant;

use crate::Format;

/// Elements of a block of the usual size: 1408 bytes in 32-bit lanes.
pub const BLOCK: usize = 352;
/// Elements of a chunk that the processes of a host work on together.
pub const CHUNK: usize = 728 * BLOCK;
/// Elements beyond the caches: 64 MiB.
const LARGE: usize = (64 << 20) / 4 / BLOCK * BLOCK;
/// Packets that a sender fills before it begins again: 90 kB.
const PACKETS: usize = 64;

/// One case.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// Bytes read and written in a round.
    pub moved: usize,
    /// Seconds of a round: median, and best.
    pub seconds: [f64; 2],
    /// How often a round goes through the buffers.
    pub repeats: u32,
}

impl Row {
    /// Bytes moved in a second: by the median, and by the best.
    #[must_use]
    pub fn rates(&self) -> [f64; 2] {
        self.seconds.map(|seconds| self.moved as f64 / seconds)
    }
}

/// Where the blocks are that are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkingSet {
    /// Elements and lanes beyond the caches.
    Memory,
    /// Elements beyond the caches, lanes in packets that are used again and again.
    Packets,
    /// Elements of one chunk, lanes in packets: as in a job.
    Chunk,
    /// Both in the cache nearest to the core.
    Cache,
}

impl WorkingSet {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Packets, Self::Chunk, Self::Cache];

    fn elements(self) -> usize {
        match self {
            Self::Memory | Self::Packets => LARGE,
            Self::Chunk => CHUNK,
            Self::Cache => 2 * BLOCK,
        }
    }

    fn lanes(self) -> usize {
        match self {
            Self::Memory => LARGE,
            Self::Packets | Self::Chunk => PACKETS * BLOCK,
            Self::Cache => 2 * BLOCK,
        }
    }
}

/// What the cases read and write: the same memory for all.
struct Buffers {
    sources: Vec<Vec<f32>>,
    lanes: Vec<u8>,
    result: Vec<f32>,
    own: Vec<f32>,
}

struct Case<'a> {
    name: String,
    moved: usize,
    run: Box<dyn FnMut(&mut Buffers) + 'a>,
    seconds: Vec<f64>,
    repeats: usize,
}

impl<'a> Case<'a> {
    fn new(name: impl Into<String>, moved: usize, run: impl FnMut(&mut Buffers) + 'a) -> Self {
        Self { name: name.into(), moved, run: Box::new(run), seconds: Vec::new(), repeats: 1 }
    }

    fn repeating(self, repeats: usize) -> Self {
        Self { repeats, ..self }
    }
}

fn measure(rounds: usize, buffers: &mut Buffers, mut cases: Vec<Case<'_>>) -> Vec<Row> {
    for round in 0..=rounds {
        for case in &mut cases {
            let started = Instant::now();
            (case.run)(buffers);
            // The first round warms up.
            if round > 0 {
                case.seconds.push(started.elapsed().as_secs_f64());
            }
        }
    }
    let row = |mut case: Case<'_>| {
        case.seconds.sort_by(f64::total_cmp);
        let seconds = [case.seconds[case.seconds.len() / 2], case.seconds[0]];
        Row { name: case.name, moved: case.moved, seconds, repeats: case.repeats as u32 }
    };
    cases.into_iter().map(row).collect()
}

/// Values like gradients: of both signs, over some decades.
fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 33) as f32 / (1_u32 << 31) as f32
    };
    (0..len).map(|_| (next() - 0.5) * next().powi(4) * 0.02).collect()
}

/// Quantization and de-quantization alone, block by block, each beside a copy of the same blocks.
/// First a copy of the whole by the C library, which is what a machine's copy bandwidth means. For
/// sums of f32 in 32-bit lanes.
#[must_use]
pub fn alone(formats: &[(&str, Format)], place: WorkingSet, rounds: usize) -> Vec<Row> {
    let (elements, lanes) = (place.elements(), place.lanes());
    let mut buffers = Buffers {
        sources: vec![values(elements, 1)],
        lanes: vec![1; 4 * lanes],
        result: vec![1.0; elements],
        own: vec![1.0; lanes],
    };
    let repeat = (LARGE / 4 / elements).max(1);
    let moved = 8 * elements * repeat;
    let (elements, lanes) = (elements / BLOCK, lanes / BLOCK);
    // Each block of elements, and its block of lanes.
    let all =
        move || (0..elements * repeat).map(move |i| (i % elements * BLOCK, i % lanes * BLOCK));
    let mut cases = vec![
        Case::new("copy of all", moved, move |b| {
            for _ in 0..repeat {
                b.result.copy_from_slice(black_box(&b.sources[0]));
            }
        }),
        Case::new("copy to lanes", moved, move |b| {
            for (x, lane) in all() {
                b.own[lane..][..BLOCK].copy_from_slice(black_box(&b.sources[0][x..][..BLOCK]));
            }
        }),
        Case::new("copy from lanes", moved, move |b| {
            for (x, lane) in all() {
                b.result[x..][..BLOCK].copy_from_slice(black_box(&b.own[lane..][..BLOCK]));
            }
        }),
    ];
    for (name, format) in formats {
        let key = format.key(&[format.peak(&buffers.sources[0])]);
        cases.push(Case::new(format!("quantize {name}"), moved, move |b| {
            for (x, lane) in all() {
                let (from, to) = (&b.sources[0][x..][..BLOCK], &mut b.lanes[4 * lane..]);
                black_box(format.encode(black_box(key), &[from], &mut to[..4 * BLOCK]));
            }
        }));
        cases.push(Case::new(format!("de-quantize {name}"), moved, move |b| {
            for (x, lane) in all() {
                let from = black_box(&b.lanes[4 * lane..][..4 * BLOCK]);
                format.decode(key, from, 1, 1, &mut b.result[x..][..BLOCK]);
            }
        }));
    }
    measure(rounds, &mut buffers, cases)
}

/// Fused against unfused, over `chunks` chunks: the sum of `sources` processes' elements straight
/// into packets, or by way of a sum in memory; results straight into the shared result, or by way
/// of a buffer. Packets are used again and again.
///
/// Three rows each: fused; one operation after the other, with the intermediate vector between them
/// (what fusion replaces: paper 5, section 2.3, Eq. (9)); and by chunks, with a buffer of one chunk
/// that stays in the cache (which has half of the gain already).
#[must_use]
pub fn fusion(format: &Format, sources: usize, chunks: usize, rounds: usize) -> Vec<Row> {
    let mut buffers = Buffers {
        sources: (0..sources as u64).map(|seed| values(chunks * CHUNK, seed)).collect(),
        lanes: vec![1; 4 * PACKETS * BLOCK],
        result: vec![1.0; chunks * CHUNK],
        own: vec![1.0; chunks * CHUNK],
    };
    let peaks: Vec<f64> = buffers.sources.iter().map(|part| format.peak(part)).collect();
    let key = format.key(&peaks);
    let repeat = (32 / chunks).max(1);
    let moved = 4 * CHUNK * chunks * repeat;
    let all = move || (0..chunks).cycle().take(chunks * repeat);
    let sum = move |b: &mut Buffers, chunk: usize, buffer: usize| {
        let to = &mut b.own[buffer * CHUNK..][..CHUNK];
        with_parts(&b.sources, chunk * CHUNK, CHUNK, |parts| format.reduce(parts, to));
    };
    let quantize = move |b: &mut Buffers, buffer: usize| {
        for (block, from) in b.own[buffer * CHUNK..][..CHUNK].chunks(BLOCK).enumerate() {
            black_box(format.encode(black_box(key), &[from], packet(&mut b.lanes, block)));
        }
    };
    let decode = move |lanes: &mut [u8], to: &mut [f32]| {
        for (block, to) in to.chunks_mut(BLOCK).enumerate() {
            format.decode(black_box(key), packet(lanes, block), 1, 1, to);
        }
    };
    let sums = moved * (sources + 1);
    let cases = vec![
        Case::new("sum and quantize, fused", sums, move |b| {
            for chunk in all() {
                for block in 0..CHUNK / BLOCK {
                    let to = packet(&mut b.lanes, block);
                    with_parts(&b.sources, chunk * CHUNK + block * BLOCK, BLOCK, |parts| {
                        black_box(format.encode(black_box(key), parts, to));
                    });
                }
            }
        }),
        Case::new("sum, then quantize", sums, move |b| {
            for _ in 0..repeat {
                (0..chunks).for_each(|chunk| sum(b, chunk, chunk));
                (0..chunks).for_each(|chunk| quantize(b, chunk));
            }
        }),
        Case::new("the same by chunks", sums, move |b| {
            for chunk in all() {
                sum(b, chunk, 0);
                quantize(b, 0);
            }
        }),
        Case::new("de-quantize into the result", moved * 2, move |b| {
            for chunk in all() {
                decode(&mut b.lanes, &mut b.result[chunk * CHUNK..][..CHUNK]);
            }
        }),
        Case::new("de-quantize, then copy", moved * 2, move |b| {
            for _ in 0..repeat {
                (0..chunks).for_each(|c| decode(&mut b.lanes, &mut b.own[c * CHUNK..][..CHUNK]));
                b.result.copy_from_slice(black_box(&b.own));
            }
        }),
        Case::new("the same by chunks", moved * 2, move |b| {
            for chunk in all() {
                decode(&mut b.lanes, &mut b.own[..CHUNK]);
                b.result[chunk * CHUNK..][..CHUNK].copy_from_slice(black_box(&b.own[..CHUNK]));
            }
        }),
    ];
    let cases = cases.into_iter().map(|case| case.repeating(repeat)).collect();
    measure(rounds, &mut buffers, cases)
}

/// The communication alone, as part of what [`fusion`] has one operation after the other: the sum
/// of `sources` processes' elements in memory (a reduce-scatter's reading), and the copy of a
/// result (an all-gather's). The paper's tables 3 and 4 compare with it.
#[must_use]
pub fn communication(format: &Format, sources: usize, chunks: usize, rounds: usize) -> Vec<Row> {
    let len = chunks * CHUNK;
    let mut buffers = Buffers {
        sources: (0..sources as u64).map(|seed| values(len, seed)).collect(),
        lanes: Vec::new(),
        result: vec![1.0; len],
        own: vec![1.0; len],
    };
    let repeat = (32 / chunks).max(1);
    let moved = 4 * len * repeat;
    let cases = vec![
        Case::new("sum", moved * (sources + 1), move |b| {
            for chunk in (0..chunks).cycle().take(chunks * repeat) {
                let to = &mut b.own[chunk * CHUNK..][..CHUNK];
                with_parts(&b.sources, chunk * CHUNK, CHUNK, |parts| format.reduce(parts, to));
            }
        }),
        Case::new("copy", moved * 2, move |b| {
            for _ in 0..repeat {
                b.result.copy_from_slice(black_box(&b.own));
            }
        }),
    ];
    let cases = cases.into_iter().map(|case| case.repeating(repeat)).collect();
    measure(rounds, &mut buffers, cases)
}

fn packet(lanes: &mut [u8], block: usize) -> &mut [u8] {
    &mut lanes[block % PACKETS * 4 * BLOCK..][..4 * BLOCK]
}

/// Calls `run` with this part of each of up to eight sources.
fn with_parts(sources: &[Vec<f32>], start: usize, len: usize, run: impl FnOnce(&[&[f32]])) {
    let mut parts: [&[f32]; 8] = [&[]; 8];
    for (part, source) in parts.iter_mut().zip(sources) {
        *part = &source[start..][..len];
    }
    run(&parts[..sources.len().min(8)]);
}
