//! Membership: what the daemon says, and what is said to it.

use std::net::SocketAddrV4;
use std::time::Duration;

use xdp_agg_common::control::{
    AbortReason, Admitted, AggregatorLoss, CONTROL_VERSION, ErrorCode, Reply, Request, WorkerLoss,
};
use xdp_agg_common::lanes::MAX_CHUNKS;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::slot::Pool;

use super::epoch::Epoch;
use super::{
    Control, Freeze, GRACE, Link, Machine, NO_CALL, PATIENT, PROBES, Phase, RETRY, RETRY_MAX,
    packet_len,
};
use crate::worker::flow::{self, Flow};
use crate::worker::{Error, JobBlock, rank_bit};

/// Blocks under way before the first result: enough for a fast link, little enough for any queue.
const INITIAL_WINDOW: u32 = 32;
/// Longest retransmission timeout: how long a lost answer of a straggler may go unnoticed.
const RTO_MAX: Duration = Duration::from_millis(250);

impl Machine {
    /// What shall be done with the control connection now.
    pub fn poll_control(&mut self, now: Duration) -> Option<Control> {
        if std::mem::take(&mut self.disconnect) {
            return Some(Control::Disconnect);
        }
        if let Some(request) = self.requests.pop_front() {
            return Some(Control::Send(request));
        }
        match self.link {
            Link::Wanted(from) if now >= from => {
                self.link = Link::Connecting;
                Some(Control::Connect)
            }
            _ => None,
        }
    }

    /// The control connection is open.
    pub fn handle_connected(&mut self, _now: Duration) {
        if self.failed.is_some() {
            self.hang_up();
            return;
        }
        if matches!(self.phase, Phase::Ring(_)) {
            return self.connected_on_ring();
        }
        self.say_hello();
        let join = self.join_with(self.progress());
        if join.resume.is_some() && self.freeze == Freeze::No {
            // The daemon does not know of results taken in from now on.
            self.freeze = Freeze::Resume;
        }
        self.say(Request::Join(join));
    }

    /// No control connection could be opened.
    pub fn handle_connect_failed(&mut self, reason: String, now: Duration) {
        if self.failed.is_some() {
            self.link = Link::Closed;
        } else if matches!(self.phase, Phase::Ring(_)) {
            self.not_back_yet(&reason, now);
        } else {
            self.lost_reason = reason;
            self.link = Link::Wanted(now + self.retry_pause());
        }
    }

    /// Until the next attempt to reach the daemon: short at first, then at a pace that harms
    /// nobody.
    fn retry_pause(&mut self) -> Duration {
        let doublings = self.tries / PATIENT;
        self.tries += 1;
        RETRY.saturating_mul(1 << doublings.min(16)).min(RETRY_MAX)
    }

    /// The control connection has ended.
    pub fn handle_disconnected(&mut self, reason: String, now: Duration) {
        if std::mem::take(&mut self.disconnect) {
            // This worker wanted to hang up, and knows what follows.
            return;
        }
        self.link = Link::Closed;
        self.requests.clear();
        if self.failed.is_some() {
            return;
        }
        if matches!(self.phase, Phase::Ring(_)) {
            return self.not_back_yet(&reason, now);
        }
        if self.config.policy.aggregator_loss == AggregatorLoss::Fail {
            self.end_with(Error::AggregatorLost(reason));
            return;
        }
        tracing::debug!(rank = self.config.rank, reason, "the control connection ended");
        self.lost_reason = reason;
        self.lost(now);
    }

    /// The daemon is to be found again.
    pub(super) fn lost(&mut self, now: Duration) {
        self.unfreeze_resume();
        let first = self.epoch.is_some() && self.lost_since.is_none();
        if first {
            self.lost_since = Some(now);
        }
        let pause = if first { Duration::ZERO } else { self.retry_pause() };
        self.link = Link::Wanted(now + pause);
        self.begin_calls();
    }

    /// A wish to resume that came to nothing bound this worker to nothing: a daemon that takes up
    /// the job asks again.
    fn unfreeze_resume(&mut self) {
        if self.freeze == Freeze::Resume {
            self.freeze = Freeze::No;
        }
    }

