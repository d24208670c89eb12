//! What a worker's [`Machine`] needs from the world: a control connection, a UDP socket and a
//! clock. A waiting thread drives them one step at a time.
//!
//! Only the communicator's own thread opens sockets ([`Errand`]): it lives in the network namespace
//! where the communicator was made, and it may take its time.

use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use xdp_agg_common::control::Progress;
use xdp_agg_common::wire::Kind;
use xdp_agg_intranode::Waker;
use xdp_agg_protocol::worker::{
    Batch, Blocks, Call, Config, Control, Counters, Endpoint, Lanes, Machine, Seat, State,
};
use xdp_agg_tls::OpenError;

use crate::driver::session::{Dial, Session};
use crate::driver::sys::{BATCH, Interest, Receiver};
use crate::driver::udp::{self, DataSocket, Sent};
use crate::driver::xsk::Results;
use crate::error::{Error, JobError};
use crate::trace::Recorder;

/// Blocks under way up to which waits are always without sleep at first: 90 KiB at MTU 1500.
const YIELD_BLOCKS: u32 = 64;
/// Most of a processor's time that such a wait takes: a sleep and a wake-up cost about as much.
const YIELD_TIME: Duration = Duration::from_micros(30);
/// Longest wait of this kind, of which other threads have the processor most of the time.
const YIELD_LONGEST: Duration = Duration::from_millis(1);
/// Another thread had the processor, if a look takes longer than this.
const YIELDED: Duration = Duration::from_micros(10);
/// Most waits that sleep at once after one that was in vain: 2 to this power, less one.
const MOST_VAIN: u32 = 3;
/// The same after one in which the processor was away.
const MOST_AWAY: u32 = 7;
/// From this time on it was: longer than another worker has it at a stretch, and no longer than a
/// thread that computes.
const AWAY: Duration = Duration::from_micros(1500);
/// Between two looks whether the daemon's host is there.
const LOOK: Duration = Duration::from_millis(100);
/// How long nothing comes by the group, while results come otherwise, until it is joined again.
const DEAF: Duration = Duration::from_secs(1);
/// While results come around the stack, the stack's are looked for once in this many times.
const RARELY: u32 = 16;
/// Descriptors that an engine is woken by.
pub(crate) const WATCHED: usize = 6;

/// What only the communicator's own thread does.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Open a control connection, and tell [`Engine::connected`].
    Connect(Dial),
    /// The same, while a ring must not wait for it.
    Probe(Dial),
    /// Join this multicast group.
    Join(SocketAddrV4),
    /// Build a ring of the members.
    Ring(Seat),
}

/// Everything behind a communicator.
pub(crate) struct Engine {
    pub(crate) machine: Machine,
    dial: Dial,
    session: Option<Session>,
    connect: bool,
    socket: DataSocket,
    /// The way of results around the stack, if there is one.
    results: Option<Results>,
    /// Times that something was to be received.
    turn: u32,
    /// What the socket is set to.
    endpoint: Option<Endpoint>,
    started: Instant,
    receiver: Receiver,
    batch: Vec<u8>,
    /// Bytes of the batch that the socket would not take yet.
    unsent: usize,
    /// When it is looked whether the daemon's host is there.
    look_at: Duration,
    /// When the last packet came by the group, or it was joined.
    group_heard: Instant,
    /// Results come to this worker alone, and none by the group: its interface may be another one
    /// now.
    group_is_deaf: bool,
    /// Tells what the other processes of the host do.
    waker: Option<Waker>,
    eagerness: Eagerness,
    recorder: Recorder,
}

impl Engine {
    /// The clock of `recorder` begins now.
    pub(crate) fn new(
        config: Config,
        dial: Dial,
        socket: DataSocket,
        recorder: Recorder,
    ) -> Result<Self, Error> {
        Ok(Self {
            machine: Machine::new(config, Duration::ZERO),
            dial,
            session: None,
            connect: false,
            socket,
            results: None,
            turn: 0,
            endpoint: None,
            started: Instant::now(),
            receiver: Receiver::new().map_err(Error::io("making room for results"))?,
            batch: Vec::new(),
            unsent: 0,
            look_at: Duration::ZERO,
            group_heard: Instant::now(),
            group_is_deaf: false,
            waker: None,
            eagerness: Eagerness::default(),
            recorder,
        })
    }

