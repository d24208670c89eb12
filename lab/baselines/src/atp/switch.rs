//! The switch: slots that are taken as fragments come.

use super::wire::{Packet, add, store};
use super::{Counters, LIMIT};

/// A slot that a block holds.
#[derive(Debug)]
struct Held {
    /// Of the fragment that took it; its ranks are those that are in.
    packet: Packet,
    /// Empty when they went to the server.
    lanes: Vec<u32>,
}

/// What becomes of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Onward<'a> {
    /// It is in its slot, or was there already. Nothing goes out.
    Kept,
    /// It goes on to the server as it is.
    Passed,
    /// This sum goes to the server; the fragment does not.
    Sum(Packet, &'a [u32]),
    /// This part of a sum goes to the server, and the fragment behind it.
    SumThenPassed(Packet, &'a [u32]),
}

/// The switch's memory. It knows neither servers nor addresses.
#[derive(Debug)]
pub struct Switch {
    slots: Vec<Option<Held>>,
    /// Lanes of slots that were freed: the latest sum that went out, and memory for the next.
    out: Vec<u32>,
    counters: Counters,
}

impl Switch {
    /// A switch with so many slots (at least one).
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let slots = (0..slots.max(1)).map(|_| None).collect();
        Self { slots, out: Vec::new(), counters: Counters::default() }
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Slots that a block holds now.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// A worker's fragment has come.
    pub fn handle_fragment(&mut self, packet: &Packet, lanes: &[u8]) -> Onward<'_> {
        let Self { slots, out, counters } = self;
        let index = packet.slot(slots.len());
        let slot = &mut slots[index];
        let left_behind = |held: &Held| {
            held.packet.job == packet.job && held.packet.block + LIMIT <= packet.block
        };
        if slot.as_ref().is_some_and(left_behind) {
            counters.reclaimed += 1;
            *slot = None;
        }
        let Some((held, len)) = slot.as_ref().map(|held| (held.packet, held.lanes.len())) else {
            if packet.again {
                // Its block may be at the server by now. What it would wait for here is gone.
                counters.passed += 1;
                return Onward::Passed;
            }
            let mut kept = std::mem::take(out);
            store(&mut kept, lanes);
            let held = slot.insert(Held { packet: *packet, lanes: kept });
            return counters.if_whole(held);
        };
        let same = (held.job, held.block) == (packet.job, packet.block)
            && len * size_of::<u32>() == lanes.len();
        if !same {
            counters.passed += 1;
            return Onward::Passed;
        }
        let (known, whole) = (held.ranks & packet.ranks != 0, held.ranks == held.all());
        let sum = Packet { again: true, ..held };
        if packet.again && !whole {
            // What waits here may be all that the server lacks. The block's other fragments pass
            // from now on: the slot has no lanes to add to.
            counters.flushed += 1;
            *out = slot.as_mut().map(|held| std::mem::take(&mut held.lanes)).unwrap_or_default();
            if known {
                return Onward::Sum(sum, out);
            }
            counters.passed += 1;
            return Onward::SumThenPassed(sum, out);
        }
        let Some(held) = slot else { return Onward::Kept };
        if known {
            // A whole sum that went out once may have been lost on its way, or its result.
            return if packet.again { Onward::Sum(sum, &held.lanes) } else { Onward::Kept };
        }
        add(&mut held.lanes, lanes);
        held.packet.ranks |= packet.ranks;
        counters.if_whole(held)
    }

    /// A server's result passes: its block's slot is free.
    pub fn handle_result(&mut self, packet: &Packet) {
        let index = packet.slot(self.slots.len());
        let slot = &mut self.slots[index];
        let done = |held: &Held| (held.packet.job, held.packet.block) == (packet.job, packet.block);
        if slot.as_ref().is_some_and(done) {
            self.out = slot.take().map(|held| held.lanes).unwrap_or_default();
        }
    }
}

impl Counters {
    /// The sum goes to the server when all ranks are in. The slot stays taken until its result
    /// passes.
    fn if_whole<'a>(&mut self, held: &'a Held) -> Onward<'a> {
        if held.packet.ranks != held.packet.all() {
            return Onward::Kept;
        }
        self.whole += 1;
        Onward::Sum(held.packet, &held.lanes)
    }
}
