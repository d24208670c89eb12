//! What counts as lost: gaps, timeouts, and what shows that it was not lost after all.

use std::time::Duration;

use super::{Block, Flow, REORDER, Recovery, Role, State};

/// Blocks that are taken for lost, by what they were before.
#[derive(Default)]
struct Losses {
    sent: u32,
    awaited: u32,
    /// Of this worker's own packets.
    own: u32,
}

impl Losses {
    /// Takes this block for lost, which is `Sent` or `Awaited`.
    fn take(&mut self, block: &mut Block) {
        match block.state {
            State::Awaited => self.awaited += 1,
            _ => self.sent += 1,
        }
        self.own += u32::from(block.role != Role::Listen);
        block.state = State::Lost;
    }

    const fn count(&self) -> u32 {
        self.sent + self.awaited
    }
}

impl Flow {
    /// Time has passed: repeats the oldest block if its timer has run out.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.blocks.is_empty() || now < self.timer_from + self.timeout() {
            return;
        }
        let suspect_until = now.saturating_sub(self.timeout());
        self.backoff = (self.backoff + 1).min(16);
        self.timer_from = now;
        let mut losses = Losses::default();
        let oldest = &mut self.blocks[0];
        if oldest.state == State::Due {
            return; // nothing was sent that could be lost
        }
        if matches!(oldest.state, State::Sent | State::Awaited) {
            losses.take(oldest);
        }
        let Block { held, counted, role, .. } = *oldest;
        oldest.counted |= !held;
        self.lose(&losses);
        if held {
            return;
        }
        // Not known to be a straggler's fault: until the answer comes, call it loss.
        self.counters.losses += u64::from(!counted);
        self.recovery = Some(Recovery { suspect_until, step: 1 });
        // Another worker's packet tells nothing about this worker's window.
        if role != Role::Listen {
            if self.timed_out.replace(self.base) != Some(self.base) {
                self.window.confirm_timeout();
            }
            self.window.handle_timeout();
        }
    }

    /// A repeated block has its result, so the path works, and the next suspects are repeated.
    ///
    /// The first time, the oldest suspect is left out. If results are only late, its result comes
    /// before those of the others, and shows it ([`Self::were_late`]).
    pub(super) fn recover(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        let first_time = recovery.step == 1;
        recovery.step = (recovery.step * 2).min(self.config.limit);
        let Recovery { suspect_until, step } = *recovery;
        let suspected = |block: &&mut Block| {
            let missing = matches!(block.state, State::Sent | State::Awaited);
            missing && !block.held && block.sent_at <= suspect_until
        };
        let mut suspects = self.blocks.iter_mut().filter(suspected).peekable();
        let oldest = suspects.next_if(|_| first_time);
        let more = suspects.peek().is_some();
        let mut losses = Losses::default();
        for block in oldest.filter(|_| !more).into_iter().chain(suspects.take(step as usize)) {
            losses.take(block);
            block.counted = true;
        }
        self.counters.losses += u64::from(losses.count());
        self.lose(&losses);
    }

    /// A block that was sent once has its result. If it was a suspect, nothing of that time was
    /// lost: results were late, and the timer was too early.
    pub(super) fn were_late(&mut self, block: &Block) {
        let suspect = |recovery: &mut Recovery| {
            block.state == State::Sent && block.sent_at <= recovery.suspect_until
        };
        if self.recovery.take_if(suspect).is_some() && self.timed_out.take().is_some() {
            self.window.undo_timeout();
        }
    }

    /// Moves these blocks over to lost.
    const fn lose(&mut self, losses: &Losses) {
        self.under_way -= losses.sent;
        self.awaited -= losses.awaited;
        self.lost += losses.count();
    }

    /// The transmission of this block that was taken for lost was not.
    pub(super) fn acquit(&mut self, number: u64) {
        self.counters.losses = self.counters.losses.saturating_sub(1);
        self.window.handle_acquittal();
        if self.timed_out == Some(number) {
            self.timed_out = None;
            self.window.undo_timeout();
        }
    }

    /// A block was taken for lost and its result is here before it was repeated. Nothing was lost,
    /// and a timeout, if that was the reason, came too early.
    pub(super) fn acquit_late(&mut self, number: u64) {
        self.acquit(number);
        if self.timed_out.take().is_some() {
            self.window.undo_timeout();
        }
    }

    /// Recovery lasts as long as some repeated block is unanswered.
    pub(super) fn end_recovery_if_answered(&mut self) {
        let asking = |block: &Block| {
            // A block that another worker sends is `Sent` when it was asked for.
            let again = block.attempts > 1 || block.role == Role::Listen;
            block.state == State::Lost || block.state == State::Sent && again
        };
        if self.recovery.is_some() && !self.blocks.iter().any(asking) {
            self.recovery = None;
        }
    }

    /// Marks transmissions as lost that [`REORDER`] later ones have overtaken.
    pub(super) fn find_gaps(&mut self, now: Duration) {
        let Some(overtaken) = self.newest_result.checked_sub(REORDER) else { return };
        // A block that the aggregator holds waits for others; its result is overdue only when a
        // whole window more has come through.
        let overtaken_held = overtaken.saturating_sub(u64::from(self.window.blocks()));
        // Results overtake each other where several CPUs or queues carry them. A block is overdue
        // only when it took longer than trips vary (as RACK's reordering window, RFC 8985).
        let patience = self.smooth_trips.usual_longest();
        let mut losses = Losses::default();
        for block in &mut self.blocks {
            if block.attempts <= 1 && block.transmission >= overtaken {
                // First transmissions are numbered in the order of blocks: no later block is older.
                break;
            }
            // So does one of a broadcast to which all contribute, while solo blocks overtake it.
            let limit = match block.role {
                Role::Listen => overtaken,
                Role::Full => overtaken_held,
                _ if block.held => overtaken_held,
                _ => overtaken,
            };
            let missing = matches!(block.state, State::Sent | State::Awaited);
            if !missing || block.transmission >= limit {
                continue;
            }
            // When another worker sent it is not known: the time counts since it was overtaken.
            let known = block.state == State::Sent || std::mem::replace(&mut block.overtaken, true);
            if !known {
                block.sent_at = now;
            }
            if known && now.saturating_sub(block.sent_at) >= patience {
                losses.take(block);
                block.counted = true;
            }
        }
        self.counters.losses += u64::from(losses.count());
        self.lose(&losses);
        self.window.handle_losses(losses.own);
    }
}
