//! The error that `docs/numerics.md` derives is never exceeded, and how large it is.

mod common;

use common::{Random, Sample, all_reduce, format, narrow};
use xdp_agg_quantize::{ElementType, Format, LaneWidth, Op, Scaling, bf16, f16};

/// A sum in twice the precision of f64 (Knuth's TwoSum).
#[derive(Clone, Copy, Default)]
struct Exact {
    high: f64,
    low: f64,
}

impl Exact {
    fn add(&mut self, x: f64) {
        let sum = self.high + x;
        let back = sum - self.high;
        self.low += (self.high - (sum - back)) + (x - back);
        self.high = sum;
    }

    /// How far a result is from it, times the divisor of an average.
    fn distance(self, result: f64, divisor: f64) -> f64 {
        let product = result * divisor;
        // What the product's rounding lost.
        let lost = result.mul_add(divisor, -product);
        ((product - self.high) - self.low + lost).abs()
    }
}

/// Blocks whose error is compared with the bound; XDP_AGG_NUMBERS_BLOCKS asks for another number.
fn blocks() -> u64 {
    let asked = std::env::var("XDP_AGG_NUMBERS_BLOCKS").ok();
    asked.and_then(|blocks| blocks.parse().ok()).unwrap_or(1_000_000)
}

const LEN: usize = 3;
const THREADS: u64 = 2;

#[test]
fn the_bound_holds_in_a_million_random_blocks() {
    let of_thread = |thread: u64| {
        let mut largest = Vec::new();
        let mut random = Random::new(thread);
        for _ in 0..blocks() / THREADS {
            one_block(&mut random, &mut largest);
        }
        largest
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        for thread in threads {
            // A bound that is never nearly reached would show nothing.
            let largest = thread.join().unwrap();
            for (format, share) in largest {
                let few = blocks() < 100_000;
                assert!((few || share > 0.2) && share <= 1.0, "{format}: {share}");
            }
        }
    });
}

/// One block of a random format, world, and range of exponents.
fn one_block(random: &mut Random, largest: &mut Vec<(String, f64)>) {
    let elements = [ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::F64];
    let element = elements[random.below(4) as usize];
    // Small worlds more often than large ones: these take their time.
    let hosts = match random.below(16) {
        0 => 1 + random.below(64),
        1..4 => 1 + random.below(16),
        _ => 1 + random.below(4),
    } as u16;
    let op = if random.below(4) == 0 { Op::Average } else { Op::Sum };
    let scaling = match random.below(3) {
        0 => Scaling::Fixed(2_f64.powf(random.symmetric() * 12.0) * 1e3),
        _ => Scaling::Block,
    };
    let narrow = element != ElementType::F64 && random.below(3) == 0;
    let format =
        Format::new(element, op, scaling, narrow.then_some(LaneWidth::W16), hosts).unwrap();
    let share = with_float(&format, random);
    let name = format!("{element} {op} {} {}", scaling_name(&format), format.width());
    match largest.iter_mut().find(|(other, _)| *other == name) {
        Some((_, largest)) => *largest = largest.max(share),
        None => largest.push((name, share)),
    }
}

fn scaling_name(format: &Format) -> &'static str {
    if format.needs_exponents() { "block" } else { "fixed" }
}

fn with_float(format: &Format, random: &mut Random) -> f64 {
    match format.element() {
        ElementType::F32 => share_of_bound::<f32>(format, random),
        ElementType::F16 => share_of_bound::<f16>(format, random),
        ElementType::Bf16 => share_of_bound::<bf16>(format, random),
        _ => share_of_bound::<f64>(format, random),
    }
}

