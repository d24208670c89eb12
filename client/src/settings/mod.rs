//! What a communicator needs to know, from the builder or from the environment.

mod chosen;
mod env;
mod forest;
mod names;
mod place;
mod settle;
mod source;
#[cfg(test)]
mod tests;
mod transport;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_common::control::{AggregatorLoss, Origin, Policy, Token, Tree, WorkerLoss};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_launcher::setters;
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_mesh::meeting::MeetingPoint;
use xdp_agg_protocol::worker::flow::Congestion;
use xdp_agg_quantize::{LaneWidth, Scaling};
use xdp_agg_tls::{ClientFiles, ClientTls};

use crate::collectives::Tuning;
use crate::error::Error;
use crate::trace::{Identity, Tracer, Tracing};
pub(crate) use chosen::Chooser;
pub use chosen::Chosen;
pub(crate) use env::parse;
pub use env::{addresses, deadline_from_env, variable};
pub use place::Place;
pub(crate) use source::Source;
pub use transport::Transport;

/// An aggregator as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its control service.
    pub(crate) address: SocketAddr,
    /// Its host as it was given, for its certificate.
    pub(crate) host: Option<String>,
    /// Host and port, where it was given by a name: `address` is where it was found last.
    pub(crate) name: Option<String>,
    /// The daemons below it.
    pub(crate) tree: Tree,
}

impl Target {
    /// An aggregator that sums alone.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, host: None, name: None, tree: Tree::default() }
    }

    /// The address of the aggregator that a rank sends to.
    pub(crate) fn serving(&self, rank: u16) -> SocketAddr {
        let branch = self.tree.branch_of(rank).map(|index| self.tree.branches[index].daemon);
        branch.map_or(self.address, SocketAddr::V4)
    }
}

/// Settings of a [`Communicator`](crate::Communicator); `connect` makes it.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) aggregators: Vec<Target>,
    /// Where the workers meet if no aggregator is named.
    pub(crate) meeting: Option<MeetingPoint>,
    /// The topology, if there is one.
    pub(crate) source: Option<Source>,
    /// The hosts' ranks as a ring is to visit them; empty: ascending.
    pub(crate) ring_order: Vec<u16>,
    pub(crate) job: String,
    pub(crate) run: Option<String>,
    /// What the job's processes are, once they have met.
    pub(crate) origin: Option<Origin>,
    pub(crate) rank: Option<u16>,
    pub(crate) world_size: Option<u16>,
    pub(crate) local_rank: Option<u16>,
    pub(crate) local_size: Option<u16>,
    pub(crate) group_rank: Option<u16>,
    /// The processes of a host sum among themselves first.
    pub(crate) in_host: bool,
    /// If all of a job's processes are of one host, its calls stay there.
    pub(crate) host_collectives: bool,
    pub(crate) segment: Option<usize>,
    pub(crate) segment_dir: Option<PathBuf>,
    pub(crate) buffers: usize,
    pub(crate) scaling: Scaling,
    pub(crate) lanes: Option<LaneWidth>,
    pub(crate) deadline: Duration,
    pub(crate) join_deadline: Duration,
    pub(crate) stall_deadline: Duration,
    pub(crate) warn_after: Duration,
    pub(crate) mtu: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) result_mode: Option<ResultMode>,
    pub(crate) transport: Transport,
    pub(crate) rate: Option<u64>,
    pub(crate) congestion: Congestion,
    pub(crate) rto_min: Duration,
    pub(crate) policy: Policy,
    pub(crate) fallback_after: Duration,
    pub(crate) dead_after: Option<Duration>,
    pub(crate) token: Option<Token>,
    pub(crate) tls: ClientFiles,
    pub(crate) tuning: Tuning,
    pub(crate) tracing: Tracing,
    /// What traces and flight recordings are made by, once the place is known.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The strategy that is known so far; the daemons are told of it.
    pub(crate) chosen: Chosen,
    pub(crate) chooser: Chooser,
    /// Aggregators were named, and not found.
    pub(crate) has_named_aggregators: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            aggregators: Vec::new(),
            meeting: None,
            source: None,
            ring_order: Vec::new(),
            job: "default".into(),
            run: None,
            origin: None,
            rank: None,
            world_size: None,
            local_rank: None,
            local_size: None,
            group_rank: None,
            in_host: true,
            host_collectives: true,
            segment: None,
            segment_dir: None,
            buffers: 0,
            scaling: Scaling::Block,
            lanes: None,
            deadline: Duration::from_secs(30 * 60),
            join_deadline: Duration::from_secs(60),
            stall_deadline: Duration::from_secs(30),
            warn_after: xdp_agg_mesh::DEFAULT_WARN_AFTER,
            mtu: None,
            slots: None,
            result_mode: None,
            transport: Transport::default(),
            rate: None,
            congestion: Congestion::default(),
            rto_min: Duration::from_millis(4),
            policy: Policy::default(),
            fallback_after: Duration::from_secs(2),
            dead_after: None,
            token: None,
            tls: ClientFiles::default(),
            tuning: Tuning::default(),
            tracing: Tracing::default(),
            tracer: None,
            chosen: Chosen::default(),
            chooser: Chooser::default(),
            has_named_aggregators: true,
        }
    }
}

