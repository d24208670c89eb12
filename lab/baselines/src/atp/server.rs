//! The parameter server: sums, whole or in parts.

use std::collections::{BTreeMap, HashMap};

use super::wire::{Kind, Packet, add, store};
use super::{Counters, LIMIT};

/// A block of a job.
#[derive(Debug)]
struct Entry {
    /// Ranks in the sum; all when it is whole.
    ranks: u64,
    lanes: Vec<u32>,
}

#[derive(Debug, Default)]
struct Job {
    /// One past the newest block that is whole.
    whole: u64,
    blocks: BTreeMap<u64, Entry>,
    /// Memory of blocks that were forgotten.
    spare: Vec<Vec<u32>>,
}

/// Sums of any number of jobs.
#[derive(Debug, Default)]
pub struct Server {
    jobs: HashMap<u32, Job>,
    counters: Counters,
}

impl Server {
    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A fragment or a sum has come. Returns what goes back, with its lanes: a result for all ranks
    /// when this completes the block, a result for those that ask again, or that it is pending.
    pub fn handle_fragment(&mut self, packet: &Packet, lanes: &[u8]) -> Option<(Packet, &[u32])> {
        let job = self.jobs.entry(packet.job).or_default();
        if packet.block + LIMIT < job.whole {
            // All have its result: they sent a block so far behind it.
            return None;
        }
        let answer = |kind, ranks| Packet { kind, ranks, ..*packet };
        if let Some(entry) = job.blocks.get(&packet.block)
            && entry.lanes.len() * size_of::<u32>() != lanes.len()
        {
            return None; // not of this call
        }
        let all = packet.all();
        let entry = job.blocks.entry(packet.block).or_insert_with(|| {
            let lanes = job.spare.pop().unwrap_or_default();
            Entry { ranks: 0, lanes }
        });
        if entry.ranks == all {
            let asked = packet.again.then(|| answer(Kind::Result, packet.ranks));
            return asked.map(|result| (result, &job.blocks[&packet.block].lanes[..]));
        }
        let shared = entry.ranks & packet.ranks;
        if shared == entry.ranks {
            // It has all of them and more, or there were none.
            if shared == packet.ranks {
                return packet.again.then_some((answer(Kind::Pending, packet.ranks), &[]));
            }
            store(&mut entry.lanes, lanes);
        } else if shared == 0 {
            self.counters.merged += 1;
            add(&mut entry.lanes, lanes);
        } else if shared == packet.ranks {
            return packet.again.then_some((answer(Kind::Pending, packet.ranks), &[]));
        } else {
            self.counters.refused += 1;
            return None;
        }
        entry.ranks |= packet.ranks;
        if entry.ranks != all {
            return packet.again.then_some((answer(Kind::Pending, packet.ranks), &[]));
        }
        job.whole = job.whole.max(packet.block + 1);
        // All ranks sent the newest whole block, so they have all results up to `LIMIT` before it.
        while let Some(oldest) = job.blocks.first_entry()
            && oldest.key() + LIMIT < job.whole
        {
            job.spare.push(oldest.remove().lanes);
        }
        Some((answer(Kind::Result, all), &job.blocks.get(&packet.block)?.lanes))
    }
}
