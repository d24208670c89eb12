//! The worker's view: connect, all-reduce, wait.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use xdp_agg_common::control::{Join, Policy, Reply, Request};
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use crate::buffer::Buffer;
use crate::call::{Call, Report};
use crate::collective::{BoxError, Collective, Op};
use crate::element::Element;
use crate::engine::{Counters, Engine, Membership, packet_len};
use crate::error::Error;
use crate::flow;
use crate::session::{Session, refusal};
use crate::settings::Builder;
use crate::sys::{self, BATCH, Receiver};
use crate::udp::DataSocket;

/// Blocks under way before the first result: enough for a fast link, little enough for any queue.
const INITIAL_WINDOW: u32 = 32;
/// Longest retransmission timeout: how long a lost answer of a straggler may go unnoticed.
const RTO_MAX: Duration = Duration::from_millis(250);
/// Longest sleep of a thread that drives the calls.
const NAP: Duration = Duration::from_millis(100);
/// Probes of the data path, and the pause between them.
const PROBES: u32 = 100;
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// A worker's membership in a job: all-reduces with the other workers through the aggregator.
///
/// Calls may be made from several threads; all workers must make the same calls in the same order.
/// Dropping it leaves the job.
///
/// ```no_run
/// use xdp_agg_client::{Communicator, Op};
///
/// let communicator = Communicator::from_env()?;
/// let mut gradients = vec![0.5_f32; 1_000_000];
/// communicator.all_reduce(&mut gradients, Op::Average)?;
/// # Ok::<(), xdp_agg_client::Error>(())
/// ```
#[derive(Debug)]
pub struct Communicator {
    shared: Arc<Shared>,
    progress: Mutex<Option<JoinHandle<()>>>,
    rank: u16,
    world_size: u16,
    mode: ResultMode,
    deadline: Duration,
}

/// What the threads share: the engine, and how to get at it.
struct Shared {
    engine: Mutex<Engine>,
    /// Threads that want the engine while another one drives it.
    wanted: AtomicUsize,
    /// Threads that drive calls in the foreground; the progress thread keeps out of their way.
    foreground: AtomicUsize,
    /// Signals the progress thread: work without a driver, or the end.
    idle: Condvar,
    closing: AtomicUsize,
    wake_tx: UnixDatagram,
    wake_rx: UnixDatagram,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Communicator {
    /// Connects with the settings of the environment: see [`Builder::from_env`].
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Builder::from_env()?.connect()
    }

