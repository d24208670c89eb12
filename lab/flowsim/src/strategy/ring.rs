//! Rings, and halving and doubling: hosts that send to each other.

use crate::engine::{After, Schedule, Stream, StreamId, Uses};
use crate::fabric::Fabric;

use super::StrategyError;

/// A ring of all ranks in the given order: `2 (N - 1)` steps of `1/N` of the vector. A step goes
/// out as soon as the one before it has come in: no barrier.
pub fn ring(fabric: &Fabric<'_>, order: &[u16], bytes: f64) -> Schedule {
    let mut schedule = Schedule::new();
    let chunk = bytes / order.len().max(1) as f64;
    let steps = 2 * order.len().saturating_sub(1);
    let mut planter = Planter::new(fabric, &mut schedule);
    planter.ring(order, steps, chunk, order.len(), &[]);
    schedule
}

/// A ring in each rack, rings across racks, and a ring in each rack again (paper 3, section III-A):
/// reduce-scatter, all-reduce of each part among the members that hold it, all-gather.
///
/// # Errors
/// [`StrategyError::UnequalRacks`]: the racks differ in size.
pub fn hierarchical(
    fabric: &Fabric<'_>,
    racks: &[Vec<u16>],
    bytes: f64,
) -> Result<Schedule, StrategyError> {
    let size = racks.first().map_or(0, Vec::len);
    if let Some(other) = racks.iter().find(|rack| rack.len() != size) {
        return Err(StrategyError::UnequalRacks(size, other.len()));
    }
    let mut schedule = Schedule::new();
    let mut planter = Planter::new(fabric, &mut schedule);
    let part = bytes / size.max(1) as f64;
    // By rack and member, what it has received when a phase ends.
    let mut received: Vec<Vec<StreamId>> = Vec::new();
    for rack in racks {
        received.push(planter.ring(rack, size - 1, part, size, &[]));
    }
    let mut across: Vec<Vec<StreamId>> = vec![Vec::new(); racks.len()];
    for member in 0..size {
        let order: Vec<u16> = racks.iter().map(|rack| rack[member]).collect();
        let after: Vec<Option<StreamId>> =
            received.iter().map(|rack| rack.get(member).copied()).collect();
        let steps = 2 * (racks.len() - 1);
        let chunk = part / racks.len() as f64;
        let ring = planter.ring(&order, steps, chunk, racks.len(), &after);
        for (rack, stream) in ring.into_iter().enumerate() {
            across[rack].push(stream);
        }
    }
    for (rack, before) in racks.iter().zip(across) {
        let after: Vec<_> = (0..size).map(|member| before.get(member).copied()).collect();
        planter.ring(rack, size - 1, part, size, &after);
    }
    Ok(schedule)
}

/// Recursive halving (reduce-scatter) and doubling (all-gather): `2 log2 N` steps with a partner.
///
/// # Errors
/// [`StrategyError::NoPowerOfTwo`]: partners exist for a power of two of ranks alone.
pub fn halving_doubling(
    fabric: &Fabric<'_>,
    order: &[u16],
    bytes: f64,
) -> Result<Schedule, StrategyError> {
    let count = order.len();
    if !count.is_power_of_two() {
        return Err(StrategyError::NoPowerOfTwo(count));
    }
    let mut schedule = Schedule::new();
    let mut planter = Planter::new(fabric, &mut schedule);
    let rounds = count.ilog2();
    // The largest part first, to the partner that is furthest off, and back in reverse.
    let halving = (0..rounds).map(|round| (count >> (round + 1), round + 1));
    let doubling = (0..rounds).rev().map(|round| (count >> (round + 1), round + 1));
    let mut before: Vec<StreamId> = Vec::new();
    for (distance, halvings) in halving.chain(doubling) {
        let size = bytes / 2_f64.powi(halvings as i32);
        let streams: Vec<StreamId> = (0..count)
            .map(|rank| planter.send(order[rank], order[rank ^ distance], 1, size, 2))
            .collect();
        // What a rank has sent before, and what it has received before.
        for (rank, &stream) in streams.iter().enumerate() {
            let Some(&own) = before.get(rank) else { continue };
            planter.schedule.wait(stream, own, After::All);
        }
        for (rank, &from) in planter.partners.iter().enumerate() {
            planter.schedule.wait(streams[rank], from, After::All);
        }
        planter.partners = (0..count).map(|rank| streams[rank ^ distance]).collect();
        before = streams;
    }
    Ok(schedule)
}

struct Planter<'a> {
    fabric: &'a Fabric<'a>,
    schedule: &'a mut Schedule,
    uses: Uses,
    /// By rank, the stream that it received in the round before.
    partners: Vec<StreamId>,
}

impl<'a> Planter<'a> {
    fn new(fabric: &'a Fabric<'a>, schedule: &'a mut Schedule) -> Self {
        Self { fabric, schedule, uses: fabric.uses(), partners: Vec::new() }
    }

    /// A stream from one rank to another; `members` of its steps.
    fn send(&mut self, from: u16, to: u16, chunks: u32, chunk: f64, members: usize) -> StreamId {
        let hosts = self.fabric.network().hosts();
        let (from, to) = (usize::from(from), usize::from(to));
        let flow = ((from as u64) << 20) ^ to as u64;
        let latency = self.fabric.route(&mut self.uses, hosts[from], hosts[to], flow);
        let costs = self.fabric.costs();
        let chunk_bytes = costs.streamed.wire(chunk);
        let overhead = costs.step_of(members);
        let stream = Stream { latency, overhead, ..Stream::chunked(chunks, chunk_bytes) };
        self.schedule.add(stream, &mut self.uses)
    }

    /// Each member sends `steps` chunks to the next, each when the one before it has come in; the
    /// first when all of `after` has come in. Returns what each member receives.
    fn ring(
        &mut self,
        order: &[u16],
        steps: usize,
        chunk: f64,
        members: usize,
        after: &[Option<StreamId>],
    ) -> Vec<StreamId> {
        let count = order.len();
        if steps == 0 {
            // Nothing to send: what was received before is what is received.
            return after.iter().copied().flatten().collect();
        }
        let streams: Vec<StreamId> = (0..count)
            .map(|i| self.send(order[i], order[(i + 1) % count], steps as u32, chunk, members))
            .collect();
        for (i, &stream) in streams.iter().enumerate() {
            self.schedule.wait(stream, streams[(i + count - 1) % count], After::Lag(1));
            if let Some(Some(before)) = after.get(i) {
                self.schedule.wait(stream, *before, After::All);
            }
        }
        (0..count).map(|i| streams[(i + count - 1) % count]).collect()
    }
}
