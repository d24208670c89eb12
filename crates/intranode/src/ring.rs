//! The same collectives round a ring of mailboxes in the segment (paper 1, Fig. 8 and 12).
//!
//! This is not the paper's baseline, which has no common memory
//! ([`send_receive`](crate::send_receive)). It is a ring at its best on this machine: two copies a
//! step, and a futex only where somebody sleeps.
//!
//! Each process has a mailbox that it writes and the next process reads. It has two places, so that
//! one can be filled while the other is emptied. A collective takes `n - 1` rounds. In each, every
//! process sends one `n`-th of the data to the next and receives another from the previous, piece
//! by piece.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};

use crate::csc::Reduce;
use crate::layout::LINE;
use crate::record::{Claim, Shared};
use crate::{Error, Group, digest, stream};

/// Places of a mailbox.
const PLACES: u32 = 2;

/// Counters of a mailbox, each on a line of its own.
const COUNTERS: usize = 4 * LINE;

/// Ring collectives over mailboxes in the segment.
#[derive(Debug)]
pub struct Ring {
    area: Shared,
    group: Arc<Group>,
    /// Bytes of a place.
    piece: usize,
    sent: u32,
    received: u32,
    /// What is under way round the ring in a reduction.
    partial: Vec<u8>,
}

impl Ring {
    /// Opens mailboxes with pieces of `piece` bytes. All processes do, with the same `piece`, and
    /// in the same order as other areas.
    ///
    /// # Errors
    /// As [`Group::begin`].
    pub fn new(group: &Arc<Group>, piece: usize) -> Result<Self, Error> {
        let piece = piece.next_multiple_of(LINE).max(LINE);
        let mailbox = COUNTERS + PLACES as usize * piece;
        let description = format!("local rank {}: ring, pieces of {piece}", group.local_rank());
        let bytes = group.local_size() * mailbox;
        let claim = Claim {
            key: 0,
            digest: digest(format!("ring {piece}").bytes()),
            description: &description,
            bytes,
            // Some of it holds counters.
            zeroed: bytes,
        };
        let (area, group) = (group.area(&claim)?, Arc::clone(group));
        Ok(Self { area, group, piece, sent: 0, received: 0, partial: Vec::new() })
    }

    /// `output` is all processes' `input`, in order of local rank.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::PeerLeft`], [`Error::Deadline`].
    ///
    /// # Panics
    /// If `output` is not `local_size` times as long as `input`.
    pub fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, n, len) = (group.local_rank(), group.local_size(), input.len());
        assert_eq!(output.len(), n * len, "an output for all inputs");
        // As CSC: past the caches where nobody reads it again.
        let past = stream::copy_for(output.len(), n);
        past(input, &mut output[rank * len..(rank + 1) * len]);
        for round in 0..n - 1 {
            let sends = (rank + n - round) % n * len;
            let receives = (rank + n - round - 1) % n * len;
            // What comes in the last round is not sent on.
            let take = if round + 2 == n { past } else { stream::plain };
            for start in (0..len).step_by(self.piece) {
                let end = len.min(start + self.piece);
                match round {
                    0 => self.send(&input[start..end])?,
                    _ => self.send(&output[sends + start..sends + end])?,
                }
                let to = &mut output[receives + start..receives + end];
                self.receive(end - start, |theirs| take(theirs, to))?;
            }
        }
        Ok(())
    }

    /// `output` is the reduction of all processes' `local_rank`-th part of `input`.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    ///
    /// # Panics
    /// If `input` is not `local_size` times as long as `output`, or the piece or the length no
    /// multiple of `grain`.
    pub fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        grain: usize,
        reduce: Reduce<'_>,
    ) -> Result<(), Error> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, n, len) = (group.local_rank(), group.local_size(), output.len());
        assert_eq!(input.len(), n * len, "an input for all outputs");
        assert!(len.is_multiple_of(grain) && self.piece.is_multiple_of(grain), "whole elements");
        let mut partial = std::mem::take(&mut self.partial);
        partial.resize(if n > 2 { len } else { 0 }, 0);
        if n == 1 {
            output.copy_from_slice(input);
        }
        for round in 0..n - 1 {
            let sends = (rank + 2 * n - round - 1) % n * len;
            let receives = (rank + 2 * n - round - 2) % n * len;
            for start in (0..len).step_by(self.piece) {
                let end = len.min(start + self.piece);
                if round == 0 {
                    self.send(&input[sends + start..sends + end])?;
                } else {
                    self.send(&partial[start..end])?;
                }
                // The sent part of `partial` has made room for what is received.
                let last = round + 2 == n;
                let to = if last { &mut output[start..end] } else { &mut partial[start..end] };
                let own = &input[receives + start..receives + end];
                self.receive(end - start, |theirs| reduce(&[theirs, own], to))?;
            }
        }
        self.partial = partial;
        Ok(())
    }

    /// Bytes of process `rank`'s mailbox.
    fn mailbox(&self, rank: usize) -> usize {
        self.area.offset + rank * (COUNTERS + PLACES as usize * self.piece)
    }

    fn place(&self, rank: usize, number: u32) -> usize {
        self.mailbox(rank) + COUNTERS + (number % PLACES) as usize * self.piece
    }

    /// Written, and those that wait for that; read, and those that wait for that.
    fn counters(&self, rank: usize) -> [&AtomicU32; 4] {
        [0, 1, 2, 3].map(|line| self.group.core().segment.word(self.mailbox(rank) + line * LINE))
    }

    fn send(&mut self, data: &[u8]) -> Result<(), Error> {
        let core = self.group.core();
        let (rank, number) = (core.rank, self.sent);
        let [written, wait_written, read, wait_read] = self.counters(rank);
        let free = |read: u32| number.wrapping_sub(read) < PLACES;
        let next = || vec![(rank + 1) % core.size];
        core.wait_word("room in a mailbox", read, wait_read, free, next)?;
        memory::write(&self.group, self.place(rank, number), data.len()).copy_from_slice(data);
        written.store(number.wrapping_add(1), SeqCst);
        core.wake_word(written, wait_written);
        self.sent = number.wrapping_add(1);
        Ok(())
    }

    fn receive(&mut self, len: usize, take: impl FnOnce(&[u8])) -> Result<(), Error> {
        let core = self.group.core();
        let (from, number) = ((core.rank + core.size - 1) % core.size, self.received);
        let [written, wait_written, read, wait_read] = self.counters(from);
        let there = |written: u32| written.wrapping_sub(number).cast_signed() > 0;
        let previous = || vec![from];
        core.wait_word("a piece of the ring", written, wait_written, there, previous)?;
        take(memory::read(&self.group, self.place(from, number), len));
        read.store(number.wrapping_add(1), SeqCst);
        core.wake_word(read, wait_read);
        self.received = number.wrapping_add(1);
        Ok(())
    }
}

/// Plain memory of the mailboxes.
#[expect(unsafe_code, clippy::mut_from_ref, reason = "plain memory of the segment; see `segment`")]
mod memory {
    use crate::Group;

    /// A place of the own mailbox.
    pub(super) fn write(group: &Group, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: `read` says (Acquire) that the next process is done with what was there, and
        // `written` (Release) does not yet say that there is more.
        unsafe { group.core().segment.bytes_mut(offset, len) }
    }

    /// A place of the previous process's mailbox.
    pub(super) fn read(group: &Group, offset: usize, len: usize) -> &[u8] {
        // SAFETY: `written` says (Acquire) that it is filled, and it is not filled again before
        // `read` (Release) says that it may be.
        unsafe { group.core().segment.bytes(offset, len) }
    }
}