    /// Results come this way where they can.
    pub(crate) fn receive_by(&mut self, results: Option<Results>) {
        self.results = results;
    }

    /// What it did so far.
    pub(crate) fn counters(&self) -> Counters {
        let af_xdp_packets = self.results.as_ref().map_or(0, Results::packets);
        Counters { af_xdp_packets, ..self.machine.counters() }
    }

    /// Looks after what the other processes of the host do, too.
    pub(crate) fn watch(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Starts a call: see [`Machine::start`].
    pub(crate) fn start(&mut self, blocks: Box<dyn Blocks>) -> Result<u64, JobError> {
        self.machine.set_clock(self.now());
        let sequence = self.machine.start(blocks)?;
        if self.recorder.is_traced() {
            let mut calls = self.machine.calls_in_flight();
            let started = calls.find(|record| record.sequence == sequence);
            drop(calls);
            self.recorder.begun(started);
        }
        Ok(sequence)
    }

    /// A call's end, once: see [`Machine::poll_call`].
    pub(crate) fn poll_call(&mut self, sequence: u64) -> Option<Result<Call, JobError>> {
        let ended = self.machine.poll_call(sequence)?;
        self.record(self.now());
        Some(ended)
    }

    /// Takes a call out: see [`Machine::remove`].
    pub(crate) fn remove(&mut self, sequence: u64) {
        self.machine.remove(sequence);
        self.record(self.now());
    }

    /// Remembers the calls that have ended, and tells a trace how things are.
    fn record(&mut self, now: Duration) {
        while let Some(record) = self.machine.poll_record() {
            self.recorder.ended(record, now);
        }
        if self.recorder.is_traced() {
            let machine = &self.machine;
            let epoch = machine.admitted().map_or(0, |admitted| admitted.epoch);
            let flow = || (machine.counters().window, machine.under_way());
            self.recorder.step(now, (epoch, machine.state()), flow);
        }
    }

    /// The latest calls, those under way at the end.
    pub(crate) fn recorded(&self) -> Vec<xdp_agg_trace::Call> {
        self.recorder.calls(self.machine.calls_in_flight(), self.now())
    }

    /// Leaves the job and says so.
    pub(crate) fn leave(&mut self) {
        self.machine.leave();
        self.control();
        self.session = None;
    }

    /// Ends the connection without a word. The others go on without this member at once: one that
    /// says farewell is missed only when somebody waits for it.
    pub(crate) fn vanish(&mut self) {
        self.session = None;
        self.leave();
    }

    /// Ends the membership with an error, and tells the daemon, if that is possible.
    pub(crate) fn give_up(&mut self, error: Error) {
        self.machine.fail(error);
        self.control();
        self.session = None;
    }

    /// True while somebody must drive the machine.
    pub(crate) fn has_work(&self) -> bool {
        self.machine.has_work()
    }

    /// What waits for the communicator's own thread.
    pub(crate) fn errand(&mut self, lost: impl FnOnce() -> u64) -> Option<Errand> {
        self.look_after_session(self.now());
        self.control();
        if std::mem::take(&mut self.connect) {
            let on_ring = self.machine.state() == State::OnRing;
            let errand = if on_ring { Errand::Probe } else { Errand::Connect };
            return Some(errand(self.dial.clone()));
        }
        let group = self.group_to_join().map(Errand::Join);
        group.or_else(|| self.machine.ring_seat(lost()).map(Errand::Ring))
    }

    /// True if something does.
    pub(crate) fn has_errand(&self) -> bool {
        self.connect || self.group_to_join().is_some() || self.machine.ring_seat(0).is_some()
    }

    /// How [`Errand::Connect`] went.
    pub(crate) fn connected(&mut self, outcome: Result<Session, OpenError>) {
        let now = self.now();
        match outcome {
            Ok(session) => {
                self.session = Some(session);
                self.machine.handle_connected(now);
            }
            // As long as nothing is at stake, a setting that is wrong is told at once.
            Err(OpenError::Refused(reason)) if self.machine.endpoint().is_none() => {
                self.machine.fail(Error::Tls(reason));
            }
            Err(error) => self.machine.handle_connect_failed(error.to_string(), now),
        }
    }

    /// Does [`Errand::Join`].
    pub(crate) fn join(&mut self, group: SocketAddrV4) {
        let again = self.socket.group() == Some(group);
        self.group_heard = Instant::now();
        self.group_is_deaf = false;
        let Some(Endpoint { data, .. }) = self.machine.endpoint() else { return };
        if let Err(error) = self.socket.join(group, data) {
            let what = "joining the multicast group";
            // The address may come back, on another interface even.
            let noted = if again { self.note(what, error) } else { Err(Error::io(what)(error)) };
            if let Err(error) = noted {
                self.machine.fail(error);
            }
        }
    }

    /// Ends a connection whose other host is gone.
    fn look_after_session(&mut self, now: Duration) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        if let Some(Err(error)) = self.session.as_mut().map(Session::look) {
            self.hang_up(error);
        }
    }

