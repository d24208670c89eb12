//! Contributions that two CPUs add at the same time: to slots of their own, and to the same ones.
//!
//! A slot is locked while a packet is added to it. Where the packets of a job's workers come in on
//! several receive queues, several CPUs may want one slot.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, bail};
use xdp_agg_common::wire::{Kind, MAX_WORKERS};
use xdp_agg_testbed::flood::pin_to_cpu;

use super::bench::{Bench, BenchConfig, frame, header, median_and_quartiles};
use super::feeder::{Feeder, Next, Rounds};

/// Ranks whose contributions are timed on each CPU, where both add to the same blocks.
const EACH: u16 = MAX_WORKERS as u16 / 2 - 3;

/// Which slots the second CPU adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Second {
    /// It adds nothing.
    Idle,
    /// Those that the first one leaves alone.
    Others,
    /// The same, at the same time and in the same order, as workers send them.
    Same,
}

impl Second {
    pub(super) const ALL: [Self; 3] = [Self::Idle, Self::Others, Self::Same];

    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Idle => "one CPU alone",
            Self::Others => "two CPUs, slots of their own",
            Self::Same => "two CPUs, the same slots",
        }
    }
}

/// What adding a contribution takes on each CPU that adds, in nanoseconds.
pub(super) struct Contention {
    pub(super) second: Second,
    pub(super) ns_median: f64,
    pub(super) ns_quartiles: (f64, f64),
}

/// Measures all three, sample by sample in turn. The calling thread stays pinned to CPU 0.
///
/// # Errors
/// No second CPU; and as `kernel_bench`.
pub(super) fn contention(config: &BenchConfig, chunks: u16) -> Result<Vec<Contention>> {
    pin_to_cpu(0)?;
    let mut bench = Bench::open(config)?;
    let mut feeder = Feeder::open(bench.engine())?;
    bench.start_job(1, chunks)?;
    let frame = frame(&header(1, Kind::Contribution), chunks);
    let mut samples = Second::ALL.map(|_| Vec::new());
    let mut blocks = 0;
    for _ in 0..=config.samples {
        for (second, samples) in Second::ALL.into_iter().zip(&mut samples) {
            samples.extend(sample(&mut bench, &mut feeder, &frame, (second, blocks))?);
            blocks += u64::from(config.slots);
        }
    }
    let (added, sent) = (bench.counted()?.contributions, blocks * MAX_WORKERS as u64);
    if added != sent {
        bail!("{added} of {sent} contributions were added");
    }
    let of = |(second, all)| {
        let (ns_median, ns_quartiles) = median_and_quartiles(all);
        Contention { second, ns_median, ns_quartiles }
    };
    Ok(Second::ALL.into_iter().zip(samples).map(of).collect())
}

/// One generation of blocks: all contributions, of which most are timed; one figure for each CPU.
fn sample(
    bench: &mut Bench,
    feeder: &mut Feeder,
    frame: &[u8],
    (second, block): (Second, u64),
) -> Result<Vec<f64>> {
    let slots = bench.slots();
    let first = bench.feeder();
    for feeder in [&mut *first, &mut *feeder] {
        feeder.step_floor(frame, slots)?;
    }
    let rounds = |block, rank, rounds| Rounds { block, rank, rounds, next: Next::Rank };
    first.run(frame, slots, rounds(block, 0, 1))?;
    let half = slots / 2;
    let ((slots_1, rounds_1), other) = match second {
        Second::Idle => ((slots, rounds(block, 1, 2 * EACH)), None),
        Second::Others => (
            (half, rounds(block, 1, 2 * EACH)),
            Some((half, rounds(block + u64::from(half), 1, 2 * EACH))),
        ),
        Second::Same => {
            ((slots, rounds(block, 1, EACH)), Some((slots, rounds(block, 1 + EACH, EACH))))
        }
    };
    let together = &Barrier::new(1 + usize::from(other.is_some()));
    let times = thread::scope(|scope| -> Result<Vec<f64>> {
        let other = other.map(|(slots, rounds)| {
            scope.spawn(move || {
                pin_to_cpu(1)?;
                together.wait();
                feeder.run(frame, slots, rounds)
            })
        });
        together.wait();
        let mut times = vec![first.run(frame, slots_1, rounds_1)?];
        if let Some(other) = other {
            times.push(other.join().ok().context("the second CPU's thread panicked")??);
        }
        Ok(times)
    })?;
    let last = 1 + 2 * EACH;
    first.run(frame, slots, rounds(block, last, MAX_WORKERS as u16 - last))?;
    Ok(times)
}