    /// Settings to change before connecting.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn connect(settings: Builder) -> Result<Self, Error> {
        let (rank, world_size) = settings.place()?;
        let scale = settings.checked_scale()?;
        let aggregator = settings.aggregator.ok_or_else(|| Error::Config {
            name: "XDP_AGG_ADDR",
            problem: "not set; expected host:port of the daemon's control service".into(),
        })?;
        let mut session = Session::open(aggregator, settings.join_deadline.min(NAP * 100))?;
        let mut socket = DataSocket::bind(session.local_addr()?)
            .map_err(Error::io("opening a UDP socket for the data path"))?;
        let join = Join {
            job: settings.job.clone(),
            rank,
            world_size,
            data_port: socket.port().map_err(Error::io("reading the data port"))?,
            data_addr: None,
            max_chunks: session.path_chunks(settings.mtu)?,
            slots: settings.slots,
            result_mode: settings.result_mode,
            policy: Policy::default(),
            ring_port: None,
            resume: None,
        };
        let admitted = session.join(join, settings.join_deadline)?;
        let Some(pool) = Pool::new(admitted.slots) else {
            return Err(Error::Protocol(format!("a pool of {} slots", admitted.slots)));
        };
        let packet = packet_len(admitted.chunks);
        socket.connect(admitted.data, packet).map_err(Error::io("connecting the data path"))?;
        probe(&mut session, &socket, rank, &admitted)?;
        session.send(&Request::Ready)?;
        let mode = match session.next(Instant::now() + settings.join_deadline)? {
            Some(Reply::Go { mode, group }) => {
                if let Some(group) = group {
                    socket.join(group).map_err(Error::io("joining the multicast group"))?;
                }
                mode
            }
            Some(other) => return Err(refusal(other)),
            None => {
                let waited = settings.join_deadline;
                return Err(Error::Deadline { sequence: None, waited, ranks: Vec::new() });
            }
        };
        let room = socket.receive_room().map_err(Error::io("reading the receive buffer"))?;
        let flow = flow::Config {
            limit: pool.window(),
            window_max: u32::try_from(room).unwrap_or(u32::MAX).max(2),
            initial_window: INITIAL_WINDOW,
            rto_min: settings.rto_min,
            rto_max: RTO_MAX.max(settings.rto_min),
            block_interval: block_interval(settings.rate, packet),
        };
        let membership = Membership { rank, world_size, scale, admitted };
        let engine = Engine::new(membership, session, socket, flow);
        Ok(Self {
            shared: Arc::new(Shared::new(engine)?),
            progress: Mutex::new(None),
            rank,
            world_size,
            mode,
            deadline: settings.deadline,
        })
    }

    /// This worker's number.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.rank
    }

    /// Number of workers.
    #[must_use]
    pub const fn world_size(&self) -> u16 {
        self.world_size
    }

    /// How results come to this job.
    #[must_use]
    pub const fn result_mode(&self) -> ResultMode {
        self.mode
    }

    /// What sums: `xdp (native)`, `xdp (generic)` or `userspace`.
    #[must_use]
    pub fn engine(&self) -> String {
        self.shared.lock().engine().to_owned()
    }

    /// Payload bytes of a full block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        usize::from(self.shared.lock().admitted().chunks) * CHUNK_LEN
    }

    /// What was sent, received and lost so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters()
    }

    /// All-reduces in place and waits for it, at most for the configured deadline.
    ///
    /// # Errors
    /// The deadline (naming the ranks whose contribution is missing), the job's end, a call that
    /// differs from the other workers', a value that does not fit. After an error the contents of
    /// `data` are unspecified and the communicator is unusable.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<Report, Error> {
        self.check(data)?;
        #[expect(unsafe_code, reason = "the one place where memory is lent to a call")]
        // SAFETY: `Lent` below waits for the call's end, or takes the call out of the engine when
        // this function ends in any other way, before the borrow of `data` ends.
        let buffer = unsafe { Buffer::lend(data) };
        let sequence = self.shared.lock().start(T::wrap(buffer), op)?;
        let lent = Lent { shared: &self.shared, sequence };
        lent.wait(self.deadline)
    }

    /// Starts an all-reduce and returns at once; [`Handle::wait`] gives the elements back. Several
    /// may be in flight; a thread of the communicator keeps them going.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], as far as it is known at once.
    pub fn start<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Handle<T>, Error> {
        self.check(&data)?;
        let sequence = self.shared.lock().start(T::wrap(Buffer::Owned(data)), op)?;
        self.ensure_progress()?;
        let shared = Arc::clone(&self.shared);
        Ok(Handle { shared, sequence, waited: false, elements: PhantomData })
    }

    /// Refuses values that cannot be summed, and tells the others, who would wait for them.
    fn check<T: Element>(&self, data: &[T]) -> Result<(), Error> {
        T::check(data, self.world_size).inspect_err(|error| {
            self.shared.lock().fail(error.clone());
        })
    }

    /// Starts the thread that drives calls while nobody waits for one.
    fn ensure_progress(&self) -> Result<(), Error> {
        let mut progress = self.progress.lock();
        if progress.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new()
                .name("xdp-agg progress".into())
                .spawn(move || shared.progress())
                .map_err(Error::io("starting the progress thread"))?;
            *progress = Some(thread);
        }
        self.shared.idle.notify_one();
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.closing.store(1, Ordering::Release);
        self.shared.lock().leave();
        self.shared.idle.notify_all();
        if let Some(thread) = self.progress.lock().take() {
            // A panic of that thread was reported by itself.
            let _ = thread.join();
        }
    }
}

impl Collective for Communicator {
    fn rank(&self) -> u16 {
        self.rank
    }

    fn world_size(&self) -> u16 {
        self.world_size
    }

    fn system(&self) -> &'static str {
        "xdp-agg"
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        self.all_reduce(data, op)?;
        Ok(())
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        self.all_reduce(data, op)?;
        Ok(())
    }
}

/// An all-reduce in flight. Dropping it unwaited lets the call go on, for the other workers' sake,
/// and throws its result away.
#[derive(Debug)]
pub struct Handle<T: Element> {
    shared: Arc<Shared>,
    sequence: u64,
    waited: bool,
    elements: PhantomData<T>,
}

impl<T: Element> Handle<T> {
    /// Number of the call in the communicator's life, from 0.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits for the result, at most so long, and gives the elements back.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn wait(mut self, deadline: Duration) -> Result<(Vec<T>, Report), Error> {
        self.waited = true;
        let call = self.shared.drive(self.sequence, deadline)?;
        let report = call.report;
        Ok((T::unwrap(call.into_elements()), report))
    }
}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        if !self.waited {
            self.shared.lock().abandon(self.sequence);
        }
    }
}

/// A call on a caller's memory. It is out of the engine when this is gone.
struct Lent<'a> {
    shared: &'a Shared,
    sequence: u64,
}

impl Lent<'_> {
    fn wait(self, deadline: Duration) -> Result<Report, Error> {
        Ok(self.shared.drive(self.sequence, deadline)?.report)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // After `drive` there is nothing left to take; after a panic in it there is.
        self.shared.lock().remove(self.sequence);
    }
}

