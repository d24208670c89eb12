//! What the members of a ring may make of the blocks that their aggregator left unfinished.

use xdp_agg_common::control::{Admitted, RunKind};
use xdp_agg_common::wire::flags;
use xdp_agg_protocol::worker::{Batch, Lanes};

use super::{Checker, Life, NONE};

impl Checker {
    /// A process goes on over a ring; all of them in the same way.
    pub(crate) fn enters_ring(
        &mut self,
        ring: usize,
        life: usize,
        admitted: &Admitted,
        lives: &[(u16, usize)],
    ) {
        let index = match self.rings.get(&ring) {
            Some(index) => *index,
            None => {
                let index = self.ring_epoch(self.lives[life].job, admitted);
                for (rank, life) in lives {
                    self.epochs[index].who[usize::from(*rank)] = Some(*life);
                }
                self.rings.insert(ring, index);
                self.begins(index);
                for (_, life) in lives {
                    self.lives[*life].on_ring = true;
                }
                index
            }
        };
        let Admitted { plan, members, .. } = &self.epochs[index].admitted;
        if (plan, members) != (&admitted.plan, &admitted.members) {
            self.fail(|| "members of a ring follow different plans".into());
        }
    }

    /// A process goes from a ring back to its daemon.
    pub(crate) fn leaves_ring(&mut self, life: usize) {
        self.lives[life].on_ring = false;
    }

    /// A process hears that it may go on in its epoch.
    pub(crate) fn resumed(&mut self, life: usize) {
        let Life { rank, epoch, .. } = self.lives[life];
        if epoch.is_some_and(|epoch| self.epochs[epoch].on_ring) {
            self.fail(|| format!("rank {rank} is to go on in an epoch that ended with a ring"));
        }
    }

    /// An epoch begins at a daemon: do its members come from a ring?
    pub(super) fn count_return(&mut self, index: usize) {
        let members = self.members_of(index);
        let mut before = members.iter().filter_map(|life| self.lives[*life].epoch);
        self.returned += u64::from(before.any(|epoch| self.epochs[epoch].on_ring));
    }

    /// The members of an epoch that begins, without those that have given its daemon up and are on
    /// a ring: the daemon may not have heard.
    pub(super) fn members_of(&self, index: usize) -> Vec<usize> {
        let all = self.epochs[index].who.iter().flatten().copied();
        all.filter(|life| !self.lives[*life].on_ring).collect()
    }

    /// All members have given their part of a batch: each block of it is complete, once.
    pub(crate) fn summed(&mut self, ring: usize, batch: &Batch, sum: &Lanes) {
        let Some(index) = self.rings.get(&ring).copied() else {
            return self.fail(|| "a ring sums that nobody has entered".into());
        };
        let bytes: Vec<u8> = sum.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut rest = &bytes[..];
        for (block, mark) in batch.blocks().zip(&sum.marks) {
            let len = match self.place(index, block) {
                Ok(place) => place.payload(),
                Err(problem) => return self.fail(|| problem),
            };
            if len > rest.len() {
                return self.fail(|| format!("a ring has too few words for block {block}"));
            }
            let (payload, behind) = rest.split_at(len);
            rest = behind;
            if self.epochs[index].block(block).completion != NONE {
                return self.fail(|| format!("block {block} is summed twice over a ring"));
            }
            let odd = if *mark == 0 { 0 } else { flags::NON_FINITE };
            self.complete(index, block, odd, payload);
        }
    }

    /// A process takes in the results of a batch.
    pub(crate) fn took_batch(&mut self, ring: usize, life: usize, batch: &Batch) {
        let Some(index) = self.rings.get(&ring).copied() else { return };
        for block in batch.blocks() {
            let completion = self.epochs[index].block(block).completion;
            if completion == NONE {
                return self.fail(|| format!("block {block} is taken in before its end"));
            }
            let is_copy = matches!(self.epochs[index].map.to_job(block).1, RunKind::Copy { .. });
            self.record(life, completion, is_copy);
        }
    }
}
