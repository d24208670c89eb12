//! The control server: TCP connections around a [`Jobs`] and an [`Engine`], on one thread.
//!
//! A connection is a task that turns bytes into messages and back; one loop owns jobs and engine
//! and does what the jobs ask for, in rounds (`turns`). Nothing that a peer does or omits stops the
//! loop: frames, queues, connections, requests and times are bounded, for each address separately.

mod connection;
mod door;
mod guard;
mod handover;
mod limits;
mod links;
mod listener;
mod long;
mod reload;
mod turns;
mod view;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{self, MissedTickBehavior};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info, warn};
use xdp_agg_common::control::words::{SENTENCE_MAX, clean};
use xdp_agg_common::control::{Reply, Request, Token, encode};
use xdp_agg_tls::{ClientFiles, Liveness, ServerTls};

use crate::engine::{Engine, EngineError, Watch};
use crate::link::watch::Changes;
use crate::state::StateFile;
use crate::supervisor::Supervisor;
use connection::{Event, Line, serve_connection};
use door::{Door, is_ending};
use guard::Guard;
use limits::Source;
use links::{LinkEvent, Links};
pub use listener::{Listener, ServerError};
use long::LongFrames;
pub use reload::{Reread, Rereads};
use turns::{AT_A_TURN, Turns, Wish, Work, is_question, is_work};
pub use view::{Ask, View};
use xdp_agg_protocol::bucket::Bucket;
pub use xdp_agg_protocol::daemon::ConnId;
use xdp_agg_protocol::daemon::{Answer, Effect, Jobs, Limits, Patience, Peer};

/// How long a connection that is not a member's may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Replies that may wait for a peer that does not read them.
const REPLIES_MAX: usize = 64;
/// Bytes that may wait for such a peer before one more reply, which may be as long as a frame.
const BACKLOG_MAX: usize = 1 << 18;
/// A round that took longer kept the connections from being read.
const LONG_ROUND: Duration = Duration::from_millis(1);
/// How often all else may run then, until what came in meanwhile is known.
const CATCH_UP: usize = 3;
/// How long connections get to take their last reply when the daemon goes.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often strangers are looked at, and the refusals that a flood kept out of the log are told.
const SWEEP: Duration = Duration::from_secs(1);
/// How long after a change of an interface all interfaces are looked at.
const SETTLED: Duration = Duration::from_millis(20);
/// How long a lost branch of a tree must be there again until the tree takes it back.
const RETURN_AFTER: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted: there may be no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    /// The most that a worker may ask for.
    pub join_timeout_max: Duration,
    /// How long members may take to try their paths.
    pub probe_timeout: Duration,
    /// Control connections run over TLS. None: they are plain.
    pub tls: Option<ServerTls>,
    /// How to speak to the daemons of a tree below this one.
    pub branch_tls: ClientFiles,
    /// How long the members of another daemon's job may take to come back.
    pub resume_timeout: Duration,
    /// In what time a dead host is noticed.
    pub patience: Patience,
    /// How long others may wait for a member that contributes nothing. None: for ever.
    pub straggler_timeout: Option<Duration>,
    /// The same for one that answers no heartbeat either.
    pub silent_timeout: Option<Duration>,
    /// What a connection has to know: one of these. The first is said to branches. None: nothing.
    pub tokens: Vec<Token>,
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
    tls: Option<TlsAcceptor>,
    state: Option<StateFile>,
    keep_on_exit: bool,
    patience: Patience,
    connections: BTreeMap<ConnId, Connection>,
    guard: Guard,
    next: u64,
    tasks: JoinSet<()>,
    long: Arc<LongFrames>,
    accept_after: Instant,
    events: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    turns: Turns<Event>,
    door: Door,
    /// What the jobs want done, and the address that asked for it.
    effects: Vec<Wish>,
    /// What a snapshot shows may have changed.
    unsaved: bool,
    links: Links,
    /// The settings as they hold now.
    config: ServerConfig,
    /// Where settings come from that were read again.
    rereads: Option<Rereads>,
    supervisor: Supervisor,
    /// Who wants to see what it does.
    asks: Option<mpsc::Receiver<Ask>>,
    /// Source of what is being dealt with, if it came from a connection.
    asking: Option<Source>,
}