setters! {
/// # The job and its daemons
impl Builder {
    /// Where the workers meet if no aggregator is named: an address of rank 0's host, with a free
    /// port. Then every host's own daemon sums a share of the vector.
    pub fn master(address: SocketAddr) => meeting = Some(MeetingPoint::At(address));

    /// The run's name, the same at all workers. A process of another run cannot take part in this
    /// one's job. Default: none; from the environment it is the launcher's.
    pub fn run(name: impl Into<String>) => run = Some(name.into());

    /// Name of the job; workers of one name sum together. Default `default`.
    pub fn job(name: impl Into<String>) => job = name.into();
}
}

impl Builder {
    /// Control address of the daemon.
    #[must_use]
    pub fn aggregator(self, address: SocketAddr) -> Self {
        self.aggregators([address])
    }

    /// Control addresses of several daemons: the vector is split over them (PASSING, Algorithm 1),
    /// block `j` to the `j mod p`-th. The same at all workers, in the same order.
    #[must_use]
    pub fn aggregators(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.aggregators = addresses.into_iter().map(Target::new).collect();
        self
    }

    /// Trees of aggregators: for each the control address of the daemon at its root, which leads
    /// the job there, and the daemons below it. The vector is split over the trees as over several
    /// aggregators. The same at all workers, in the same order; ranks in a [`Tree`] are hosts.
    #[must_use]
    pub fn trees(mut self, trees: impl IntoIterator<Item = (SocketAddr, Tree)>) -> Self {
        let targets = trees.into_iter().map(|(root, tree)| Target { tree, ..Target::new(root) });
        self.aggregators = targets.collect();
        self
    }

    /// The name of the job.
    #[must_use]
    pub fn get_job(&self) -> &str {
        &self.job
    }

    /// The longest that a call may take, and the longest that workers may take to join.
    #[must_use]
    pub const fn get_deadlines(&self) -> (Duration, Duration) {
        (self.deadline, self.join_deadline)
    }

    /// Slots of the job's pool, if they were chosen.
    #[must_use]
    pub const fn get_slots(&self) -> Option<u32> {
        self.slots
    }
}

setters! {
/// # This process, in the world and on its host
impl Builder {
    /// This worker's number, below the world size.
    pub fn rank(rank: u16) => rank = Some(rank);

    /// Number of workers, at most 64.
    pub fn world_size(world_size: u16) => world_size = Some(world_size);

    /// False: every process is a worker of its own at the aggregator, as in SwitchML, also where a
    /// host has several.
    pub fn in_host(in_host: bool) => in_host = in_host;

    /// False: calls of a job whose processes all share one host go through the aggregators, or from
    /// worker to worker, as those of other jobs do. Default true: they stay in the host's shared
    /// memory, and give the same results, bit for bit.
    pub fn host_collectives(stay: bool) => host_collectives = stay;

    /// Bytes of the segment that the processes of a host share. Default: 32 MiB, and more where
    /// many processes need it ([`xdp_agg_intranode::Options::good_segment`]).
    pub fn segment(bytes: usize) => segment = Some(bytes);

    /// Bytes of the segment beside these, for [`SharedBuffer`](crate::SharedBuffer) and
    /// [`ResultView`](crate::ResultView); all of them are taken up from the start. The same at all
    /// processes of a host. Default: 0.
    pub fn buffers(bytes: usize) => buffers = bytes;

    /// Puts the shared segment into a file without a name in this directory, such as `/dev/shm`.
    /// Default: anonymous memory.
    pub fn segment_dir(directory: impl Into<PathBuf>) => segment_dir = Some(directory.into());
}
}

