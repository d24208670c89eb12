//! A worker's whole protocol: membership ([`Control`] and replies), calls, blocks ([`flow`]) and
//! what a new epoch does to them ([`xdp_agg_common::reform`]).
//!
//! It is driven as [the crate](crate) says. A packet from [`Machine::poll_early`] comes in once
//! more. Before packets are sent, look at [`Machine::endpoint`]: it changes with the epoch.
//!
//! Calls go by the *job's* block numbers, the wire by the *epoch's*; `Epoch` translates.

mod back;
mod calls;
mod config;
mod control;
mod data;
mod early;
mod epoch;
mod history;
mod ring;
#[cfg(test)]
mod tests;
mod wait;
mod waiting;

use std::collections::VecDeque;
use std::time::Duration;

use xdp_agg_common::control::{
    Admitted, AggregatorLoss, Doing, Policy, Progress, Request, Standing, WorkerLoss,
};
use xdp_agg_common::copies;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::HEADER_LEN;

pub use config::{Config, Control, Counters, Endpoint, State};
pub use ring::{Batch, Lanes, Seat};
pub use wait::Warning;

use super::call::Call;
use super::record::{Ending, Record};
use super::report::{Path, Report};
use super::{EpochBlock, Error, JobBlock, flow};
use back::WayBack;
use early::Early;
use epoch::Epoch;
use wait::Waiting;

/// Probes of the data path, and the pause between them.
pub const PROBES: u32 = 100;
/// See [`PROBES`].
pub const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Pause between two attempts to reach the daemon.
pub const RETRY: Duration = Duration::from_millis(100);
/// How long a pause that was announced over a connection that broke holds without a word.
const GRACE: Duration = Duration::from_secs(1);
/// What a worker has called that did not come to the call yet.
const NO_CALL: &str = "none";
/// How long a rank that joins anew may find its place taken by its own last life.
const TAKEN: Duration = Duration::from_secs(10);
/// Longest pause between two attempts to reach the daemon.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Records of ended calls that are kept for a caller that does not ask for them.
const RECORDS: usize = 64;
/// How long nobody may drive the machine without a call's remembering it. A driver sleeps less.
const GAP: Duration = Duration::from_millis(200);
/// After as many attempts in vain the pause between two is twice as long.
const PATIENT: u32 = 16;

/// Where the way into an epoch has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not a member yet.
    Joining,
    /// Probes are out.
    Probing { sent: u32, next: Duration },
    /// The path is open; others' are awaited.
    Ready,
    /// Blocks may be sent.
    Running,
    /// A ring takes the aggregator's place: none yet, or the next block that it sums.
    Ring(Option<EpochBlock>),
}

/// The control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// None, and none is wanted.
    Closed,
    /// One is wanted from this moment on.
    Wanted(Duration),
    /// The caller opens one.
    Connecting,
    /// Open.
    Up,
}

/// Whether results of the epoch are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freeze {
    No,
    /// The daemon was told what this worker has, in a wish to resume that is not answered yet.
    Resume,
    /// The daemon was told what this worker has: the epoch is over.
    Reform,
}

/// The machine. See the module text for the order of calls.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    phase: Phase,
    freeze: Freeze,
    link: Link,
    requests: VecDeque<Request>,
    disconnect: bool,
    engine: String,
    /// The daemon has said something.
    greeted: bool,
    mode: Option<ResultMode>,
    group: Option<std::net::SocketAddrV4>,
    epoch: Option<Epoch>,
    calls: VecDeque<Call>,
    /// Of calls that have ended, until somebody asks for them.
    records: VecDeque<Record>,
    /// The latest moment that the caller has told.
    clock: Duration,
    /// Number of the next call that is made, and of the next whose blocks may be sent.
    next_sequence: u64,
    next_to_begin: u64,
    /// One past the last block of all calls that have begun.
    end: JobBlock,
    /// One past the last of these that may be sent: its input is there. What the flow knows of.
    released: JobBlock,
    /// Calls from this one on must wait: a rank wants to join.
    gate: Option<u64>,
    /// The gate is final; the epoch ends there.
    run_to: bool,
    /// After a new connection: until when the daemon says whether the gate still stands.
    gate_until: Option<Duration>,
    /// Was a member once: blocks were sent.
    has_run: bool,
    /// Joining, or the first epoch's start, must be over by then.
    join_until: Duration,
    taken_until: Duration,
    /// Attempts to reach the daemon, in vain, since it was last there.
    tries: u32,
    /// Since when the daemon is lost, and how that showed.
    lost_since: Option<Duration>,
    lost_reason: String,
    back: WayBack,
    waiting: Waiting,
    warning: Option<Warning>,
    /// The daemon's answer to a question of another wait than the machine's own.
    aside_standing: Option<Vec<Standing>>,
    /// A call that does not go through the aggregator.
    aside: Option<String>,
    /// How many of them were made.
    asides: u64,
    /// What the daemon was last told that this worker does.
    told: Option<Doing>,
    /// Broadcasts have solo blocks, which their root alone contributes: see
    /// [`xdp_agg_common::copies`].
    solo: bool,
    /// Solo blocks that no call of this worker has asked for yet.
    early: Early,
    /// A call of ours differs from the others'; the daemon has been told.
    mismatch: bool,
    failed: Option<Error>,
    /// A call has ended: somebody may wait for it.
    news: bool,
    /// What the data path's socket said last; empty: nothing.
    socket_error: String,
    /// Counted in earlier epochs.
    past: flow::Counters,
    counters: Counters,
}

