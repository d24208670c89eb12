//! Which bytes travel when, without sockets.
//!
//! A call moves *pieces* of one region of memory, one a step. In step `k` rank `r` sends piece
//! `r - k` and receives piece `r - k - 1` (modulo the world size): what it receives in one step
//! is what it sends in the next. Both directions are therefore byte streams, and one rule says
//! how far the sending one may be: the first piece, plus all that was received and reduced.

/// The steps of one call as one rank sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    rank: usize,
    world: usize,
    /// Bytes of an element.
    element: usize,
    /// Elements of the shortest piece, and how many pieces have one more.
    short: usize,
    longer: usize,
    /// Steps whose piece is added to the region; in those that follow it replaces it.
    pub(super) reducing: usize,
    /// Steps in all.
    pub(super) steps: usize,
}

impl Plan {
    /// Reduce-scatter, then all-gather, over a region of `count` elements: `2 (N - 1)` steps that
    /// move the fewest bytes.
    pub(super) fn reduce_scatter(rank: u16, world: u16, count: usize, element: usize) -> Self {
        let (rank, world) = (usize::from(rank), usize::from(world));
        let (short, longer) = (count / world, count % world);
        Self { rank, world, element, short, longer, reducing: world - 1, steps: 2 * (world - 1) }
    }

    /// Everybody's whole vector to everybody, in a region of `world * count` elements: half the
    /// steps, more bytes. For vectors so short that steps are all that counts.
    pub(super) fn gather(rank: u16, world: u16, count: usize, element: usize) -> Self {
        let (rank, world) = (usize::from(rank), usize::from(world));
        Self { rank, world, element, short: count, longer: 0, reducing: 0, steps: world - 1 }
    }

    /// Where the piece that is sent in `step` lies in the region, in bytes.
    pub(super) fn sent(&self, step: usize) -> std::ops::Range<usize> {
        let piece = (self.rank + 2 * self.world - step % self.world) % self.world;
        let start = piece * self.short + piece.min(self.longer);
        let len = self.short + usize::from(piece < self.longer);
        start * self.element..(start + len) * self.element
    }

    /// Where the piece that is received in `step` lies in the region, in bytes.
    pub(super) fn received(&self, step: usize) -> std::ops::Range<usize> {
        self.sent(step + 1)
    }
}

/// How far one direction is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// The step whose piece is under way; the number of steps when all is done.
    pub(super) step: usize,
    /// Bytes of that piece that are done.
    pub(super) offset: usize,
    /// Bytes of all pieces that are done.
    pub(super) done: usize,
}

impl Cursor {
    /// Moves on by `bytes`, over the ends of pieces (`len` gives their lengths) and over empty
    /// ones.
    pub(super) fn advance(&mut self, mut bytes: usize, steps: usize, len: impl Fn(usize) -> usize) {
        self.done += bytes;
        while self.step < steps {
            let left = len(self.step) - self.offset;
            if bytes < left {
                self.offset += bytes;
                return;
            }
            bytes -= left;
            self.step += 1;
            self.offset = 0;
        }
        debug_assert_eq!(bytes, 0, "moved more bytes than the plan has");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rank's received piece is the one that the rank before it sends in that step, and after
    /// the reducing steps every rank has added each piece that passed through it.
    #[test]
    fn neighbours_agree_on_every_step() {
        for world in 1..=7_u16 {
            for count in [0, 1, 2, 5, 6, 7, 100] {
                for rank in 0..world {
                    let plan = Plan::reduce_scatter(rank, world, count, 4);
                    let before = Plan::reduce_scatter((rank + world - 1) % world, world, count, 4);
                    for step in 0..plan.steps {
                        assert_eq!(plan.received(step), before.sent(step));
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_cover_the_region_once() {
        for world in 1..=7_u16 {
            for count in [0, 1, 6, 7, 100] {
                let plan = Plan::reduce_scatter(0, world, count, 4);
                let mut pieces: Vec<_> = (0..usize::from(world)).map(|k| plan.sent(k)).collect();
                pieces.sort_by_key(|p| (p.start, p.end));
                let mut at = 0;
                for piece in pieces {
                    assert_eq!(piece.start, at);
                    at = piece.end;
                }
                assert_eq!(at, count * 4);
            }
        }
    }

    #[test]
    fn cursors_step_over_empty_pieces() {
        let lens = [0, 8, 0, 0, 4];
        let len = |step: usize| lens[step];
        let mut cursor = Cursor::default();
        cursor.advance(0, lens.len(), len);
        assert_eq!((cursor.step, cursor.offset), (1, 0));
        cursor.advance(5, lens.len(), len);
        assert_eq!((cursor.step, cursor.offset), (1, 5));
        cursor.advance(4, lens.len(), len);
        assert_eq!((cursor.step, cursor.offset), (4, 1));
        cursor.advance(3, lens.len(), len);
        assert_eq!((cursor.step, cursor.offset, cursor.done), (5, 0, 12));
    }
}
