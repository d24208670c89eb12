//! The control server: TCP connections around a [`Jobs`] and an [`Engine`], on one thread.
//!
//! A connection is a task that turns bytes into messages and back; one loop owns jobs and engine
//! and does what the jobs ask for. Nothing that a peer does or omits stops the loop: frames,
//! queues, connections and times are bounded.

mod connection;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::{self, MissedTickBehavior};
use tracing::{debug, error, info, warn};
use xdp_agg_common::control::{Reply, Token, encode};
use xdp_agg_common::maps::JobConf;

use crate::engine::{Engine, EngineError};
use crate::jobs::{Answer, ConnId, Effect, JobSnapshot, Jobs, Limits, Peer, Prepare, Snapshot};
use crate::state::StateFile;
use connection::{Event, serve_connection};

/// Most connections that are no members: tools, workers about to join, strangers. One more makes
/// the one that was silent longest go.
const STRANGERS_MAX: usize = 512;
/// Connections that may wait to be accepted: all workers of all jobs may start at once.
const BACKLOG: u32 = 2048;
/// How long a connection that is no member may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Replies that may wait for a peer that does not read them.
const REPLIES_MAX: usize = 64;
/// Events that may wait for the loop.
const EVENTS_MAX: usize = 256;
/// How long connections get to take their last reply when the daemon goes.
const FAREWELL: Duration = Duration::from_secs(1);
/// A dead peer is noticed after this time and [`KEEPALIVE_RETRIES`] more of it.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The control address is taken.
    #[error(
        "TCP address {0} is in use: is another xdp-agg running? Stop it (`xdp-agg jobs` shows \
         whether it is one), or choose another --control address"
    )]
    AddressInUse(SocketAddr),
    /// The control address cannot be used.
    #[error(
        "cannot listen on {addr}: {source}; --control takes an address of this host and a port"
    )]
    Bind {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A control address that is ours. Taking it comes before the engine, so that a second daemon is
/// refused before it touches an interface.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Listens on `addr`; port 0 takes a free one. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or not of this host.
    pub fn bind(addr: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServerError::AddressInUse(addr),
            _ => ServerError::Bind { addr, source },
        };
        let open = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restart must not wait for connections of the last run to be forgotten.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            socket.listen(BACKLOG)
        };
        let inner = open().map_err(failed)?;
        let addr = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, addr })
    }

    /// The address, with its true port.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// What the server needs to know besides its engine.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address that workers send to; None: the one that they are connected to.
    pub data_addr: Option<Ipv4Addr>,
    /// UDP port of the data path, unless the engine says otherwise.
    pub data_port: u16,
    /// Slots of a job that asks for none in particular.
    pub job_slots: u32,
    /// How long ranks may take to join.
    pub join_timeout: Duration,
    /// How long members may take to try their paths.
    pub probe_timeout: Duration,
    /// How long the members of another daemon's job may take to come back.
    pub resume_timeout: Duration,
    /// In what time a dead host is noticed.
    pub dead_after: Duration,
    /// How long others may wait for a member that contributes nothing. None: for ever.
    pub straggler_timeout: Option<Duration>,
    /// What a connection has to know. None: nothing.
    pub token: Option<Token>,
    /// Most slots of a job.
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send.
    pub job_packet_rate: Option<u64>,
    /// Where running jobs are left to the next daemon. None: nowhere.
    pub state: Option<StateFile>,
    /// A shutdown leaves the data path and the jobs to the next daemon.
    pub keep_on_exit: bool,
}

