//! What a worker waits for: it asks the daemon which ranks that are and how they do, says so now
//! and then, and gives up where all are well and nothing moves.

use std::time::Duration;

use xdp_agg_common::control::{Doing, Presence, Request, Standing, WorkerLoss};

use super::wait::{Mark, Waiting, Warning};
use super::{Config, Freeze, Link, Machine, Phase, State};
use crate::worker::error::{Error, Limit};
use crate::worker::rank_bit;

/// How long a wait may last until the daemon is asked which ranks it is for, and asked again.
const ASK: Duration = Duration::from_secs(1);
/// A daemon that has not answered for so long does not answer.
const DEAF: Duration = Duration::from_secs(2);
/// Longest pause between two warnings of a wait.
const PAUSE_MAX: Duration = Duration::from_secs(300);

impl Machine {
    fn mark(&self) -> Mark {
        let Some(epoch) = self.epoch.as_ref().filter(|_| self.has_run) else {
            return Mark::Joining;
        };
        let call = self.calls.iter().find(|call| !call.is_done()).map(|call| call.sequence);
        let runs = self.phase == Phase::Running && self.freeze == Freeze::No;
        if call.is_none() && (epoch.flow.is_idle() || !runs) {
            return Mark::Idle;
        }
        Mark::At(epoch.admitted.epoch, epoch.flow.base(), self.released, call)
    }

    /// Looks after the wait that there is.
    pub(super) fn attend(&mut self, now: Duration) {
        let mark = self.mark();
        if mark != self.waiting.mark {
            self.waiting = Waiting { mark, ..Waiting::new(now, self.config.warn_after) };
        }
        if mark == Mark::Idle {
            return;
        }
        if now >= self.waiting.asked + ASK && self.may_ask() {
            self.waiting.asked = now;
            if let Some(question) = self.question() {
                self.say(question);
            }
        }
        let limit = self.config.stall_deadline;
        if self.stalled_since().is_some_and(|since| now >= since + limit) {
            let error = self.overdue(Limit::Stall, limit);
            return self.fail(error);
        }
        if now >= self.waiting.warn_at {
            let (waited, joining) = (now - self.waiting.since, mark == Mark::Joining);
            let limit = if joining { Limit::Join } else { Limit::Call };
            let Config { local_size, local_rank, .. } = self.config;
            let error = self.overdue(limit, waited).in_ranks(local_size, local_rank);
            self.warning =
                Some(Warning { error, waited, limit, first: self.config.rank * local_size });
            let waiting = &mut self.waiting;
            waiting.warn_at = now + waiting.pause;
            if !joining {
                waiting.pause = waiting.pause.saturating_mul(2).min(PAUSE_MAX);
            }
        }
    }

    /// When [`Self::attend`] has something to do.
    pub(super) fn attend_at(&self) -> Option<Duration> {
        if self.waiting.mark == Mark::Idle {
            return None;
        }
        let ask = self.may_ask().then_some(self.waiting.asked + ASK);
        let stall = self.stalled_since().map(|since| since + self.config.stall_deadline);
        [ask, stall, Some(self.waiting.warn_at)].into_iter().flatten().min()
    }

    fn may_ask(&self) -> bool {
        self.link == Link::Up && !matches!(self.phase, Phase::Ring(_)) && self.has_question()
    }

    fn has_question(&self) -> bool {
        match &self.epoch {
            None => self.greeted,
            Some(epoch) => !epoch.flow.is_idle() || self.is_held_up(),
        }
    }

    fn is_held_up(&self) -> bool {
        self.gate.is_some() || self.freeze != Freeze::No || self.phase != Phase::Running
    }

    /// Which ranks keep this worker waiting?
    fn question(&mut self) -> Option<Request> {
        if !self.has_question() {
            return None;
        }
        let Some(epoch) = &self.epoch else {
            return Some(Request::Missing { block: 0, of: Some(0) });
        };
        let block = epoch.flow.base();
        let sums = self.phase == Phase::Running && self.freeze == Freeze::No;
        let of = if sums && !epoch.flow.is_idle() { self.waits_for(block) } else { Some(0) };
        Some(Request::Missing { block: block.0, of })
    }

    /// The daemon has said which ranks keep this worker waiting.
    pub(super) fn handle_missing(&mut self, block: u64, ranks: Vec<u16>, now: Duration) {
        let of = ranks.iter().fold(0, |bits, rank| bits | rank_bit(*rank));
        let waiting = &mut self.waiting;
        waiting.answered = now;
        waiting.block = Some(block);
        if ranks.is_empty() {
            (waiting.ranks, waiting.standing) = (Some(ranks), None);
            waiting.pending = false;
            self.look_whether_stalled(now);
        } else {
            if waiting.ranks.as_ref() != Some(&ranks) {
                waiting.standing = None;
            }
            waiting.ranks = Some(ranks);
            self.say(Request::Standing { of });
        }
    }