impl Builder {
    /// This process among those of its host, and how many there are. They sum over shared memory
    /// first, and one copy of the vector leaves the host. Default: one process a host.
    #[must_use]
    pub const fn local(mut self, rank: u16, size: u16) -> Self {
        self.local_rank = Some(rank);
        self.local_size = Some(size);
        self
    }
}

setters! {
/// # Numbers
impl Builder {
    /// How floats become the integers that are summed (`docs/numerics.md`). Default
    /// [`Scaling::Block`].
    pub fn scaling(scaling: Scaling) => scaling = scaling;

    /// Width of a lane: 16 bits halve the bytes of 32-bit floats. Default: what loses least.
    pub fn lanes(width: LaneWidth) => lanes = Some(width);
}
}

impl Builder {
    /// As [`Self::scaling`] with [`Scaling::Fixed`]: `round(x * scale)` is summed, so the
    /// resolution is `1 / scale` and every `|x|` must stay below `2^31 / (N * scale)`. As large as
    /// possible without overflow (PASSING uses 1e8 for VGG19 and ResNet50).
    #[must_use]
    pub fn scale(self, scale: f64) -> Self {
        self.scaling(Scaling::Fixed(scale))
    }
}

setters! {
/// # Times
impl Builder {
    /// Longest time for one call, which waits for workers that are alive. Default 30 min, as
    /// `torch.distributed` has it.
    pub fn deadline(deadline: Duration) => deadline = deadline;

    /// Longest time to wait for the daemon and for the other workers. Default 60 s. The daemon
    /// waits as long, as far as its `--join-timeout-max` lets it.
    pub fn join_deadline(deadline: Duration) => join_deadline = deadline;

    /// Longest time for which a call may stand still although all workers are in it: then the
    /// network, or the daemon, keeps what they send. Default 30 s.
    pub fn stall_deadline(deadline: Duration) => stall_deadline = deadline;

    /// After how long a wait is told of in the log, with what it is for. Default 10 s. A call's
    /// further warnings come after longer and longer pauses.
    pub fn warn_after(time: Duration) => warn_after = time;
}
}

setters! {
/// # Packets on the wire
impl Builder {
    /// Largest IP packet in bytes, if smaller than what the path allows.
    pub fn mtu(bytes: u32) => mtu = Some(bytes);

    /// Slots of the job's pool, a power of two; half of them is the largest window.
    pub fn slots(slots: u32) => slots = Some(slots);

    /// How results shall come, if not as the daemon chooses.
    pub fn result_mode(mode: ResultMode) => result_mode = Some(mode);

    /// How results come in. Default [`Transport::Auto`].
    pub fn transport(transport: Transport) => transport = transport;

    /// Pace in bits per second on the wire. Default: as fast as results come back.
    pub fn rate(bits_per_second: u64) => rate = Some(bits_per_second);

    /// What makes this worker send less: losses beyond those of links that lose at random and long
    /// queues, or any loss (strict AIMD). Default [`Congestion::Tolerant`].
    pub fn congestion(congestion: Congestion) => congestion = congestion;

    /// Shortest retransmission timeout. Default 4 ms: above the scheduling delays of a busy host.
    pub fn rto_min(timeout: Duration) => rto_min = timeout;
}
}

setters! {
/// # Losses
impl Builder {
    /// What shall happen when a worker is lost; the same at all workers. Default: calls fail.
    pub fn on_worker_loss(action: WorkerLoss) => policy.worker_loss = action;

    /// What shall happen when the daemon is lost; the same at all workers. Default: calls fail.
    pub fn on_aggregator_loss(action: AggregatorLoss) => policy.aggregator_loss = action;

    /// How long no daemon could be reached before the workers go on over a TCP ring, with
    /// [`AggregatorLoss::Ring`]. Default 2 s. When all of them reach it again, they come back.
    pub fn fallback_after(time: Duration) => fallback_after = time;

    /// After how long without a sign of life the daemon's host counts as dead. Default 30 s where
    /// its loss ends the job, and 10 s where it does not. A link that is away for up to a
    /// third of that time costs time only.
    pub fn dead_after(time: Duration) => dead_after = Some(time);
}
}

