//! Control connections: reliable, in order, with a latency; they break, and each side notices in
//! its own time.
//!
//! Frames pass through the real `control::encode` and `decode`. While a worker's link is cut,
//! nothing arrives (TCP repeats it until the link is back); where that lasts, each side gives the
//! connection up after about `dead_after`, or learns at its next packet that the other side did.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use rand::Rng;
use xdp_agg::jobs::{ConnId, Peer};
use xdp_agg_common::control::{Reply, Request, decode, encode};

use super::World;
use crate::time::{MILLI, Nanos, SECOND};
use crate::trace::Party;

/// How long a worker tries to connect.
const CONNECT_TIME: Nanos = SECOND;

/// What happens on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A worker's wish to connect reaches the daemon's host.
    Syn(usize),
    /// The worker learns that it is connected.
    Open(usize),
    /// The worker learns that nobody listens there, or that nobody answers.
    Refused(usize),
    /// A frame reaches the daemon's host.
    Up(usize),
    /// A frame reaches the worker's host.
    Down(usize),
    /// The daemon's host learns that the connection is over.
    EndAtDaemon(usize),
    /// The worker's host learns that the connection is over.
    EndAtWorker(usize),
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Not yet open.
    Opening,
    /// Open.
    Open,
    /// Closed, or told that it is over.
    Closed,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) worker: usize,
    pub(super) life: usize,
    pub(super) at_worker: End,
    pub(super) at_daemon: End,
    up: VecDeque<Vec<u8>>,
    down: VecDeque<Vec<u8>>,
    /// When the latest of each arrives.
    last_up: Nanos,
    last_down: Nanos,
}

impl World {
    /// A worker wants to connect; the number of the connection.
    pub(super) fn connect(&mut self, worker: usize, life: usize) -> usize {
        let index = self.connections.len();
        self.connections.push(Connection {
            worker,
            life,
            at_worker: End::Opening,
            at_daemon: End::Opening,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
        });
        let latency = self.control_latency(worker);
        let back = self.cut_until(worker);
        let event = if back > self.now + CONNECT_TIME {
            (self.now + CONNECT_TIME, Event::Refused(index))
        } else {
            (back.max(self.now) + latency, Event::Syn(index))
        };
        self.queue.push(event.0, super::Event::Control(event.1));
        index
    }

    /// A worker says something to the daemon.
    pub(super) fn say_up(&mut self, index: usize, request: &Request) {
        let Ok(frame) = encode(request) else {
            return self.checker.fail(|| format!("a request is too long: {request:?}"));
        };
        let worker = self.connections[index].worker;
        self.note(&[1, worker as u64, frame.len() as u64], || {
            format!("{} → daemon  {request:?}", Party::Worker(worker))
        });
        let at = self.now + self.control_latency(worker);
        let connection = &mut self.connections[index];
        connection.up.push_back(frame);
        connection.last_up = connection.last_up.max(at);
        self.queue.push(connection.last_up, super::Event::Control(Event::Up(index)));
    }

    /// The daemon says something to a worker.
    pub(super) fn say_down(&mut self, index: usize, reply: &Reply) {
        let Ok(frame) = encode(reply) else {
            return self.checker.fail(|| format!("a reply is too long: {reply:?}"));
        };
        let worker = self.connections[index].worker;
        self.note(&[2, worker as u64, frame.len() as u64], || {
            format!("daemon → {}  {reply:?}", Party::Worker(worker))
        });
        let at = self.now + self.control_latency(worker);
        let connection = &mut self.connections[index];
        connection.down.push_back(frame);
        connection.last_down = connection.last_down.max(at);
        self.queue.push(connection.last_down, super::Event::Control(Event::Down(index)));
    }

