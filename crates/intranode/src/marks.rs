//! What is reported of blocks.

/// What owners report of their blocks; joined over all blocks of all owners of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Elements that were clamped: added up.
    pub saturated: u64,
    /// Blocks with a NaN or an infinity: added up.
    pub non_finite_blocks: u64,
    /// Ranks that are in every block: the intersection.
    pub contributors_all: u64,
    /// Ranks that are in some block: the union.
    pub contributors_any: u64,
    /// New epochs during the call: the maximum.
    pub reforms: u32,
    /// Bits for the paths that were taken: the union.
    pub path: u32,
}

impl Default for Marks {
    /// Changes nothing where it is joined.
    fn default() -> Self {
        Self {
            saturated: 0,
            non_finite_blocks: 0,
            contributors_all: u64::MAX,
            contributors_any: 0,
            reforms: 0,
            path: 0,
        }
    }
}
