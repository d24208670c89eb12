//! The worker's view: connect, all-reduce, wait.

use std::marker::PhantomData;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use xdp_agg_common::control::{AggregatorLoss, Policy};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::MAX_WORKERS;

use crate::buffer::Buffer;
use crate::call::Report;
use crate::collective::{BoxError, Collective, Op};
use crate::element::Element;
use crate::engine::Engine;
use crate::error::Error;
use crate::machine::{Config, Counters, State};
use crate::session::{self, Dial};
use crate::settings::Builder;
use crate::shared::Shared;
use crate::udp::DataSocket;

/// Longest wait for a route to the daemon.
const ROUTE: Duration = Duration::from_secs(10);

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
    progress: Option<JoinHandle<()>>,
    rank: u16,
    world_size: u16,
    mode: ResultMode,
    deadline: Duration,
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
        let patience = settings.join_deadline.min(ROUTE);
        let (local, max_chunks) = session::path(aggregator, settings.mtu, patience)?;
        let socket =
            DataSocket::bind(local).map_err(Error::io("opening a UDP socket for the data path"))?;
        let ring = match settings.policy.aggregator_loss {
            AggregatorLoss::Ring => Some(
                TcpListener::bind((local, 0))
                    .map_err(Error::io("opening a listener for the ring"))?,
            ),
            AggregatorLoss::Fail | AggregatorLoss::Resume => None,
        };
        let ring_port = ring.as_ref().and_then(|listener| listener.local_addr().ok());
        let room = socket.receive_room().map_err(Error::io("reading the receive buffer"))?;
        let config = Config {
            scale,
            slots: settings.slots,
            result_mode: settings.result_mode,
            policy: settings.policy,
            token: settings.token.clone(),
            aggregator,
            data_port: socket.port().map_err(Error::io("reading the data port"))?,
            ring_port: ring_port.map(|address| address.port()),
            max_chunks,
            window_room: u32::try_from(room).unwrap_or(u32::MAX),
            rate: settings.rate,
            rto_min: settings.rto_min,
            join_deadline: settings.join_deadline,
            fallback_after: settings.fallback_after,
            ..Config::new(settings.job.clone(), rank, world_size)
        };
        let dead_after = settings.dead_after_or_default();
        let dial = Dial { address: aggregator, dead_after, tls: settings.load_tls(aggregator)? };
        let engine = Engine::new(config, dial, socket);
        let shared = Arc::new(Shared::new(engine, ring, settings.deadline)?);
        let progress = Arc::clone(&shared);
        let progress = std::thread::Builder::new()
            .name("xdp-agg progress".into())
            .spawn(move || progress.progress())
            .map_err(Error::io("starting the progress thread"))?;
        let mut communicator = Self {
            shared,
            progress: Some(progress),
            rank,
            world_size,
            mode: ResultMode::Ports,
            deadline: settings.deadline,
        };
        communicator.mode = communicator.shared.wait_until_joined()?;
        Ok(communicator)
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
        self.shared.lock().machine.engine().to_owned()
    }

    /// Payload bytes of a full block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        let engine = self.shared.lock();
        engine.machine.admitted().map_or(0, |admitted| usize::from(admitted.chunks)) * CHUNK_LEN
    }

    /// What was sent, received and lost so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.lock().machine.counters()
    }

    /// The ranks that are members now, in ascending order.
    #[must_use]
    pub fn members(&self) -> Vec<u16> {
        let members = self.shared.lock().machine.members();
        (0..MAX_WORKERS as u16).filter(|rank| members & (1 << rank) != 0).collect()
    }

    /// Number of the membership: it grows whenever members are lost or join, and when another
    /// daemon takes up the job.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.shared.lock().machine.counters().epoch
    }

    /// Number of the next call. Not 0 at first where this worker has joined a running job: the
    /// others come to this call next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.shared.lock().machine.next_sequence()
    }

    /// What happens when somebody is lost.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.shared.lock().machine.policy()
    }

    /// What the communicator is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.lock().machine.state()
    }

    /// All-reduces in place and waits for it, at most for the configured deadline.
    ///
    /// # Errors
    /// The deadline (naming the ranks whose contribution is missing), the job's end, a call that
    /// differs from the other workers', a value that does not fit. After an error the contents of
    /// `data` are unspecified and the communicator is unusable.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<Report, Error> {
        #[expect(unsafe_code, reason = "the one place where memory is lent to a call")]
        // SAFETY: `Lent` below waits for the call's end, or takes the call out of the engine when
        // this function ends in any other way, before the borrow of `data` ends.
        let buffer = unsafe { Buffer::lend(data) };
        let sequence = self.shared.start(T::wrap(buffer), op)?;
        let lent = Lent { shared: &self.shared, sequence };
        lent.wait(self.deadline)
    }

    /// Starts an all-reduce and returns at once; [`Handle::wait`] gives the elements back. Several
    /// may be in flight; a thread of the communicator keeps them going.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], as far as it is known at once.
    pub fn start<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Handle<T>, Error> {
        let sequence = self.shared.start(T::wrap(Buffer::owned(data)), op)?;
        self.shared.nudge.ring();
        let shared = Arc::clone(&self.shared);
        Ok(Handle { shared, sequence, waited: false, elements: PhantomData })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.shared.close()
            && let Some(thread) = self.progress.take()
        {
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
        let report = *call.report();
        Ok((T::unwrap(call.into_elements()), report))
    }
}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        if !self.waited {
            self.shared.lock().machine.abandon(self.sequence);
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
        Ok(*self.shared.drive(self.sequence, deadline)?.report())
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // After `drive` there is nothing left to take; after a panic in it there is.
        self.shared.lock().machine.remove(self.sequence);
    }
}