    /// The worker's end is closed, by the worker or because it was killed (`lost`: what it said
    /// last may be lost with it).
    pub(super) fn close_at_worker(&mut self, index: usize, lost: bool) {
        let at = self.now + self.control_latency(self.connections[index].worker);
        let forget = lost && self.rng.random_bool(0.5);
        let connection = &mut self.connections[index];
        if connection.at_worker == End::Closed {
            return;
        }
        connection.at_worker = End::Closed;
        if forget {
            connection.up.clear();
        }
        let at = connection.last_up.max(at);
        self.queue.push(at, super::Event::Control(Event::EndAtDaemon(index)));
    }

    /// The daemon's end is closed, by the daemon or because it was killed.
    pub(super) fn close_at_daemon(&mut self, index: usize, lost: bool) {
        let at = self.now + self.control_latency(self.connections[index].worker);
        let forget = lost && self.rng.random_bool(0.5);
        let connection = &mut self.connections[index];
        if connection.at_daemon == End::Closed {
            return;
        }
        connection.at_daemon = End::Closed;
        if forget {
            connection.down.clear();
        }
        let at = connection.last_down.max(at);
        self.queue.push(at, super::Event::Control(Event::EndAtWorker(index)));
    }

    /// Something in the middle ends all connections of a worker; each side notices in its time.
    pub(super) fn break_connections(&mut self, worker: usize) {
        for index in self.open_connections(worker) {
            let longest = self.scenario.dead_after;
            let (up, down) = (self.moment(longest), self.moment(longest));
            self.queue.push(up, super::Event::Control(Event::EndAtDaemon(index)));
            self.queue.push(down, super::Event::Control(Event::EndAtWorker(index)));
            let connection = &mut self.connections[index];
            connection.up.clear();
            connection.down.clear();
        }
    }

    /// A worker's link is cut until `back`: whether the ends notice.
    pub(super) fn cut_connections(&mut self, worker: usize, back: Nanos) {
        for index in self.open_connections(worker) {
            let dead_after = self.scenario.dead_after as f64;
            let daemon = self.now + (dead_after * self.rng.random_range(0.55..1.0)) as Nanos;
            let worker = self.now + (dead_after * self.rng.random_range(0.55..1.5)) as Nanos;
            if back <= daemon.min(worker) {
                continue;
            }
            // Whoever has not given up when the link is back learns it from the other.
            let soon = back + self.rng.random_range(0..self.scenario.dead_after);
            self.queue.push(daemon.min(soon), super::Event::Control(Event::EndAtDaemon(index)));
            self.queue.push(worker.min(soon), super::Event::Control(Event::EndAtWorker(index)));
        }
    }

    fn open_connections(&self, worker: usize) -> Vec<usize> {
        let all = self.connections.iter().enumerate();
        let of_worker = all.filter(|(_, c)| {
            c.worker == worker && (c.at_worker != End::Closed || c.at_daemon != End::Closed)
        });
        of_worker.map(|(index, _)| index).collect()
    }

    fn moment(&mut self, longest: Nanos) -> Nanos {
        // When all is well, nothing is left over.
        (self.now + self.rng.random_range(0..longest.max(1))).min(self.scenario.heal_at)
    }

    /// Something happens on a connection.
    pub(super) fn control(&mut self, event: Event) {
        let (Event::Syn(index)
        | Event::Open(index)
        | Event::Refused(index)
        | Event::Up(index)
        | Event::Down(index)
        | Event::EndAtDaemon(index)
        | Event::EndAtWorker(index)) = event;
        let worker = self.connections[index].worker;
        let back = self.cut_until(worker);
        let travels =
            matches!(event, Event::Syn(_) | Event::Open(_) | Event::Up(_) | Event::Down(_));
        if travels && back > self.now {
            let at = back + self.control_latency(worker);
            return self.queue.push(at, super::Event::Control(event));
        }
        match event {
            Event::Syn(_) | Event::Up(_) | Event::EndAtDaemon(_) => {
                if self.daemon.is_stopped() && self.daemon.is_up() {
                    // Its host's kernel answers for it.
                    if let Event::Syn(_) = event {
                        let at = self.now + self.control_latency(worker);
                        self.queue.push(at, super::Event::Control(Event::Open(index)));
                    }
                    self.daemon.keep(event);
                } else {
                    self.control_at_daemon(event);
                }
            }
            _ if self.workers[worker].is_stopped() => self.workers[worker].keep(event),
            _ => self.control_at_worker(event),
        }
    }

