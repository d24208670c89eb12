//! When to send which block: window, acknowledgement, loss, pace. No sockets, no clock.
//!
//! A result is acknowledgement and credit at once. The machine knows blocks only by number; blocks
//! are numbered through the life of a communicator.
//!
//! It is driven as [the crate](crate) says; a call adds blocks by [`Flow::extend`].
//!
//! # Rules
//! * **Pool** (invariant 7): block `b` is sent only when all results up to `b - limit` are here.
//!   `limit` is half the job's pool (`xdp_agg_common::slot` says why).
//! * **Gap**: each transmission has a number. When the results of [`REORDER`] later first
//!   transmissions are here, and it took longer than trips vary, a transmission without result is
//!   taken for lost and repeated at once.
//! * **Timer** (RFC 6298, Karn's rule, floor [`Config::rto_min`]): the oldest block is repeated
//!   alone. Its result shows that the path works: two more are repeated, then twice as many for
//!   each. One in front of the two is left out: its result ends it if all were only late (as
//!   F-RTO, RFC 5682). `PENDING` shows a straggler: only the oldest block is asked for again.
//! * **Lead**: where a vector's parts go over several flows, none may be more than [`LEAD`] blocks
//!   nearer to its end than the last one ([`Flow::hold_back`]). The links are shared: if one flow
//!   is ahead, another is behind, and at the end the latter's links alone would be busy.
//! * **Window** ([`Window`]): additive increase, decrease by the share of lost blocks, or at any
//!   loss ([`Congestion`]).
//! * **Broadcast** ([`CallRole`], [`xdp_agg_common::copies`]): a block that another worker alone
//!   contributes is under way as soon as the pool allows it. Nothing is sent for it, but it is
//!   asked for when a gap or the timer takes it for lost. A listener contributes to a full block
//!   once it holds every block before the previous full one. This acknowledges them to the root,
//!   whose window counts all blocks since the oldest without result.

mod config;
mod loss;
mod roles;
mod rtt;
mod window;

use std::collections::VecDeque;
use std::time::Duration;

pub use config::{Config, Counters};
use roles::Roles;
pub use roles::{CallRole, Role};
pub use rtt::Rtt;
use rtt::Shortest;
pub use window::{Congestion, Window};
use xdp_agg_common::copies::FULL_EVERY;

use super::EpochBlock;

/// Results of later transmissions that make an earlier one count as lost.
pub const REORDER: u64 = 3;

/// Blocks that a flow may be ahead of the other flows of a communicator.
pub const LEAD: u64 = 512;

/// Trips this many times as long as the latest shortest one are not of the path alone.
const TRIP_SPREAD: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Another worker's to send.
    Awaited,
    /// To be sent when this worker holds what it acknowledges.
    Due,
    /// Under way, or held by the aggregator.
    Sent,
    /// Taken for lost, waiting for its turn.
    Lost,
    /// Its result is here.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: State,
    role: Role,
    /// Number of the latest transmission. A block that is another worker's to send, or is not yet
    /// due, gets one when it could have been sent.
    transmission: u64,
    sent_at: Duration,
    attempts: u32,
    /// Another worker's, and blocks behind it are here: since `sent_at`.
    overtaken: bool,
    /// The aggregator said that it holds our contribution.
    held: bool,
    /// The latest transmission was counted as lost.
    counted: bool,
}

/// After a timeout, until its answer shows what happened.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// What was sent before this moment is suspect.
    suspect_until: Duration,
    /// Suspects that the next result of a repeated block allows to repeat: doubles.
    step: u32,
}

