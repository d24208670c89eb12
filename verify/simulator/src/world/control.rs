//! Control connections: reliable, in order, with a latency; they break, and each side notices in
//! its own time.
//!
//! Workers have one to the daemon that leads their job, and such a daemon has one to each branch of
//! the job's tree. Frames pass through the real `control::encode` and `decode`. While the way is
//! cut, nothing arrives (TCP repeats it until the way is back). Where that lasts for more than a
//! third of `dead_after`, each side may give the connection up after about that time, or learns at
//! its next packet that the other side did.

use std::collections::VecDeque;

use rand::Rng;
use xdp_agg_common::control::{Reply, Request, decode, encode};
use xdp_agg_protocol::daemon::{ConnId, LinkId, Peer};

use super::World;
use super::place::Place;
use crate::time::{MILLI, Nanos, SECOND};
use crate::trace::Party;

/// How long a client tries to connect.
const CONNECT_TIME: Nanos = SECOND;

/// What happens on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A wish to connect reaches the daemon's host.
    Syn(usize),
    /// The client learns that it is connected.
    Open(usize),
    /// The client learns that nobody listens there, or that nobody answers.
    Refused(usize),
    /// A frame reaches the daemon's host.
    Up(usize),
    /// A frame reaches the client's host.
    Down(usize),
    /// The daemon's host learns that the connection is over.
    EndAtDaemon(usize),
    /// The client's host learns that the connection is over.
    EndAtClient(usize),
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

/// The party that opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// A worker's process.
    Worker { worker: usize, life: usize },
    /// The root of a tree.
    Root { daemon: usize, link: LinkId },
}

