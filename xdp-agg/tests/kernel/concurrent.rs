//! Two CPUs in the same slots at the same time.

use std::sync::Barrier;
use std::thread;

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg_common::wire::MAX_WORKERS;

use crate::frames::{Frame, bytes_of, payload};
use crate::setup::{counters, engine, header, job, pin_to_cpu, start};

const ROUNDS: u64 = 200;
const CHUNKS: u16 = 22;

/// All 64 ranks of a block, half of them from each CPU, some of them twice, all at once: every sum
/// holds every rank once.
#[test]
fn two_cpus_sum_exactly() {
    let Some(mut engine) = engine(32) else { return };
    let job = job(MAX_WORKERS as u16, 1);
    start(&mut engine, &job, None);
    let barrier = Barrier::new(2);
    let contribute = |engine: &XdpEngine, rank: u16, block: u64| {
        let mut frame = Frame::from_worker(rank, &header(&job, rank, block), CHUNKS);
        engine.test_run(&mut frame.bytes, 1).expect("it runs");
    };
    let worker = |engine: &XdpEngine, cpu: usize| {
        pin_to_cpu(cpu);
        for block in 0..ROUNDS {
            barrier.wait();
            for step in 0..MAX_WORKERS as u16 / 2 {
                let rank = 2 * step + cpu as u16;
                contribute(engine, rank, block);
                // The other CPU's rank of a moment ago, again: a duplicate in full flight.
                if step % 4 == 3 {
                    contribute(engine, rank ^ 1, block);
                }
            }
            barrier.wait();
            if cpu == 0 {
                check(engine, job.job_id, block);
            }
        }
    };
    thread::scope(|scope| {
        let shared = &engine;
        let threads = [0, 1].map(|cpu| scope.spawn(move || worker(shared, cpu)));
        threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    });
    let (counters, _) = counters(&mut engine, &job);
    assert_eq!(counters.contributions, ROUNDS * MAX_WORKERS as u64);
    assert_eq!(counters.blocks, ROUNDS);
    assert_eq!(counters.duplicates, ROUNDS * (2 * 8), "the copies that came second");
}

fn check(engine: &XdpEngine, job: u16, block: u64) {
    let (state, lanes) = engine.slot(job, block).expect("the job is there");
    assert_eq!((state.block, state.seen), (block, u64::MAX));
    let mut sum = vec![0_u32; usize::from(CHUNKS) * 16];
    for rank in 0..MAX_WORKERS as u16 {
        let payload = payload(rank, block, CHUNKS);
        let lanes = payload.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
        sum.iter_mut().zip(lanes).for_each(|(s, lane)| *s += lane);
    }
    let expected: Vec<u8> = sum.into_iter().flat_map(u32::to_le_bytes).collect();
    assert_eq!(bytes_of(&lanes[..usize::from(CHUNKS)]), expected, "block {block}");
}