/// The largest error of a random block as a share of its bound.
fn share_of_bound<T: Sample>(format: &Format, random: &mut Random) -> f64 {
    let parts = 1 + random.below(4) as usize;
    // All of the type's exponents, or those around 1; in a block all the same, or some decades.
    let (center, range) = match (T::TYPE, format.needs_exponents(), random.below(2)) {
        (_, false, _) => (-8.0, 4.0),
        (ElementType::F16, ..) => (-4.0, 12.0),
        (ElementType::F64, _, 0) => (0.0, 1000.0),
        (_, _, 0) => (0.0, 118.0),
        _ => (0.0, 20.0),
    };
    let center = center + random.symmetric() * range;
    let spread = random.below(24) as f64;
    let mut element = || {
        let exponent = (center - spread * random.symmetric().abs()).round();
        T::from_f64(random.symmetric() * 2_f64.powi(exponent as i32))
    };
    let hosts: Vec<Vec<Vec<T>>> = (0..format.contributors())
        .map(|_| (0..parts).map(|_| (0..LEN).map(|_| element()).collect()).collect())
        .collect();
    let outcome = all_reduce(format, &hosts);
    assert!(!outcome.encoded.non_finite);
    if outcome.encoded.saturated > 0 {
        assert!(!format.needs_exponents(), "{format:?} {hosts:?}");
        return 0.0;
    }
    let processes = hosts.len() * parts;
    let mut largest = 0.0_f64;
    for (i, result) in outcome.result.iter().enumerate() {
        let (mut exact, mut magnitude) = (Exact::default(), 0.0);
        for part in hosts.iter().flatten() {
            exact.add(part[i].to_f64());
            magnitude += part[i].to_f64().abs();
        }
        let divisor = if format.op() == Op::Average { processes as f64 } else { 1.0 };
        if !result.to_f64().is_finite() {
            let most = if T::TYPE == ElementType::F16 { 65504.0 } else { 3e38 };
            assert!(exact.high.abs() / divisor > most * 0.98, "{format:?} {hosts:?}");
            continue;
        }
        let error = exact.distance(result.to_f64(), divisor) / divisor;
        let bound =
            format.error_bound(outcome.key, hosts.len() as u32, processes as u32, magnitude);
        assert!(error <= bound, "{format:?} {hosts:?}: {error:e} > {bound:e}");
        largest = largest.max(error / bound);
    }
    largest
}

/// What a ring computes: each chunk's sum begins at another worker, and each addition rounds.
fn ring(workers: &[Vec<f32>]) -> Vec<f32> {
    let (n, len) = (workers.len(), workers[0].len());
    let chunk = len.div_ceil(n);
    let sum = |i: usize| {
        let first = i / chunk + 1;
        (1..n).fold(workers[first % n][i], |sum, k| sum + workers[(first + k) % n][i])
    };
    (0..len).map(sum).collect()
}

fn norm(errors: impl Iterator<Item = f64>) -> f64 {
    errors.map(|error| error * error).sum::<f64>().sqrt()
}

/// The 2-norms of the errors of a ring, and of these formats block by block.
fn norms(workers: &[Vec<f32>], formats: &[Format]) -> (f64, Vec<f64>) {
    const BLOCK: usize = 352;
    let exact: Vec<f64> =
        (0..workers[0].len()).map(|i| workers.iter().map(|w| f64::from(w[i])).sum()).collect();
    let error = |result: &[f32]| norm(result.iter().zip(&exact).map(|(r, e)| f64::from(*r) - e));
    let aggregated = |format: &Format| {
        let result: Vec<f32> = (0..exact.len())
            .step_by(BLOCK)
            .flat_map(|start| {
                let end = (start + BLOCK).min(exact.len());
                let hosts: Vec<_> =
                    workers.iter().map(|worker| vec![worker[start..end].to_vec()]).collect();
                all_reduce(format, &hosts).result
            })
            .collect();
        error(&result)
    };
    (error(&ring(workers)), formats.iter().map(aggregated).collect())
}

#[test]
fn blocks_are_no_worse_than_a_ring_of_floats() {
    type Draw = fn(&mut Random) -> f64;
    // How much larger than the ring's the error may be: nothing, but where single elements are a
    // thousand times the others and take the bits that a float has for each by itself.
    let draws: [(&str, f64, Draw); 5] = [
        ("normal", 1.0, |r| r.normal() * 1e-3),
        ("Laplace", 1.0, |r| (r.symmetric().abs().ln() * r.symmetric().signum()) * 1e-3),
        ("Student, 3 degrees of freedom", 1.0, |r| {
            let squares: f64 = (0..3).map(|_| r.normal().powi(2)).sum();
            1e-3 * r.normal() / (squares / 3.0).sqrt()
        }),
        ("sparse", 1.0, |r| if r.below(50) == 0 { r.normal() } else { 0.0 }),
        ("Cauchy", 2.0, |r| 1e-3 * (std::f64::consts::FRAC_PI_2 * r.symmetric() * 0.9999).tan()),
    ];
    for (name, factor, draw) in draws {
        let mut random = Random::new(11);
        let workers: Vec<Vec<f32>> =
            (0..8).map(|_| (0..352 * 40).map(|_| draw(&mut random) as f32).collect()).collect();
        let of = |scaling| format(ElementType::F32, Op::Sum, scaling, 8);
        let formats = [
            of(Scaling::Block),
            narrow(ElementType::F32, Op::Sum, Scaling::Block, 8),
            of(Scaling::Fixed(1e7)),
        ];
        let (ring, errors) = norms(&workers, &formats);
        let [block, narrow, fixed] = errors[..] else { unreachable!("three formats") };
        println!(
            "{name}: ring {ring:.2e}, block {block:.2e}, block in 16 bits {narrow:.2e}, \
             fixed:1e7 {fixed:.2e}"
        );
        assert!(block <= factor * ring, "{name}: {block} > {ring}");
        assert!(narrow > block, "{name}");
    }
}