    /// Closes the connection, without telling.
    pub(super) fn hang_up(&mut self) {
        self.requests.clear();
        self.disconnect = true;
        self.link = Link::Closed;
    }

    /// A message for the daemon, as far as there is one.
    pub(super) fn say(&mut self, request: Request) {
        if self.link == Link::Up {
            self.requests.push_back(request);
        }
    }

    /// What the daemon says.
    pub fn handle_reply(&mut self, reply: Reply, now: Duration) {
        if self.failed.is_some() || self.link != Link::Up {
            return;
        }
        if matches!(self.phase, Phase::Ring(_)) {
            return self.handle_reply_on_ring(reply, now);
        }
        self.greeted = true;
        match reply {
            Reply::Welcome { version, .. } if version != CONTROL_VERSION => {
                let error = Error::Version { ours: CONTROL_VERSION, theirs: version };
                if !self.does_without(&error, now) {
                    self.end_with(error);
                }
            }
            Reply::Welcome { engine, .. } => self.engine = engine,
            Reply::Admitted(admitted) => self.handle_admitted(admitted, now),
            Reply::Go { mode, group } => self.handle_go(mode, group),
            Reply::Aborted(reason) => self.handle_aborted(reason, now),
            Reply::Heartbeat => self.answer_heartbeat(),
            Reply::Reform { lost, reason } => self.handle_reform(&lost, &reason),
            Reply::Resumed => self.handle_resumed(now),
            Reply::Pause { joining } => self.handle_pause(&joining),
            Reply::RunTo { sequence } => self.handle_run_to(sequence),
            Reply::Missing { block, ranks } => self.handle_missing(block, ranks, now),
            Reply::Standing(standing) => self.handle_standing(standing, now),
            Reply::Done => {} // an answer that came too late
            Reply::Error { code, message } => self.handle_error(code, message, now),
            other => self.fail(Error::Protocol(format!("{other:?}"))),
        }
    }

    fn handle_admitted(&mut self, admitted: Admitted, now: Duration) {
        if let Err(error) = self.enter(admitted, now) {
            self.fail(error);
        }
    }

    /// Enters an epoch: its path is tried next.
    fn enter(&mut self, admitted: Admitted, now: Duration) -> Result<(), Error> {
        self.follow(admitted)?;
        self.back.rings = 0;
        self.phase = Phase::Probing { sent: 0, next: now };
        self.join_until = now + self.config.join_deadline;
        Ok(())
    }

    /// The blocks that are not finished get their numbers in a new epoch.
    pub(super) fn follow(&mut self, admitted: Admitted) -> Result<(), Error> {
        let flow = self.flow_for(&admitted)?;
        let next = match &self.epoch {
            None => Epoch::first(admitted, flow, self.keeps_results())?,
            Some(epoch) => epoch.next(admitted, flow, self.config.rank, self.released)?,
        };
        match &self.epoch {
            Some(old) => {
                self.past.merge(old.flow.counters());
                self.counters.reforms += 1;
                let back = self.lost_since.is_some() && !matches!(self.phase, Phase::Ring(_));
                self.counters.resumes += u64::from(back);
                let begun = self.calls.iter_mut().filter(|call| call.has_begun());
                for call in begun.filter(|call| !call.is_done()) {
                    call.report.reforms += 1;
                }
            }
            // A rank that joins a running job starts with the call that the others come to next.
            None => {
                let plan = next.admitted.plan.as_ref();
                self.next_sequence = plan.map_or(0, |plan| plan.next_sequence);
                self.next_to_begin = self.next_sequence;
                self.end = JobBlock(plan.map_or(0, |plan| plan.from));
                self.released = self.end;
            }
        }
        let (epoch, members) = (next.admitted.epoch, next.admitted.members);
        let pool = Pool::new(next.admitted.slots);
        self.solo = pool.and_then(|pool| self.solo_limit(pool)).is_some();
        tracing::debug!(rank = self.config.rank, epoch, members, "admitted");
        self.epoch = Some(next);
        self.freeze = Freeze::No;
        self.open_gate();
        Ok(())
    }

