//! Helpers of the tests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "not every test uses every helper"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use xdp_agg_intranode::{
    Error, Exchange, Feeder, Geometry, Group, Key, MIN_SEGMENT, Marks, Options, Shape,
};

/// A job name that no other test has.
pub fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Options of a test: short deadlines, a small segment.
pub fn options(job: &str, rank: usize, size: usize) -> Options {
    let mut options = Options::new(job, rank, size);
    options.segment = 4 << 20;
    options.join_within = Duration::from_secs(20);
    options.wait_within = Duration::from_secs(20);
    options
}

/// Runs `body` in a thread for each process of a group, which to each other are as processes.
pub fn on_all<R: Send + 'static>(
    size: usize,
    body: impl Fn(Arc<Group>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    run(size, |_| (), body)
}

/// The same with the smallest segment.
pub fn in_small_segment<R: Send + 'static>(
    size: usize,
    body: impl Fn(Arc<Group>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    run(size, |options| options.segment = MIN_SEGMENT, body)
}

/// The same with further settings.
pub fn run<R: Send + 'static>(
    size: usize,
    change: impl Fn(&mut Options),
    body: impl Fn(Arc<Group>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let job = job();
    let body = Arc::new(body);
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            let mut options = options(&job, rank, size);
            change(&mut options);
            let body = Arc::clone(&body);
            thread::spawn(move || body(Group::join(&options).expect("a group")))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
}

/// A call of i32.
pub fn shape(sequence: u64, len: usize) -> Shape {
    Shape {
        sequence,
        len,
        element_size: 4,
        digest: 1,
        description: String::from("sum of i32"),
        key: Some(Key::new(key)),
    }
}

/// Process `rank`'s input of call `sequence`.
pub fn input(sequence: u64, rank: usize, len: usize) -> Vec<u8> {
    (0..len).flat_map(|i| element(sequence, rank, i).to_le_bytes()).collect()
}

fn element(sequence: u64, rank: usize, i: usize) -> i32 {
    (i as i32).wrapping_mul(31) ^ (sequence as i32).wrapping_mul(7919) ^ ((rank as i32) << 20)
}

/// What comes out of call `sequence`.
pub fn sum(sequence: u64, size: usize, len: usize) -> Vec<u8> {
    let sum = |i| (0..size).fold(0_i32, |sum, rank| sum.wrapping_add(element(sequence, rank, i)));
    (0..len).flat_map(|i| sum(i).to_le_bytes()).collect()
}

/// Some digest of a block's peaks.
pub fn key(peaks: &[f64]) -> u16 {
    let hash = |sum: u64, peak: &f64| (sum ^ peak.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (peaks.iter().fold(0, hash) >> 48) as u16
}

/// The largest element of a block.
pub fn peak(block: &[u8]) -> f64 {
    elements(block).map(|x| f64::from(x).abs()).fold(0.0, f64::max)
}

pub fn elements(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes))
}

/// Stands in for the network: sums block `j`'s inputs into its output.
pub fn carry(exchange: &Exchange, j: u64) {
    let inputs = exchange.inputs(j);
    let peaks: Vec<_> = inputs.iter().map(|input| peak(input)).collect();
    assert_eq!(key(&peaks), exchange.key(j), "the peaks of another block");
    exchange.with_output(j, |out| {
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let each = inputs.iter().map(|input| input.as_chunks::<4>().0[i]);
            *out = each.fold(0_i32, |sum, x| sum.wrapping_add(i32::from_le_bytes(x))).to_le_bytes();
        }
    });
    drop(inputs);
    // One block alone lacks rank 0, one has the most epochs, and each of two took a path.
    let (contributors_all, contributors_any, reforms, path) = match j {
        0 => (0b0110, 0b0_1000, 1, 1),
        1 => (0b1111, 0b1_0000, 3, 2),
        _ => (0b0111, 0b0_0100, 2, 0),
    };
    let (saturated, non_finite_blocks) = (1, 2);
    let marks =
        Marks { saturated, non_finite_blocks, contributors_all, contributors_any, reforms, path };
    exchange.finish(j, marks);
}

/// A call that is under way, driven by one thread.
pub struct Running {
    pub feeder: Feeder,
    pub exchange: Arc<Exchange>,
    pub carried: u64,
    pub data: Vec<u8>,
    pub sequence: u64,
}

impl Running {
    pub fn begin(
        group: &Arc<Group>,
        sequence: u64,
        len: usize,
        block: usize,
    ) -> Result<Self, Error> {
        let m = group.slice_blocks(block * 4);
        let geometry = Geometry::new(len, block, m, group.local_size());
        let (feeder, exchange) = group.try_begin(&shape(sequence, len), geometry)?;
        let data = input(sequence, group.local_rank(), len);
        Ok(Self { feeder, exchange, carried: 0, data, sequence })
    }

    /// Does what there is to do; whether there was anything, and whether all is done.
    pub fn turn(&mut self) -> Result<(bool, bool), Error> {
        let progress = self.feeder.poll(&mut self.data, &mut peak)?;
        let mut did = progress.did;
        if self.carried < self.exchange.staged().min(self.exchange.scanned()) {
            carry(&self.exchange, self.carried);
            self.carried += 1;
            did = true;
        }
        Ok((did, progress.done && self.exchange.finished()))
    }

    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        loop {
            let (did, done) = self.turn()?;
            if done {
                return Ok(self.data);
            }
            let more = self.carried < self.exchange.staged();
            if !did && !more {
                self.feeder.wait(Duration::from_millis(50));
            }
        }
    }
}
