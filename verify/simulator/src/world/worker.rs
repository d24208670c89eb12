//! Workers: the real `Machine`, and what a communicator and its caller do around it.

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::{Reply, Request};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};
use xdp_agg_protocol::worker::{Config, Control, Machine, State};

use super::caller::InFlight;
use super::control::{self, Client, End};
use super::place::{Cut, Place};
use super::{Event, World, ring};
use crate::reference::job_name;
use crate::time::{MICRO, MILLI, Nanos, SECOND, duration, nanos};
use crate::trace::{Party, describe};

/// Packets that fit the receive buffer of a stopped process.
const SOCKET_BUFFER: usize = 24;
/// Packets that a worker sends at once, at most: more means that it sends without end.
const BURST_MAX: usize = 10_000;

/// A place in a job: its host, and the process there.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) job: usize,
    pub(super) rank: u16,
    pub(super) cut: Cut,
    /// Calls and memberships that ended with an error.
    pub(super) errors: u64,
    pub(super) process: Option<Process>,
    stopped: bool,
    /// When it got SIGSTOP, and SIGCONT, for the last time.
    pub(super) stopped_at: Nanos,
    pub(super) went_on: Nanos,
    kept: VecDeque<Kept>,
    /// The process left its job in good order, all calls being made.
    pub(super) left: bool,
    ports: u16,
}

/// What its host's kernel keeps for a stopped process.
enum Kept {
    Packet(Vec<u8>),
    Control(control::Event),
}

/// A process.
pub(super) struct Process {
    pub(super) life: usize,
    pub(super) machine: Machine,
    port: u16,
    pub(super) connection: Option<usize>,
    /// The ring that it takes part in.
    pub(super) ring: Option<ring::Part>,
    /// The timer that was asked for last.
    timer: Option<Nanos>,
    /// Number of the next call; None before the first epoch runs.
    pub(super) next: Option<u64>,
    pub(super) calls: Vec<InFlight>,
    /// When it made each of its calls.
    pub(super) made: BTreeMap<u64, Nanos>,
    /// When the next call is made.
    pub(super) think_until: Nanos,
}

impl Worker {
    pub(super) fn new(job: usize, rank: u16) -> Self {
        Self { job, rank, ..Self::default() }
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn keep(&mut self, event: control::Event) {
        self.kept.push_back(Kept::Control(event));
    }

    pub(super) fn port(&self) -> Option<u16> {
        self.process.as_ref().map(|process| process.port)
    }

    /// Its life, and how many calls that has made.
    pub(super) fn made(&self) -> Option<(usize, u64)> {
        let process = self.process.as_ref()?;
        Some((process.life, process.next?))
    }

    pub(super) fn describe(&self) -> String {
        let Some(process) = &self.process else { return "is not there".into() };
        let state = process.machine.state();
        let waiting: Vec<_> = process.calls.iter().map(|call| call.sequence).collect();
        let stopped = if self.stopped { " (stopped)" } else { "" };
        format!("is {state:?}{stopped}, next call {:?}, waits for {waiting:?}", process.next)
    }
}

impl World {
    /// A process starts, unless there is one.
    pub(super) fn start_worker(&mut self, worker: usize) {
        let now = duration(self.now);
        if self.workers[worker].process.is_some() || self.workers[worker].left {
            return;
        }
        let (job, rank) = (self.workers[worker].job, self.workers[worker].rank);
        let life = self.checker.born(job, rank);
        if !self.scenario.same_port {
            self.workers[worker].ports += 1;
        }
        let port = 20_000 + self.workers[worker].ports;
        let plan = &self.scenario.jobs[job];
        let mut config = Config::new(job_name(job), rank, plan.world);
        config.slots = Some(plan.slots);
        config.policy = plan.policy;
        config.data_port = port;
        config.tree = plan.tree.clone();
        config.ring_port = Some(30_000 + rank);
        config.ring_order = plan.ring_order.clone();
        config.fallback_after = duration(plan.fallback_after);
        config.return_pause = duration(plan.fallback_after / 8);
        config.max_chunks = plan.chunks;
        config.congestion = self.scenario.congestion(worker);
        config.join_deadline = duration(2 * self.scenario.join_timeout + SECOND);
        config.stall_deadline = duration(self.scenario.stall_deadline);
        config.warn_after = duration(self.scenario.warn_after);
        let machine = Machine::new(config, now);
        self.note(&[10, worker as u64], || {
            format!("{} starts (life {life}, port {port})", Party::Worker(worker))
        });
        self.workers[worker].process = Some(Process {
            life,
            machine,
            port,
            connection: None,
            ring: None,
            timer: None,
            next: None,
            calls: Vec::new(),
            made: BTreeMap::new(),
            think_until: 0,
        });
        self.drive(worker);
    }