/// The daemon: a listener, jobs and an engine.
pub struct Server {
    listener: Listener,
    engine: Box<dyn Engine>,
    jobs: Jobs,
    data_port: u16,
    state: Option<StateFile>,
    keep_on_exit: bool,
    connections: BTreeMap<ConnId, Connection>,
    next: u64,
    tasks: JoinSet<()>,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

/// The loop's view of a connection.
struct Connection {
    replies: mpsc::Sender<Vec<u8>>,
    heard: Instant,
}

impl Server {
    /// Puts the parts together. Call [`Self::run`] to serve.
    #[must_use]
    pub fn new(listener: Listener, engine: Box<dyn Engine>, config: &ServerConfig) -> Self {
        let data_port = engine.data_port().unwrap_or(config.data_port);
        let limits = Limits {
            engine: engine.describe(),
            slots: engine.slots(),
            job_slots: config.job_slots,
            max_chunks: engine.max_chunks(),
            data_addr: config.data_addr,
            data_port,
            join_timeout: config.join_timeout,
            probe_timeout: config.probe_timeout,
            resume_timeout: config.resume_timeout,
            dead_after: config.dead_after,
            straggler_timeout: config.straggler_timeout,
            token: config.token.clone(),
            job_slots_max: config.job_slots_max,
            job_packet_rate: config.job_packet_rate,
        };
        let mut server = Self {
            listener,
            engine,
            jobs: Jobs::new(limits, StdRng::from_os_rng(), Instant::now()),
            data_port,
            state: config.state.clone(),
            keep_on_exit: config.keep_on_exit,
            connections: BTreeMap::new(),
            next: 0,
            tasks: JoinSet::new(),
            events: mpsc::channel(EVENTS_MAX),
        };
        server.take_over();
        server
    }

    /// Goes on with the jobs of the daemon before, as far as the data path still runs them.
    fn take_over(&mut self) {
        let left = match self.state.as_ref().map(StateFile::read) {
            None => return,
            Some(Ok(left)) => left.unwrap_or_default(),
            Some(Err(error)) => {
                warn!("the jobs of the daemon before are lost: {error}");
                Snapshot::default()
            }
        };
        let mut running = self.engine.adopted_jobs();
        let mut goes_on = |job: &JobSnapshot| {
            let is_it = |(job_id, conf): &(u16, JobConf)| {
                *job_id == job.job_id
                    && (conf.epoch, conf.cookie, conf.members)
                        == (job.epoch, job.cookie, job.epoch_members)
                    && (conf.slot_base, conf.slots) == (job.slot_base, job.slots)
            };
            let found = running.iter().position(is_it);
            found.map(|index| running.swap_remove(index)).is_some()
        };
        let jobs = left.jobs.into_iter().filter(|job| goes_on(job)).collect();
        // Of what nobody knows nobody can be a member.
        for (job_id, _) in running {
            if let Err(error) = self.engine.stop(job_id) {
                error!(job_id, "the engine could not end a job of the daemon before: {error}");
            }
        }
        self.jobs.restore(Snapshot { jobs, ..left }, Instant::now());
        self.settle();
    }

    /// Leaves the jobs to the daemon after this one, should this one die.
    fn save(&self) {
        if let Some(state) = &self.state
            && let Err(error) = state.write(&self.jobs.snapshot())
        {
            error!("the next daemon will not know the running jobs: {error}");
        }
    }

    /// Where workers and tools connect.
    #[must_use]
    pub const fn control_addr(&self) -> SocketAddr {
        self.listener.addr
    }

    /// UDP port of the data path.
    #[must_use]
    pub const fn data_port(&self) -> u16 {
        self.data_port
    }

    /// The engine's description.
    #[must_use]
    pub fn engine(&self) -> String {
        self.engine.describe()
    }

    /// Serves until `shutdown` is done; then tells all members, and drops the engine.
    pub async fn run(mut self, shutdown: impl Future<Output = String>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut sweep = time::interval(SILENCE_MAX / 8);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let reason = loop {
            let due = self.jobs.poll_timeout().map(time::Instant::from_std);
            let wait = async {
                match due {
                    Some(due) => time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                reason = &mut shutdown => break reason,
                accepted = self.listener.inner.accept() => self.accepted(accepted).await,
                event = self.events.1.recv() => {
                    if let Some(event) = event {
                        self.event(event);
                    }
                }
                () = wait => self.jobs.handle_timeout(Instant::now()),
                _ = sweep.tick() => self.sweep(),
            }
            self.settle();
        };
        info!("shutting down: {reason}");
        if self.keep_on_exit && self.state.is_some() {
            info!("jobs and data path are left to the next daemon");
            self.engine.keep();
            self.save();
        } else {
            self.jobs.shut_down("the aggregator is shutting down");
            self.settle();
        }
        // Without its sender a connection sends what waits, and ends.
        self.connections.clear();
        let farewell = async { while self.tasks.join_next().await.is_some() {} };
        if time::timeout(FAREWELL, farewell).await.is_err() {
            debug!("some connections did not take their last reply");
        }
    }

    async fn accepted(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the peer has gone already. It must not spin.
                warn!("cannot accept a connection: {error}");
                return time::sleep(Duration::from_millis(50)).await;
            }
        };
        let local = match prepare(&stream) {
            Ok(local) => local,
            Err(error) => return debug!(%from, "a connection that is gone already: {error}"),
        };
        self.make_room();
        let conn = ConnId(self.next);
        self.next += 1;
        debug!(conn = conn.0, %from, "connected");
        let (replies, waiting) = mpsc::channel(REPLIES_MAX);
        self.connections.insert(conn, Connection { replies, heard: Instant::now() });
        self.jobs.connected(conn, Peer::new(local.ip(), from.ip()));
        self.tasks.spawn(serve_connection(stream, conn, self.events.0.clone(), waiting));
    }