impl Machine {
    /// A worker that wants to become a member.
    #[must_use]
    pub fn new(config: Config, now: Duration) -> Self {
        Self {
            join_until: now + config.join_deadline,
            taken_until: now + config.join_deadline.min(TAKEN),
            tries: 0,
            waiting: Waiting::new(now, config.warn_after),
            config,
            phase: Phase::Joining,
            freeze: Freeze::No,
            link: Link::Wanted(now),
            requests: VecDeque::new(),
            disconnect: false,
            engine: String::new(),
            greeted: false,
            mode: None,
            group: None,
            epoch: None,
            calls: VecDeque::new(),
            records: VecDeque::new(),
            clock: now,
            next_sequence: 0,
            next_to_begin: 0,
            end: JobBlock(0),
            released: JobBlock(0),
            gate: None,
            run_to: false,
            gate_until: None,
            has_run: false,
            lost_since: None,
            lost_reason: String::new(),
            back: WayBack::default(),
            warning: None,
            aside_standing: None,
            aside: None,
            asides: 0,
            told: None,
            solo: false,
            early: Early::default(),
            mismatch: false,
            failed: None,
            news: false,
            socket_error: String::new(),
            past: flow::Counters::default(),
            counters: Counters::default(),
        }
    }

    /// What it is doing.
    #[must_use]
    pub const fn state(&self) -> State {
        if self.failed.is_some() {
            return State::Failed;
        }
        if matches!(self.phase, Phase::Ring(_)) {
            return State::OnRing;
        }
        if self.lost_since.is_some() {
            return State::Reconnecting;
        }
        match (self.phase, self.freeze) {
            (Phase::Joining, _) => State::Joining,
            (_, Freeze::Reform) => State::Reforming,
            (Phase::Probing { .. } | Phase::Ready, _) => State::Probing,
            (Phase::Running | Phase::Ring(_), _) => State::Running,
        }
    }

