//! Solo blocks whose call this worker has not come to.
//!
//! A root needs nobody else to be there, so its blocks may come while this worker waits for an
//! earlier call. A block that is not kept is asked for later, a round trip too late.

use std::collections::BTreeMap;

use crate::worker::EpochBlock;

/// Most packets that are kept: 360 KiB at MTU 1500.
const MOST: usize = 256;

/// Packets, by block.
#[derive(Debug, Default)]
pub(super) struct Early(BTreeMap<EpochBlock, Box<[u8]>>);

impl Early {
    /// Keeps a block's packet, if there is room.
    pub(super) fn keep(&mut self, block: EpochBlock, packet: &[u8]) {
        if self.0.len() < MOST {
            self.0.entry(block).or_insert_with(|| packet.into());
        }
    }

    /// The first packet, if it is of a block below `end`.
    pub(super) fn take(&mut self, end: EpochBlock) -> Option<Box<[u8]>> {
        let first = self.0.first_entry().filter(|first| *first.key() < end)?;
        Some(first.remove())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_in_order_when_it_is_their_turn() {
        let mut early = Early::default();
        for block in [7, 5, 9, 5] {
            early.keep(EpochBlock(block), &[block as u8]);
        }
        assert_eq!(early.take(EpochBlock(5)), None);
        assert_eq!(early.take(EpochBlock(8)).as_deref(), Some(&[5][..]));
        assert_eq!(early.take(EpochBlock(8)).as_deref(), Some(&[7][..]));
        assert_eq!(early.take(EpochBlock(8)), None);
        for block in 0..1000 {
            early.keep(EpochBlock(block), &[0]);
        }
        assert_eq!(early.0.len(), MOST);
    }
}
