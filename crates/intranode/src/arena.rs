//! The allocator of the segment (paper 5, section 2.1 and Fig. 8): a bitmap of whole blocks, and
//! free lists of small pieces whose metadata is in the head of the block they are cut from.
//!
//! Every call is made under the segment's lock, which orders the Relaxed accesses here. Numbers are
//! offsets from the segment's start, so that all processes understand them.

use std::sync::atomic::Ordering::Relaxed;

use crate::layout::LINE;
use crate::segment::Segment;

/// The grain of the bitmap, in bytes.
pub(crate) const BLOCK: usize = 64 << 10;

/// Pieces come in these sizes; what is larger takes whole blocks.
const CLASSES: [usize; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// In the table: this block is cut into pieces.
const CUT: u32 = 1 << 31;

/// The arena of a segment: where its parts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena {
    /// Heads of the lists of cut blocks that have a piece free, one a class: block number + 1.
    lists: usize,
    /// Number of blocks that are taken.
    taken: usize,
    /// A bit for each block: taken.
    bitmap: usize,
    /// A word for each block: length of the run that starts here, [`CUT`], or 0.
    runs: usize,
    /// The blocks.
    data: usize,
    blocks: usize,
}

/// The head of a cut block: its metadata. Words, from the block's start.
mod head {
    /// Bytes of its pieces.
    pub(super) const SIZE: usize = 0;
    /// Pieces in use.
    pub(super) const USED: usize = 4;
    /// First free piece + 1; a free piece holds the next one's number in its first word.
    pub(super) const FREE: usize = 8;
    /// Pieces that were never used: from this on.
    pub(super) const FRESH: usize = 12;
    /// Neighbours in the list of its class: block number + 1.
    pub(super) const NEXT: usize = 16;
    pub(super) const PREVIOUS: usize = 20;
}