    /// Why it is not a member any more.
    #[must_use]
    pub const fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Where data goes. None before the first epoch.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        let admitted = self.admitted()?;
        Some(Endpoint {
            epoch: admitted.epoch,
            data: admitted.data,
            packet_len: packet_len(admitted.chunks),
            single_packets: admitted.single_packets,
            group: self.group,
        })
    }

    /// What it was told about its epoch.
    #[must_use]
    pub fn admitted(&self) -> Option<&Admitted> {
        self.epoch.as_ref().map(|epoch| &epoch.admitted)
    }

    /// Bit `r`: rank `r` is a member of the epoch.
    #[must_use]
    pub fn members(&self) -> u64 {
        self.admitted().map_or(0, |admitted| admitted.members)
    }

    /// How results come, once running.
    #[must_use]
    pub const fn result_mode(&self) -> Option<ResultMode> {
        self.mode
    }

    /// What sums on the other side, in its words; empty if it did not say.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What happens when somebody is lost.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Number of the next call.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// What it has of the job's blocks.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match &self.epoch {
            Some(epoch) => epoch.progress(self.next_to_begin),
            None => Progress::default(),
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = Counters { flow: self.past, ..self.counters };
        if let Some(epoch) = &self.epoch {
            counters.flow.merge(epoch.flow.counters());
            counters.epoch = epoch.admitted.epoch;
            counters.window = epoch.flow.window();
            let trip = epoch.flow.round_trip().unwrap_or_default();
            counters.round_trip_ns = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        }
        counters
    }

    /// Counts an error of the socket that its packets travel by; how many there were.
    pub fn count_socket_error(&mut self, words: &str) -> u64 {
        if self.socket_error != words {
            words.clone_into(&mut self.socket_error);
        }
        self.counters.socket_errors += 1;
        self.counters.socket_errors
    }

    /// All that this process sends of a call is summed, with its fellows' contributions. So one of
    /// the fellows has to say what is missing.
    #[must_use]
    pub fn depends_on_fellows(&self, sequence: u64) -> bool {
        let is_idle = self.epoch.as_ref().is_some_and(|epoch| epoch.flow.is_idle());
        let call = self.calls.iter().find(|call| call.sequence == sequence);
        self.config.local_size > 1 && is_idle && call.is_some_and(|call| call.awaited().is_empty())
    }

    /// Ends the membership, and tells the others why.
    pub fn fail(&mut self, error: impl Into<Error>) {
        if self.failed.is_some() {
            return;
        }
        let error = error.into();
        if error.is_local() && self.config.policy.worker_loss == WorkerLoss::Shrink {
            // As if this process were dead: the others go on without it, and without its host's
            // other processes, which are one worker with it.
            self.disconnect = true;
        } else {
            let Config { rank, local_size, local_rank, .. } = self.config;
            let (first, told) = (rank * local_size, error.clone().in_ranks(local_size, local_rank));
            let (reason, cause) = (told.told(first), told.cause(first));
            self.say(Request::Abort { reason, cause });
        }
        self.end_with(error);
    }

    /// Leaves the job in good order, so that the others do not take this worker for dead.
    pub fn leave(&mut self) {
        if self.failed.is_none() {
            self.say(Request::Leave);
            self.end_with(Error::Closed);
        }
    }

    fn end_with(&mut self, error: Error) {
        for call in &mut self.calls {
            call.abort(&error);
        }
        self.failed.get_or_insert(error);
        self.news = true;
        if self.link != Link::Up {
            self.link = Link::Closed;
        }
        self.drop_abandoned();
    }

    /// True while blocks wait for results, or a way into an epoch is under way.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let idle = self.epoch.as_ref().is_some_and(|epoch| epoch.flow.is_idle());
        match self.phase {
            _ if self.failed.is_some() => false,
            Phase::Running => !idle || self.has_calls(),
            Phase::Ring(_) => false, // the ring's driver knows
            _ => true,
        }
    }

    /// True while a call is under way.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.calls.iter().any(|call| !call.is_done())
    }

    /// Blocks that were sent and whose result is awaited.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.epoch.as_ref().map_or(0, |epoch| epoch.flow.under_way())
    }

    /// Blocks of its calls that have no result yet; 0 while the aggregator sums none.
    #[must_use]
    pub fn left(&self) -> u64 {
        let runs = self.phase == Phase::Running && self.failed.is_none();
        let epoch = self.epoch.as_ref().filter(|_| runs);
        epoch.map_or(0, |epoch| epoch.flow.left() + (self.end - self.released))
    }

    /// The communicator's other machines have up to `others_left` blocks left: see
    /// [`flow::Flow::hold_back`]. True if this one waits for them now.
    pub fn hold_back(&mut self, others_left: u64) -> bool {
        let unreleased = self.end - self.released;
        let Some(epoch) = &mut self.epoch else { return false };
        epoch.flow.hold_back(others_left.saturating_sub(unreleased));
        epoch.flow.is_held_back()
    }

    /// Most blocks under way in a job that has solo blocks: such jobs end with the first loss, and
    /// have one level of aggregators. None: no solo blocks.
    fn solo_limit(&self, pool: Pool) -> Option<u32> {
        let may = !self.keeps_results() && self.config.tree.is_single();
        copies::limit(pool).filter(|_| may)
    }

    /// Results are kept for members that lack them.
    fn keeps_results(&self) -> bool {
        let Policy { worker_loss, aggregator_loss } = self.config.policy;
        worker_loss != WorkerLoss::Fail || aggregator_loss != AggregatorLoss::Fail
    }
}

/// Bytes of a packet with this many chunks: our header and the payload.
#[must_use]
pub const fn packet_len(chunks: u16) -> usize {
    HEADER_LEN + chunks as usize * CHUNK_LEN
}
