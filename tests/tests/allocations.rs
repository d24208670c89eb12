//! Memory of calls that go on and on: what a worker allocates for one, and that nothing is kept.
#![expect(unsafe_code, reason = "an allocator that counts stands in for the system's")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use support::{Lab, at_all, need_root, network};
use xdp_agg_client::{Communicator, Op};

/// The system's allocator, which counts.
struct Counting;

/// Allocations so far, and bytes that are in use.
static MADE: AtomicU64 = AtomicU64::new(0);
static IN_USE: AtomicI64 = AtomicI64::new(0);

// SAFETY: all is the system allocator's; counting touches atomics alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MADE.fetch_add(1, Ordering::Relaxed);
        IN_USE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of all ranks at the same time, each in its host's network; how many allocations one call
/// of one rank made, and the bytes that are in use afterwards.
fn call(lab: &Lab, workers: &[Communicator], elements: usize, calls: u32) -> (f64, i64) {
    let together = Barrier::new(workers.len());
    let counted = at_all(&lab.topology, workers, |worker| {
        let mut vector = vec![1.0_f32; elements];
        let one = |vector: &mut Vec<f32>| {
            vector.fill(1.0);
            worker.all_reduce(vector, Op::Sum).expect("it is summed");
        };
        one(&mut vector);
        together.wait();
        let before = MADE.load(Ordering::Relaxed);
        together.wait();
        for _ in 0..calls {
            one(&mut vector);
        }
        together.wait();
        let seen = (MADE.load(Ordering::Relaxed) - before, IN_USE.load(Ordering::Relaxed));
        together.wait();
        seen
    });
    let (made, in_use) = counted[0];
    (made as f64 / f64::from(calls) / workers.len() as f64, in_use)
}

/// What a call allocates does not depend on its length, so nothing is allocated for a packet, and
/// ten thousand calls keep no more than the first thousand, whose latest are remembered.
#[test]
fn a_packet_allocates_nothing_and_calls_keep_nothing() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("memory", 2, |settings| settings.learning(false));
    let (short, after_first) = call(&lab, &workers, 1024, 1_500);
    let (_, after_all) = call(&lab, &workers, 1024, 8_500);
    let grown = after_all - after_first;
    eprintln!("{short:.2} allocations a call of 4 KiB; {grown} bytes more after 8500 calls");
    assert!(grown < 64 << 10, "{grown} bytes more are in use after 8500 calls");
    let (long, _) = call(&lab, &workers, 1 << 20, 50);
    eprintln!("{long:.2} allocations a call of 4 MiB, which is 2979 packets each way");
    assert!(long < short + 30.0, "{long} allocations a call of 4 MiB, {short} of 4 KiB");
    assert!(short < 12.0, "{short} allocations a call of 4 KiB");
}

/// The same of calls that learn: a trial now and then, and calls among the workers, keep nothing.
#[test]
fn calls_that_learn_keep_nothing() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let workers = lab.connect("learning", 2, |settings| settings.learning(true));
    let (short, after_first) = call(&lab, &workers, 1024, 1_500);
    let (_, after_all) = call(&lab, &workers, 1024, 8_500);
    let grown = after_all - after_first;
    let learned = workers[0].learned();
    eprintln!("{short:.2} allocations a call of 4 KiB; {grown} bytes more; {learned:?}");
    assert!(learned.iter().any(|size| size.tried > 0), "{learned:?}");
    assert!(grown < 64 << 10, "{grown} bytes more are in use after 8500 calls");
    let (long, _) = call(&lab, &workers, 1 << 20, 50);
    eprintln!("{long:.2} allocations a call of 4 MiB");
    assert!(long < short + 60.0, "{long} allocations a call of 4 MiB, {short} of 4 KiB");
    assert!(short < 60.0, "{short} allocations a call of 4 KiB");
}
