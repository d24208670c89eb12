//! Blocks of a broadcast: which are the root's alone, and why their slots may be used again.
//!
//! A broadcast through an aggregator is one packet up a block, reflected to all (pipelined-chain
//! broadcast, section 4, has no such switch; this is what one adds). A block that the root alone
//! contributes is a *copy*: [`Reduction::Copy`]. A member that misses it asks ([`Kind::Ask`]).
//!
//! The text of [`crate::slot`] shows that a slot may be used again, because a result tells that
//! *all* members have contributed. A copy's result tells that of its root alone. So every
//! [`FULL_EVERY`]-th block of a broadcast stays *full*: all contribute to it, the others zeros, and
//! the largest lanes are its result. And a worker sends block `b`, whatever it is, only when it
//! holds the results of all blocks up to `b - L`, where `L` is [`limit`]. Then:
//!
//! * when a worker sends `b`, it holds the result of the newest block `f <= b - L` to which all
//!   contribute, and `f > b - L - FULL_EVERY`;
//! * all members have sent `f`, so they hold the results of all blocks up to `f - L`;
//! * `f - L >= b - 2L - FULL_EVERY + 1 >= b - P`, because `2L + FULL_EVERY - 1 <= P`.
//!
//! So all members hold the result of `b - P`, the one that `b` overwrites. Copies lost on their way
//! are in their slots until then, and can be asked for.
//!
//! Only jobs that end with the first loss, without forwarders, have copies. The epoch that follows
//! a loss would have to know whose results are whose, and a forwarder's slot waits for all members.
//!
//! [`Kind::Ask`]: crate::wire::Kind::Ask
//! [`Reduction::Copy`]: crate::wire::Reduction::Copy

use crate::slot::Pool;

/// Of this many blocks of a broadcast, one has contributions of all members.
pub const FULL_EVERY: u64 = 16;

/// Smallest pool of a job that has copies.
pub const MIN_SLOTS: u32 = 32;

/// Whether all members contribute to this block of a broadcast (its number in the epoch).
#[must_use]
pub const fn is_full(block: u64) -> bool {
    block.is_multiple_of(FULL_EVERY)
}

/// Most blocks of one worker that may be under way in a job that has copies. None: the pool is too
/// small for them.
#[must_use]
pub fn limit(pool: Pool) -> Option<u32> {
    if pool.slots() < MIN_SLOTS {
        return None;
    }
    Some(pool.window() - FULL_EVERY as u32 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_leaves_room_for_the_longest_run_of_copies() {
        for slots in [2, 16, 32, 64, 128, 8192] {
            let pool = Pool::new(slots).expect("a power of two");
            match limit(pool) {
                Some(limit) => assert!(2 * u64::from(limit) + FULL_EVERY - 1 <= slots.into()),
                None => assert!(slots < MIN_SLOTS),
            }
        }
        assert!((0..64).filter(|block| is_full(*block)).eq([0, 16, 32, 48]));
    }
}
