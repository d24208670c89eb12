//! The program on the interface, and its maps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::maps::{Array, Map, MapData, MapError, XskMap};
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfError};
use xdp_agg_common::checksum::Ends;

use super::link::Link;

/// The compiled program (`cargo xtask build-ebpf`).
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/worker.bpfel.o");

/// Why there is no program on an interface.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// This process must not do it.
    #[error(
        "this process may not load programs into the kernel ({0}): it needs the capabilities \
         CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, or root"
    )]
    NotPermitted(io::Error),
    /// Another program has the interface.
    #[error(
        "interface {0} has an XDP program already (a daemon of this host, or another worker): one \
         of them has it to itself"
    )]
    Busy(u32),
    /// The driver runs no such programs.
    #[error("the driver of interface {0} runs no XDP programs ({1})")]
    NoDriver(u32, io::Error),
    /// Anything else.
    #[error("{0}: {1}")]
    Other(String, io::Error),
}

/// The program on an interface. With this value it goes away.
pub(super) struct Program {
    ends: Array<MapData, [u32; 4]>,
    seen: Array<MapData, u32>,
    sockets: XskMap<MapData>,
    _link: Link,
}

impl Program {
    /// Loads and attaches it. It lets everything pass until [`Self::follow`].
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(super) fn attach(ifindex: u32) -> Result<Self, Refusal> {
        let mut loaded = Ebpf::load(OBJECT).map_err(|error| refused("loading", error))?;
        let other = |what: &str, why: String| Refusal::Other(what.into(), io::Error::other(why));
        let program = loaded
            .program_mut("results")
            .ok_or_else(|| other("loading the program", "it is not in its object".into()))?;
        let program: &mut Xdp =
            program.try_into().map_err(|error: ProgramError| refused("loading", error.into()))?;
        program.load().map_err(|error| refused("loading", error.into()))?;
        let program = program.fd().map_err(|error| refused("loading", error.into()))?.as_fd();
        let link = Link::attach(program, ifindex).map_err(|error| unattached(ifindex, error))?;
        let mut take = |name: &str| -> Result<Map, Refusal> {
            loaded.take_map(name).ok_or_else(|| other(name, "there is no such map".into()))
        };
        let wrong = |error: MapError| other("a map", error.to_string());
        Ok(Self {
            ends: take("ENDS")?.try_into().map_err(wrong)?,
            seen: take("SEEN")?.try_into().map_err(wrong)?,
            sockets: take("SOCKETS")?.try_into().map_err(wrong)?,
            _link: link,
        })
    }

    /// Takes out packets between these from here on.
    pub(super) fn follow(&mut self, ends: Ends) -> io::Result<()> {
        self.ends.set(0, ends.to_words(), 0).map_err(io::Error::other)
    }

    /// The receive queue that results came by the last time, if any came.
    pub(super) fn queue(&self) -> io::Result<Option<u32>> {
        let seen = self.seen.get(&0, 0).map_err(io::Error::other)?;
        Ok(seen.checked_sub(1))
    }

    /// Has the results of a queue handed to a socket that is bound to it.
    pub(super) fn hand_to(&mut self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.set(queue, socket.as_raw_fd(), 0).map_err(io::Error::other)
    }
}

fn refused(what: &str, error: EbpfError) -> Refusal {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut number = None;
    while let Some(error) = cause {
        number = number.or_else(|| error.downcast_ref::<io::Error>()?.raw_os_error());
        cause = error.source();
    }
    match number {
        Some(number @ (libc::EPERM | libc::EACCES)) => {
            Refusal::NotPermitted(io::Error::from_raw_os_error(number))
        }
        _ => Refusal::Other(format!("{what} the program"), io::Error::other(error.to_string())),
    }
}

fn unattached(ifindex: u32, error: io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Refusal::NotPermitted(error),
        Some(libc::EBUSY | libc::EEXIST) => Refusal::Busy(ifindex),
        Some(libc::EOPNOTSUPP) => Refusal::NoDriver(ifindex, error),
        _ => Refusal::Other(format!("attaching to interface {ifindex}"), error),
    }
}
