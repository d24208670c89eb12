//! What sums contributions. Two engines run the same slot machine (`xdp_agg_common::slot`): the XDP
//! program in the kernel, and plain UDP sockets in user space where XDP is not permitted.

mod events;
mod mmsg;
mod open;
mod options;
mod uplink;
pub mod userspace;
pub mod watch;
pub mod xdp;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use xdp_agg_common::control::LocalMembers;
use xdp_agg_common::maps::{JobConf, JobCounters, ResultMode};

pub use open::{Opened, open};
pub use options::{EngineConfig, EngineKind, LocalAddr, XdpMode};
pub use watch::Watch;
pub use xdp_agg_protocol::engine::{JobSetup, Started, Trouble, Uplink};
pub use xdp_agg_protocol::sum::Error as SumError;

/// What sums contributions. Dropping an engine detaches it from all interfaces, unless it was told
/// to [`keep`](Self::keep) what is pinned.
pub trait Engine: Send {
    /// `xdp (native)`, `xdp (generic)` or `userspace`.
    fn describe(&self) -> String;

    /// Most payload of a packet, in chunks: what the MTUs of the served interfaces allow.
    fn max_chunks(&self) -> u16;

    /// Whether workers are to send packet by packet: a train may come in as one long packet.
    fn single_packets(&self) -> bool {
        false
    }

    /// Slots in the whole pool.
    fn slots(&self) -> u32;

    /// UDP port of the data path, where the engine chose it itself; None: the configured one.
    fn data_port(&self) -> Option<u16> {
        None
    }

    /// Registers the members of a new epoch and answers their probes from now on. Returns those
    /// that are on this host, if they are to send to another address than the job's.
    ///
    /// # Errors
    /// The engine's, with what to do.
    fn prepare(&mut self, job: &JobSetup) -> Result<Option<LocalMembers>, EngineError>;

    /// Sends one probe of full block size up to the job's parent. True: the answer to a probe has
    /// come, so the path is learned and nothing more is sent; or there is no parent. To be called
    /// again and again, every 20 ms or so, between `prepare` and `start`.
    ///
    /// # Errors
    /// No such job, or the packet cannot be sent (no route, or it is longer than the path's MTU).
    fn probe_uplink(&mut self, job_id: u16) -> Result<bool, EngineError> {
        let _ = job_id;
        Ok(true)
    }

    /// Starts summing, after all members' probes were answered, and the parent answered ours.
    /// `wanted` is the mode that the job asked for; None: the best one that its paths allow.
    ///
    /// # Errors
    /// A member's or the parent's path was not learned, or the wanted mode does not fit the paths
    /// or the members (no multicast with forwarders).
    fn start(&mut self, job_id: u16, wanted: Option<ResultMode>) -> Result<Started, EngineError>;

    /// Ends the job on the data path; its packets are refused from now on.
    ///
    /// # Errors
    /// The engine's.
    fn stop(&mut self, job_id: u16) -> Result<(), EngineError>;

    /// Does all of these, each as if it were alone, and answers in their order. A job may be
    /// stopped and then prepared; nothing else is to happen to it twice. Stops come first. An
    /// engine that has to wait does so once for all.
    fn change(&mut self, changes: &[Change]) -> Vec<Result<Changed, EngineError>> {
        let one = |change: &Change| match change {
            Change::Stop { job_id } => self.stop(*job_id).map(|()| Changed::Stopped),
            Change::Prepare(job) => self.prepare(job).map(Changed::Prepared),
            Change::Start { job_id, wanted } => self.start(*job_id, *wanted).map(Changed::Started),
        };
        changes.iter().map(one).collect()
    }

    /// Counters of every job index since the engine started; at index `MAX_JOBS` those of packets
    /// that belong to no job.
    ///
    /// # Errors
    /// The engine's.
    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError>;

    /// Bitmap of the members whose contribution to `block` is missing.
    ///
    /// # Errors
    /// The engine's.
    fn missing(&mut self, job_id: u16, block: u64) -> Result<u64, EngineError>;

    /// How long ago each member of a running job last contributed, by rank; None: not in this
    /// epoch. Empty: the engine cannot tell.
    ///
    /// # Errors
    /// The engine's.
    fn heard(&mut self, job_id: u16) -> Result<Vec<(u16, Option<Duration>)>, EngineError> {
        let _ = job_id;
        Ok(Vec::new())
    }

    /// Looks after what changes under a running data path: interfaces that went and came back, and
    /// members that are reached another way than before. To be called about once a second, and when
    /// an interface has changed. Returns what cannot be mended here.
    fn tend(&mut self) -> Vec<Trouble> {
        Vec::new()
    }

    /// Whether maps and attachments of an earlier daemon were found pinned, and taken over.
    fn adopted(&self) -> bool {
        false
    }

    /// The jobs that were running on the data path that was taken over, by index.
    fn adopted_jobs(&self) -> Vec<(u16, JobConf)> {
        Vec::new()
    }

    /// What is pinned stays when the engine is dropped: the data path goes on.
    fn keep(&mut self) {}