    /// SIGKILL.
    pub(super) fn kill_worker(&mut self, worker: usize) {
        let place = &mut self.workers[worker];
        place.stopped = false;
        place.kept.clear();
        if let Some(process) = place.process.take() {
            self.checker.lost(process.life);
            self.leave_ring(worker, process.ring);
            if let Some(connection) = process.connection {
                self.close_at_client(connection, true);
            }
        }
    }

    /// SIGSTOP.
    pub(super) fn stop_worker(&mut self, worker: usize) {
        let Some(process) = &self.workers[worker].process else { return };
        self.checker.stands_still(process.life);
        if !self.workers[worker].stopped {
            self.workers[worker].stopped_at = self.now;
        }
        self.workers[worker].stopped = true;
    }

    /// SIGCONT: what was kept comes now.
    pub(super) fn continue_worker(&mut self, worker: usize) {
        if !self.workers[worker].stopped {
            return;
        }
        self.check_stop(worker);
        self.workers[worker].stopped = false;
        self.workers[worker].went_on = self.now;
        self.note(&[11, worker as u64], || format!("{} goes on", Party::Worker(worker)));
        let mut kept: Vec<_> = std::mem::take(&mut self.workers[worker].kept).into();
        if self.rng.random_bool(0.5) {
            // It looks after its control connection first.
            kept.sort_by_key(|kept| matches!(kept, Kept::Packet(_)));
        }
        for kept in kept {
            match kept {
                Kept::Packet(bytes) => self.take_packet(worker, &bytes),
                Kept::Control(event) => self.control_at_client(event),
            }
        }
        self.worker_timer(worker);
    }

    /// A data packet reaches a worker's host.
    pub(super) fn at_worker(&mut self, worker: usize, source: Source, port: u16, bytes: Vec<u8>) {
        let place = &mut self.workers[worker];
        // Its socket takes packets of the aggregator alone that it is connected to.
        let takes = |process: &Process| {
            let from = process.machine.endpoint().map(|endpoint| endpoint.data);
            process.port == port
                && from.is_some_and(|from| {
                    u32::from(*from.ip()) == source.addr && from.port() == source.port
                })
        };
        if !place.process.as_ref().is_some_and(takes) {
            return;
        }
        if !place.stopped {
            self.take_packet(worker, &bytes);
            return self.drive(worker);
        }
        if place.kept.len() < SOCKET_BUFFER {
            place.kept.push_back(Kept::Packet(bytes));
        }
    }

    fn take_packet(&mut self, worker: usize, bytes: &[u8]) {
        let Some(process) = &mut self.workers[worker].process else { return };
        let before = process.machine.counters().flow.results;
        process.machine.handle_packet(bytes, duration(self.now));
        let taken = process.machine.counters().flow.results - before;
        let life = process.life;
        let header = bytes.split_first_chunk::<HEADER_LEN>();
        let header = header.and_then(|(h, payload)| Some((Header::parse(h).ok()?, payload)));
        match (taken, header) {
            (0, _) => {}
            (1, Some((header, payload))) if header.kind == Kind::Result => {
                self.stats.results += 1;
                self.note(&[12, worker as u64, header.block], || {
                    format!("{} takes in {}", Party::Worker(worker), describe(&header))
                });
                self.checker.took(life, &header, payload);
            }
            _ => self.checker.fail(|| format!("a packet counts as {taken} results: {header:?}")),
        }
    }

    /// Time has passed for a worker.
    pub(super) fn worker_timer(&mut self, worker: usize) {
        if self.workers[worker].stopped {
            return;
        }
        if let Some(process) = &mut self.workers[worker].process {
            process.timer = None;
        }
        self.drive(worker);
    }

    /// A connection is open.
    pub(super) fn worker_connected(&mut self, index: usize) {
        let now = duration(self.now);
        self.with_owner(index, |machine| machine.handle_connected(now));
    }

