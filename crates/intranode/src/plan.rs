//! How much of the segment a call takes, and so how deep its pipeline is.

use crate::core::Core;
use crate::layout::LINE;
use crate::options::RING_BLOCKS;
use crate::{Error, Geometry, Options, Shape};

/// Own blocks of a tile below which depth is given up rather than more of them.
const SLICE_BLOCKS_GOOD: usize = 16;

/// Bytes of one process's counters.
pub(crate) const COUNTERS: usize = 2 * LINE;

/// Where each thing is in a call's room, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Tiles in each ring (D).
    pub(crate) depth: usize,
    /// Tiles in the ring of peaks (R).
    pub(crate) ring: usize,
    /// Tiles that are scanned beyond what is gathered, at most.
    pub(crate) ahead: usize,
    pub(crate) peaks: usize,
    pub(crate) staging: usize,
    pub(crate) results: usize,
    /// Bytes of a tile's copy, rounded up to lines.
    pub(crate) tile_bytes: usize,
    /// Bytes in all.
    pub(crate) bytes: usize,
}

impl Plan {
    fn new(options: &Options, depth: usize, element: usize, peaks: bool, at: &Geometry) -> Self {
        let processes = at.processes();
        let tiles = usize::try_from(at.tiles()).unwrap_or(usize::MAX).max(1);
        let depth = depth.min(tiles);
        let ahead = (depth + options.scan_ahead.div_ceil(at.slice_blocks())).min(tiles);
        let ring = (2 * depth).max(RING_BLOCKS.div_ceil(at.slice_blocks())).min(ahead);
        let peak_bytes = if peaks { processes * processes * at.slice_blocks() * 8 } else { 0 };
        let tile_bytes = at.tile_range(0).len().saturating_mul(element).next_multiple_of(LINE);
        let peaks = processes * COUNTERS;
        let staging = (peaks + ring.saturating_mul(peak_bytes)).next_multiple_of(LINE);
        let results = staging.saturating_add(tile_bytes.saturating_mul(depth * processes));
        let bytes = results.saturating_add(tile_bytes.saturating_mul(depth));
        Self { depth, ring, ahead, peaks, staging, results, tile_bytes, bytes }
    }

    /// The deepest pipeline that leaves room for a second call like it, or for this one alone.
    pub(crate) fn of_call(core: &Core, shape: &Shape, at: &Geometry) -> Result<Self, Error> {
        let of =
            |depth| Self::new(&core.options, depth, shape.element_size, shape.key.is_some(), at);
        let room = core.arena.capacity();
        let depths = || (1..=core.options.depth).rev();
        depths()
            .filter(|&depth| depth > 1)
            .map(of)
            .find(|plan| plan.bytes.next_multiple_of(crate::pages::PAGE) <= room / 2)
            .or_else(|| depths().map(of).find(|plan| plan.bytes <= room))
            .ok_or_else(|| Error::TooLarge { wanted: of(1).bytes, room })
    }

    /// Blocks a slice may have so that two calls of any length fit, and the depth they have then.
    pub(crate) fn slice_blocks(options: &Options, room: usize, block_bytes: usize) -> usize {
        let fits = |depth: usize, m: usize| {
            let n = options.local_size;
            let long = Geometry::new(n * m * (1 << 24), 1, m, n);
            let plan = Self::new(options, depth, block_bytes, true, &long);
            plan.bytes.next_multiple_of(crate::pages::PAGE) <= room / 2
        };
        let most = options.slice_blocks;
        let good = SLICE_BLOCKS_GOOD.min(most);
        // Fewer blocks first, then less depth, then both as low as they go.
        let at_depth = |depth: usize, least: usize| (least..=most).rev().find(|&m| fits(depth, m));
        (2..=options.depth)
            .rev()
            .find_map(|depth| at_depth(depth, good))
            .or_else(|| (2..=options.depth).rev().find_map(|depth| at_depth(depth, 1)))
            .unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Own blocks under way in a good segment.
    const BLOCKS_WANTED: usize = 12;

    proptest! {
        #[test]
        fn two_calls_fit(n in 1_usize..9, mib in 4_usize..64, block in 16_usize..9000) {
            let mut options = Options::new("unit", 0, n);
            options.segment = mib << 20;
            let room = options.segment - (128 << 10);
            let m = Plan::slice_blocks(&options, room, block * 4);
            prop_assert!((1..=options.slice_blocks).contains(&m));
            let at = Geometry::new(1 << 30, block, m, n);
            let plan = Plan::new(&options, 2, 4, true, &at);
            prop_assert!(plan.bytes <= room / 2 || m == 1, "{:?}", plan);
        }

        #[test]
        fn a_good_segment_has_room_for_any_call(
            n in 1_usize..65, ahead in 0_usize..30_000, block in 16_usize..9000,
        ) {
            let mut options = Options::new("unit", 0, n);
            options.scan_ahead = ahead;
            options.segment = options.good_segment(block * 4);
            let room = options.segment - (128 << 10);
            let m = Plan::slice_blocks(&options, room, block * 4);
            let at = Geometry::new(1 << 40, block, m, n);
            prop_assert!(Plan::new(&options, 2, 4, true, &at).bytes <= room / 2);
            let under_way = (2..=options.depth).rev().find(|&depth| {
                Plan::new(&options, depth, 4, true, &at).bytes.next_multiple_of(1 << 16) <= room / 2
            });
            prop_assert!(under_way.is_some_and(|depth| depth * m >= BLOCKS_WANTED), "{} {m}", n);
        }

        #[test]
        fn what_is_known_ahead_takes_no_room(
            n in 1_usize..65, ahead in 0_usize..1_000_000, m in 1_usize..70,
        ) {
            let mut options = Options::new("unit", 0, n);
            let at = Geometry::new(1 << 40, 352, m, n);
            options.scan_ahead = ahead;
            let plan = Plan::new(&options, 8, 4, true, &at);
            prop_assert!((plan.ahead - plan.depth) * m >= ahead, "as far as asked for");
            prop_assert!(plan.ring >= 1 && plan.ring * m < RING_BLOCKS + (2 * plan.depth + 1) * m);
            prop_assert!(plan.staging - plan.peaks <= plan.ring * m * n * n * 8 + LINE);
        }

        #[test]
        fn parts_do_not_overlap(
            n in 1_usize..9, len in 0_usize..1_000_000, m in 1_usize..70, depth in 1_usize..9,
        ) {
            let options = Options::new("unit", 0, n);
            let at = Geometry::new(len, 352, m, n);
            let plan = Plan::new(&options, depth, 4, true, &at);
            prop_assert!(plan.peaks >= n * COUNTERS);
            prop_assert!(plan.staging >= plan.peaks + n * n * plan.ring * m * 8);
            prop_assert_eq!(plan.results, plan.staging + n * plan.depth * plan.tile_bytes);
            prop_assert_eq!(plan.bytes, plan.results + plan.depth * plan.tile_bytes);
            prop_assert!(plan.tile_bytes >= at.tile_range(0).len() * 4);
        }
    }
}
