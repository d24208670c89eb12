//! An aggregator that has too few slots, and parameter servers for blocks that find none.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// As ATP (NSDI 2021) deals with scarce memory: a block is hashed to a slot. If a block that is
/// still under way has that slot, the new one passes the aggregator unsummed. Then the parameter
/// server sums it.
///
/// A real switch finds collisions as they happen. Here they are decided beforehand, from the
/// blocks' numbers and the window, so that all workers decide alike. Which blocks collide follows
/// the same law, and both parts travel at the same time. Blocks count on from vector to vector,
/// because several are under way at a time.
#[derive(Debug)]
pub struct Atp {
    /// Elements of a block.
    block: usize,
    /// The last block that took each slot.
    taken: Vec<Option<u64>>,
    /// Blocks so far.
    blocks: u64,
}

/// A vector, as it is summed: by the aggregator and by a parameter server, and which block is
/// where.
#[derive(Debug)]
pub struct Split {
    /// What the aggregator sums, and its sums after that.
    pub network: Vec<f32>,
    /// The same of the servers.
    pub served: Vec<f32>,
    fates: Vec<Fate>,
}

/// What sums a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The aggregator.
    Network,
    /// A parameter server.
    Server,
}

/// Every bit of the input moves every bit of the output.
fn mix(value: u64) -> u64 {
    SplitMix64::seed_from_u64(value).next_u64()
}

impl Atp {
    /// Slots of the aggregator unless set otherwise: as many as a job has by default, so that
    /// systems differ in what they do with them.
    pub const SLOTS: u32 = 1024;

    /// Vectors in blocks of this number of elements, over this number of slots.
    pub fn new(block: usize, slots: u32) -> Self {
        Self { block: block.max(1), taken: vec![None; slots.max(1) as usize], blocks: 0 }
    }

    /// What the next block meets, where half of the slots are under way at a time.
    fn fate(&mut self) -> Fate {
        let block = self.blocks;
        self.blocks += 1;
        let slots = self.taken.len() as u64;
        let window = (slots / 2).max(1);
        let slot = &mut self.taken[(mix(block) % slots) as usize];
        if slot.is_some_and(|holder| block - holder < window) {
            return Fate::Server;
        }
        *slot = Some(block);
        Fate::Network
    }

    /// Cuts a vector into what goes either way. All workers cut the same lengths in the same order.
    pub fn split(&mut self, data: &[f32]) -> Split {
        let mut split = Split { network: Vec::new(), served: Vec::new(), fates: Vec::new() };
        for block in data.chunks(self.block) {
            let fate = self.fate();
            split.fates.push(fate);
            split.part(fate).extend_from_slice(block);
        }
        split
    }

    /// The vector again, of both parts' sums.
    pub fn join(&self, split: &Split) -> Vec<f32> {
        let mut parts = [&split.network[..], &split.served[..]];
        let mut sums = Vec::with_capacity(split.network.len() + split.served.len());
        for fate in &split.fates {
            let part = &mut parts[usize::from(*fate == Fate::Server)];
            let (block, rest) = part.split_at(self.block.min(part.len()));
            sums.extend_from_slice(block);
            *part = rest;
        }
        sums
    }
}

impl Split {
    const fn part(&mut self, fate: Fate) -> &mut Vec<f32> {
        match fate {
            Fate::Network => &mut self.network,
            Fate::Server => &mut self.served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_collide_as_hashes_do() {
        let mut atp = Atp::new(1, 512);
        let split = atp.split(&vec![1.0; 100_000]);
        // A slot is taken by a block of the last 256 with probability x. Blocks that find their own
        // slot free, 1 - x of all, are spread over twice as many slots. So x = (1 - x) / 2 for many
        // slots.
        let share = split.served.len() as f64 / 100_000.0;
        assert!((0.28..0.36).contains(&share), "{share}");
        assert_eq!(Atp::new(1, 2).split(&[1.0]).fates, [Fate::Network]);
    }

    #[test]
    fn all_workers_decide_alike_and_blocks_count_on() {
        let [mut one, mut other] = [Atp::new(4, 64), Atp::new(4, 64)];
        let data: Vec<f32> = (0_u16..1000).map(f32::from).collect();
        let fates = |atp: &mut Atp| [atp.split(&data).fates, atp.split(&data).fates];
        let [first, second] = fates(&mut one);
        assert_ne!(first, second, "the second vector meets the first one's blocks");
        assert_eq!(fates(&mut other), [first, second]);
    }

    #[test]
    fn what_is_split_is_joined_again() {
        let mut atp = Atp::new(7, 16);
        let data: Vec<f32> = (0_u16..1000).map(f32::from).collect();
        let mut split = atp.split(&data);
        assert!(!split.served.is_empty() && !split.network.is_empty());
        split.network.iter_mut().chain(&mut split.served).for_each(|sum| *sum *= 2.0);
        let sums: Vec<f32> = data.iter().map(|element| element * 2.0).collect();
        assert_eq!(atp.join(&split), sums);
    }
}
