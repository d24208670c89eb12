//! Real gradients, eight workers: the error of each way to sum them, against 64-bit floats.
//!
//! `cargo test -p xdp-agg-demo --test numerics -- --nocapture` prints the table of
//! `docs/measurements/numerics.md`.

use xdp_agg_demo::digits::Images;
use xdp_agg_demo::network::{Network, PARAMETERS};
use xdp_agg_quantize::{ElementType, Format, LaneWidth, Op, Scaling};

const WORKERS: usize = 8;
const IMAGES_OF_WORKER: usize = 8;
const STEPS: usize = 60;
/// Elements of a block that fills an Ethernet frame, in 32-bit lanes.
const BLOCK: usize = 352;

/// The workers' gradients of one step, after `step` steps of training.
fn gradients(step: usize) -> Vec<Vec<f32>> {
    let (images, _) = Images::load().expect("the images are part of the program").split(5);
    let mut network = Network::new(5);
    let mut velocity = vec![0.0_f32; PARAMETERS];
    let mut workers = vec![vec![0.0_f32; PARAMETERS]; WORKERS];
    for now in 0..=step {
        for (w, gradient) in workers.iter_mut().enumerate() {
            let first = (now * WORKERS + w) * IMAGES_OF_WORKER;
            let own: Vec<usize> =
                (first..first + IMAGES_OF_WORKER).map(|i| i % images.len()).collect();
            network.gradient(&images.select(&own), gradient);
        }
        for i in 0..PARAMETERS {
            let mean = workers.iter().map(|g| g[i]).sum::<f32>() / WORKERS as f32;
            velocity[i] = 0.9 * velocity[i] + mean;
            network.parameters[i] -= 0.05 * velocity[i];
        }
    }
    workers
}

fn exact(workers: &[Vec<f32>]) -> Vec<f64> {
    (0..PARAMETERS).map(|i| workers.iter().map(|g| f64::from(g[i])).sum()).collect()
}

/// What a ring computes: each chunk's sum begins at another worker, and each addition rounds.
fn ring(workers: &[Vec<f32>]) -> Vec<f32> {
    let n = workers.len();
    let chunk = PARAMETERS.div_ceil(n);
    let sum = |i: usize| {
        let first = i / chunk + 1;
        (1..n).fold(workers[first % n][i], |sum, k| sum + workers[(first + k) % n][i])
    };
    (0..PARAMETERS).map(sum).collect()
}

/// What an aggregator computes with `processes` processes on each of `workers / processes` hosts.
fn aggregated(
    workers: &[Vec<f32>],
    processes: usize,
    scaling: Scaling,
    width: LaneWidth,
) -> Vec<f32> {
    let hosts: Vec<&[Vec<f32>]> = workers.chunks(processes).collect();
    let contributors = hosts.len() as u16;
    let format = Format::new(ElementType::F32, Op::Sum, scaling, Some(width), contributors)
        .expect("a format that there is");
    let mut result = vec![0.0; PARAMETERS];
    let per_block = BLOCK * 4 / width.bytes();
    for (b, to) in result.chunks_mut(per_block).enumerate() {
        let range = b * per_block..b * per_block + to.len();
        let parts = |host: &&[Vec<f32>]| -> Vec<Vec<f32>> {
            host.iter().map(|part| part[range.clone()].to_vec()).collect()
        };
        let key_of = |host: &&[Vec<f32>]| {
            format.key(&parts(host).iter().map(|part| format.peak(part)).collect::<Vec<_>>())
        };
        let key = hosts.iter().map(key_of).max().expect("at least one host");
        let mut total = vec![0_u8; format.payload(to.len())];
        for host in &hosts {
            let parts = parts(host);
            let sources: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            let mut lanes = vec![0; total.len()];
            let encoded = format.encode(key, &sources, &mut lanes);
            assert!(!encoded.non_finite && encoded.saturated == 0, "{encoded:?}");
            for (t, l) in total.as_chunks_mut::<8>().0.iter_mut().zip(lanes.as_chunks::<8>().0) {
                *t = u64::from_le_bytes(*t).wrapping_add(u64::from_le_bytes(*l)).to_le_bytes();
            }
        }
        format.decode(key, &total, u32::from(contributors), WORKERS as u32, to);
    }
    result
}

/// The 2-norm of the error, over that of the sum.
fn relative_error(result: &[f32], exact: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut result.iter().zip(exact).map(|(r, e)| f64::from(*r) - e));
    error / norm(&mut exact.iter().copied())
}

#[test]
fn sums_of_real_gradients() {
    use LaneWidth::{W16, W32};
    println!("| sum of 8 workers' gradients | step 0 | step {STEPS} |\n|---|---|---|");
    let steps = [0, STEPS].map(|step| {
        let workers = gradients(step);
        (exact(&workers), workers)
    });
    let row = |name: &str, sum: &dyn Fn(&[Vec<f32>]) -> Vec<f32>| {
        let [first, last] = [0, 1].map(|i| relative_error(&sum(&steps[i].1), &steps[i].0));
        println!("| {name} | {first:.1e} | {last:.1e} |");
        [first, last]
    };
    let ring = row("f32 ring", &ring);
    let block = row("`block`, 32 bits, 8 hosts", &|w| aggregated(w, 1, Scaling::Block, W32));
    let grouped = row("`block`, 32 bits, 2 hosts of 4", &|w| aggregated(w, 4, Scaling::Block, W32));
    let fixed_8 = row("`fixed:1e8`, 8 hosts", &|w| aggregated(w, 1, Scaling::Fixed(1e8), W32));
    let fixed_7 = row("`fixed:1e7`, 8 hosts", &|w| aggregated(w, 1, Scaling::Fixed(1e7), W32));
    let narrow = row("`block`, 16 bits, 8 hosts", &|w| aggregated(w, 1, Scaling::Block, W16));
    let two = row("`block`, 16 bits, 2 hosts of 4", &|w| aggregated(w, 4, Scaling::Block, W16));
    for i in 0..2 {
        assert!(block[i] <= ring[i], "block {} > ring {}", block[i], ring[i]);
        assert!(grouped[i] <= ring[i], "block {} > ring {}", grouped[i], ring[i]);
        assert!(fixed_8[i] < fixed_7[i] && fixed_7[i] < 1e-4);
        assert!(narrow[i] < 0.02 && two[i] < narrow[i]);
    }
}