    /// The data path for another thread that only looks. It may outlive the engine: then it shows
    /// what was left.
    ///
    /// # Errors
    /// The engine's.
    fn watch(&self) -> Result<Box<dyn Watch>, EngineError>;
}

/// One call of [`Engine::prepare`], [`Engine::start`] or [`Engine::stop`].
#[derive(Clone, Debug)]
pub enum Change {
    /// Of `stop`.
    Stop {
        /// Index of the job.
        job_id: u16,
    },
    /// Of `prepare`.
    Prepare(Box<JobSetup>),
    /// Of `start`.
    Start {
        /// Index of the job.
        job_id: u16,
        /// The mode that it asked for.
        wanted: Option<ResultMode>,
    },
}

/// What came of a [`Change`].
#[derive(Clone, Debug)]
pub enum Changed {
    /// The job is over here.
    Stopped,
    /// What `prepare` returned.
    Prepared(Option<LocalMembers>),
    /// What `start` returned.
    Started(Started),
}

/// Why an engine could not start or could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The XDP engine was asked for without interfaces.
    #[error(
        "the XDP engine needs the interfaces that the workers are behind: name each with \
         --interface, or use --engine userspace"
    )]
    NoInterfaces,
    /// No interface of this name here.
    #[error("no network interface named {0:?} here; `ip link` lists them")]
    NoInterface(String),
    /// The process may not load or attach XDP programs.
    #[error(
        "not permitted to load XDP programs ({0}); run as root, or give the program CAP_BPF, \
         CAP_NET_ADMIN and CAP_PERFMON, or use --engine userspace"
    )]
    NotPermitted(String),
    /// The kernel lacks something.
    #[error(
        "this kernel cannot run the XDP engine: {0}; kernel 6.1 or newer is needed, \
         or --engine userspace"
    )]
    Unsupported(String),
    /// An XDP program is attached already.
    #[error(
        "{interface} has an XDP program already; is another xdp-agg (or another XDP tool) running \
         on it? `ip link show {interface}` names the program"
    )]
    InterfaceBusy {
        /// Its name.
        interface: String,
    },
    /// The driver has no XDP of its own.
    #[error(
        "{interface}: its driver ({driver}) cannot run XDP programs itself; use --engine \
         userspace, or serve other interfaces (`xdp-agg doctor --interface {interface}` names \
         them), or attach behind the driver with --xdp-mode generic, which is slower than both"
    )]
    NoNative {
        /// Its name.
        interface: String,
        /// Its driver's.
        driver: String,
    },
    /// The interface is a tunnel, and generic mode was asked for.
    #[error(
        "{interface} is a tunnel ({driver}): it would work out wrong checksums for what generic \
         XDP sends, and no answer would arrive; use --engine userspace"
    )]
    Tunnel {
        /// Its name.
        interface: String,
        /// Its driver's.
        driver: String,
    },
    /// The driver refuses XDP at this MTU.
    #[error(
        "{interface}: its driver refuses XDP at this MTU ({detail}); lower the MTU (`xdp-agg \
         doctor --interface {interface}` names the limit), or use --engine userspace"
    )]
    MtuTooLarge {
        /// Its name.
        interface: String,
        /// What the kernel said, and the MTUs.
        detail: String,
    },
    /// The interfaces do not agree on a VLAN.
    #[error(
        "the data path is in one VLAN or in none: {interface} is {its}, others or --vlan are \
         {others}; start a daemon for each"
    )]
    Vlans {
        /// An interface's name.
        interface: String,
        /// What it is in.
        its: String,
        /// What was named before.
        others: String,
    },
    /// The card takes tags off before XDP sees them.
    #[error(
        "{interface} takes VLAN tags off before XDP sees them: `ethtool -K {interface} \
         rx-vlan-offload off` leaves them on; or use --engine userspace"
    )]
    TagsTakenOff {
        /// The interface that carries the VLAN.
        interface: String,
    },
    /// The directory of the pins cannot be used.
    #[error("--pin {dir}: {why}", dir = dir.display())]
    Pins {
        /// The directory.
        dir: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// Another daemon uses the pins.
    #[error(
        "--pin {dir}: another xdp-agg is running on it; stop that one first, or choose another \
         directory",
        dir = dir.display()
    )]
    PinsInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The pinned data path is not the one that is wanted.
    #[error(
        "--pin {dir}: the data path that is pinned there does not fit: {differs}. Start with the \
         settings that it was started with, or remove it and its jobs with `xdp-agg serve --pin \
         {dir} --fresh`",
        dir = dir.display()
    )]
    PinsMisfit {
        /// The directory.
        dir: PathBuf,
        /// What differs.
        differs: String,
    },
    /// A UDP port that is taken.
    #[error("UDP address {0} is in use; stop the other program or choose another --data-port")]
    PortInUse(SocketAddrV4),
    /// A worker on this host cannot be reached.
    #[error("rank {rank} at {addr} is on the aggregator's own host: {why}")]
    Local {
        /// The rank.
        rank: u16,
        /// Its address.
        addr: Ipv4Addr,
        /// Why it cannot take part, and what to do.
        why: String,
    },
    /// The job cannot be summed, or not yet.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// Anything else.
    #[error("{what}: {source}")]
    Other {
        /// What was tried.
        what: String,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