    /// Ends the stranger that was silent longest, if there are too many.
    fn make_room(&mut self) {
        if self.connections.len().saturating_sub(self.jobs.members()) < STRANGERS_MAX {
            return;
        }
        let strangers = self.connections.iter().filter(|(conn, _)| !self.jobs.is_member(**conn));
        if let Some((conn, _)) = strangers.min_by_key(|(_, connection)| connection.heard) {
            self.jobs.dismiss(*conn, "too many connections that are members of no job");
        }
    }

    /// Ends strangers that were silent too long, and forgets finished tasks.
    fn sweep(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let now = Instant::now();
        for (conn, connection) in &self.connections {
            let silent = now.saturating_duration_since(connection.heard);
            if silent > SILENCE_MAX && !self.jobs.is_member(*conn) {
                self.jobs.dismiss(*conn, "silent for too long without being a member of a job");
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Said(conn, request) => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.heard = now;
                }
                self.jobs.request(conn, request, now);
            }
            Event::Garbled(conn, why) => self.jobs.garbled(conn, &why),
            Event::Closed(conn) => {
                self.connections.remove(&conn);
                self.jobs.closed(conn);
            }
        }
    }

    /// Does what the jobs ask for, until they are content.
    fn settle(&mut self) {
        while let Some(effect) = self.jobs.next_effect() {
            if let Some(answer) = self.effect(effect) {
                self.jobs.answer(answer, Instant::now());
            }
        }
    }

    fn effect(&mut self, effect: Effect) -> Option<Answer> {
        let words = |error: EngineError| error.to_string();
        match effect {
            Effect::Reply(conn, reply) => self.reply(conn, &reply),
            Effect::Close(conn) => drop(self.connections.remove(&conn)),
            Effect::Prepare(Prepare { formation, setup }) => {
                let result = self.engine.prepare(&setup).map_err(words);
                return Some(Answer::Prepared(formation, result));
            }
            Effect::Start(formation, wanted) => {
                let result = self.engine.start(formation.job_id, wanted).map_err(words);
                return Some(Answer::Started(formation, result));
            }
            Effect::Stop { job_id } => {
                if let Err(error) = self.engine.stop(job_id) {
                    error!(job_id, "the engine could not end a job: {error}");
                }
            }
            Effect::Missing { conn, job_id, block } => {
                let ranks = self.engine.missing(job_id, block).map_err(words);
                return Some(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = self.engine.counters().map_err(words);
                return Some(Answer::Counters(purpose, counters));
            }
            Effect::Persist => self.save(),
            Effect::Heard { look, jobs } => {
                let heard = jobs.into_iter().filter_map(|job_id| match self.engine.heard(job_id) {
                    Ok(heard) => Some((job_id, heard)),
                    Err(error) => {
                        warn!(job_id, "who contributes cannot be told: {error}");
                        None
                    }
                });
                return Some(Answer::Heard { look, heard: heard.collect() });
            }
        }
        None
    }

    fn reply(&mut self, conn: ConnId, reply: &Reply) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let why = match encode(reply) {
            Ok(frame) => match connection.replies.try_send(frame) {
                // A connection that has ended reports that itself.
                Ok(()) | Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(_)) => "it does not read its replies".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        warn!(conn = conn.0, "a connection is cut off: {why}");
        self.connections.remove(&conn);
        self.jobs.closed(conn);
    }
}

/// Sets a new connection's options: no delay, and a dead peer is noticed. Returns our address.
fn prepare(stream: &TcpStream) -> io::Result<SocketAddr> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(KEEPALIVE * KEEPALIVE_RETRIES))?;
    stream.set_nodelay(true)?;
    stream.local_addr()
}