    /// The daemon's half; `kept`: its host answered already.
    pub(super) fn control_at_daemon(&mut self, event: Event) {
        match event {
            Event::Syn(index) => self.accept(index, false),
            Event::Up(index) => {
                let Some(frame) = self.connections[index].up.pop_front() else { return };
                if self.connections[index].at_daemon == End::Open {
                    return self.daemon_hears(index, frame);
                }
                // What comes for a connection that is over is answered by a reset.
                let at = self.now + self.control_latency(self.connections[index].worker);
                self.queue.push(at, super::Event::Control(Event::EndAtWorker(index)));
            }
            Event::EndAtDaemon(index) => {
                let connection = &mut self.connections[index];
                let was_open = connection.at_daemon == End::Open;
                connection.at_daemon = End::Closed;
                if was_open && self.daemon.is_up() {
                    self.note(&[3, index as u64], || format!("daemon: connection {index} ends"));
                    self.daemon_loses(index);
                }
            }
            _ => {}
        }
    }

    /// A connection comes in. `told`: the worker knows that it is open.
    pub(super) fn accept(&mut self, index: usize, told: bool) {
        let worker = self.connections[index].worker;
        let at = self.now + self.control_latency(worker);
        if !self.daemon.is_up() {
            return self.queue.push(at, super::Event::Control(Event::Refused(index)));
        }
        if self.connections[index].at_daemon == End::Closed {
            return;
        }
        self.connections[index].at_daemon = End::Open;
        let Connection { worker, .. } = self.connections[index];
        let (job, rank) = (self.workers[worker].job, self.workers[worker].rank);
        let remote = Ipv4Addr::from(super::data::address(job, rank));
        let local = Some(Ipv4Addr::from(super::data::DAEMON));
        self.daemon_meets(ConnId(index as u64), Peer { local, remote: Some(remote) });
        if !told {
            self.queue.push(at, super::Event::Control(Event::Open(index)));
        }
    }

    /// The worker's half.
    pub(super) fn control_at_worker(&mut self, event: Event) {
        match event {
            Event::Open(index) if self.connections[index].at_worker == End::Opening => {
                self.connections[index].at_worker = End::Open;
                self.worker_connected(index);
            }
            Event::Refused(index) if self.connections[index].at_worker == End::Opening => {
                self.connections[index].at_worker = End::Closed;
                self.connections[index].at_daemon = End::Closed;
                self.worker_refused(index);
            }
            Event::Down(index) => {
                let Some(mut frame) = self.connections[index].down.pop_front() else { return };
                if self.connections[index].at_worker != End::Open {
                    return;
                }
                match decode::<Reply>(&mut frame) {
                    Ok(Some(reply)) => self.worker_hears(index, reply),
                    other => self.checker.fail(|| format!("a reply is not understood: {other:?}")),
                }
            }
            Event::EndAtWorker(index) => {
                let was = self.connections[index].at_worker;
                self.connections[index].at_worker = End::Closed;
                match was {
                    End::Open => self.worker_loses(index),
                    End::Opening => self.worker_refused(index),
                    End::Closed => {}
                }
            }
            _ => {}
        }
    }

    /// How long a frame takes: a lost segment is repeated by TCP, which takes its time.
    fn control_latency(&mut self, worker: usize) -> Nanos {
        let link = self.link(worker);
        let jitter = self.rng.random_range(0..=link.jitter);
        let lost = self.rng.random_bool(link.loss.min(0.5));
        let repeated = if lost { self.rng.random_range(MILLI..200 * MILLI) } else { 0 };
        link.base + jitter.min(SECOND) + repeated
    }
}
