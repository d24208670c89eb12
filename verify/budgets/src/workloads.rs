//! What is counted. Each workload runs [`measured`] around its part, and not around what it
//! prepares.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use xdp_agg_protocol::worker::flow::{CallRole, Config, Congestion, Flow};
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

use crate::loopback::{Loopback, Part, WORKERS};

/// Elements of a block at an MTU of 1500.
const BLOCK: usize = 352;
/// Blocks that are encoded and decoded.
const BLOCKS: usize = 1000;
/// Blocks that go through the flow control.
const FLOW_BLOCKS: u64 = 20_000;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Quantizing 1000 blocks of 352 f32.
    Quantize,
    /// The same of four processes' vectors, summed on the way.
    QuantizeFour,
    /// De-quantizing 1000 blocks.
    Dequantize,
    /// Flow control of 20 000 blocks, without loss.
    Flow,
    /// Building the packets of a worker's call of 1 MiB.
    Packets,
    /// Taking in the results of that call.
    Receive,
    /// Summing the contributions of that call in user space, of four workers.
    Sum,
    /// A whole call of 4 KiB of four workers, without sockets.
    #[value(name = "call-4k")]
    #[serde(rename = "call-4k")]
    Call4K,
    /// A whole call of 1 MiB of four workers, without sockets.
    #[value(name = "call-1m")]
    #[serde(rename = "call-1m")]
    Call1M,
}

/// callgrind counts while this runs (`--toggle-collect`), so it must not run in itself.
#[inline(never)]
pub(crate) fn measured<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

/// Does a workload. What it returns keeps the compiler from leaving it out.
pub(crate) fn run(workload: Workload) -> Result<u64> {
    match workload {
        Workload::Quantize => quantize(1),
        Workload::QuantizeFour => quantize(4),
        Workload::Dequantize => dequantize(),
        Workload::Flow => flow(),
        Workload::Packets => call(1 << 18, Part::Packets),
        Workload::Receive => call(1 << 18, Part::Receive),
        Workload::Sum => call(1 << 18, Part::Sum),
        Workload::Call4K => call(1 << 10, Part::All),
        Workload::Call1M => call(1 << 18, Part::All),
    }
}

/// A format of floats with exponents by block.
pub(crate) fn format() -> Result<Format> {
    Ok(Format::new(ElementType::F32, Op::Sum, Scaling::Block, None, WORKERS)?)
}

/// Elements that are no whole numbers, of both signs.
pub(crate) fn elements(len: usize, of: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + of * 11) % 1009) as f32 / 7.0 - 70.0).collect()
}

fn quantize(sources: usize) -> Result<u64> {
    let format = format()?;
    let data: Vec<_> = (0..sources).map(|source| elements(BLOCK, source)).collect();
    let data: Vec<&[f32]> = data.iter().map(Vec::as_slice).collect();
    let mut lanes = vec![0; 4 * BLOCK];
    Ok(measured(|| {
        (0..BLOCKS).fold(0, |sum, _| {
            let peaks: Vec<_> = data.iter().map(|part| format.peak(part)).collect();
            let encoded = format.encode(format.key(&peaks), &data, &mut lanes);
            sum + u64::from(lanes[0]) + u64::from(encoded.saturated)
        })
    }))
}

fn dequantize() -> Result<u64> {
    let format = format()?;
    let data = elements(BLOCK, 0);
    let key = format.key(&[format.peak(&data)]);
    let (mut lanes, mut result) = (vec![0; 4 * BLOCK], vec![0.0_f32; BLOCK]);
    format.encode(key, &[&data], &mut lanes);
    Ok(measured(|| {
        (0..BLOCKS).fold(0, |sum, _| {
            format.decode(key, black_box(&lanes), 4, 4, &mut result);
            sum + u64::from(result[0].to_bits())
        })
    }))
}

fn flow() -> Result<u64> {
    let mut flow = Flow::new(Config {
        limit: 512,
        window_max: 512,
        initial_window: 16,
        congestion: Congestion::Tolerant,
        rto_min: Duration::from_millis(4),
        rto_max: Duration::from_secs(1),
        block_interval: Duration::ZERO,
    });
    flow.extend(FLOW_BLOCKS, CallRole::All);
    let mut now = Duration::from_secs(1);
    let mut done = 0;
    measured(|| {
        while done < FLOW_BLOCKS {
            let sent: Vec<_> = std::iter::from_fn(|| flow.poll_transmit(now)).collect();
            now += Duration::from_micros(50);
            done += sent.into_iter().filter(|block| flow.handle_result(*block, now)).count() as u64;
        }
    });
    Ok(done)
}

fn call(len: usize, part: Part) -> Result<u64> {
    let mut loopback = Loopback::new()?;
    // The first call opens windows and rooms.
    loopback.all_reduce(len, Part::None)?;
    let result = loopback.all_reduce(len, part)?;
    Ok(result.first().context("an empty result")?.to_bits().into())
}