    pub(super) fn flow_for(&self, admitted: &Admitted) -> Result<Flow, Error> {
        let config = &self.config;
        let uncut = admitted.chunks == self.admitted().map_or(admitted.chunks, |old| old.chunks)
            || self.calls.iter().all(|call| !call.has_begun() || call.is_done());
        let pool = Pool::new(admitted.slots).filter(|_| {
            (1..=MAX_CHUNKS).contains(&usize::from(admitted.chunks))
                && admitted.members & rank_bit(config.rank) != 0
                && uncut
        });
        let Some(pool) = pool else {
            return Err(Error::Protocol(format!("an impossible membership: {admitted:?}")));
        };
        Ok(Flow::new(flow::Config {
            limit: self.solo_limit(pool).unwrap_or_else(|| pool.window()),
            window_max: config.window_room.max(2),
            initial_window: INITIAL_WINDOW,
            congestion: config.congestion,
            rto_min: config.rto_min,
            rto_max: RTO_MAX.max(config.rto_min),
            block_interval: config.block_interval(packet_len(admitted.chunks)),
        }))
    }

    fn handle_go(&mut self, mode: ResultMode, group: Option<SocketAddrV4>) {
        if !matches!(self.phase, Phase::Ready | Phase::Running) {
            self.fail(Error::Protocol("a start before this worker's path was tried".into()));
            return;
        }
        self.mode = Some(mode);
        self.group = group;
        self.run();
    }

    fn run(&mut self) {
        self.phase = Phase::Running;
        self.has_run = true;
        self.lost_since = None;
        self.tries = 0;
        self.back.vain = 0;
        self.begin_calls();
    }

    fn handle_aborted(&mut self, reason: AbortReason, now: Duration) {
        let others_may_be_on_ring =
            matches!(reason, AbortReason::MemberLost { .. } | AbortReason::Timeout { .. });
        if others_may_be_on_ring && self.fall_back_at().is_some() {
            // A daemon is there again, but not all came to it before they gave it up.
            self.hang_up();
            self.lost_reason = reason.to_string();
            self.lost(now);
            return;
        }
        let error = self.explain(reason);
        self.end_with(error);
    }

    fn explain(&self, reason: AbortReason) -> Error {
        let AbortReason::CallMismatch { rank, call } = &reason else {
            return Error::Aborted(reason);
        };
        let ours = self.calls.iter().find(|ours| ours.sequence == call.sequence);
        let ours = ours.map_or_else(|| NO_CALL.into(), |ours| ours.describe().to_string());
        let theirs = if *rank == self.config.rank {
            "at least one other worker made another one".into()
        } else {
            format!("rank {rank} made {call}")
        };
        Error::CallMismatch { ours, theirs }
    }

    /// The epoch is over: what comes of it from now on is not taken in, so that what the daemon is
    /// told stays true.
    fn handle_reform(&mut self, lost: &[u16], reason: &str) {
        if self.epoch.is_none() {
            return; // not a member yet
        }
        tracing::warn!(rank = self.config.rank, ?lost, reason, "members are lost");
        // Where the epoch has ended for a rank that joins, this daemon has heard it already.
        let told = self.freeze == Freeze::Reform && self.gate_until.is_none();
        self.open_gate();
        if !told {
            self.report_progress();
        }
    }

    fn report_progress(&mut self) {
        self.freeze = Freeze::Reform;
        let progress = self.progress();
        self.say(Request::Progress(progress));
    }

    /// The epoch goes on as it is.
    fn handle_resumed(&mut self, now: Duration) {
        if self.epoch.is_none() || self.lost_since.is_none() {
            return;
        }
        if self.back.rings > 0 {
            // The epoch that it means is over, for all members.
            self.hang_up();
            return self.lost(now);
        }
        self.counters.resumes += 1;
        self.unfreeze_resume();
        if self.gate.is_some() || self.freeze == Freeze::Reform {
            // The daemon that asked for this pause asks again. Another daemon does not, nor expects
            // to hear when the calls before the pause are done.
            self.gate_until = Some(now + GRACE);
            self.run_to = false;
        }
        self.run();
    }

    /// Nobody waits to join any more.
    fn open_gate(&mut self) {
        self.gate = None;
        self.run_to = false;
        self.gate_until = None;
    }