    /// A connection could not be opened.
    pub(super) fn worker_refused(&mut self, index: usize) {
        let now = duration(self.now);
        self.with_owner(index, |machine| machine.handle_connect_failed("refused".into(), now));
    }

    /// A connection has ended.
    pub(super) fn worker_loses(&mut self, index: usize) {
        let now = duration(self.now);
        let Client::Worker { worker, life } = self.connections[index].client else { return };
        self.note(&[13, worker as u64], || format!("{} is cut off", Party::Worker(worker)));
        self.checker.lost(life);
        self.with_owner(index, |machine| machine.handle_disconnected("it ended".into(), now));
    }

    /// A message comes in.
    pub(super) fn worker_hears(&mut self, index: usize, reply: Reply) {
        let now = duration(self.now);
        let resumed = matches!(reply, Reply::Resumed);
        let mut heard = false;
        self.with_owner(index, |machine| {
            heard = true;
            machine.handle_reply(reply, now);
        });
        if let Client::Worker { life, .. } = self.connections[index].client
            && resumed
            && heard
        {
            self.checker.resumed(life);
        }
    }

    /// Tells the process behind a connection something, if it is still there and uses it.
    fn with_owner(&mut self, index: usize, tell: impl FnOnce(&mut Machine)) {
        let Client::Worker { worker, life } = self.connections[index].client else { return };
        let process = self.workers[worker].process.as_mut();
        let owner = process.filter(|p| p.life == life && p.connection == Some(index));
        if let Some(process) = owner {
            tell(&mut process.machine);
            if self.connections[index].at_client == End::Closed {
                process.connection = None;
            }
            self.drive(worker);
        }
    }

    /// Does what a worker's machine and its caller want, until both want nothing.
    pub(super) fn drive(&mut self, worker: usize) {
        if self.workers[worker].stopped || self.checker.problem().is_some() {
            return;
        }
        let now = duration(self.now);
        if let Some(process) = &mut self.workers[worker].process {
            process.machine.handle_timeout(now);
            if let Some(warning) = process.machine.poll_warning() {
                self.stats.warnings += 1;
                self.check_told(worker, &warning.error);
            }
        }
        for _ in 0..BURST_MAX {
            let more = self.obey(worker) | self.transmit(worker);
            let more = more | self.finish_calls(worker) | self.make_calls(worker);
            let more = more | self.ring_step(worker);
            if !more {
                self.end_if_failed(worker);
                return self.set_timer(worker);
            }
        }
        self.checker.fail(|| format!("{} does not come to rest", Party::Worker(worker)));
    }

    /// Does what the machine wants of the control connection.
    fn obey(&mut self, worker: usize) -> bool {
        let now = duration(self.now);
        let Some(process) = &mut self.workers[worker].process else { return false };
        let Some(control) = process.machine.poll_control(now) else { return false };
        let (life, connection) = (process.life, process.connection);
        match (control, connection) {
            (Control::Connect, None) => {
                let root = self.scenario.jobs[self.workers[worker].job].root;
                let connection = self.connect(Client::Worker { worker, life }, root);
                if let Some(process) = &mut self.workers[worker].process {
                    process.connection = Some(connection);
                }
            }
            (Control::Connect, Some(_)) => {
                self.checker.fail(|| "a worker connects twice".into());
            }
            (Control::Disconnect, Some(connection)) => {
                process.connection = None;
                self.close_at_client(connection, false);
            }
            (Control::Send(request), Some(connection)) => {
                if let Request::Leave = request {
                    self.stats.leaves += 1;
                }
                self.say_up(connection, &request);
            }
            (Control::Disconnect | Control::Send(_), None) => {}
        }
        true
    }