impl Arena {
    /// The arena from `start` to `end`. It has to be all zeros when first used.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        // As many blocks as fit beside their bits and words.
        let mut blocks = (end - start) / BLOCK;
        loop {
            let lists = start;
            let taken = lists + CLASSES.len() * 4;
            let bitmap = (taken + 4).next_multiple_of(LINE);
            let runs = bitmap + blocks.div_ceil(64) * 8;
            let data = (runs + blocks * 4).next_multiple_of(4096);
            if data + blocks * BLOCK <= end || blocks == 0 {
                return Self { lists, taken, bitmap, runs, data, blocks };
            }
            blocks -= 1;
        }
    }

    /// Bytes in blocks.
    pub(crate) fn capacity(&self) -> usize {
        self.blocks * BLOCK
    }

    /// Bytes in free blocks.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self, segment: &Segment) -> usize {
        (self.blocks - segment.word(self.taken).load(Relaxed) as usize) * BLOCK
    }

    /// Room for `len` bytes on a boundary of 64, or `None`.
    pub(crate) fn allocate(&self, segment: &Segment, len: usize) -> Option<usize> {
        match CLASSES.iter().position(|&size| len <= size) {
            Some(class) => self.allocate_piece(segment, class),
            None => {
                let blocks = len.div_ceil(BLOCK);
                let first = self.take_run(segment, blocks)?;
                self.run(segment, first).store(u32::try_from(blocks).ok()?, Relaxed);
                Some(self.data + first * BLOCK)
            }
        }
    }

    /// Gives back what [`Self::allocate`] gave.
    ///
    /// # Panics
    /// If it did not.
    pub(crate) fn free(&self, segment: &Segment, offset: usize) {
        let block = (offset - self.data) / BLOCK;
        match self.run(segment, block).load(Relaxed) {
            CUT => self.free_piece(segment, block, offset),
            0 => panic!("offset {offset} is not allocated"),
            blocks => {
                assert_eq!(offset, self.data + block * BLOCK, "not the start of an allocation");
                self.run(segment, block).store(0, Relaxed);
                self.give_run(segment, block, blocks as usize);
            }
        }
    }

    fn allocate_piece(&self, segment: &Segment, class: usize) -> Option<usize> {
        let list = segment.word(self.lists + class * 4);
        if list.load(Relaxed) == 0 {
            let block = self.take_run(segment, 1)?;
            self.run(segment, block).store(CUT, Relaxed);
            for word in [head::USED, head::FREE, head::FRESH] {
                self.head(segment, block, word).store(0, Relaxed);
            }
            self.head(segment, block, head::SIZE).store(CLASSES[class] as u32, Relaxed);
            self.enlist(segment, block, class);
        }
        let block = list.load(Relaxed) as usize - 1;
        let [used, free, fresh] =
            [head::USED, head::FREE, head::FRESH].map(|word| self.head(segment, block, word));
        let piece = match free.load(Relaxed) {
            0 => fresh.fetch_add(1, Relaxed),
            first => {
                let next = segment.word(self.piece(block, class, first - 1)).load(Relaxed);
                free.store(next, Relaxed);
                first - 1
            }
        };
        if used.fetch_add(1, Relaxed) + 1 == pieces(class) {
            self.delist(segment, block, class);
        }
        Some(self.piece(block, class, piece))
    }

    fn free_piece(&self, segment: &Segment, block: usize, offset: usize) {
        let size = self.head(segment, block, head::SIZE).load(Relaxed) as usize;
        let class = CLASSES.iter().position(|&known| known == size).expect("a cut block's size");
        let within = offset - (self.data + block * BLOCK) - LINE;
        assert!(within.is_multiple_of(size), "not the start of an allocation");
        let piece = (within / size) as u32;
        let [used, free] = [head::USED, head::FREE].map(|word| self.head(segment, block, word));
        segment.word(offset).store(free.load(Relaxed), Relaxed);
        free.store(piece + 1, Relaxed);
        let before = used.fetch_sub(1, Relaxed);
        assert!(before > 0, "offset {offset} is not allocated");
        if before == pieces(class) {
            self.enlist(segment, block, class);
        }
        if before == 1 {
            self.delist(segment, block, class);
            self.run(segment, block).store(0, Relaxed);
            self.give_run(segment, block, 1);
        }
    }

    fn piece(&self, block: usize, class: usize, piece: u32) -> usize {
        self.data + block * BLOCK + LINE + piece as usize * CLASSES[class]
    }

    fn enlist(&self, segment: &Segment, block: usize, class: usize) {
        let list = segment.word(self.lists + class * 4);
        let next = list.swap(block as u32 + 1, Relaxed);
        self.head(segment, block, head::NEXT).store(next, Relaxed);
        self.head(segment, block, head::PREVIOUS).store(0, Relaxed);
        if next != 0 {
            self.head(segment, next as usize - 1, head::PREVIOUS).store(block as u32 + 1, Relaxed);
        }
    }

    fn delist(&self, segment: &Segment, block: usize, class: usize) {
        let next = self.head(segment, block, head::NEXT).load(Relaxed);
        let previous = self.head(segment, block, head::PREVIOUS).load(Relaxed);
        match previous {
            0 => segment.word(self.lists + class * 4).store(next, Relaxed),
            previous => {
                self.head(segment, previous as usize - 1, head::NEXT).store(next, Relaxed);
            }
        }
        if next != 0 {
            self.head(segment, next as usize - 1, head::PREVIOUS).store(previous, Relaxed);
        }
    }

    /// Takes the first run of `wanted` free blocks.
    fn take_run(&self, segment: &Segment, wanted: usize) -> Option<usize> {
        let mut start = 0;
        let mut block = 0;
        while block < self.blocks {
            if self.bits(segment, block) == u64::MAX {
                block = (block / 64 + 1) * 64;
                start = block;
                continue;
            }
            if self.bits(segment, block) & (1 << (block % 64)) != 0 {
                start = block + 1;
            } else if block + 1 - start == wanted {
                self.mark(segment, start, wanted, true);
                return Some(start);
            }
            block += 1;
        }
        None
    }

    fn give_run(&self, segment: &Segment, first: usize, blocks: usize) {
        self.mark(segment, first, blocks, false);
    }

    fn mark(&self, segment: &Segment, first: usize, blocks: usize, taken: bool) {
        for block in first..first + blocks {
            let word = segment.counter(self.bitmap + block / 64 * 8);
            let bit = 1 << (block % 64);
            let before = word.fetch_xor(bit, Relaxed);
            assert_eq!(before & bit == 0, taken, "block {block} twice taken or twice free");
        }
        let in_use = segment.word(self.taken);
        let change = blocks as u32;
        if taken {
            in_use.fetch_add(change, Relaxed)
        } else {
            in_use.fetch_sub(change, Relaxed)
        };
    }

    fn bits(&self, segment: &Segment, block: usize) -> u64 {
        segment.counter(self.bitmap + block / 64 * 8).load(Relaxed)
    }

    fn run<'a>(&self, segment: &'a Segment, block: usize) -> &'a std::sync::atomic::AtomicU32 {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        segment.word(self.runs + block * 4)
    }

    fn head<'a>(
        &self,
        segment: &'a Segment,
        block: usize,
        word: usize,
    ) -> &'a std::sync::atomic::AtomicU32 {
        segment.word(self.data + block * BLOCK + word)
    }
}