    fn handle_pause(&mut self, joining: &[u16]) {
        if self.gate_until.take().is_some() {
            self.freeze = Freeze::No;
        }
        if self.phase != Phase::Running || self.freeze != Freeze::No {
            return; // the epoch is over anyway
        }
        tracing::debug!(rank = self.config.rank, ?joining, "paused");
        self.gate = Some(self.next_to_begin);
        self.run_to = false;
        let next_sequence = self.next_to_begin;
        self.say(Request::Paused { next_sequence });
    }

    fn handle_run_to(&mut self, sequence: u64) {
        if self.gate_until.take().is_some() {
            self.freeze = Freeze::No;
        }
        if sequence < self.next_to_begin || self.freeze != Freeze::No {
            return;
        }
        self.gate = Some(sequence);
        self.run_to = true;
        self.begin_calls();
    }

    /// All calls before the gate are done: the next epoch begins there.
    pub(super) fn end_epoch_if_done(&mut self) {
        let idle = self.released == self.end
            && self.epoch.as_ref().is_some_and(|epoch| epoch.flow.is_idle());
        if self.run_to && self.gate == Some(self.next_to_begin) && idle {
            self.run_to = false;
            self.report_progress();
        }
    }

    fn handle_error(&mut self, code: ErrorCode, message: String, now: Duration) {
        let resuming = self.lost_since.is_some();
        // Rejoining: the daemon may not have noticed yet that this rank's last life is over.
        let taken = self.epoch.is_none()
            && self.config.policy.worker_loss == WorkerLoss::Shrink
            && matches!(code, ErrorCode::RankTaken | ErrorCode::Busy)
            && now < self.taken_until;
        let may_pass = !matches!(
            code,
            ErrorCode::Version
                | ErrorCode::Unauthorised
                | ErrorCode::Invalid
                | ErrorCode::WorldSize
                | ErrorCode::Protocol
        );
        // Many workers of one host start at once.
        let crowded = self.epoch.is_none() && code == ErrorCode::Limit && now < self.join_until;
        if taken || crowded || resuming && may_pass {
            self.lost_reason = message;
            self.hang_up();
            self.lost(now);
            return;
        }
        let error = Error::Refused { code, message };
        if !self.does_without(&error, now) {
            self.end_with(error);
        }
    }

    /// When [`Self::handle_timeout`], [`Self::poll_control`] or [`Self::poll_transmit`] wants the
    /// next turn. `None`: not before something else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.failed.is_some() {
            return None;
        }
        let data = match self.phase {
            Phase::Probing { next, .. } if self.freeze == Freeze::No => Some(next),
            Phase::Running if self.freeze == Freeze::No => {
                self.epoch.as_ref().and_then(|epoch| epoch.flow.poll_timeout())
            }
            _ => None,
        };
        let link = match self.link {
            Link::Wanted(from) => Some(from),
            _ => None,
        };
        let join = (!self.has_run).then_some(self.join_until);
        let all = [data, link, join, self.attend_at(), self.gate_until, self.fall_back_at()];
        all.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.tick(now);
        if self.failed.is_some() {
            return;
        }
        if !self.has_run && now >= self.join_until {
            self.not_joined();
            return;
        }
        self.release();
        self.fall_back_if_due(now);
        if self.gate_until.is_some_and(|until| now >= until) {
            self.open_gate();
            self.freeze = Freeze::No;
            self.begin_calls();
        }
        match self.phase {
            _ if self.freeze != Freeze::No => {}
            Phase::Running => {
                if let Some(epoch) = &mut self.epoch {
                    epoch.flow.handle_timeout(now);
                }
            }
            // In a later epoch the path was open before: the daemon says when it has waited enough.
            Phase::Probing { sent: PROBES, next } if now >= next && !self.has_run => self.no_path(),
            _ => {}
        }
        if self.failed.is_none() {
            self.attend(now);
        }
    }

    fn no_path(&mut self) {
        let Some(admitted) = self.admitted() else { return };
        let bytes = packet_len(admitted.chunks) + xdp_agg_common::frame::IP_OVERHEAD
            - xdp_agg_common::wire::HEADER_LEN;
        let address = admitted.data.into();
        self.fail(Error::DataPath { address, probes: PROBES, bytes });
    }
}
