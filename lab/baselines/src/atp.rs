//! An aggregator that has too few slots, and parameter servers for blocks that find none.

use std::net::SocketAddr;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use xdp_agg_client::{Builder, Communicator, Op};

use crate::collective::{About, BoxError, Collective};
use crate::error::Error;
use crate::ps::Ps;

/// Slots of the aggregator unless set otherwise ([`Builder::slots`]): as many as a job has by
/// default, so that systems differ in what they do with them.
const SLOTS: u32 = 1024;

/// As ATP (NSDI 2021) deals with scarce memory: a block is hashed to a slot. If a block that is
/// still under way has that slot, the new one passes the aggregator unsummed. Then the parameter
/// server sums it.
///
/// A real switch finds collisions as they happen. Here they are decided beforehand, from the
/// block's number and the window, so that all workers decide alike. Which blocks collide follows
/// the same law, and both parts travel at the same time.
#[derive(Debug)]
pub struct Atp {
    communicator: Communicator,
    servers: Ps,
    slots: u32,
    /// By block of the last length: what sums it.
    fates: (usize, Vec<Fate>),
}

/// What sums a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The aggregator.
    Network,
    /// A parameter server.
    Server,
}

impl Fate {
    /// The fates of this number of blocks, where half of the slots are under way at a time.
    pub fn of_blocks(blocks: u64, slots: u32) -> Vec<Self> {
        let window = u64::from(slots / 2).max(1);
        // The last block that took each slot.
        let mut taken: Vec<Option<u64>> = vec![None; slots as usize];
        (0..blocks)
            .map(|block| {
                let slot = &mut taken[(mix(block) % u64::from(slots)) as usize];
                if slot.is_some_and(|holder| block - holder < window) {
                    return Self::Server;
                }
                *slot = Some(block);
                Self::Network
            })
            .collect()
    }
}

/// Every bit of the input moves every bit of the output.
fn mix(value: u64) -> u64 {
    SplitMix64::seed_from_u64(value).next_u64()
}

impl Atp {
    /// Joins the job of these settings at the aggregator and at these servers: every process for
    /// itself.
    ///
    /// # Errors
    /// Settings that are missing, an aggregator or servers that do not answer, workers that do not
    /// come.
    pub fn connect(settings: Builder, servers: &[SocketAddr]) -> Result<Self, Error> {
        let slots = Self::slots_of(&settings);
        let servers = Ps::connect(&settings, servers)?;
        let communicator = settings.slots(slots).in_host(false).connect()?;
        Ok(Self { communicator, servers, slots, fates: (0, Vec::new()) })
    }

    /// How many slots of the aggregator it uses with these settings.
    pub fn slots_of(settings: &Builder) -> u32 {
        settings.get_slots().unwrap_or(SLOTS)
    }

    /// What sums in the network.
    pub fn engine(&self) -> String {
        self.communicator.engine()
    }
}

impl Collective for Atp {
    fn about(&self) -> About {
        (self.communicator.rank(), self.communicator.world_size(), "atp")
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        let block = (self.communicator.block_bytes() / 4).max(1);
        if self.fates.0 != data.len() {
            let blocks = data.len().div_ceil(block) as u64;
            self.fates = (data.len(), Fate::of_blocks(blocks, self.slots));
        }
        let fates = &self.fates.1;
        let of = |data: &[f32], fate| -> Vec<f32> {
            let blocks = data.chunks(block).zip(fates).filter(|(_, found)| **found == fate);
            blocks.flat_map(|(block, _)| block).copied().collect()
        };
        let mut served = of(data, Fate::Server);
        let handle = self.communicator.all_reduce_async(of(data, Fate::Network), op)?;
        if !served.is_empty() {
            self.servers.all_reduce_f32(&mut served, op)?;
        }
        let (summed, _) = handle.wait(self.communicator.deadline())?;
        let (mut summed, mut served) = (&summed[..], &served[..]);
        for (block, fate) in data.chunks_mut(block).zip(fates) {
            let from = if *fate == Fate::Network { &mut summed } else { &mut served };
            let (sums, rest) = from.split_at(block.len());
            block.copy_from_slice(sums);
            *from = rest;
        }
        Ok(())
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        // Small calls of programs that use it, which need no second path.
        self.communicator.all_reduce(data, op)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_collide_as_hashes_do() {
        let fates = Fate::of_blocks(100_000, 512);
        let served = fates.iter().filter(|fate| **fate == Fate::Server).count();
        // A slot is taken by a block of the last 256 with probability x. Blocks that find their own
        // slot free, 1 - x of all, are spread over twice as many slots. So x = (1 - x) / 2 for many
        // slots.
        let share = served as f64 / fates.len() as f64;
        assert!((0.28..0.36).contains(&share), "{share}");
        assert_eq!(fates, Fate::of_blocks(100_000, 512), "all workers decide alike");
        assert!(Fate::of_blocks(1, 2) == [Fate::Network]);
    }
}
