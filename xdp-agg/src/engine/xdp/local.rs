//! The way in for workers of the aggregator's own host.
//!
//! Packets between a process and an address of its own host go by the loopback interface, in both
//! directions: no served interface's program sees them. So there is an address that no host has,
//! and a veth pair that leads to it. On its far end the program sums as on any other interface;
//! what it sends there arrives at the host by the near end.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use xdp_agg_common::control::LocalMembers;

use super::interface::{Interface, links};
use super::object::other;
use super::sys::Stamp;
use crate::drivers;
use crate::engine::{EngineConfig, EngineError, JobSetup, LocalAddr, XdpMode};
use crate::link::{self, pair};

/// How the alias of a pair's near end begins.
const ALIAS: &str = "xdp-agg: workers of this host";
/// Most queues of the pair.
const QUEUES_MAX: usize = 16;
/// How long the kernel may take to detach a program whose pin was removed.
const DETACH: Duration = Duration::from_secs(1);
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// How workers of this host are served.
#[derive(Debug)]
pub(super) enum Local {
    /// By this pair.
    On(Pair),
    /// Not at all: why, and what to do.
    Off(String),
    /// Packets come in by test runs alone, and may seem to come by this interface, to this
    /// address. A job's setup says which members are on this host.
    Detached(Option<(u32, Ipv4Addr)>),
}

/// The pair. Dropping it removes it, unless it is to be kept.
#[derive(Debug)]
pub(super) struct Pair {
    near: String,
    /// The end that the program is attached to.
    pub(super) far: Interface,
    pub(super) addr: Ipv4Addr,
    namespace: File,
    pub(super) keep: bool,
}

impl Local {
    /// Makes the pair, where it is wanted and can be of use.
    pub(super) fn make(
        config: &EngineConfig,
        interfaces: &[Interface],
        mtu: u32,
    ) -> Result<Self, EngineError> {
        let Some(first) = interfaces.first() else { return Ok(Self::Detached(None)) };
        let mode = config.xdp_mode;
        let candidates: Vec<Ipv4Addr> = match config.local_addr {
            LocalAddr::Off => return Ok(Self::Off("--local-addr is off".into())),
            LocalAddr::At(_) if mode == XdpMode::Generic => {
                let why = "generic XDP cannot serve workers on this host";
                return Err(failed("--local-addr", io::Error::other(why)));
            }
            _ if mode == XdpMode::Generic => return Ok(Self::generic()),
            LocalAddr::At(addr) => vec![addr],
            LocalAddr::Auto => {
                let [a, b, c] = LocalAddr::NET;
                (1..u8::MAX).map(|d| Ipv4Addr::new(a, b, c, d)).collect()
            }
        };
        let made = interfaces.iter().try_for_each(clear);
        match made.and_then(|()| Pair::make(first, drivers::room("veth", mtu), &candidates)) {
            Ok(pair) => {
                let Pair { near, far, addr, .. } = &pair;
                info!(near, far = far.name, %addr, "made a way in for workers on this host");
                Ok(Self::On(pair))
            }
            Err(error @ EngineError::InterfaceBusy { .. }) => Err(error),
            Err(error) if config.local_addr == LocalAddr::Auto => {
                warn!("workers on this host cannot take part: {error}");
                Ok(Self::Off(format!("no way in could be made when the daemon started: {error}")))
            }
            Err(error) => Err(error),
        }
    }

    /// Generic XDP addresses copies of a packet to a group only, which does not reach the host
    /// itself.
    pub(super) fn generic() -> Self {
        Self::Off("generic XDP does not reach it".into())
    }

    /// The state of the data path that is taken over. An error: its pair is not there any more.
    pub(super) fn found(stamp: &Stamp, interfaces: &[Interface]) -> Result<Self, EngineError> {
        if stamp.local_ifindex == 0 {
            let why = "the data path that was taken over at the start has no way in for it";
            return Ok(Self::Off(why.into()));
        }
        let Some(first) = interfaces.first() else { return Ok(Self::Detached(None)) };
        let (near, far) = names(first);
        let far = Interface::find(&far, &links()?)?;
        if far.ifindex != stamp.local_ifindex {
            return Err(EngineError::NoInterface(far.name));
        }
        let namespace = namespace()?;
        let addr = stamp.local_addr.into();
        Ok(Self::On(Pair { near, far, addr, namespace, keep: true }))
    }

    pub(super) const fn pair(&self) -> Option<&Pair> {
        match self {
            Self::On(pair) => Some(pair),
            Self::Off(_) | Self::Detached(_) => None,
        }
    }

    /// Interface and address.
    pub(super) fn side(&self) -> Option<(u32, Ipv4Addr)> {
        match self {
            Self::On(pair) => Some((pair.far.ifindex, pair.addr)),
            Self::Off(_) => None,
            Self::Detached(side) => *side,
        }
    }