impl Client {
    pub(super) const fn place(self) -> Place {
        match self {
            Self::Worker { worker, .. } => Place::Worker(worker),
            Self::Root { daemon, .. } => Place::Daemon(daemon),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// The daemon that was connected to.
    pub(super) daemon: usize,
    pub(super) at_client: End,
    pub(super) at_daemon: End,
    up: VecDeque<Vec<u8>>,
    down: VecDeque<Vec<u8>>,
    /// When the latest of each arrives.
    last_up: Nanos,
    last_down: Nanos,
    /// Nothing gets through any more: what was lost is missing before all that follows.
    is_broken: bool,
}

impl Connection {
    /// Client and daemon.
    const fn ends(&self) -> (Place, Place) {
        (self.client.place(), Place::Daemon(self.daemon))
    }
}

impl World {
    /// A client wants to connect to a daemon; the number of the connection.
    pub(super) fn connect(&mut self, client: Client, daemon: usize) -> usize {
        let index = self.connections.len();
        self.connections.push(Connection {
            client,
            daemon,
            at_client: End::Opening,
            at_daemon: End::Opening,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
            is_broken: false,
        });
        let latency = self.control_latency(index);
        let back = self.connection_cut_until(index);
        let event = if back > self.now + CONNECT_TIME {
            (self.now + CONNECT_TIME, Event::Refused(index))
        } else {
            (back.max(self.now) + latency, Event::Syn(index))
        };
        self.queue.push(event.0, super::Event::Control(event.1));
        index
    }

    /// A client says something to the daemon.
    pub(super) fn say_up(&mut self, index: usize, request: &Request) {
        let Ok(frame) = encode(request) else {
            return self.checker.fail(|| format!("a request is too long: {request:?}"));
        };
        let (client, daemon) = self.connections[index].ends();
        self.note(&[1, client.number(), frame.len() as u64], || {
            format!("{} → {}  {request:?}", Party::from(client), Party::from(daemon))
        });
        let at = self.now + self.control_latency(index);
        let connection = &mut self.connections[index];
        if connection.is_broken {
            return;
        }
        connection.up.push_back(frame);
        connection.last_up = connection.last_up.max(at);
        self.queue.push(connection.last_up, super::Event::Control(Event::Up(index)));
    }

    /// The daemon says something to a client.
    pub(super) fn say_down(&mut self, index: usize, reply: &Reply) {
        let Ok(frame) = encode(reply) else {
            return self.checker.fail(|| format!("a reply is too long: {reply:?}"));
        };
        let (client, daemon) = self.connections[index].ends();
        self.note(&[2, client.number(), frame.len() as u64], || {
            format!("{} → {}  {reply:?}", Party::from(daemon), Party::from(client))
        });
        let at = self.now + self.control_latency(index);
        let connection = &mut self.connections[index];
        if connection.is_broken {
            return;
        }
        connection.down.push_back(frame);
        connection.last_down = connection.last_down.max(at);
        self.queue.push(connection.last_down, super::Event::Control(Event::Down(index)));
    }

    /// The client's end is closed, by the client or because it was killed (`lost`: what it said
    /// last may be lost with it).
    pub(super) fn close_at_client(&mut self, index: usize, lost: bool) {
        let at = self.now + self.control_latency(index);
        let forget = lost && self.rng.random_bool(0.5);
        let connection = &mut self.connections[index];
        if connection.at_client == End::Closed {
            return;
        }
        connection.at_client = End::Closed;
        if forget {
            connection.up.clear();
        }
        let at = connection.last_up.max(at);
        self.queue.push(at, super::Event::Control(Event::EndAtDaemon(index)));
    }

    /// The daemon's end is closed, by the daemon or because it was killed.
    pub(super) fn close_at_daemon(&mut self, index: usize, lost: bool) {
        let at = self.now + self.control_latency(index);
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
        self.queue.push(at, super::Event::Control(Event::EndAtClient(index)));
    }

    /// Something in the middle ends all connections of these; each side notices in its time.
    pub(super) fn break_connections(&mut self, of: impl Fn(&Client, usize) -> bool) {
        for index in self.open_connections(of) {
            let longest = self.scenario.dead_after;
            let (up, down) = (self.moment(longest), self.moment(longest));
            self.queue.push(up, super::Event::Control(Event::EndAtDaemon(index)));
            self.queue.push(down, super::Event::Control(Event::EndAtClient(index)));
            let connection = &mut self.connections[index];
            connection.up.clear();
            connection.down.clear();
            connection.is_broken = true;
        }
    }

    /// The way of these connections is cut until `back`: whether the ends notice.
    pub(super) fn cut_connections(&mut self, of: impl Fn(&Client, usize) -> bool, back: Nanos) {
        for index in self.open_connections(of) {
            let dead_after = self.scenario.dead_after as f64;
            let daemon = self.now + (dead_after * self.rng.random_range(0.66..1.0)) as Nanos;
            let client = self.now + (dead_after * self.rng.random_range(0.66..1.5)) as Nanos;
            let first = daemon.min(client);
            // The pauses of TCP's repetitions double: one comes in time after half of it, surely.
            let surely = self.now + (dead_after / 3.0) as Nanos;
            if back <= surely || back <= first && self.rng.random_bool(0.5) {
                continue;
            }
            // An end that has not given up when the way is back learns it from the other.
            let soon = back.max(first) + self.rng.random_range(0..self.scenario.dead_after);
            self.queue.push(daemon.min(soon), super::Event::Control(Event::EndAtDaemon(index)));
            self.queue.push(client.min(soon), super::Event::Control(Event::EndAtClient(index)));
        }
    }

    fn open_connections(&self, of: impl Fn(&Client, usize) -> bool) -> Vec<usize> {
        let all = self.connections.iter().enumerate();
        let open = all.filter(|(_, c)| {
            of(&c.client, c.daemon) && (c.at_client != End::Closed || c.at_daemon != End::Closed)
        });
        open.map(|(index, _)| index).collect()
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
        | Event::EndAtClient(index)) = event;
        let Connection { client, daemon, .. } = self.connections[index];
        let back = self.connection_cut_until(index);
        let travels =
            matches!(event, Event::Syn(_) | Event::Open(_) | Event::Up(_) | Event::Down(_));
        if travels && back > self.now {
            let at = back + self.control_latency(index);
            return self.queue.push(at, super::Event::Control(event));
        }
        let at_daemon = matches!(event, Event::Syn(_) | Event::Up(_) | Event::EndAtDaemon(_));
        match client {
            _ if at_daemon => {
                if self.daemons[daemon].is_stopped() && self.daemons[daemon].is_up() {
                    // Its host's kernel answers for it.
                    if let Event::Syn(_) = event {
                        let at = self.now + self.control_latency(index);
                        self.queue.push(at, super::Event::Control(Event::Open(index)));
                    }
                    self.daemons[daemon].keep(event);
                } else {
                    self.control_at_daemon(event);
                }
            }
            Client::Worker { worker, .. } if self.workers[worker].is_stopped() => {
                self.workers[worker].keep(event);
            }
            Client::Root { daemon, .. } if self.daemons[daemon].is_stopped() => {
                self.daemons[daemon].keep(event);
            }
            _ => self.control_at_client(event),
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
                let at = self.now + self.control_latency(index);
                self.queue.push(at, super::Event::Control(Event::EndAtClient(index)));
            }
            Event::EndAtDaemon(index) => {
                self.hear_the_rest(index);
                let connection = &mut self.connections[index];
                let was_open = connection.at_daemon == End::Open;
                connection.at_daemon = End::Closed;
                let daemon = connection.daemon;
                if was_open && self.daemons[daemon].is_up() {
                    self.note(&[3, index as u64], || {
                        format!("{}: connection {index} ends", Party::Daemon(daemon))
                    });
                    self.daemon_loses(index);
                }
            }
            _ => {}
        }
    }