    /// The daemon has said how these ranks do.
    pub(super) fn handle_standing(&mut self, standing: Vec<Standing>, now: Duration) {
        let waiting = &mut self.waiting;
        if waiting.ranks.as_ref().is_some_and(|ranks| {
            ranks.iter().all(|rank| standing.iter().any(|standing| standing.rank == *rank))
        }) {
            waiting.answered = now;
            waiting.standing = Some(standing);
            waiting.pending = false;
            self.look_whether_stalled(now);
            if let Some(error) = self.made_another_call() {
                self.fail(error);
            }
        } else {
            self.aside_standing = Some(standing);
        }
    }

    /// All that this worker waits for have sent what is missing, as they say, and it is not there:
    /// then no patience helps.
    fn look_whether_stalled(&mut self, now: Duration) {
        let stalls = self.all_have_sent();
        let stalled = self.waiting.stalled;
        self.waiting.stalled = stalls.then(|| stalled.unwrap_or(now));
    }

    fn all_have_sent(&self) -> bool {
        let runs = self.phase == Phase::Running && self.freeze == Freeze::No;
        let Some(epoch) = self.epoch.as_ref().filter(|_| runs) else { return false };
        let (block, number) = (epoch.flow.base(), epoch.admitted.epoch);
        // A question of an earlier block tells nothing of this one.
        if self.waiting.block != Some(block.0) || epoch.flow.sent_end() <= block {
            return false;
        }
        let has_sent = |standing: &Standing| {
            let doing = standing.doing.as_ref();
            let sent = doing.is_some_and(|doing| doing.epoch == number && doing.sent > block.0);
            standing.rank == self.config.rank || standing.presence == Presence::Alive && sent
        };
        let standing = self.waiting.standing.as_deref().unwrap_or_default();
        let ranks = self.waiting.ranks.as_deref().unwrap_or_default();
        standing.iter().filter(|standing| ranks.contains(&standing.rank)).all(has_sent)
    }

    /// An awaited rank has made another call in place of the one that waits, as it says: it has
    /// made as many calls and more, and it is in none that goes through the aggregator.
    fn made_another_call(&self) -> Option<Error> {
        let call = self.calls.iter().find(|call| !call.is_done())?;
        let fails = self.config.policy.worker_loss == WorkerLoss::Fail;
        let mut all = self.waiting.standing.iter().flatten().filter(|_| fails);
        all.find_map(|Standing { rank, presence, doing, .. }| {
            let doing = doing.as_ref().filter(|_| *presence == Presence::Alive)?;
            let theirs = doing.call.as_ref().filter(|_| doing.aside)?;
            let theirs = format!("rank {rank} made {theirs}");
            let ours = call.describe().to_string();
            (doing.made > call.position).then_some(Error::CallMismatch { ours, theirs })
        })
    }

    /// Since when nothing moves that should, or the daemon does not say what is the matter.
    fn stalled_since(&self) -> Option<Duration> {
        self.waiting.stalled.or_else(|| self.is_deaf().then_some(self.waiting.answered))
    }

    fn is_deaf(&self) -> bool {
        let asked = self.waiting.asked > self.waiting.answered + DEAF;
        asked && self.may_ask() && self.has_run
    }

    /// Asks the daemon which ranks the oldest block waits for, or a call that may not begin yet;
    /// [`Self::missing`] has the answer. False: it cannot be asked.
    pub fn ask_for_missing(&mut self) -> bool {
        self.waiting.pending = true;
        let can = self.may_ask() && self.epoch.is_some() && self.failed.is_none();
        match self.question().filter(|_| can) {
            Some(question) => self.requests.push_back(question),
            None => return false,
        }
        true
    }

    /// The daemon's answer, if all of it is there.
    #[must_use]
    pub fn missing(&self) -> Option<&Vec<u16>> {
        self.waiting.ranks.as_ref().filter(|_| self.waiting.is_told())
    }

    /// The caller of this call does not wait any longer: ends the membership. Returns why.
    pub fn give_up(&mut self, sequence: u64, waited: Duration) -> Error {
        if let Some(error) = &self.failed {
            return error.clone();
        }
        let error = match self.overdue(Limit::Call, waited) {
            Error::Deadline { limit, waited, ranks, standing, known, .. } => {
                let sequence = Some(sequence);
                Error::Deadline { sequence, limit, waited, ranks, standing, known }
            }
            other => other,
        };
        self.fail(error.clone());
        error
    }

    /// What there is to say of the wait.
    pub(super) fn overdue(&self, limit: Limit, waited: Duration) -> Error {
        let oldest = self.calls.iter().find(|call| !call.is_done());
        let sequence = oldest.map(|call| call.sequence);
        // What it said long ago may not be so any more.
        let told = Some(&self.waiting).filter(|waiting| waiting.asked < waiting.answered + DEAF);
        let ranks = told.and_then(|told| told.ranks.clone()).unwrap_or_default();
        let standing = told.and_then(|told| told.standing.clone()).unwrap_or_default().into();
        let fails = self.config.policy.worker_loss == WorkerLoss::Fail;
        let fellows = oldest.filter(|_| ranks.is_empty() && fails && limit == Limit::Call);
        let known = self.what_is_known();
        fellows.and_then(|call| call.overdue(waited)).unwrap_or(Error::Deadline {
            sequence,
            limit,
            waited,
            ranks,
            standing,
            known,
        })
    }

