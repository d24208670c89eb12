//! What became of a call.

use serde::Serialize;

/// Over what a call's blocks were summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The aggregator.
    #[default]
    Aggregator,
    /// A TCP ring of the workers, because no aggregator could be reached, or because it is faster.
    Ring,
    /// Some blocks over the one, some over the other.
    Mixed,
    /// Shared memory: all workers are processes of one host, and nothing leaves it.
    Host,
}

/// What became of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Blocks that the call was cut into, those of exponents included.
    pub blocks: u64,
    /// Of these, blocks of exponents (block scaling).
    pub exponent_blocks: u64,
    /// Elements of this worker that did not fit the fixed-point numbers and were clamped. Choose a
    /// smaller scale if this is not zero.
    pub saturated: u64,
    /// Blocks in which some worker had a NaN or an infinity; they hold NaN now.
    pub non_finite_blocks: u64,
    /// Bit `r`: rank `r`'s contribution is in every block.
    pub contributors: u64,
    /// Bit `r`: rank `r`'s contribution is in some blocks and not in others: it was lost, or came
    /// back, while the call was under way.
    pub partial: u64,
    /// How often the job got a new epoch while the call was under way.
    pub reforms: u32,
    /// Over what its blocks were summed.
    pub path: Path,
    /// Processes that one bit of `contributors` and `partial` stands for: those of a host, where
    /// they form a group. Rank `r` is in bit `r / processes` then.
    pub processes: u16,
}

impl Report {
    /// What became of two parts of one call.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let all = self.contributors & other.contributors;
        let any = self.contributors | self.partial | other.contributors | other.partial;
        Self {
            blocks: self.blocks + other.blocks,
            exponent_blocks: self.exponent_blocks + other.exponent_blocks,
            saturated: self.saturated + other.saturated,
            non_finite_blocks: self.non_finite_blocks + other.non_finite_blocks,
            contributors: all,
            partial: any & !all,
            reforms: self.reforms.max(other.reforms),
            path: if self.path == other.path { self.path } else { Path::Mixed },
            processes: self.processes.max(other.processes),
        }
    }

    /// The ranks of a world of this size whose contribution is missing in at least one block, in
    /// ascending order.
    pub fn missing_ranks(&self, world_size: u16) -> impl Iterator<Item = u16> + use<> {
        let (contributors, processes) = (self.contributors, self.processes.max(1));
        (0..world_size).filter(move |rank| rank_bit(*rank / processes) & contributors == 0)
    }
}

/// The bit of a rank in a bitmap of members.
#[must_use]
pub const fn rank_bit(rank: u16) -> u64 {
    1 << (rank & 63)
}

/// The bits of the first `count` ranks in a bitmap of members.
#[must_use]
pub fn rank_bits(count: u16) -> u64 {
    (0..count).fold(0, |all, rank| all | rank_bit(rank))
}
