//! How fast the kernels are, beside what this machine copies.
//!
//! `cargo bench -p xdp-agg-quantize [-- ROUNDS]`; `XDP_AGG_SIMD` chooses the instructions.

use xdp_agg_quantize::simd::Simd;
use xdp_agg_quantize::throughput::{Row, WorkingSet, alone, fusion};
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

const WORKERS: u16 = 8;
const ROUNDS: usize = 21;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(ROUNDS).max(1);
    let simd = Simd::from_environment()?;
    let format = |scaling| -> Result<Format, _> {
        Format::new(ElementType::F32, Op::Sum, scaling, None, WORKERS)
    };
    let (block, fixed) = (format(Scaling::Block)?, format(Scaling::Fixed(1e7))?);
    println!("{}; {rounds} rounds: median (best); GB/s are bytes read and written", simd.level());
    let stolen = stolen();
    for place in WorkingSet::ALL {
        println!("\nblocks of 352 f32, one source: {place:?}");
        let rows = alone(&[("block", block), ("fixed", fixed)], place, rounds);
        for row in &rows {
            let beside = if row.name.starts_with("de-") { 2 } else { 1 };
            let [whole, same] = [0, beside].map(|i| share(row, &rows[i]));
            println!(
                "{}  {:4.0} ({:4.0}) % of a copy, {:4.0} ({:4.0}) % of one by blocks",
                line(row),
                whole[0],
                whole[1],
                same[0],
                same[1],
            );
        }
    }
    for sources in [2, 4] {
        for chunks in [1, 16] {
            println!("\n{sources} sources, {chunks} chunks of 1 MB");
            let rows = fusion(&block, sources, chunks, rounds);
            for [fused, unfused, by_chunks] in rows.as_chunks().0 {
                println!("{}", line(fused));
                for other in [unfused, by_chunks] {
                    let [median, best] = [0, 1].map(|i| other.seconds[i] / fused.seconds[i]);
                    println!("{}  fused: {median:.2} ({best:.2}) times as fast", line(other));
                }
            }
        }
    }
    if let (Some(before), Some(after)) = (stolen, self::stolen()) {
        println!("\nstolen from this machine meanwhile: {} ticks", after - before);
    }
    Ok(())
}

fn share(row: &Row, of: &Row) -> [f64; 2] {
    [0, 1].map(|i| 100.0 * row.rates()[i] / of.rates()[i])
}

fn line(row: &Row) -> String {
    let [median, best] = row.rates().map(|rate| rate / 1e9);
    format!("{:28} {median:6.1} ({best:5.1}) GB/s", row.name)
}

/// Ticks that the hypervisor gave to others.
fn stolen() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}