    /// What a client said before it closed its end comes before the end, however long it was held
    /// up by a cut that has ended.
    fn hear_the_rest(&mut self, index: usize) {
        while self.connection_cut_until(index) <= self.now {
            let connection = &mut self.connections[index];
            if (connection.at_client, connection.at_daemon) != (End::Closed, End::Open) {
                return;
            }
            let Some(frame) = connection.up.pop_front() else { return };
            self.daemon_hears(index, frame);
        }
    }

    /// A connection comes in. `told`: the client knows that it is open.
    pub(super) fn accept(&mut self, index: usize, told: bool) {
        let Connection { client, daemon, .. } = self.connections[index];
        let at = self.now + self.control_latency(index);
        if !self.daemons[daemon].is_up() {
            return self.queue.push(at, super::Event::Control(Event::Refused(index)));
        }
        if self.connections[index].at_daemon == End::Closed {
            return;
        }
        self.connections[index].at_daemon = End::Open;
        let remote = Some(self.address(client.place()));
        let local = Some(self.address(Place::Daemon(daemon)));
        self.daemon_meets(daemon, ConnId(index as u64), Peer { local, remote });
        if !told {
            self.queue.push(at, super::Event::Control(Event::Open(index)));
        }
    }

    /// The client's half.
    pub(super) fn control_at_client(&mut self, event: Event) {
        match event {
            Event::Open(index) if self.connections[index].at_client == End::Opening => {
                self.connections[index].at_client = End::Open;
                self.tell(index, Self::worker_connected, Self::branch_connected);
            }
            Event::Refused(index) if self.connections[index].at_client == End::Opening => {
                self.connections[index].at_client = End::Closed;
                self.connections[index].at_daemon = End::Closed;
                self.tell(index, Self::worker_refused, Self::branch_refused);
            }
            Event::Down(index) => {
                let Some(mut frame) = self.connections[index].down.pop_front() else { return };
                if self.connections[index].at_client != End::Open {
                    return;
                }
                match decode::<Reply>(&mut frame) {
                    Ok(Some(reply)) => match self.connections[index].client {
                        Client::Worker { .. } => self.worker_hears(index, reply),
                        Client::Root { .. } => self.branch_says(index, reply),
                    },
                    other => self.checker.fail(|| format!("a reply is not understood: {other:?}")),
                }
            }
            Event::EndAtClient(index) => {
                let was = self.connections[index].at_client;
                self.connections[index].at_client = End::Closed;
                match was {
                    End::Open => self.tell(index, Self::worker_loses, Self::branch_lost),
                    End::Opening => self.tell(index, Self::worker_refused, Self::branch_refused),
                    End::Closed => {}
                }
            }
            _ => {}
        }
    }

    /// Tells the party that opened a connection.
    fn tell(
        &mut self,
        index: usize,
        worker: impl FnOnce(&mut Self, usize),
        root: impl FnOnce(&mut Self, usize),
    ) {
        match self.connections[index].client {
            Client::Worker { .. } => worker(self, index),
            Client::Root { .. } => root(self, index),
        }
    }

    fn connection_cut_until(&self, index: usize) -> Nanos {
        let (client, daemon) = self.connections[index].ends();
        self.parted_until(client, daemon)
    }

    /// How long a frame takes: a lost segment is repeated by TCP, which takes its time.
    fn control_latency(&mut self, index: usize) -> Nanos {
        let (client, daemon) = self.connections[index].ends();
        let link = self.link(client, daemon);
        let jitter = self.rng.random_range(0..=link.jitter);
        let lost = self.rng.random_bool(link.loss.min(0.5));
        let repeated = if lost { self.rng.random_range(MILLI..200 * MILLI) } else { 0 };
        link.base + jitter.min(SECOND) + repeated
    }
}