    /// Whether the pair stays when this is dropped.
    pub(super) fn set_keep(&mut self, keep: bool) {
        if let Self::On(pair) = self {
            pair.keep = keep;
        }
    }

    /// The workers of a job that are on this host, and where they are to send to.
    pub(super) fn members(&self, job: &JobSetup) -> Result<Option<LocalMembers>, EngineError> {
        let told = |ranks: u64| {
            let (_, addr) = self.side().filter(|_| ranks != 0)?;
            Some(LocalMembers { ranks, data: SocketAddrV4::new(addr, job.conf.port) })
        };
        if matches!(self, Self::Detached(_)) {
            return Ok(told(job.local));
        }
        let own = link::addresses().map_err(|error| other("the addresses of this host", error))?;
        let here = job.members.iter().filter(|(rank, data)| {
            job.forwarders >> **rank & 1 == 0 && own.iter().any(|own| own.addr == *data.ip())
        });
        let mut ranks = 0;
        for (rank, data) in here {
            let refused = |why: String| EngineError::Local { rank: *rank, addr: *data.ip(), why };
            match self {
                Self::Off(why) => {
                    let why = format!("{why}; use --engine userspace, which sums for everybody");
                    return Err(refused(why));
                }
                _ if data.ip().is_loopback() => {
                    let why = "the data path cannot answer to a loopback address: connect to \
                               another address of this host (XDP_AGG_ADDR, MASTER_ADDR)";
                    return Err(refused(why.into()));
                }
                _ => ranks |= 1 << rank,
            }
        }
        Ok(told(ranks))
    }
}

impl Pair {
    /// Makes a pair. Its name is that of the first served interface, which has one daemon only.
    fn make(first: &Interface, mtu: u32, addrs: &[Ipv4Addr]) -> Result<Self, EngineError> {
        let (near, far) = names(first);
        let what = |error| failed(&format!("the veth pair {near}"), error);
        let queues = std::thread::available_parallelism().map_or(1, |n| n.get().min(QUEUES_MAX));
        let alias = format!("{ALIAS}, on their way to the aggregator on {}", first.name);
        let wanted =
            pair::Wanted { near: &near, far: &far, alias: &alias, mtu, queues: queues as u32 };
        let end = pair::make(&wanted).map_err(what)?;
        let far = Interface { name: far, ifindex: end.ifindex, mtu, driver: "veth".into() };
        // From here on it is removed with this.
        let addr = Ipv4Addr::UNSPECIFIED;
        let mut made = Self { near: near.clone(), far, addr, namespace: namespace()?, keep: false };
        for addr in addrs {
            if pair::lead(&near, &end, *addr).map_err(what)? {
                made.addr = *addr;
                return Ok(made);
            }
        }
        let why = match addrs {
            [addr] => format!("something else has the address {addr} here; choose --local-addr"),
            _ => "all addresses of 169.254.109.0/24 are taken; choose --local-addr".into(),
        };
        Err(what(io::Error::other(why)))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let inode = |file: io::Result<fs::Metadata>| file.ok().map(|about| about.ino());
        let here = inode(fs::metadata(NAMESPACE)) == inode(self.namespace.metadata());
        let remove = || pair::remove(&self.near);
        let removed = if here {
            remove()
        } else {
            link::in_namespace(&self.namespace, remove).and_then(|removed| removed)
        };
        if let Err(error) = removed {
            warn!(near = self.near, "the way in for workers on this host stays: {error}");
        }
    }
}

/// Removes the pair of a daemon that was killed and had this interface as its first one.
fn clear(interface: &Interface) -> Result<(), EngineError> {
    let (near, far) = names(interface);
    let what = |error| failed(&format!("the veth pair {near}"), error);
    let Some(there) = pair::find(&near).map_err(what)? else { return Ok(()) };
    if there.alias.is_some_and(|alias| !alias.starts_with(ALIAS)) {
        let why = "an interface of this name is there, and it is not xdp-agg's";
        return Err(what(io::Error::other(why)));
    }
    let give_up = Instant::now() + DETACH;
    while pair::find(&far).map_err(what)?.is_some_and(|far| far.program) {
        if Instant::now() > give_up {
            return Err(EngineError::InterfaceBusy { interface: interface.name.clone() });
        }
        std::thread::sleep(DETACH / 20);
    }
    info!(near, "removing what a daemon has left that was killed");
    pair::remove(&near).map_err(what)
}

/// Names of the two ends: with any number at most 15 bytes, which is what a name may have.
fn names(first: &Interface) -> (String, String) {
    let near = format!("xagg{}", first.ifindex);
    let far = format!("{near}x");
    (near, far)
}

fn namespace() -> Result<File, EngineError> {
    File::open(NAMESPACE).map_err(|error| other("the network namespace", error))
}

fn failed(what: &str, error: io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            EngineError::NotPermitted(format!("making {what}: {error}"))
        }
        _ => other(what, error),
    }
}