    /// How long nobody needs to look, at most `longest`.
    pub(crate) fn patience(&self, longest: Duration) -> Duration {
        let timer = self.machine.poll_timeout().map(|at| at.saturating_sub(self.now()));
        timer.map_or(longest, |timer| timer.min(longest))
    }

    /// A descriptor that is readable when the daemon says something.
    pub(crate) fn watched(&self) -> Option<Arc<OwnedFd>> {
        self.session.as_ref().map(Session::watched)
    }

    /// Takes in what has arrived and sends what may be sent. True: there is more to do, or to look
    /// at, before anybody sleeps.
    pub(crate) fn advance(&mut self) -> bool {
        self.try_advance().unwrap_or_else(|error| {
            self.machine.fail(error);
            true
        })
    }

    fn try_advance(&mut self) -> Result<bool, Error> {
        let arrived = self.receive()?;
        let now = self.now();
        while let Some(packet) = self.machine.poll_early(now) {
            self.machine.handle_packet(&packet, now);
        }
        let now = self.now();
        self.machine.handle_timeout(now);
        self.tell_of_wait();
        self.look_after_session(now);
        self.control();
        self.transmit()?;
        self.record(now);
        // A full batch means that more is waiting; a finished call means that somebody is.
        Ok(arrived >= BATCH || self.machine.has_news() || self.machine.work())
    }

    /// From here on the other processes ring; one more look sees what they did before. True if that
    /// found something to do. [`Self::disarm`] follows in any case.
    pub(crate) fn arm(&mut self) -> bool {
        if let Some(waker) = &self.waker {
            waker.arm();
        }
        self.machine.look_again(self.now())
    }

    pub(crate) fn disarm(&self) {
        if let Some(waker) = &self.waker {
            waker.disarm();
        }
    }