    /// Sends one packet.
    fn transmit(&mut self, worker: usize) -> bool {
        let now = duration(self.now);
        let process = self.workers[worker].process.as_mut();
        if let Some(packet) = process.and_then(|process| process.machine.poll_early(now)) {
            self.stats.early += 1;
            self.take_packet(worker, &packet);
            return true;
        }
        let Some(process) = &mut self.workers[worker].process else { return false };
        let Some(len) = process.machine.poll_transmit(now, &mut self.buffer) else { return false };
        let (life, port) = (process.life, process.port);
        let to = process.machine.endpoint().map(|endpoint| endpoint.data);
        let header = self.buffer.first_chunk().and_then(|bytes| Header::parse(bytes).ok());
        match header {
            Some(header) if matches!(header.kind, Kind::Contribution | Kind::Ask) => {
                self.stats.questions += u64::from(header.kind == Kind::Ask);
                self.checker.sent(life, &header);
            }
            Some(header) if header.kind == Kind::Probe => {}
            _ => self.checker.fail(|| "a worker sends what is no packet".into()),
        }
        let Some(to) = to else {
            self.checker.fail(|| "a worker sends to nobody".into());
            return false;
        };
        let source = Source { addr: self.address(Place::Worker(worker)).into(), port };
        let bytes = self.buffer[..len].to_vec();
        self.send(Place::Worker(worker), source, to, bytes);
        true
    }

    /// A process whose membership has ended is gone, and another one takes its place; one that is
    /// done leaves.
    fn end_if_failed(&mut self, worker: usize) {
        let all_made = self.has_made_all(worker);
        let leave = self.leave && self.closing && all_made && self.are_all_members(worker);
        let Some(process) = &mut self.workers[worker].process else { return };
        if leave && process.machine.failure().is_none() {
            process.machine.leave();
            while let Some(control) = process.machine.poll_control(duration(self.now)) {
                if let (Control::Send(request), Some(connection)) = (control, process.connection) {
                    self.stats.leaves += 1;
                    self.say_up(connection, &request);
                    break;
                }
            }
            self.workers[worker].left = true;
        } else if let Some(error) = process.machine.failure().cloned() {
            let life = process.life;
            let reason = error.to_string();
            self.note(&[16, worker as u64], || format!("{} ends: {reason}", Party::Worker(worker)));
            self.call_failed(worker, life, &error);
            let at = self.now + self.rng.random_range(10 * MICRO..20 * MILLI);
            self.queue.push(at, Event::StartWorker(worker));
        } else {
            return;
        }
        if let Some(process) = self.workers[worker].process.take() {
            self.leave_ring(worker, process.ring);
            if let Some(connection) = process.connection {
                self.close_at_client(connection, false);
            }
        }
    }

    /// Whether all workers of a worker's job are members of its epoch: then none still needs it to
    /// form the job.
    fn are_all_members(&self, worker: usize) -> bool {
        let life = |worker: &Worker| worker.process.as_ref().map(|process| process.life);
        let epoch = life(&self.workers[worker]).and_then(|life| self.checker.epoch(life));
        let job = self.workers[worker].job;
        let mut all = self.workers.iter().filter(|other| other.job == job);
        all.all(|other| {
            let its = life(other).and_then(|life| self.checker.epoch(life));
            other.left || other.made().is_some() && its == epoch
        })
    }

    fn has_made_all(&self, worker: usize) -> bool {
        let Some(process) = &self.workers[worker].process else { return false };
        let limit = self.checker.limit(process.life);
        process.calls.is_empty() && process.next.is_some_and(|next| next >= limit)
    }

    pub(super) fn worker_is_done(&self, worker: usize) -> bool {
        self.workers[worker].left || self.has_made_all(worker) || self.is_left_alone(worker)
    }

    /// Whether the others of its job are on a ring, and leave it only with a call: what joins now
    /// may wait for ever.
    fn is_left_alone(&self, worker: usize) -> bool {
        let job = self.workers[worker].job;
        let on_ring = |other: &Worker| {
            let process = other.process.as_ref();
            other.job == job && process.is_some_and(|p| p.machine.state() == State::OnRing)
        };
        let is_new = self.workers[worker].process.as_ref().is_none_or(|p| p.next.is_none());
        is_new && self.workers.iter().any(on_ring)
    }

    fn set_timer(&mut self, worker: usize) {
        let Some(process) = &mut self.workers[worker].process else { return };
        let machine = process.machine.poll_timeout().map(nanos);
        let limit = self.checker.limit(process.life);
        let wants = process.next.is_some_and(|next| next < limit) && process.think_until > self.now;
        let think = wants.then_some(process.think_until);
        let due = process.calls.iter().map(|call| call.asked.unwrap_or(call.due)).min();
        let Some(at) = [machine, think, due].into_iter().flatten().min() else { return };
        let at = at.max(self.now);
        if process.timer.is_none_or(|timer| at < timer) {
            process.timer = Some(at);
            self.queue.push(at, Event::WorkerTimer(worker));
        }
    }
}
