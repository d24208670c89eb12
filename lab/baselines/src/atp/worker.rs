//! A worker: vectors in blocks, and when to send which.

use std::collections::VecDeque;
use std::time::Duration;

use xdp_agg_protocol::worker::EpochBlock;
use xdp_agg_protocol::worker::flow::{self, CallRole, Congestion, Flow};
use xdp_agg_quantize::{ElementType, Format, FormatError, Op, Scaling};

use super::LIMIT;
use super::wire::{HEADER_LEN, Kind, Packet, bit};

/// Settings of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Its number.
    pub rank: u16,
    /// Workers of the job, at most 64.
    pub world: u16,
    /// Which job.
    pub job: u32,
    /// Elements of a full block.
    pub block: usize,
    /// Slots of the switch.
    pub slots: u32,
    /// Most blocks under way, where that is less than slots allow.
    pub window: Option<u32>,
    /// What elements are multiplied by before they are rounded.
    pub scale: f64,
}

/// A vector under way.
#[derive(Debug)]
struct Call {
    /// Its first block, and one past its last.
    first: u64,
    end: u64,
    data: Vec<f32>,
    /// Blocks without result.
    left: u64,
}

/// Elements that do not fit lanes of this scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "block {block} has elements that do not fit 32-bit lanes of this scale, or that are no finite \
     numbers; choose a smaller scale"
)]
pub struct TooLarge {
    /// Number of the block.
    pub block: u64,
}

/// A worker's decisions. It is driven as `xdp_agg_protocol` says.
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    format: Format,
    flow: Flow,
    calls: VecDeque<Call>,
}

impl Worker {
    /// A worker with nothing to sum.
    ///
    /// # Errors
    /// A scale or a number of workers that makes no sense.
    pub fn new(options: WorkerOptions) -> Result<Self, FormatError> {
        let scaling = Scaling::Fixed(options.scale);
        let format = Format::new(ElementType::F32, Op::Sum, scaling, None, options.world)?;
        let flow = Flow::new(flow::Config {
            limit: LIMIT as u32,
            window_max: window_max(options.slots).min(options.window.unwrap_or(u32::MAX).max(2)),
            initial_window: INITIAL_WINDOW,
            congestion: Congestion::Tolerant,
            rto_min: RTO_MIN,
            rto_max: RTO_MAX,
            block_interval: Duration::ZERO,
        });
        Ok(Self { options, format, flow, calls: VecDeque::new() })
    }

    /// What its flow did.
    #[must_use]
    pub const fn counters(&self) -> &flow::Counters {
        self.flow.counters()
    }

    /// Bytes of its longest packet.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        HEADER_LEN + self.format.payload(self.options.block)
    }

    /// Starts to sum a vector. All workers start the same lengths in the same order.
    pub fn start(&mut self, data: Vec<f32>) {
        let left = data.len().div_ceil(self.options.block) as u64;
        let EpochBlock(first) = self.flow.extend(left, CallRole::All);
        self.calls.push_back(Call { first, end: first + left, data, left });
    }

    /// The oldest vector, if it is summed.
    pub fn poll_done(&mut self) -> Option<Vec<f32>> {
        self.calls.front().filter(|call| call.left == 0)?;
        self.calls.pop_front().map(|call| call.data)
    }

    /// Writes the next packet that may be sent now, and returns its length. It counts as sent.
    ///
    /// # Errors
    /// Elements that do not fit.
    pub fn poll_transmit(
        &mut self,
        now: Duration,
        out: &mut [u8],
    ) -> Result<Option<usize>, TooLarge> {
        let Some(number) = self.flow.poll_transmit(now) else { return Ok(None) };
        let EpochBlock(block) = number;
        let WorkerOptions { rank, world, job, block: len, .. } = self.options;
        let Some(call) = self.calls.iter().find(|call| block < call.end) else { return Ok(None) };
        let part = part(call, block, len);
        let again = !self.flow.is_first_transmission(number);
        let world = world as u8; // a format takes 64 at most
        let packet = Packet { kind: Kind::Fragment, again, world, job, block, ranks: bit(rank) };
        let payload = self.format.payload(part.len());
        let (header, lanes) = out.split_at_mut(HEADER_LEN);
        if let Some(header) = header.first_chunk_mut() {
            packet.emit(header);
        }
        let encoded = self.format.encode(0, &[&call.data[part]], &mut lanes[..payload]);
        if encoded.saturated > 0 || encoded.non_finite {
            return Err(TooLarge { block });
        }
        Ok(Some(HEADER_LEN + payload))
    }

    /// A packet has come. False: it is none of this worker's, or late.
    pub fn handle_packet(&mut self, packet: &[u8], now: Duration) -> bool {
        let Some((packet, lanes)) = Packet::parse(packet) else { return false };
        let WorkerOptions { rank, job, block: len, world, .. } = self.options;
        if packet.job != job || packet.ranks & bit(rank) == 0 {
            return false;
        }
        let number = EpochBlock(packet.block);
        match packet.kind {
            Kind::Fragment => false,
            Kind::Pending => {
                self.flow.handle_pending(number, now);
                true
            }
            Kind::Result => {
                let holds = |call: &&mut Call| (call.first..call.end).contains(&packet.block);
                let Some(call) = self.calls.iter_mut().find(holds) else {
                    return self.flow.handle_result(number, now);
                };
                let part = part(call, packet.block, len);
                if self.format.payload(part.len()) != lanes.len()
                    || !self.flow.handle_result(number, now)
                {
                    return false;
                }
                let (all, to) = (u32::from(world), &mut call.data[part]);
                self.format.decode(0, lanes, all, all, to);
                call.left -= 1;
                true
            }
        }
    }

    /// When [`Self::handle_timeout`] wants to be called; `None`: not before something comes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.flow.poll_timeout()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.flow.handle_timeout(now);
    }
}

/// Blocks under way at the start, and timeouts: xdp-agg's.
const INITIAL_WINDOW: u32 = 32;
const RTO_MIN: Duration = Duration::from_millis(4);
const RTO_MAX: Duration = Duration::from_millis(250);

/// Most blocks under way: half of the slots, as of xdp-agg. Most of them wait in queues before the
/// switch and not in its slots, so few find theirs taken.
fn window_max(slots: u32) -> u32 {
    (slots / 2).clamp(2, LIMIT as u32)
}

/// The elements of a block of a call.
fn part(call: &Call, block: u64, len: usize) -> std::ops::Range<usize> {
    let start = (block - call.first) as usize * len;
    start..(start + len).min(call.data.len())
}