/// Pieces that a cut block has.
fn pieces(class: usize) -> u32 {
    ((BLOCK - LINE) / CLASSES[class]) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: usize = 4 << 20;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize),
        /// One of those that are allocated, counted round.
        Free(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![1_usize..300, 1_usize..20_000, 1_usize..600_000];
        let step = prop_oneof![
            3 => size.prop_map(Step::Allocate),
            2 => (0_usize..1000).prop_map(Step::Free),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        #[test]
        fn no_overlap_and_all_comes_back(steps in steps()) {
            let segment = Segment::anonymous(SEGMENT).expect("memory");
            let arena = Arena::new(4096, SEGMENT);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(len) => {
                        let Some(offset) = arena.allocate(&segment, len) else { continue };
                        prop_assert_eq!(offset % LINE, 0);
                        prop_assert!(offset >= arena.data && offset + len <= SEGMENT);
                        for &(other, its_len) in &held {
                            prop_assert!(offset + len <= other || other + its_len <= offset);
                        }
                        held.push((offset, len));
                        // An owner writes to its memory: the allocator must not depend on it.
                        for word in (offset..offset + len.next_multiple_of(64)).step_by(64) {
                            segment.word(word).store(u32::MAX, Relaxed);
                        }
                    }
                    Step::Free(_) if held.is_empty() => {}
                    Step::Free(which) => {
                        let (offset, _) = held.swap_remove(which % held.len());
                        arena.free(&segment, offset);
                    }
                }
            }
            for (offset, _) in held {
                arena.free(&segment, offset);
            }
            prop_assert_eq!(arena.free_bytes(&segment), arena.capacity());
            let whole = arena.allocate(&segment, arena.capacity());
            prop_assert_eq!(whole, Some(arena.data), "in one piece again");
        }
    }

    #[test]
    fn pieces_fill_a_block() {
        let segment = Segment::anonymous(SEGMENT).expect("memory");
        let arena = Arena::new(4096, SEGMENT);
        let mut count = 0;
        while arena.allocate(&segment, 64).is_some() {
            count += 1;
        }
        assert_eq!(count, arena.blocks * 1023, "all but the head of each block");
    }

    #[test]
    #[should_panic(expected = "not allocated")]
    fn freeing_twice_is_found() {
        let segment = Segment::anonymous(SEGMENT).expect("memory");
        let arena = Arena::new(4096, SEGMENT);
        let offset = arena.allocate(&segment, 100_000).expect("room");
        arena.free(&segment, offset);
        arena.free(&segment, offset);
    }
}