    /// A wait that is to be told of, once.
    pub const fn poll_warning(&mut self) -> Option<Warning> {
        self.warning.take()
    }

    /// This worker makes a call that does not go through the aggregator.
    pub const fn make_aside(&mut self) {
        self.asides += 1;
    }

    /// This worker is in a call that does not go through the aggregator, or in none any more.
    pub fn turn_aside(&mut self, call: Option<String>) {
        self.aside = call;
    }

    /// Asks the daemon how these ranks do; [`Self::poll_standing`] has the answer.
    pub fn ask_for_standing(&mut self, of: u64) {
        let can = self.link == Link::Up && !matches!(self.phase, Phase::Ring(_));
        if can && self.failed.is_none() {
            self.requests.push_back(Request::Standing { of });
        }
    }

    /// The answer to [`Self::ask_for_standing`], once.
    pub const fn poll_standing(&mut self) -> Option<Vec<Standing>> {
        self.aside_standing.take()
    }

    /// What this worker does, for those that wait for it.
    fn doing(&self) -> Doing {
        let oldest = self.calls.iter().find(|call| !call.is_done());
        let idle = self.epoch.as_ref().is_some_and(|epoch| epoch.flow.is_idle());
        let awaited = oldest.filter(|_| idle).map(|call| call.awaited()).unwrap_or_default();
        Doing {
            epoch: self.admitted().map_or(0, |admitted| admitted.epoch),
            sent: self.epoch.as_ref().map_or(0, |epoch| epoch.flow.sent_end().0),
            next_sequence: self.next_sequence,
            made: self.next_sequence + self.asides,
            call: oldest.map(|call| call.describe().to_string()).or_else(|| self.aside.clone()),
            aside: oldest.is_none() && self.aside.is_some(),
            fellows: awaited.into_iter().map(|local_rank| local_rank as u16).collect(),
        }
    }

    /// Answers a heartbeat, and says first what has changed.
    pub(super) fn answer_heartbeat(&mut self) {
        let doing = self.doing();
        if self.told.as_ref() != Some(&doing) {
            self.told = Some(doing.clone());
            self.say(Request::Doing(doing));
        }
        self.say(Request::Heartbeat);
    }

    /// The time to join is over.
    pub(super) fn not_joined(&mut self) {
        let (address, waited) = (self.config.aggregator, self.config.join_deadline);
        let reason = match (&self.epoch, self.link) {
            (None, Link::Up) if !self.greeted => {
                "it accepts connections but says nothing; is it an xdp-agg daemon?".into()
            }
            (None, Link::Connecting | Link::Wanted(_)) => self.lost_reason.clone(),
            _ => {
                let error = self.overdue(Limit::Join, waited);
                self.fail(error);
                return;
            }
        };
        let reason = format!("{reason}; tried for {waited:?}, as {} says", Limit::Join);
        self.end_with(Error::Unreachable { address, reason, of: None });
    }

    /// Why a call may not have ended, in words.
    fn what_is_known(&self) -> String {
        if self.is_deaf() {
            let waiting = &self.waiting;
            return format!(
                "the daemon at {} has answered no question for {:?}: is it stopped?",
                self.config.aggregator,
                waiting.asked - waiting.answered
            );
        }
        let Some(admitted) = self.admitted() else {
            let Self { config, lost_reason, .. } = self;
            let is_lost = self.link != Link::Up && !lost_reason.is_empty();
            let lost = format!("no aggregator at {} ({lost_reason})", config.aggregator);
            return if is_lost { lost } else { String::new() };
        };
        let epoch = admitted.epoch;
        match self.state() {
            State::Reconnecting => format!(
                "the aggregator at {} was lost ({}) and this worker has not got back to its job",
                self.config.aggregator, self.lost_reason
            ),
            State::Reforming => {
                format!("members were lost or join, and what follows epoch {epoch} did not begin")
            }
            State::OnRing => {
                "over the ring that replaced the lost aggregator, not all members have come so far"
                    .into()
            }
            State::Probing => format!("epoch {epoch} did not begin: a member's path is not open"),
            _ if self.gate.is_some() => "this call waits for a rank that joins".into(),
            _ if self.epoch.as_ref().is_some_and(|epoch| epoch.flow.is_idle()) => {
                "all that was sent has its result; other processes of this host, or another \
                 aggregator, are waited for"
                    .into()
            }
            _ if self.socket_error.is_empty() => String::new(),
            _ => format!(
                "the data path's socket said: {}; has a route or an MTU on the way changed?",
                self.socket_error
            ),
        }
    }
}