    /// What ends a sleep: `wake`, what the daemon says, and others.
    pub(crate) fn watch_for<'a>(&'a self, wake: BorrowedFd<'a>) -> [Interest<'a>; WATCHED] {
        let (first, second) = self.socket.sockets();
        let results = self.results.as_ref().and_then(Results::fd);
        [
            Interest::read(wake),
            Interest::read(self.session.as_ref().map_or(wake, Session::fd))
                .also_write(self.session.as_ref().is_some_and(Session::has_unsent)),
            Interest::read(first).also_write(self.unsent > 0),
            Interest::read(second.unwrap_or(first)),
            Interest::read(self.waker.as_ref().map_or(wake, Waker::fd)),
            Interest::read(results.unwrap_or(first)),
        ]
    }

    /// A sleep is over. `told`: the daemon may have said something.
    pub(crate) fn slept(&mut self, slept: Result<(), Error>, told: bool) {
        if let Err(error) = slept {
            self.machine.fail(error);
        } else if told {
            self.listen();
        }
    }

    /// The members of a ring have met, and this is what they have.
    pub(crate) fn enter_ring(&mut self, progress: &[(u16, Progress)]) -> Result<(), Error> {
        let now = self.now();
        Ok(self.machine.handle_ring_formed(progress, now)?)
    }

    /// What a ring made of a batch. True: this worker has left the ring.
    pub(crate) fn ring_result(&mut self, batch: Batch, lanes: &Lanes) -> bool {
        let now = self.now();
        self.machine.handle_ring_result(batch, lanes, now);
        self.machine.state() != State::OnRing
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes in all packets that are there, up to a few batches; returns how many.
    fn receive(&mut self) -> Result<usize, Error> {
        let mut arrived = self.receive_results();
        self.turn = self.turn.wrapping_add(1);
        // The other way has what is rare: a look costs a system call.
        if arrived > 0 && !self.turn.is_multiple_of(RARELY) {
            return Ok(arrived);
        }
        for second in [false, true] {
            let (first, group) = self.socket.sockets();
            let Some(socket) = (if second { group } else { Some(first) }) else { continue };
            let messages = match self.receiver.receive(socket) {
                Ok(messages) => messages,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => {
                    self.note("receiving results", error)?;
                    // The error came in place of arrived packets: there is more to look at.
                    arrived += 1;
                    0
                }
            };
            let mut results = false;
            let now = self.now();
            for packet in (0..messages).flat_map(|index| self.receiver.packets(index)) {
                results |= packet.first().is_some_and(|byte| byte & 0xf == Kind::Result as u8);
                self.machine.handle_packet(packet, now);
                arrived += 1;
            }
            let is_member = self.socket.group().is_some();
            if results && is_member && (second || self.group_heard.elapsed() > DEAF) {
                self.group_is_deaf = !second;
                self.group_heard = Instant::now();
            }
        }
        Ok(arrived)
    }

    /// The same of what comes around the stack.
    fn receive_results(&mut self) -> usize {
        let now = self.now();
        let Some(results) = &mut self.results else { return 0 };
        let machine = &mut self.machine;
        let arrived = results.receive(BATCH, |packet| machine.handle_packet(packet, now));
        if arrived == 0 {
            results.settle();
        }
        arrived
    }

    /// An error of the data path's socket: counted and told; the 1st, 2nd, 4th … time in the log.
    /// It ends nothing, unless it is of our own making.
    fn note(&mut self, what: &'static str, error: io::Error) -> Result<(), Error> {
        if udp::is_misuse(&error) {
            return Err(Error::io(what)(error));
        }
        let times = self.machine.count_socket_error(&error.to_string());
        if times.is_power_of_two() {
            tracing::warn!(times, "{what}: {error}; the job goes on");
            self.recorder.instant(self.now(), "warning", || format!("{what}: {error}"));
        }
        Ok(())
    }

    /// Sends what the machine allows, in batches of equal packets.
    fn transmit(&mut self) -> Result<(), Error> {
        let connected = self.follow_endpoint()?;
        let Some(Endpoint { packet_len: full, .. }) = self.machine.endpoint() else {
            return Ok(());
        };
        loop {
            let now = self.now();
            // What the socket refused the last time goes first.
            let room = if self.unsent == 0 { self.socket.segments() } else { 0 };
            let mut len = self.unsent;
            self.batch.resize(full * self.socket.segments(), 0);
            for _ in 0..room {
                let packet = &mut self.batch[len..len + full];
                let Some(packet) = self.machine.poll_transmit(now, packet) else { break };
                len += packet;
                if packet < full {
                    break; // a shorter packet must be the last of its batch
                }
            }
            if len == 0 {
                return Ok(());
            }
            if !connected {
                continue; // there is no way for now: lost
            }
            let sent =
                self.socket.send(&self.batch[..len]).map_err(Error::io("sending a block"))?;
            self.unsent = if let Sent::Full = sent { len } else { 0 };
            match sent {
                Sent::Yes => {}
                Sent::Full => return Ok(()),
                Sent::Lost(error) => self.note("sending a block", error)?,
            }
        }
    }

    /// Sets the socket to the epoch's data path. False: there is no way to it for now.
    fn follow_endpoint(&mut self) -> Result<bool, Error> {
        let endpoint = self.machine.endpoint();
        if endpoint == self.endpoint {
            return Ok(true);
        }
        self.unsent = 0; // of another epoch
        let Some(Endpoint { data, packet_len, single_packets, .. }) = endpoint else {
            self.endpoint = None;
            return Ok(true);
        };
        if let Some(results) = &mut self.results {
            // Without it they come by UDP, as before.
            if let Err(error) = results.follow(data) {
                tracing::warn!("no results by AF_XDP: {error}");
            }
        }
        match self.socket.connect(data, packet_len, single_packets) {
            Ok(()) => self.endpoint = endpoint,
            Err(error) => self.note("connecting the data path", error)?,
        }
        Ok(self.endpoint == endpoint)
    }

    fn group_to_join(&self) -> Option<SocketAddrV4> {
        let group = self.machine.endpoint().and_then(|endpoint| endpoint.group);
        group.filter(|group| self.group_is_deaf || self.socket.group() != Some(*group))
    }

    /// Says in the log what a wait that has become long is for.
    fn tell_of_wait(&mut self) {
        if let Some(warning) = self.machine.poll_warning() {
            let Config { rank, local_size, local_rank, job, .. } = self.machine.config();
            let rank = rank * local_size + local_rank;
            tracing::warn!(rank, job, "{warning}");
            self.recorder.instant(self.now(), "warning", || warning.to_string());
        }
    }

    /// Does what the machine wants of the control connection.
    fn control(&mut self) {
        if let Some(session) = self.session.as_mut().filter(|session| session.has_unsent())
            && let Err(error) = session.flush()
        {
            self.hang_up(error);
        }
        while let Some(control) = self.machine.poll_control(self.now()) {
            match control {
                Control::Connect => self.connect = true,
                Control::Disconnect => self.session = None,
                Control::Send(request) => {
                    let Some(session) = &mut self.session else { continue };
                    if let Err(error) = session.send(&request) {
                        self.hang_up(error);
                    }
                }
            }
        }
    }

    /// Takes in what the daemon says.
    pub(crate) fn listen(&mut self) {
        while let Some(session) = &mut self.session {
            match session.poll() {
                Ok(Some(reply)) => {
                    self.machine.handle_reply(reply, self.started.elapsed());
                    // It may want to hang up, whatever follows on this connection.
                    self.control();
                }
                Ok(None) => break,
                Err(error) => self.hang_up(error),
            }
        }
        self.control();
    }

    /// The connection has ended, or what came over it makes no sense.
    fn hang_up(&mut self, error: Error) {
        self.session = None;
        match error {
            Error::Job(JobError::AggregatorLost(reason)) => {
                self.machine.handle_disconnected(reason, self.now())
            }
            // In the middle of a job: somebody meddles with the connection, or the daemon was
            // started again with other certificates.
            Error::Tls(reason) if self.machine.endpoint().is_some() => {
                self.machine.handle_disconnected(reason, self.now());
            }
            // Whatever listens there now: the ring goes on.
            other if self.machine.state() == State::OnRing => {
                self.machine.handle_disconnected(other.to_string(), self.now());
            }
            other => {
                let other = JobError::from(other);
                let now = self.now();
                if !self.machine.does_without(&other, now) {
                    self.machine.fail(other);
                }
            }
        }
    }
}

