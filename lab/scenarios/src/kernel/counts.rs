//! What the program must have counted when the benchmark is done.

use anyhow::{Result, bail};
use xdp_agg_common::maps::{JobCounters, Reject};

use super::bench::{MIDDLE, REPEATS};

/// Whether the program did with the packets what the cases' names say. Figures of packets that were
/// refused early would look excellent.
///
/// # Errors
/// Another number than the rounds make.
pub(super) fn check(
    before: &JobCounters,
    after: &JobCounters,
    slots: u32,
    samples: u32,
) -> Result<()> {
    let (slots, samples, middle) = (u64::from(slots), u64::from(samples), u64::from(MIDDLE));
    let generations = samples + 1;
    let rejected = |reason| {
        let of = |counters: &JobCounters| counters.rejects[reason as usize];
        of(after) - of(before)
    };
    let repeated = generations * u64::from(REPEATS);
    compare(&[
        ("stored or added", after.contributions - before.contributions, 64 * slots * generations),
        ("completed", after.blocks - before.blocks, slots * generations),
        // The first generation has none before it.
        ("stale", after.stale - before.stale, slots * middle * samples),
        ("refused (cookie)", rejected(Reject::Cookie), repeated),
        ("refused (size)", rejected(Reject::Size), repeated),
        ("refused (window)", rejected(Reject::Window), repeated),
    ])
}

/// As [`check`], where nothing but contributions was sent.
///
/// # Errors
/// Another number than the rounds make.
pub(super) fn check_comparing(
    before: &JobCounters,
    after: &JobCounters,
    slots: u32,
    samples: u32,
) -> Result<()> {
    let blocks = u64::from(slots) * (u64::from(samples) + 1);
    compare(&[
        ("stored or compared", after.contributions - before.contributions, 64 * blocks),
        ("completed", after.blocks - before.blocks, blocks),
    ])
}

/// What was counted, and what should have been.
fn compare(rows: &[(&str, u64, u64)]) -> Result<()> {
    if let Some((what, counted, expected)) = rows.iter().find(|(_, is, wanted)| is != wanted) {
        bail!(
            "the benchmark's packets did not do what they should: {counted} were {what}, expected \
             {expected}; is bpf/bench.bpfel.o older than the wire format? `cargo xtask build-ebpf`"
        );
    }
    Ok(())
}