/// The machine. See the module text for the order of calls.
#[derive(Debug)]
pub struct Flow {
    config: Config,
    /// Oldest block without result; `blocks[0]` is this one.
    base: u64,
    blocks: VecDeque<Block>,
    /// One past the last block that any call has asked for.
    end: u64,
    transmissions: u64,
    /// Newest first transmission whose result is here, plus one.
    newest_result: u64,
    /// Blocks in state `Sent`.
    under_way: u32,
    /// Blocks in state `Lost`.
    lost: u32,
    /// Blocks in state `Awaited`.
    awaited: u32,
    /// Blocks in state `Due`, in ascending order.
    due: VecDeque<u64>,
    roles: Roles,
    window: Window,
    rtt: Rtt,
    /// The same for blocks that were not overtaken: trips without loss at any worker.
    smooth_trips: Rtt,
    shortest: Shortest,
    recovery: Option<Recovery>,
    /// The block whose timer ran out last, unless it was a straggler's fault.
    timed_out: Option<u64>,
    backoff: u32,
    /// When the timer was last started: at a transmission of the oldest block or a result.
    timer_from: Duration,
    next_send: Duration,
    /// No new block while fewer than this many have no result.
    least_left: u64,
    counters: Counters,
}

impl Flow {
    /// A flow with nothing to send.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            base: 0,
            blocks: VecDeque::new(),
            end: 0,
            transmissions: 0,
            newest_result: 0,
            under_way: 0,
            lost: 0,
            awaited: 0,
            due: VecDeque::new(),
            roles: Roles::new(),
            window: Window::new(
                config.congestion,
                config.initial_window,
                config.limit.min(config.window_max),
                config.limit / 4,
            ),
            rtt: Rtt::new(config.rto_min, config.rto_max),
            smooth_trips: Rtt::new(config.rto_min, config.rto_max),
            shortest: Shortest::default(),
            recovery: None,
            timed_out: None,
            backoff: 0,
            timer_from: Duration::ZERO,
            next_send: Duration::ZERO,
            least_left: 0,
            counters: Counters::default(),
        }
    }

    /// Oldest block whose result is missing; `end` when none is.
    #[must_use]
    pub const fn base(&self) -> EpochBlock {
        EpochBlock(self.base)
    }

    /// One past the newest block that was sent.
    #[must_use]
    pub fn sent_end(&self) -> EpochBlock {
        EpochBlock(self.next_number())
    }

    /// The number of the block that is sent for the first time next.
    fn next_number(&self) -> u64 {
        self.base + self.blocks.len() as u64
    }

    /// True for a block whose result is here.
    #[must_use]
    pub fn is_done(&self, EpochBlock(number): EpochBlock) -> bool {
        let Some(index) = number.checked_sub(self.base) else { return true };
        let block = usize::try_from(index).ok().and_then(|index| self.blocks.get(index));
        block.is_some_and(|block| block.state == State::Done)
    }

    /// True when every block that was asked for has its result.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.base == self.end
    }

    /// Blocks that were asked for and have no result, but for some whose turn is not yet.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.end - self.base
    }

    /// Another flow of the same communicator has `others_left` blocks left: this one waits if it is
    /// too far ahead. It never waits for good: the last of all flows is never held back.
    pub const fn hold_back(&mut self, others_left: u64) {
        self.least_left = others_left.saturating_sub(LEAD);
    }

    /// True while it waits for the others.
    #[must_use]
    pub const fn is_held_back(&self) -> bool {
        self.left() < self.least_left
    }

    /// What the flow did so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Smoothed round-trip time, if one was measured.
    #[must_use]
    pub const fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Blocks that may be under way now.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window.blocks()
    }

    /// Blocks that were sent, by this worker or another one alone, and whose result is awaited.
    #[must_use]
    pub const fn under_way(&self) -> u32 {
        self.under_way + self.awaited
    }

    /// Adds `count` blocks of this role at the end and returns the first.
    pub fn extend(&mut self, count: u64, role: CallRole) -> EpochBlock {
        let first = EpochBlock(self.end);
        self.end += count;
        self.roles.extend(self.end, role);
        first
    }

    /// What is to be sent for a block.
    #[must_use]
    pub fn role(&self, EpochBlock(number): EpochBlock) -> Role {
        self.roles.of(number)
    }

    /// A result has arrived. True: it is new, and the caller delivers it. False: it is a copy, or
    /// no such block is waited for, and it must not be looked at.
    pub fn handle_result(&mut self, EpochBlock(number): EpochBlock, now: Duration) -> bool {
        self.open(now);
        let Some(block) = self.waited_for(number) else {
            // The repetition was not needed: this worker's packets were not lost.
            self.counters.duplicate_results += 1;
            self.acquit(number);
            return false;
        };
        let was = *block;
        block.state = State::Done;
        match was.state {
            State::Lost => self.lost -= 1,
            State::Sent => self.under_way -= 1,
            State::Awaited => self.awaited -= 1,
            State::Due | State::Done => unreachable!("`waited_for` returns none of these"),
        }
        if was.state == State::Lost && was.counted && was.attempts == 1 {
            self.acquit_late(number);
        }
        self.counters.results += 1;
        self.backoff = 0;
        self.timer_from = now;
        let own = was.role != Role::Listen;
        // A repeated block's result cannot be told from the first one's (Karn).
        let trip = (own && was.attempts == 1).then(|| now.saturating_sub(was.sent_at));
        if let Some(trip) = trip {
            self.window.handle_trip(trip);
        }
        if own {
            self.window.handle_result(self.in_use() + 1);
        }
        if let Some(trip) = trip {
            self.were_late(&was);
            // A longer trip waited for another worker's timer (a queue lengthens all trips). It
            // would lengthen this one's, for which the others wait: all would end at the longest.
            let longest = (self.shortest.with(trip) * TRIP_SPREAD).min(self.rtt.timeout(0));
            self.rtt.sample(trip.min(longest));
            if was.transmission + REORDER >= self.newest_result {
                // Not overtaken, so it waited for nobody's repetition.
                self.smooth_trips.sample(trip);
            }
        }
        if trip.is_some() || was.attempts == 0 {
            self.newest_result = self.newest_result.max(was.transmission + 1);
        } else {
            self.recover();
        }
        while self.blocks.front().is_some_and(|block| block.state == State::Done) {
            self.blocks.pop_front();
            self.base += 1;
        }
        self.roles.forget(self.base);
        self.end_recovery_if_answered();
        self.find_gaps(now);
        true
    }

    /// The aggregator holds our contribution to this block and waits for others.
    pub fn handle_pending(&mut self, EpochBlock(number): EpochBlock, now: Duration) {
        self.counters.pendings += 1;
        let Some(block) = self.waited_for(number) else { return };
        if block.state == State::Awaited {
            return; // nothing was asked
        }
        let acquitted = block.counted;
        let was_lost = block.state == State::Lost;
        block.held = true;
        block.counted = false;
        block.state = State::Sent;
        if was_lost {
            self.lost -= 1;
            self.under_way += 1;
        }
        if acquitted {
            self.acquit(number);
        }
        // A straggler: no reason to ask for more, and the path is fine.
        self.recovery = None;
        if number == self.base {
            self.timer_from = now;
        }
    }

    /// The next block to send now, if any; it counts as sent.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<EpochBlock> {
        self.open(now);
        if now < self.next_send {
            return None;
        }
        let number =
            self.next_repetition().or_else(|| self.next_due()).or_else(|| self.next_first())?;
        self.sent(number, now);
        if !self.config.block_interval.is_zero() {
            // The credit of at most a few blocks may be saved up, so that late wake-ups catch up.
            let earliest = now.saturating_sub(self.config.block_interval * 8);
            self.next_send = self.next_send.max(earliest) + self.config.block_interval;
        }
        Some(EpochBlock(number))
    }

    /// True if this block, just returned by [`Self::poll_transmit`], was never sent before.
    #[must_use]
    pub fn is_first_transmission(&self, EpochBlock(number): EpochBlock) -> bool {
        let index = number.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.blocks.get(index)).is_some_and(|block| block.attempts == 1)
    }

    /// When [`Self::handle_timeout`] or the pace wants the next turn. `None`: not before something
    /// else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.is_idle() {
            return None;
        }
        let paced = !self.config.block_interval.is_zero();
        let may_send = || self.lost > 0 || self.next_due().is_some() || self.room() > 0;
        let pace = (paced && may_send()).then_some(self.next_send);
        let timer = (!self.blocks.is_empty()).then(|| self.timer_from + self.timeout());
        match (pace, timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// Current retransmission timeout.
    fn timeout(&self) -> Duration {
        self.rtt.timeout(self.backoff)
    }

    /// New blocks that window and pool allow now.
    fn room(&self) -> u64 {
        if self.recovery.is_some() || self.is_held_back() {
            return 0;
        }
        let pool = self.pool_end().saturating_sub(self.next_number());
        pool.min(u64::from(self.window.blocks().saturating_sub(self.in_use())))
    }

    /// One past the last block that the pool allows now.
    fn pool_end(&self) -> u64 {
        (self.base + u64::from(self.config.limit)).min(self.end)
    }

    /// Blocks that the window counts. A root's own results tell nothing about the others: what it
    /// sent since the last block to which all contribute may be under way to them.
    fn in_use(&self) -> u32 {
        if self.roles.has_root() { self.blocks.len() as u32 } else { self.under_way + self.lost }
    }

    /// Blocks of another worker's broadcast are under way as soon as the pool allows it. Results
    /// and turns to send do this by themselves.
    pub fn open(&mut self, now: Duration) {
        while self.next_number() < self.pool_end() && self.roles.is_heard(self.next_number()) {
            let number = self.next_number();
            let role = self.roles.of(number);
            let state = if role == Role::Full { State::Due } else { State::Awaited };
            match state {
                State::Due => self.due.push_back(number),
                _ => self.awaited += 1,
            }
            if self.blocks.is_empty() {
                self.timer_from = now;
            }
            self.push(state, role, 0, now);
        }
    }

    /// Adds a block behind the newest one.
    fn push(&mut self, state: State, role: Role, attempts: u32, now: Duration) {
        let transmission = self.transmissions;
        self.transmissions += 1;
        self.blocks.push_back(Block {
            state,
            role,
            transmission,
            sent_at: now,
            attempts,
            overtaken: false,
            held: false,
            counted: false,
        });
    }

    fn waited_for(&mut self, number: u64) -> Option<&mut Block> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let waited = |block: &&mut Block| !matches!(block.state, State::Due | State::Done);
        self.blocks.get_mut(index).filter(waited)
    }

    fn next_repetition(&mut self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        let index = self.blocks.iter().position(|block| block.state == State::Lost)?;
        if self.blocks[index].role == Role::Listen {
            self.counters.questions += 1;
        } else if self.recovery.is_some() {
            self.counters.timer_retransmissions += 1;
        } else {
            self.counters.gap_retransmissions += 1;
        }
        Some(self.base + index as u64)
    }

    /// The next full block of another worker's broadcast, if it may be sent: it says that this
    /// worker holds what came before the full block before it.
    fn next_due(&self) -> Option<u64> {
        self.due.front().copied().filter(|number| self.base + FULL_EVERY >= *number)
    }

    fn next_first(&self) -> Option<u64> {
        (self.room() > 0).then(|| self.base + self.blocks.len() as u64)
    }

    fn sent(&mut self, number: u64, now: Duration) {
        let index = (number - self.base) as usize;
        if index == 0 {
            self.timer_from = now;
        }
        self.under_way += 1;
        let Some(block) = self.blocks.get_mut(index) else {
            self.counters.sent += 1;
            return self.push(State::Sent, self.roles.of(number), 1, now);
        };
        if block.state == State::Due {
            self.due.pop_front();
            self.counters.sent += 1;
        } else {
            block.transmission = self.transmissions;
            self.transmissions += 1;
            self.lost -= 1;
        }
        block.state = State::Sent;
        block.sent_at = now;
        block.attempts += 1;
        block.held = false;
    }
}

#[cfg(test)]
mod tests;
