//! The worker's view: connect, all-reduce, wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use xdp_agg_common::control::Policy;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::MAX_WORKERS;
use xdp_agg_intranode::Group;
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_quantize::simd::Simd;
use xdp_agg_quantize::{Element, Format, LaneWidth, Scaling};

use crate::collectives::{Kind, Side};
use crate::driver::Stripe;
use crate::driver::engine::Engine;
use crate::driver::shared::Shared;
use crate::error::Error;
use crate::flight::{self, Flight};
use crate::handle::{Handle, Patience, fail};
use crate::joining::{self, Joined};
use crate::meeting;
use crate::name::Name;
use crate::settings::{Builder, Chosen, Place};
use crate::trace::{Tracer, signal};
use xdp_agg_protocol::worker::{Buffer, Counters, Purpose, Report, State};
use xdp_agg_quantize::Op;

/// A worker's membership in a job: all-reduces with the other workers through one or more
/// aggregators.
///
/// Where a host has several processes, they sum over shared memory first, and one copy of the
/// vector leaves the host (PASSING): see [`Builder::local`].
///
/// Calls may be made from several threads; all workers must make the same calls in the same order.
/// Dropping it leaves the job.
///
/// It belongs to the process that made it. In a child that was forked from this one each call is
/// [`Error::Forked`], what it tells is empty, and dropping it does nothing. A child may make a
/// communicator of its own.
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
    /// One for each aggregator.
    pub(crate) stripes: Arc<[Stripe]>,
    /// The processes of this host, where there are several.
    pub(crate) group: Option<Arc<Group>>,
    /// Calls have the same number at all aggregators.
    pub(crate) starting: Mutex<()>,
    pub(crate) place: Place,
    /// Chunks of a block, where several flows must agree on it.
    pub(crate) chunks: u16,
    pub(crate) scaling: Scaling,
    pub(crate) lanes: Option<LaneWidth>,
    mode: ResultMode,
    deadline: Duration,
    chosen: Chosen,
    /// All workers are processes of this host, and calls stay in it.
    pub(crate) in_host: bool,
    /// What other collectives need.
    pub(crate) side: Side,
    /// What traces and flight recordings are made by.
    flight: Arc<Flight>,
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

    pub(crate) fn connect(mut settings: Builder) -> Result<Self, Error> {
        let Builder { scaling, lanes, deadline, .. } = settings;
        // Settings that no call can have are refused before any wait, as far as hosts are known.
        let check = |hosts| Format::new(f32::TYPE, Op::Sum, scaling, lanes, hosts);
        let (_, world_size) = settings.world()?;
        Simd::from_environment()?;
        check(settings.place().map_or(1, |place| place.hosts).min(world_size))?;
        let until = Instant::now() + settings.join_deadline.min(MAX_DEADLINE);
        settings.look_up(until)?;
        let (place, origin) = meeting::meet(&mut settings, until)?;
        settings.origin = origin;
        check(place.hosts)?;
        settings.check_own_host(&place)?;
        settings.chosen = settings.settle(&place);
        let tracer = settings.tracer(&place)?;
        settings.tracer = Some(Arc::clone(&tracer));
        let explain = |error| settings.explain(error);
        let side = Side::new(&settings, until).map_err(explain)?;
        let Joined { stripes, group, mode, chunks } = joining::join(&settings, &place, until)?;
        for stripe in &*stripes {
            if let Some(group) = &group {
                stripe.shared.watch(group)?;
            }
        }
        let flight = Arc::new(Flight { stripes: Arc::downgrade(&stripes), tracer });
        if let Some(number) = settings.tracing.signal {
            let flies: Arc<dyn signal::Flies> = Arc::<Flight>::clone(&flight);
            if let Err(error) = signal::register(number, Arc::downgrade(&flies)) {
                tracing::warn!("XDP_AGG_FLIGHT_SIGNAL: signal {number} is left alone: {error}");
            }
        }
        let starting = Mutex::new(());
        let in_host = settings.stays_in_host(&place);
        let chosen = settings.chosen;
        Ok(Self {
            stripes,
            group,
            starting,
            place,
            chunks,
            scaling,
            lanes,
            mode,
            deadline,
            chosen,
            in_host,
            side,
            flight,
        })
    }

    /// This worker's number.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.place.rank
    }

    /// Number of workers.
    #[must_use]
    pub const fn world_size(&self) -> u16 {
        self.place.world_size
    }

    /// Number of processes that sum over shared memory first, and are one worker; 1: each for
    /// itself. Hosts with different numbers of processes have several workers.
    #[must_use]
    pub const fn local_size(&self) -> u16 {
        self.place.local_size
    }

    /// The first rank of the processes that are one worker with this one: successive ranks.
    #[must_use]
    pub const fn first_rank_of_host(&self) -> u16 {
        self.place.rank - self.place.local_rank
    }

    /// Longest time for one call.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Number of aggregators.
    #[must_use]
    pub fn aggregators(&self) -> usize {
        self.stripes.len()
    }

    /// By which strategy this job sums, and why.
    #[must_use]
    pub const fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// How results come to this job.
    #[must_use]
    pub const fn result_mode(&self) -> ResultMode {
        self.mode
    }

    /// What sums: `xdp (native)`, `xdp (generic)` or `userspace`; the first aggregator's word.
    #[must_use]
    pub fn engine(&self) -> String {
        self.engine_of_first(|engine| engine.machine.engine().to_owned())
    }

    /// Payload bytes of a full block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        let chunks = match self.is_single() {
            true => self.engine_of_first(|engine| {
                engine.machine.admitted().map_or(0, |admitted| admitted.chunks)
            }),
            false => self.chunks,
        };
        usize::from(chunks) * CHUNK_LEN
    }

    /// What was sent, received and lost so far, at all aggregators together.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = self.engines().map(|engine| engine.counters());
        let first = all.next().unwrap_or_default();
        all.fold(first, Counters::joined)
    }

    /// The ranks that are members now, in ascending order.
    #[must_use]
    pub fn members(&self) -> Vec<u16> {
        let machines = self.engines().map(|engine| engine.machine.members());
        let members = machines.reduce(|all, members| all & members).unwrap_or_default();
        let hosts = (0..MAX_WORKERS as u16).filter(|host| members & (1 << host) != 0);
        let size = self.place.local_size;
        hosts.flat_map(|host| host * size..(host + 1) * size).collect()
    }

    /// Number of the membership: it grows whenever members are lost or join, and when another
    /// daemon takes up the job. Of several aggregators, the first one's.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.engine_of_first(|engine| engine.machine.counters().epoch)
    }

    /// Number of the next call. Not 0 at first where this worker has joined a running job: the
    /// others come to this call next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.engine_of_first(|engine| engine.machine.next_sequence())
    }

    /// What happens when somebody is lost.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.engine_of_first(|engine| engine.machine.policy())
    }

    /// The latest 1000 calls of each aggregator, and those under way, in the format of a trace:
    /// `xdp-agg trace diagnose` and Perfetto read it. `docs/tracing.md` says what it holds.
    ///
    /// Empty in a forked child. A thread that keeps an engine for more than a second has its calls
    /// left out.
    #[must_use]
    pub fn flight_recording(&self) -> String {
        if self.is_forked() {
            return String::new();
        }
        flight::recording(&self.stripes, self.tracer(), "the program asked for it")
    }

    /// Writes [`Self::flight_recording`] to a new file, of `XDP_AGG_FLIGHT_DIR`; its name.
    ///
    /// # Errors
    /// The system's; [`Error::Forked`].
    pub fn write_flight_recording(&self) -> Result<PathBuf, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let written = self.tracer().write(&self.flight_recording());
        written.map_err(Error::io("writing a flight recording"))
    }

    /// The latest flight recording that was written, of a failed call for example.
    #[must_use]
    pub fn flight_file(&self) -> Option<PathBuf> {
        if self.is_forked() { None } else { self.tracer().flight_file() }
    }

    /// The file that a trace is written to, where one is: see [`Builder::trace`].
    #[must_use]
    pub fn trace_file(&self) -> Option<PathBuf> {
        self.tracer().trace_file()
    }

    pub(crate) fn tracer(&self) -> &Arc<Tracer> {
        &self.flight.tracer
    }

    /// What the communicator is doing. Of several aggregators, one that it is not running with
    /// counts first.
    #[must_use]
    pub fn state(&self) -> State {
        if self.is_forked() {
            return State::Failed;
        }
        let mut states = self.engines().map(|engine| engine.machine.state());
        states.find(|state| *state != State::Running).unwrap_or(State::Running)
    }

    /// All-reduces in place and waits for it, at most for the configured deadline.
    ///
    /// Each size of a job may learn which way is fastest ([`Self::learned`]). The bits do not
    /// depend on it. Where the tuning table or `auto` says so for this size, a ring of the workers
    /// adds floats as they are: see [`Self::all_reduce_by`].
    ///
    /// # Errors
    /// The deadline (naming the ranks whose contribution is missing), the job's end, a call that
    /// differs from the other workers', a value that does not fit. After an error the contents of
    /// `data` are unspecified and the communicator is unusable.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<Report, Error> {
        if self.learns() {
            return self.all_reduce_learning(None, data, op);
        }
        self.all_reduce_by(data, op, self.choice(Kind::AllReduce, size_of_val(data)))
    }

    /// [`Self::all_reduce`] of what the caller calls `name`: see [`Name`]. Calls that are made from
    /// several threads should have names.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], and [`Name::new`].
    pub fn all_reduce_named<T: Element>(
        &self,
        name: &str,
        data: &mut [T],
        op: Op,
    ) -> Result<Report, Error> {
        let name = Name::new(name)?;
        if self.learns() {
            return self.all_reduce_learning(Some(&name), data, op);
        }
        let choice = self.choice(Kind::AllReduce, size_of_val(data));
        self.all_reduce_as(Some(&name), data, op, choice)
    }

    /// [`Self::all_reduce_async`] with a name: see [`Self::all_reduce_named`].
    ///
    /// # Errors
    /// As [`Self::all_reduce_async`], and [`Name::new`].
    pub fn all_reduce_async_named<T: Element>(
        &self,
        name: &str,
        data: Vec<T>,
        op: Op,
    ) -> Result<Handle<T>, Error> {
        let name = Name::new(name)?;
        if self.learns() {
            return self.all_reduce_async_learning(Some(&name), data, op);
        }
        let choice = self.choice(Kind::AllReduce, size_of_val(&*data));
        self.all_reduce_async_as(Some(&name), data, op, choice)
    }

    /// The same as a part of something that is more than an all-reduce.
    pub(crate) fn all_reduce_for<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        purpose: &Purpose,
    ) -> Result<Report, Error> {
        let mut patience = Patience { deadline: self.deadline, interrupted: &mut || false };
        self.all_reduce_patiently(data, op, purpose, &mut patience)
    }

    /// The same for a caller that says how long it waits.
    pub(crate) fn all_reduce_patiently<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        purpose: &Purpose,
        patience: &mut Patience<'_>,
    ) -> Result<Report, Error> {
        #[expect(unsafe_code, reason = "a call on memory that a caller lends")]
        // SAFETY: the call is waited for, or taken out of all engines when this function ends in
        // any other way, before the borrow of `data` ends.
        let begun = unsafe { self.begin_lent(data, op, purpose) }?;
        self.wait(begun, patience).map(|calls| Report::of_parts(&calls))
    }

    /// Starts an all-reduce and returns at once; [`Handle::wait`] gives the elements back. Several
    /// may be in flight; threads of the communicator keep them going. It goes the way that
    /// [`Self::all_reduce`] goes for this size: see [`Self::all_reduce_async_by`].
    ///
    /// The first one that goes round a ring of the workers opens their connections: it returns when
    /// all of them have come to it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], as far as it is known at once.
    pub fn all_reduce_async<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Handle<T>, Error> {
        if self.learns() {
            return self.all_reduce_async_learning(None, data, op);
        }
        let choice = self.choice(Kind::AllReduce, size_of_val(&*data));
        self.all_reduce_async_by(data, op, choice)
    }

    /// The same through the aggregators, as a part of something or by itself.
    pub(crate) fn start_for<T: Element>(
        &self,
        data: Vec<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<Handle<T>, Error> {
        let buffer = Buffer::owned(data);
        let (short, memory) = (self.is_short(&buffer), buffer.keep());
        let sequence = self.begin(buffer, op, purpose)?;
        self.leave_to_threads(short);
        Ok(Handle::through(self.stripes(), self.place, memory, (sequence, short)))
    }

    /// This process was forked from the one that made it.
    pub(crate) fn is_forked(&self) -> bool {
        self.stripes.iter().any(Stripe::is_forked)
    }

    /// All engines, one after the other. In a forked child there are none: threads that are not
    /// there may hold them.
    fn engines(&self) -> impl Iterator<Item = MutexGuard<'_, Engine>> {
        let all = if self.is_forked() { &[] } else { &*self.stripes };
        all.iter().map(|stripe| stripe.shared.lock())
    }

    fn engine_of_first<R: Default>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        self.engines().next().map(|engine| look(&engine)).unwrap_or_default()
    }

    /// How this process stands to the others.
    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn first(&self) -> &Shared {
        &self.stripes[0].shared
    }

    pub(crate) fn stripes(&self) -> Arc<[Stripe]> {
        Arc::clone(&self.stripes)
    }

    /// Leaves the job in good order; calls in flight end with `JobError::Closed`.
    pub(crate) fn leave(&self) {
        self.side.close();
        for stripe in &*self.stripes {
            stripe.close();
        }
        if let Some(group) = &self.group {
            group.leave();
        }
        self.tracer().leave();
    }

    /// Ends the membership at all aggregators.
    pub(crate) fn fail(&self, error: &Error) {
        fail(&self.stripes, error);
        // The daemon does not know this host's processes as one job; those of calls in flight have
        // been told why.
        if let Some(group) = &self.group {
            group.leave();
        }
    }
}

impl Builder {
    /// Joins the job and waits until all its workers are there.
    ///
    /// # Errors
    /// A missing or impossible setting; no daemon; the daemon's refusal; no way through the data
    /// path; another worker that does not come.
    pub fn connect(self) -> Result<Communicator, Error> {
        Communicator::connect(self)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_forked() {
            // Connections, segment and threads are the other process's: nothing of them is closed.
            let kept = (self.stripes(), self.group.clone(), self.side.keep());
            std::mem::forget((kept, Arc::clone(&self.flight)));
            return;
        }
        self.leave();
    }
}