impl Shared {
    fn new(engine: Engine) -> Result<Self, Error> {
        let (wake_tx, wake_rx) =
            UnixDatagram::pair().map_err(Error::io("opening a wake-up socket"))?;
        for socket in [&wake_tx, &wake_rx] {
            socket.set_nonblocking(true).map_err(Error::io("opening a wake-up socket"))?;
        }
        Ok(Self {
            engine: Mutex::new(engine),
            wanted: AtomicUsize::new(0),
            foreground: AtomicUsize::new(0),
            idle: Condvar::new(),
            closing: AtomicUsize::new(0),
            wake_tx,
            wake_rx,
        })
    }

    /// The engine; wakes the thread that drives it, if one sleeps with it.
    fn lock(&self) -> MutexGuard<'_, Engine> {
        if let Some(engine) = self.engine.try_lock() {
            return engine;
        }
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.wake();
        let engine = self.engine.lock();
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        engine
    }

    fn wake(&self) {
        // A full buffer means that the sleeper has been woken already.
        let _ = self.wake_tx.send(&[1]);
    }

    /// One step of the engine, then a chance for those who want it.
    fn step(&self, engine: &mut MutexGuard<'_, Engine>, patience: Duration) {
        engine.step(patience, self.wake_rx.as_fd());
        if self.wanted.load(Ordering::Acquire) > 0 {
            let mut byte = [0];
            while self.wake_rx.recv(&mut byte).is_ok() {}
            MutexGuard::bump(engine);
        }
    }

    /// Drives all calls until this one has ended.
    fn drive(&self, sequence: u64, deadline: Duration) -> Result<Call, Error> {
        self.foreground.fetch_add(1, Ordering::AcqRel);
        let start = Instant::now();
        let mut engine = self.lock();
        let outcome = loop {
            if let Some(outcome) = engine.take(sequence) {
                break outcome;
            }
            let left = deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                let error = engine.give_up(sequence, deadline);
                engine.remove(sequence);
                break Err(error);
            }
            self.step(&mut engine, left.min(NAP));
        };
        let more = engine.has_work();
        drop(engine);
        self.foreground.fetch_sub(1, Ordering::AcqRel);
        if more {
            self.idle.notify_one();
        }
        outcome
    }

    /// The progress thread: drives while there is work and nobody waits in the foreground.
    fn progress(&self) {
        let mut engine = self.lock();
        while self.closing.load(Ordering::Acquire) == 0 {
            if engine.has_work() && self.foreground.load(Ordering::Acquire) == 0 {
                self.step(&mut engine, NAP);
            } else {
                self.idle.wait_for(&mut engine, NAP);
            }
        }
    }
}

/// Sends full-sized probes until one comes back: the path is open in both directions, at this size.
fn probe(
    session: &mut Session,
    socket: &DataSocket,
    rank: u16,
    admitted: &xdp_agg_common::control::Admitted,
) -> Result<(), Error> {
    let len = packet_len(admitted.chunks);
    let mut receiver = Receiver::new(len);
    let fields = Header {
        kind: Kind::Probe,
        flags: 0,
        job: admitted.job_id,
        cookie: admitted.cookie,
        epoch: admitted.epoch,
        rank,
        block: 0,
        tag: 0,
    };
    let mut packet = vec![0; len];
    if let Some(header) = packet.first_chunk_mut::<HEADER_LEN>() {
        fields.emit(header);
    }
    for _ in 0..PROBES {
        // A full queue or an unreachable port may pass: the next probe will tell.
        let _ = socket.send(&packet);
        let until = Instant::now() + PROBE_INTERVAL;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (fd, _) = socket.sockets();
            let mut interests = [sys::Interest::read(fd), sys::Interest::read(session.fd())];
            sys::wait(&mut interests, left).map_err(Error::io("waiting for a probe's answer"))?;
            let mut lens = [0; BATCH];
            let count = receiver.receive(fd, &mut lens).unwrap_or(0);
            for (index, len) in lens[..count].iter().enumerate() {
                let header = receiver.packet(index, *len).first_chunk::<HEADER_LEN>();
                let reply = header.and_then(|header| Header::parse(header).ok());
                if reply == Some(Header { kind: Kind::ProbeReply, ..fields })
                    && *len == packet.len()
                {
                    return Ok(());
                }
            }
            if let Some(reply) = session.poll()? {
                return Err(refusal(reply));
            }
        }
    }
    Err(Error::DataPath {
        address: admitted.data.into(),
        probes: PROBES,
        bytes: len - HEADER_LEN + IP_OVERHEAD,
    })
}

/// Time between two blocks of `packet` bytes (behind UDP) at a rate on the wire.
fn block_interval(rate: Option<u64>, packet: usize) -> Duration {
    let bits = (packet + IP_OVERHEAD - HEADER_LEN + 14) as u64 * 8;
    match rate {
        Some(rate) if rate > 0 => Duration::from_nanos(bits * 1_000_000_000 / rate),
        _ => Duration::ZERO,
    }
}