setters! {
/// # Who may connect
impl Builder {
    /// The secret that the daemon's operator gave out.
    pub fn token(token: impl Into<String>) => token = Some(Token(token.into()));

    /// Connects to the daemon over TLS: its certificate must be signed by the authority in this
    /// file (PEM). Without it the connection is plain.
    pub fn tls_ca(file: impl Into<PathBuf>) => tls.ca = Some(file.into());

    /// The name in the daemon's certificate, if it is not the host of `XDP_AGG_ADDR`, or the IP
    /// address of [`Self::aggregator`].
    pub fn tls_name(name: impl Into<String>) => tls.name = Some(name.into());
}
}

impl Builder {
    /// A certificate and its key (PEM), to be shown to a daemon that asks for one.
    #[must_use]
    pub fn tls_identity(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.certificate = Some(certificate.into());
        self.tls.key = Some(key.into());
        self
    }
}

/// # The way that calls take
impl Builder {
    /// How broadcasts and other collectives travel; the same at all workers. Default: the table in
    /// the file `XDP_AGG_TUNING`, or [`Tuning::default`].
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// True: all-reduces learn which way is fastest ([`Tuning::learns`]), where the table has no
    /// rules for them. False: they go through the aggregators; `XDP_AGG_TUNING=usual` is the same.
    /// Where one worker has false, none learns. Default: true.
    #[must_use]
    pub const fn learning(mut self, learns: bool) -> Self {
        self.tuning.learns = learns;
        self
    }

    /// Writes a trace of all calls to this file (`docs/tracing.md`). `%r` stands for the rank, `%p`
    /// for the process, `%h` for the host. A directory gets a file a rank. The same as
    /// `XDP_AGG_TRACE`. Default: none.
    #[must_use]
    pub fn trace(mut self, file: impl Into<String>) -> Self {
        self.tracing.trace = Some(file.into());
        self
    }

    /// Writes a flight recording into this directory when a call fails. The same as
    /// `XDP_AGG_FLIGHT_DIR`. Default: `xdp-agg-` and the user's number, in the directory of
    /// temporary files.
    #[must_use]
    pub fn flight_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.tracing.fly_to(directory.into());
        self
    }

    /// What traces and flight recordings of the worker at this place are made by. All its
    /// aggregators share it.
    pub(crate) fn tracer(&self, place: &Place) -> Result<Arc<Tracer>, Error> {
        match &self.tracer {
            Some(tracer) => Ok(Arc::clone(tracer)),
            None => Tracer::new(
                &self.tracing,
                Identity {
                    job: self.job.clone(),
                    run: self.run.clone(),
                    rank: place.rank,
                    world_size: place.world_size,
                    local_rank: place.local_rank,
                    local_size: place.local_size,
                },
            ),
        }
    }

    /// TLS, if it is wanted.
    pub(crate) fn load_tls(&self, target: &Target) -> Result<Option<ClientTls>, Error> {
        let host = target.host.clone().unwrap_or_else(|| target.address.ip().to_string());
        self.tls
            .load(&host)
            .map_err(|error| Error::Config { name: "XDP_AGG_TLS_*", problem: error.to_string() })
    }

    /// How long the members of a ring may take to meet, and each of its steps. They come to it
    /// without a call; a step waits for the members' calls.
    pub(crate) fn ring_times(&self) -> (Duration, Duration) {
        (self.stall_deadline.min(MAX_DEADLINE), self.deadline.min(MAX_DEADLINE))
    }

    /// See [`Self::dead_after`].
    pub(crate) fn dead_after_or_default(&self) -> Duration {
        let ends_job = self.policy.aggregator_loss == AggregatorLoss::Fail;
        self.dead_after.unwrap_or(Policy::dead_after(ends_job))
    }
}