/// Results that are under way may be here soon. Gives the processor to the threads that bring them,
/// and looks again, before it sleeps; not while another thread wants the engines (`wanted`). True
/// if something came.
pub(crate) fn receive_soon(
    engines: &mut [MutexGuard<'_, Engine>],
    wanted: &dyn Fn() -> bool,
) -> bool {
    let under_way: u32 = engines.iter().map(|engine| engine.machine.under_way()).sum();
    // Of few blocks the results are a round trip away.
    let is_short = under_way <= YIELD_BLOCKS;
    if under_way == 0 || !is_short && !engines[0].eagerness.is_worth_it() {
        return false;
    }
    let (came, outcome) = yield_and_receive(engines, wanted);
    if let Some(outcome) = outcome.filter(|_| !is_short) {
        engines[0].eagerness.learn(outcome);
    }
    came
}

/// Whether something came, and what the wait was worth, if that is known.
fn yield_and_receive(
    engines: &mut [MutexGuard<'_, Engine>],
    wanted: &dyn Fn() -> bool,
) -> (bool, Option<Outcome>) {
    let start = Instant::now();
    let (mut last, mut taken) = (start, Duration::ZERO);
    while taken < YIELD_TIME && last - start < YIELD_LONGEST && !wanted() {
        let outcome = || if last.elapsed() < AWAY { Outcome::Came } else { Outcome::Away };
        std::thread::yield_now();
        for engine in engines.iter_mut().filter(|engine| engine.machine.under_way() > 0) {
            match engine.receive() {
                Ok(0) => {}
                Ok(_) => return (true, Some(outcome())),
                Err(error) => {
                    engine.machine.fail(error);
                    return (true, None);
                }
            }
        }
        let now = Instant::now();
        taken += Some(now - last).filter(|look| *look < YIELDED).unwrap_or_default();
        last = now;
    }
    let away = last - start >= AWAY;
    let in_vain = (taken >= YIELD_TIME).then_some(Outcome::InVain);
    (false, if away { Some(Outcome::Away) } else { in_vain })
}

/// What a wait without sleep was worth.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// Something came.
    Came,
    /// The processor was taken for nothing.
    InVain,
    /// Another thread kept the processor. A thread that sleeps would have had it back at once.
    Away,
}

/// Whether a wait for many blocks is worth a processor's time. Where processors are the limit,
/// results come at once, and a sleep would leave a processor idle until the wake-up. Where links
/// are, they come when the link brings them, and a wait without sleep is mostly in vain. Beside a
/// thread that computes, a processor that was given away comes back late.
#[derive(Debug, Default)]
struct Eagerness {
    /// Waits in a row that were in vain.
    vain: u32,
    /// Waits that sleep at once, before one is tried again.
    skip: u32,
}

impl Eagerness {
    /// Asked once a wait.
    fn is_worth_it(&mut self) -> bool {
        let is_worth_it = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        is_worth_it
    }

    fn learn(&mut self, outcome: Outcome) {
        self.vain = match outcome {
            Outcome::Came => 0,
            Outcome::InVain => (self.vain + 1).min(MOST_VAIN.max(self.vain)),
            Outcome::Away => (self.vain + 1).min(MOST_AWAY),
        };
        self.skip = (1 << self.vain) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where waits are in vain, one in 8 is tried, and where the processor stays away, one in 128.
    /// Once one was worth it, all are again.
    #[test]
    fn waits_in_vain_become_rare() {
        use Outcome::{Away, Came, InVain};
        let mut eagerness = Eagerness::default();
        let tried = |eagerness: &mut Eagerness, outcome: Outcome| {
            let wait = |_: &u32| {
                let is_worth_it = eagerness.is_worth_it();
                if is_worth_it {
                    eagerness.learn(outcome);
                }
                is_worth_it
            };
            (0..320).filter(wait).count()
        };
        assert_eq!(tried(&mut eagerness, Came), 320);
        assert!((40..=45).contains(&tried(&mut eagerness, InVain)));
        assert_eq!(tried(&mut eagerness, InVain), 40);
        assert!(tried(&mut eagerness, Came) >= 312);
        assert_eq!(tried(&mut eagerness, Came), 320);
        assert!(tried(&mut eagerness, Away) <= 10);
        assert!(tried(&mut eagerness, Away) <= 3);
        assert!(tried(&mut eagerness, Came) >= 192);
        assert_eq!(tried(&mut eagerness, Came), 320);
    }
}
