//! The worker's view: connect, all-reduce, wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use xdp_agg_common::control::Policy;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::MAX_WORKERS;
use xdp_agg_host::{Exchange, Feeder, Geometry, Group, Key, Shape};
use xdp_agg_numbers::simd::Simd;
use xdp_agg_numbers::{Element, Format, LaneWidth, Scaling};

use crate::blocks::{Blocks, Local, Purpose, Share};
use crate::buffer::Buffer;
use crate::call::Report;
use crate::collective::{BoxError, Collective, Op};
use crate::collectives::{Kind, Side};
use crate::digest::digest;
use crate::error::Error;
use crate::grouped::{self, Feed, Grouped};
use crate::handle::{Handle, Lent, fail, globally};
use crate::inhost;
use crate::machine::{Counters, State};
use crate::settings::{Builder, Chosen, Place};
use crate::shared::Shared;
use crate::stripe::{Stripe, in_turn};
use crate::together;

/// A worker's membership in a job: all-reduces with the other workers through one or more
/// aggregators.
///
/// Where a host has several processes, they sum over shared memory first, and one copy of the
/// vector leaves the host (PASSING): see [`Builder::local`].
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
    /// One for each aggregator.
    stripes: Arc<[Stripe]>,
    /// The processes of this host, where there are several.
    group: Option<Arc<Group>>,
    /// Calls have the same number at all aggregators.
    starting: Mutex<()>,
    place: Place,
    /// Chunks of a block, where several flows must agree on it.
    chunks: u16,
    scaling: Scaling,
    lanes: Option<LaneWidth>,
    mode: ResultMode,
    deadline: Duration,
    chosen: Chosen,
    /// What other collectives need.
    pub(crate) side: Side,
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
        let place = settings.place()?;
        let Builder { scaling, lanes, deadline, .. } = settings;
        // What no call could have is told before anybody is waited for.
        Simd::from_environment()?;
        Format::new(f32::TYPE, Op::Sum, scaling, lanes, place.hosts)?;
        settings.check_own_host(&place)?;
        settings.find_hosts(&place)?;
        settings.chosen = settings.settle(&place);
        let explain = |error| settings.explain(error);
        let side = Side::new(&settings).map_err(explain)?;
        let stripes = Stripe::open_all(&settings, &place).map_err(explain)?;
        let mut mode = ResultMode::Ports;
        let mut chunks = u16::MAX;
        for stripe in &*stripes {
            let joined = stripe.shared.wait_until_joined();
            mode = joined.map_err(|error| explain(globally(error, &place)))?;
            let admitted = stripe.shared.lock().machine.admitted().map(|admitted| admitted.chunks);
            chunks = chunks.min(admitted.unwrap_or(u16::MAX));
        }
        let group = match place.local_size {
            1 => None,
            _ => Some(inhost::join(&settings, &place, chunks)?),
        };
        for stripe in &*stripes {
            if let Some(group) = &group {
                stripe.shared.watch(group)?;
            }
        }
        let starting = Mutex::new(());
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
            side,
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

    /// Number of this host's processes that sum over shared memory first; 1: each for itself.
    #[must_use]
    pub const fn local_size(&self) -> u16 {
        self.place.local_size
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
        self.first().lock().machine.engine().to_owned()
    }

    /// Payload bytes of a full block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        if self.is_single() {
            let engine = self.first().lock();
            let admitted = engine.machine.admitted();
            return admitted.map_or(0, |admitted| usize::from(admitted.chunks)) * CHUNK_LEN;
        }
        usize::from(self.chunks) * CHUNK_LEN
    }

    /// What was sent, received and lost so far, at all aggregators together.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = self.stripes.iter().map(|stripe| stripe.shared.lock().machine.counters());
        let first = all.next().unwrap_or_default();
        all.fold(first, Counters::joined)
    }

    /// The ranks that are members now, in ascending order.
    #[must_use]
    pub fn members(&self) -> Vec<u16> {
        let machines = self.stripes.iter().map(|stripe| stripe.shared.lock().machine.members());
        let members = machines.fold(u64::MAX, |all, members| all & members);
        let hosts = (0..MAX_WORKERS as u16).filter(|host| members & (1 << host) != 0);
        let size = self.place.local_size;
        hosts.flat_map(|host| host * size..(host + 1) * size).collect()
    }

    /// Number of the membership: it grows whenever members are lost or join, and when another
    /// daemon takes up the job. Of several aggregators, the first one's.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.first().lock().machine.counters().epoch
    }

    /// Number of the next call. Not 0 at first where this worker has joined a running job: the
    /// others come to this call next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.first().lock().machine.next_sequence()
    }

    /// What happens when somebody is lost.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.first().lock().machine.policy()
    }

    /// What the communicator is doing. Of several aggregators, one with which it is not running
    /// counts first.
    #[must_use]
    pub fn state(&self) -> State {
        let mut states = self.stripes.iter().map(|stripe| stripe.shared.lock().machine.state());
        states.find(|state| *state != State::Running).unwrap_or(State::Running)
    }

    /// All-reduces in place and waits for it, at most for the configured deadline. Where the tuning
    /// table or `auto` says so for this size, a ring of the workers sums, and not the aggregators:
    /// see [`Self::all_reduce_by`].
    ///
    /// # Errors
    /// The deadline (naming the ranks whose contribution is missing), the job's end, a call that
    /// differs from the other workers', a value that does not fit. After an error the contents of
    /// `data` are unspecified and the communicator is unusable.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<Report, Error> {
        self.all_reduce_by(data, op, self.choice(Kind::AllReduce, size_of_val(data)))
    }

    /// The same as a part of something that is more than an all-reduce.
    pub(crate) fn all_reduce_for<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        purpose: &Purpose,
    ) -> Result<Report, Error> {
        #[expect(unsafe_code, reason = "the one place where memory is lent to a call")]
        // SAFETY: `Lent` below waits for the call's end, or takes the call out of all engines when
        // this function ends in any other way, before the borrow of `data` ends; and a call that
        // could not be started everywhere `begin` has taken out of where it was.
        let buffer = unsafe { Buffer::lend(data) };
        let short = self.is_short(&buffer);
        let sequence = self.begin(buffer, op, purpose)?;
        if !short {
            self.nudge(1);
        }
        let lent = Lent { stripes: &self.stripes, sequence, short };
        lent.wait(self.deadline).map_err(|error| globally(error, &self.place))
    }

    /// Starts an all-reduce and returns at once; [`Handle::wait`] gives the elements back. Several
    /// may be in flight; threads of the communicator keep them going. It goes the way that
    /// [`Self::all_reduce`] goes for this size: see [`Self::start_by`].
    ///
    /// The first one that goes round a ring of the workers opens their connections: it returns when
    /// all of them have come to it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], as far as it is known at once.
    pub fn start<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Handle<T>, Error> {
        let choice = self.choice(Kind::AllReduce, size_of_val(&*data));
        self.start_by(data, op, choice)
    }

    /// The same through the aggregators, as a part of something or by itself.
    pub(crate) fn start_for<T: Element>(
        &self,
        data: Vec<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<Handle<T>, Error> {
        let buffer = Buffer::owned(data);
        let short = self.is_short(&buffer);
        let sequence = self.begin(buffer, op, purpose)?;
        if short {
            in_turn(&self.stripes).for_each(|index| self.stripes[index].shared.send_off());
        } else {
            self.nudge(0);
        }
        Ok(Handle::through(self.stripes(), self.place, (sequence, short)))
    }

    /// Wakes the progress threads, from this stripe's on: nobody drives these yet.
    fn nudge(&self, first: usize) {
        for stripe in &self.stripes[first..] {
            stripe.shared.nudge.ring();
        }
    }

    /// Who waits for such a call drives all stripes itself.
    fn is_short<T: Element>(&self, buffer: &Buffer<T>) -> bool {
        self.stripes.len() > 1 && buffer.len() * size_of::<T>() <= together::LONGEST
    }

    fn first(&self) -> &Shared {
        &self.stripes[0].shared
    }

    /// One flow carries all blocks, as it likes to cut them.
    fn is_single(&self) -> bool {
        self.stripes.len() == 1 && self.group.is_none()
    }

    /// Starts a call at all aggregators; its number.
    fn begin<T: Element>(
        &self,
        buffer: Buffer<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<u64, Error> {
        let format =
            Format::new(T::TYPE, op, self.scaling, self.lanes_of::<T>(op), self.place.hosts)?;
        if self.is_single() {
            return self.first().start(Box::new(Local::new(buffer, format).with_purpose(purpose)));
        }
        if self.group.is_none() {
            format.check(buffer.slice(0..buffer.len()), 1).map_err(|error| {
                let error = Error::from(error);
                self.fail(&error);
                error
            })?;
        }
        let _order = self.starting.lock();
        let sequence = self.agreed_sequence()?;
        let parts = match &self.group {
            None => self.parts(buffer, format, purpose),
            Some(group) => self.grouped_parts(group, buffer, format, (sequence, purpose))?,
        };
        for (index, (stripe, part)) in self.stripes.iter().zip(parts).enumerate() {
            if let Err(error) = stripe.shared.start(part) {
                self.fail(&error);
                // The caller's memory is the caller's again.
                for started in &self.stripes[..index] {
                    started.shared.lock().machine.remove(sequence);
                }
                return Err(globally(error, &self.place));
            }
        }
        Ok(sequence)
    }

    /// The configured width, where this type has a choice.
    fn lanes_of<T: Element>(&self, op: Op) -> Option<LaneWidth> {
        let chooses = T::TYPE.is_float() && op.adds() && size_of::<T>() < 8;
        self.lanes.filter(|_| chooses)
    }

    /// The next call's number. All aggregators count alike, unless this worker has come to a
    /// running job between two calls' beginnings.
    fn agreed_sequence(&self) -> Result<u64, Error> {
        let mut all =
            self.stripes.iter().map(|stripe| stripe.shared.lock().machine.next_sequence());
        let first = all.next().unwrap_or_default();
        if all.all(|next| next == first) {
            return Ok(first);
        }
        let error = Error::Protocol(
            "the aggregators are at different calls: a worker cannot join a running job over \
             several aggregators while calls begin; connect again"
                .into(),
        );
        self.fail(&error);
        Err(error)
    }

    /// A vector in this process's own memory, in a part for each aggregator.
    fn parts<T: Element>(
        &self,
        buffer: Buffer<T>,
        format: Format,
        purpose: &Purpose,
    ) -> Vec<Box<dyn Blocks>> {
        let shares = shares(self.stripes.len());
        let mut parts: Vec<Box<dyn Blocks>> = Vec::with_capacity(shares.len());
        for share in &shares[1..] {
            #[expect(unsafe_code, reason = "parts of one vector")]
            // SAFETY: the shares of a vector are disjoint, and a part reads and writes the blocks
            // of its own share alone.
            let memory = unsafe { buffer.share() };
            let part = Local::part(memory, format, *share, self.chunks);
            parts.push(Box::new(part.with_purpose(purpose)));
        }
        let first = Local::part(buffer, format, shares[0], self.chunks);
        parts.insert(0, Box::new(first.with_purpose(purpose)));
        parts
    }

    /// A vector of the processes of this host, in a part for each aggregator.
    fn grouped_parts<T: Element>(
        &self,
        group: &Arc<Group>,
        buffer: Buffer<T>,
        format: Format,
        (sequence, purpose): (u64, &Purpose),
    ) -> Result<Vec<Box<dyn Blocks>>, Error> {
        let block = usize::from(self.chunks) * format.lanes_per_chunk();
        let place = grouped::Place {
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            chunks: self.chunks,
            slice_blocks: group.slice_blocks(block * size_of::<T>()),
        };
        let geometry = Geometry::new(buffer.len(), block, place.slice_blocks, place.local_size);
        let what = purpose.what().unwrap_or_else(|| format.op().name());
        let description = format!("call {sequence}: {what} of {} {}", buffer.len(), T::TYPE);
        let shape = Shape {
            sequence,
            len: buffer.len(),
            element_size: size_of::<T>(),
            digest: digest(format!("{description}, {}", crate::call::numbers(&format)).bytes()),
            description,
            key: format.needs_exponents().then(|| Key::new(move |peaks| format.key(peaks))),
        };
        let begun: Result<(Feeder, Arc<Exchange>), _> = group.begin(&shape, geometry);
        let (feeder, exchange) = begun.map_err(|error| {
            let error = Error::Host(error);
            self.fail(&error);
            error
        })?;
        let mut feed = Some(Feed { feeder: Some(feeder), buffer });
        let parts = shares(self.stripes.len()).into_iter().map(|share| {
            let part = Grouped::new(Arc::clone(&exchange), format, share, place, feed.take());
            Box::new(part.with_purpose(purpose)) as Box<dyn Blocks>
        });
        Ok(parts.collect())
    }

    pub(crate) fn stripes(&self) -> Arc<[Stripe]> {
        Arc::clone(&self.stripes)
    }

    /// Ends the membership at all aggregators.
    pub(crate) fn fail(&self, error: &Error) {
        fail(&self.stripes, error);
    }
}

/// Parts of a vector, one an aggregator.
fn shares(count: usize) -> Vec<Share> {
    let of = count as u64;
    (0..of).map(|index| Share { index, of }).collect()
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.side.close();
        for stripe in &*self.stripes {
            stripe.close();
        }
    }
}

impl Collective for Communicator {
    fn rank(&self) -> u16 {
        self.place.rank
    }

    fn world_size(&self) -> u16 {
        self.place.world_size
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