/// The loop's view of a connection.
struct Connection {
    replies: mpsc::Sender<Vec<u8>>,
    /// Its socket once more, and whether the other host is there.
    socket: OwnedFd,
    liveness: Liveness,
    from: SocketAddr,
    /// Both of its ends are this host's.
    is_local: bool,
    source: Source,
    requests: Bucket,
    heard: Instant,
    /// Bytes of replies that wait.
    backlog: Arc<AtomicUsize>,
    /// For its task.
    is_member: Arc<AtomicBool>,
    dealt: Arc<Notify>,
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
            single_packets: engine.single_packets(),
            data_addr: config.data_addr,
            data_port,
            join_timeout: config.join_timeout,
            join_timeout_max: config.join_timeout_max,
            probe_timeout: config.probe_timeout,
            return_after: RETURN_AFTER,
            resume_timeout: config.resume_timeout,
            patience: config.patience,
            straggler_timeout: config.straggler_timeout,
            silent_timeout: config.silent_timeout,
            tokens: config.tokens.clone(),
            job_slots_max: config.job_slots_max,
            job_packet_rate: config.job_packet_rate,
        };
        let now = Instant::now();
        let mut server = Self {
            listener,
            engine,
            jobs: Jobs::new(limits, StdRng::from_os_rng(), now),
            data_port,
            tls: config.tls.as_ref().map(reload::acceptor),
            state: config.state.clone(),
            keep_on_exit: config.keep_on_exit,
            patience: config.patience,
            connections: BTreeMap::new(),
            guard: Guard::new(now),
            next: 0,
            tasks: JoinSet::new(),
            long: Arc::new(LongFrames::new()),
            accept_after: now,
            events: mpsc::unbounded_channel(),
            turns: Turns::new(),
            door: Door::default(),
            effects: Vec::new(),
            unsaved: false,
            links: Links::new(config.patience, config.branch_tls.clone(), config.tls.is_some()),
            config: config.clone(),
            rereads: None,
            supervisor: Supervisor::default(),
            asks: None,
            asking: None,
        };
        server.take_over();
        server
    }

    /// Takes settings over that come from here while it runs: tokens, TLS, and the limits of jobs.
    /// They hold for new connections and new jobs.
    #[must_use]
    pub fn with_rereads(self, rereads: Rereads) -> Self {
        Self { rereads: Some(rereads), ..self }
    }

    /// Tells a service manager when it serves, that it does, and how many jobs it has.
    #[must_use]
    pub fn with_supervisor(self, supervisor: Supervisor) -> Self {
        Self { supervisor, ..self }
    }

    /// Where workers and tools connect.
    #[must_use]
    pub const fn control_addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// UDP port of the data path.
    #[must_use]
    pub const fn data_port(&self) -> u16 {
        self.data_port
    }

    /// The data path, for another thread that only looks.
    ///
    /// # Errors
    /// The engine's.
    pub fn watch(&self) -> Result<Box<dyn Watch>, EngineError> {
        self.engine.watch()
    }

    /// The engine's description.
    #[must_use]
    pub fn engine(&self) -> String {
        self.engine.describe()
    }

    /// Serves until `shutdown` is done; then tells all members, and drops the engine.
    pub async fn run(mut self, shutdown: impl Future<Output = String>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut changes = Changes::watch();
        let mut watch = time::interval(self.patience.tick());
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_at = None;
        let mut sweep = time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sign = self.supervisor.period().map(|period| {
            let mut sign = time::interval(period);
            sign.set_missed_tick_behavior(MissedTickBehavior::Delay);
            sign
        });
        self.supervisor.ready();
        let reason = loop {
            let due = self.jobs.poll_timeout().map(time::Instant::from_std);
            let accept = async {
                time::sleep_until(self.accept_after.into()).await;
                self.listener.accept().await
            };
            let more = !self.turns.is_empty();
            tokio::select! {
                reason = &mut shutdown => break reason,
                accepted = accept => self.accepted(accepted),
                Some(event) = self.events.1.recv() => self.queue(event),
                () = std::future::ready(()), if more => {}
                event = self.links.next() => self.link(event),
                reread = Rereads::next_of(&mut self.rereads) => self.take_over_settings(reread),
                ask = next_of(&mut self.asks) => self.show(ask),
                // The round below looks at the time.
                () = sleep_until(due) => {}
                // Changes come in bursts.
                () = changes.next() => look_at = look_at.or(Some(time::Instant::now() + SETTLED)),
                () = sleep_until(look_at) => {
                    look_at = None;
                    self.tend();
                }
                _ = watch.tick() => self.end_dead(),
                () = tick(&mut sign) => self.supervisor.alive(),
                _ = sweep.tick() => {
                    self.sweep();
                    self.tend();
                }
            }
            let start = Instant::now();
            self.round();
            if start.elapsed() > LONG_ROUND {
                for _ in 0..CATCH_UP {
                    tokio::task::yield_now().await;
                }
            }
        };
        info!("shutting down: {reason}");
        self.supervisor.stopping();
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

    /// Ends the connections of members whose hosts are gone.
    fn end_dead(&mut self) {
        let jobs = &self.jobs;
        let members = self.connections.iter_mut().filter(|(conn, _)| jobs.is_member(**conn));
        let dead = members.filter_map(|(conn, connection)| {
            let silent = connection.liveness.is_dead(&connection.socket)?;
            Some((*conn, silent))
        });
        for (conn, silent) in dead.collect::<Vec<_>>() {
            let Some(Connection { socket, from, .. }) = self.connections.remove(&conn) else {
                continue;
            };
            info!(conn = conn.0, %from, "its host has acknowledged nothing for {silent:.1?}");
            // What waits in the kernel for that host goes with the connection.
            drop(SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
            self.jobs.handle_closed(conn);
        }
    }

    /// Looks after what the data path stands on.
    fn tend(&mut self) {
        let troubles = self.engine.tend();
        self.jobs.handle_troubles(troubles, Instant::now());
    }

    fn accepted(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let now = Instant::now();
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the peer has gone already. It must not spin.
                self.accept_after = now + ACCEPT_PAUSE;
                return self.guard.accept_failed(&error, now);
            }
        };
        let source = Source::new(from.ip());
        if !self.guard.may_connect(&stream, from, source, self.tls.is_some(), now) {
            return;
        }
        let (local, socket, liveness) = match prepare(&stream, self.patience.least()) {
            Ok(prepared) => prepared,
            Err(error) => return debug!(%from, "a connection that is gone already: {error}"),
        };
        self.make_room(source);
        let conn = ConnId(self.next);
        self.next += 1;
        debug!(conn = conn.0, %from, "connected");
        let (replies, waiting) = mpsc::channel(REPLIES_MAX);
        let requests = limits::requests(now);
        let backlog = Arc::new(AtomicUsize::new(0));
        let is_member = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            replies,
            socket,
            liveness,
            from,
            is_local: reload::is_of_this_host(&stream, from),
            source,
            requests,
            heard: now,
            backlog: Arc::clone(&backlog),
            is_member: Arc::clone(&is_member),
            dealt: Arc::new(Notify::new()),
        };
        let dealt = Arc::clone(&connection.dealt);
        self.connections.insert(conn, connection);
        self.jobs.handle_connected(conn, Peer::new(local.ip(), from.ip()));
        let events = self.events.0.clone();
        let (tls, long) = (self.tls.clone(), Arc::clone(&self.long));
        let line = Line { conn, from, source, tls, long, is_member, events, dealt, backlog };
        self.tasks.spawn(serve_connection(stream, line, waiting));
    }

    /// Makes a stranger go, if there are too many for another one of `source`.
    fn make_room(&mut self, source: Source) {
        let jobs = &self.jobs;
        let strangers = || self.connections.iter().filter(|(conn, _)| !jobs.is_member(**conn));
        let all = strangers().map(|(conn, connection)| guard::Stranger {
            conn: *conn,
            source: connection.source,
            heard: connection.heard,
        });
        if let Some(conn) = guard::who_must_go(all, source) {
            self.guard.counters.crowded += 1;
            self.jobs.dismiss(conn, "too many connections that are members of no job");
        }
    }

    /// Ends strangers that were silent too long, and forgets finished tasks.
    fn sweep(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let now = Instant::now();
        self.supervisor.status(self.status());
        self.guard.sweep(now);
        if let Some(count) = self.jobs.left_out(now) {
            info!("{count} more lines about jobs and their members; `xdp-agg jobs` shows them");
        }
        for (conn, connection) in &self.connections {
            let silent = now.saturating_duration_since(connection.heard);
            if silent > SILENCE_MAX && !self.jobs.is_member(*conn) {
                self.guard.counters.slow += 1;
                self.jobs.dismiss(*conn, "silent for too long without being a member of a job");
            }
        }
    }

    /// What it does, in a line.
    fn status(&self) -> String {
        let (jobs, engine) = (self.jobs.count(), self.engine.describe());
        format!("{jobs} {}; {engine}", if jobs == 1 { "job" } else { "jobs" })
    }

    fn source_of(&self, event: &Event) -> Option<Source> {
        let (Event::Said(conn, _)
        | Event::Waited(conn, _)
        | Event::Garbled(conn, _)
        | Event::Slow(conn, _)
        | Event::Untrusted(conn, _)
        | Event::Closed(conn)) = event;
        self.connections.get(conn).map(|connection| connection.source)
    }

    /// Whether a message is within what its connection and its address may say.
    fn is_allowed(&mut self, conn: ConnId, request: &Request, now: Instant) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return false;
        };
        connection.heard = now;
        let allowed = connection.requests.take(now)
            && (self.jobs.is_member(conn) || self.guard.may_ask(connection.source, now));
        // A connection that is gone already reports that itself.
        if allowed
            && let Some(dead_after) = self.patience.after(request)
            && let Ok(liveness) = Liveness::of(&connection.socket, dead_after)
        {
            connection.liveness = liveness;
        }
        allowed
    }

    /// Connections that have ended as the kernel knows it, and whose ends decide what becomes of a
    /// request: they are dealt with before it.
    fn ends_before(&self, conn: ConnId, request: &Request) -> Vec<ConnId> {
        let is_ending = |other: &ConnId| {
            let other = self.connections.get(other).filter(|_| *other != conn);
            other.is_some_and(|connection| is_ending(&connection.socket))
        };
        self.jobs.beside(request).into_iter().filter(is_ending).collect()
    }

    /// A message that has its turn; then the connection is read further.
    fn said(&mut self, conn: ConnId, request: Request, now: Instant) {
        if let Some(connection) = self.connections.get(&conn) {
            connection.dealt.notify_one();
            self.jobs.handle_request(conn, request, now);
        }
    }

    fn event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Said(conn, request) if self.is_allowed(conn, &request, now) => {
                let ends = self.ends_before(conn, &request);
                if ends.is_empty() {
                    return self.said(conn, request, now);
                }
                debug!(conn = conn.0, ?ends, "waits until the ends of these are read");
                self.door.hold(conn, request, ends, now);
            }
            Event::Said(conn, _) => {
                if let Some(connection) = self.connections.get(&conn) {
                    connection.dealt.notify_one();
                    self.guard.counters.requests += 1;
                    self.jobs.dismiss(conn, "too many requests in a short time; slow down");
                }
            }
            Event::Waited(conn, request) => self.said(conn, request, now),
            Event::Garbled(conn, why) => self.jobs.handle_garbled(conn, &why),
            Event::Slow(conn, why) => {
                self.guard.counters.slow += 1;
                self.jobs.dismiss(conn, &why);
            }
            Event::Untrusted(conn, why) => {
                if let Some(Connection { from, .. }) = self.connections.get(&conn) {
                    // It may quote a certificate.
                    let why = clean(&why, SENTENCE_MAX);
                    self.guard.untrusted(conn, *from, &why, now);
                }
            }
            Event::Closed(conn) => {
                self.connections.remove(&conn);
                self.jobs.handle_closed(conn);
            }
        }
    }

    fn queue(&mut self, event: Event) {
        let source = self.source_of(&event);
        self.turns.push(source, event);
    }

    /// Gives each address that has said something its turn, and does what the jobs ask for.
    fn round(&mut self) {
        self.collect();
        let now = Instant::now();
        while let Ok(event) = self.events.1.try_recv() {
            self.queue(event);
        }
        for source in self.turns.sources() {
            self.asking = source;
            for _ in 0..AT_A_TURN {
                let Some(event) = self.turns.next_of(source) else { break };
                self.event(event);
                if self.collect() {
                    break;
                }
            }
        }
        self.asking = None;
        let connections = &self.connections;
        for (conn, request) in self.door.open(|conn| connections.contains_key(&conn), now) {
            self.queue(Event::Waited(conn, request));
        }
        // What had come in by then is dealt with, so that nobody is late who was in time.
        if self.jobs.poll_timeout().is_some_and(|due| due <= now) {
            self.jobs.handle_timeout(now);
        }
        self.settle();
    }

    /// Notes what the jobs ask for. True: the engine has work.
    fn collect(&mut self) -> bool {
        let mut work = false;
        while let Some(effect) = self.jobs.poll_effect() {
            match effect {
                Effect::Persist => self.unsaved = true,
                effect => {
                    work |= is_work(&effect);
                    self.effects.push((self.asking, effect));
                }
            }
        }
        work
    }

    /// Does what the jobs ask for, until they ask for nothing more.
    fn settle(&mut self) {
        loop {
            self.collect();
            let effects = std::mem::take(&mut self.effects);
            if effects.is_empty() {
                break;
            }
            for (by, answer) in self.perform(effects) {
                self.asking = by;
                self.jobs.handle_answer(answer, Instant::now());
                self.collect();
            }
            self.asking = None;
        }
        if std::mem::take(&mut self.unsaved) {
            self.save();
        }
    }

    /// First what is asked of the data path as it is, then its changes, then all else. So nothing
    /// is said before the data path is what it says.
    fn perform(&mut self, mut effects: Vec<Wish>) -> Vec<(Option<Source>, Answer)> {
        let mut answers = Vec::new();
        let questions = effects.extract_if(.., |(_, effect)| is_question(effect));
        for (by, effect) in questions.collect::<Vec<_>>() {
            answers.extend(self.effect(by, effect).map(|answer| (by, answer)));
        }
        let work = Work::of(&mut effects);
        if !work.changes.is_empty() {
            let done = self.engine.change(&work.changes);
            let (changed, failed) = work.answers(done);
            answers.extend(changed);
            for error in failed {
                error!("the engine could not end a job: {error}");
            }
        }
        for (by, effect) in effects {
            answers.extend(self.effect(by, effect).map(|answer| (by, answer)));
        }
        answers
    }

    fn effect(&mut self, by: Option<Source>, effect: Effect) -> Option<Answer> {
        let words = |error: EngineError| error.to_string();
        match effect {
            Effect::Reply(conn, Reply::Stats(mut stats)) => {
                stats.control = self.guard.counters;
                self.reply(conn, &Reply::Stats(stats));
            }
            Effect::Reply(conn, reply) => self.reply(conn, &reply),
            Effect::Close(conn) => drop(self.connections.remove(&conn)),
            Effect::Reload(conn) => self.wants_reload(conn),
            Effect::ProbeUplink(formation) => {
                let open = self.engine.probe_uplink(formation.job_id).map_err(words);
                return Some(Answer::Uplink(formation, open));
            }
            Effect::Link(effect) => {
                let guard = &mut self.guard;
                let may_dial = || by.is_none_or(|by| guard.may_dial(by, Instant::now()));
                self.links.act(effect, by, may_dial);
            }
            Effect::Missing { conn, job_id, block, of } => {
                let missing = self.engine.missing(job_id, block).map_err(words);
                let ranks = missing.map(|bits| bits & of);
                return Some(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = self.engine.counters().map_err(words);
                return Some(Answer::Counters(purpose, counters));
            }
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
            // Taken out before.
            Effect::Prepare(_) | Effect::Start(..) | Effect::Stop { .. } | Effect::Persist => {}
        }
        None
    }

    fn link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up(link) => self.jobs.handle_link_up(link),
            LinkEvent::Said(link, reply) => self.jobs.handle_link_reply(link, *reply),
            LinkEvent::Lost(link, why) => self.jobs.handle_link_lost(link, &why),
        }
    }

    fn reply(&mut self, conn: ConnId, reply: &Reply) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        // Whatever makes a member say much is told to it first.
        connection.is_member.store(self.jobs.is_member(conn), Ordering::Relaxed);
        let (from, now) = (connection.from, Instant::now());
        if let Reply::Error { code, message } = reply {
            self.guard.refused(conn, from, *code, message, now);
        }
        let why = match encode(reply) {
            Ok(frame) => {
                let waiting = connection.backlog.fetch_add(frame.len(), Ordering::Relaxed);
                let sent = (waiting <= BACKLOG_MAX).then(|| connection.replies.try_send(frame));
                match sent {
                    // A connection that has ended reports that itself.
                    Some(Ok(()) | Err(TrySendError::Closed(_))) => return,
                    Some(Err(TrySendError::Full(_))) | None => {
                        "it does not read its replies".to_owned()
                    }
                }
            }
            Err(error) => error.to_string(),
        };
        self.guard.cut_off(conn, from, &why, now);
        self.connections.remove(&conn);
        self.jobs.handle_closed(conn);
    }
}

/// The next time to give a sign of life; never, if nobody waits for one.
async fn tick(sign: &mut Option<time::Interval>) {
    match sign {
        Some(sign) => drop(sign.tick().await),
        None => std::future::pending().await,
    }
}

/// The next one; for ever none, if there is nowhere that it could come from.
async fn next_of<T>(from: &mut Option<mpsc::Receiver<T>>) -> T {
    if let Some(some) = from
        && let Some(next) = some.recv().await
    {
        return next;
    }
    *from = None;
    std::future::pending().await
}

async fn sleep_until(at: Option<time::Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Sets a new connection's options: no delay, and a dead host is noticed. Returns our address, and
/// the socket once more.
fn prepare(
    stream: &TcpStream,
    dead_after: Duration,
) -> io::Result<(SocketAddr, OwnedFd, Liveness)> {
    let liveness = Liveness::of(stream, dead_after)?;
    stream.set_nodelay(true)?;
    Ok((stream.local_addr()?, stream.as_fd().try_clone_to_owned()?, liveness))
}
