//! The program on interfaces: attached, or taken over from the daemon before.

use std::os::fd::AsFd as _;

use tracing::{info, warn};
use xdp_agg_common::maps::{MAX_JOBS, Phase};
use xdp_agg_common::slot::Pool;

use super::interface::{Interface, VETH_MTU_MAX};
use super::local::Local;
use super::object::other;
use super::phases::{self, Tables as _};
use super::sys::{self, Stamp};
use super::{Job, XdpEngine};
use crate::engine::{EngineError, XdpMode};

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

impl XdpEngine {
    /// Puts this engine's program in the place of the one that is pinned, on the same maps, and
    /// goes on with the jobs that are running there.
    pub(super) fn adopt(
        &mut self,
        found: &Stamp,
        interfaces: &[Interface],
    ) -> Result<(), EngineError> {
        let Some(pins) = &self.pins else { return Ok(()) };
        let program = self.object.ingress_fd()?;
        let local = self.local.pair().map(|pair| &pair.far);
        for (number, interface) in interfaces.iter().chain(local).enumerate() {
            let name = &interface.name;
            let gone = || pins.misfit(format!("{name} is not attached any more"));
            let link = pins.link(number)?.ok_or_else(gone)?;
            match sys::replace_program(link.as_fd(), program) {
                Ok(()) => self.links.push(link),
                // The interface was deleted; another one may have its name now.
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => return Err(gone()),
                Err(error) => return Err(other(&format!("taking {name} over"), error)),
            }
        }
        self.generic = found.generic != 0;
        for job_id in 0..MAX_JOBS as u16 {
            let conf = self.object.conf(job_id)?;
            match Pool::new(conf.slots).filter(|_| conf.phase == Phase::Running as u16) {
                Some(pool) => {
                    self.jobs[usize::from(job_id)] = Some(Job::new(conf, pool, 0));
                }
                // The daemon that was about to start the job is gone.
                None => phases::silence(&mut self.object, job_id)?,
            }
        }
        let running = self.jobs.iter().flatten().count();
        info!(running, "took over the data path of the daemon before, with its running jobs");
        Ok(())
    }

    /// Attaches to all interfaces in one mode: copies go from any of them to any other. In generic
    /// mode there is no way in for workers of this host.
    pub(super) fn attach(
        &mut self,
        mode: XdpMode,
        interfaces: &[Interface],
    ) -> Result<(), EngineError> {
        if mode != XdpMode::Generic {
            match self.attach_all(XDP_FLAGS_DRV_MODE, interfaces) {
                Err(AttachError::NoNative { interface, driver }) if mode == XdpMode::Auto => warn!(
                    %interface,
                    %driver,
                    "this driver cannot run XDP programs itself: attaching to all interfaces in \
                     generic mode, which is slower, sends results of more than one worker by \
                     multicast only and serves no workers on this host"
                ),
                result => return result.map_err(AttachError::into_engine),
            }
        }
        self.generic = true;
        self.local = Local::generic();
        self.attach_all(XDP_FLAGS_SKB_MODE, interfaces).map_err(AttachError::into_engine)
    }

    /// Attaches once more to an interface that has lost the program.
    pub(super) fn attach_again(&mut self, number: usize) -> Result<(), EngineError> {
        let flags = if self.generic { XDP_FLAGS_SKB_MODE } else { XDP_FLAGS_DRV_MODE };
        let interface = &self.interfaces[number];
        let attached = sys::attach_xdp(self.object.ingress_fd()?, interface.ifindex, flags);
        let link = attached.map_err(|error| AttachError::new(interface, error).into_engine())?;
        info!(interface = interface.name, "attached once more");
        if let Some(pins) = &self.pins {
            pins.pin_link_again(number, link.as_fd())?;
        }
        self.links[number] = link;
        Ok(())
    }

    fn attach_all(&mut self, flags: u32, interfaces: &[Interface]) -> Result<(), AttachError> {
        let program = self.object.ingress_fd().map_err(AttachError::Engine)?;
        let local = self.local.pair().map(|pair| &pair.far);
        // On an error the ones that were attached detach here.
        let links: Result<Vec<_>, _> = interfaces
            .iter()
            .chain(local)
            .map(|interface| {
                sys::attach_xdp(program, interface.ifindex, flags)
                    .map_err(|error| AttachError::new(interface, error))
            })
            .collect();
        self.links = links?;
        let Some(pins) = &self.pins else { return Ok(()) };
        for (number, link) in self.links.iter().enumerate() {
            pins.pin_link(number, link.as_fd()).map_err(AttachError::Engine)?;
        }
        Ok(())
    }
}

/// Why the program could not be attached to an interface.
enum AttachError {
    /// The driver has no XDP support of its own.
    NoNative { interface: String, driver: String },
    /// Anything else.
    Engine(EngineError),
}

impl AttachError {
    fn new(at: &Interface, error: std::io::Error) -> Self {
        let Interface { name, mtu, driver, .. } = at.clone();
        let detail = match driver.as_str() {
            "veth" => {
                format!("{error}; the MTU of its peer is over {VETH_MTU_MAX}, its own is {mtu}")
            }
            _ => format!("{error}; its MTU is {mtu}, the driver {driver}"),
        };
        Self::Engine(match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => return Self::NoNative { interface: name, driver },
            Some(libc::EBUSY | libc::EEXIST) => EngineError::InterfaceBusy { interface: name },
            Some(libc::ERANGE | libc::EINVAL) => {
                EngineError::MtuTooLarge { interface: name, detail }
            }
            Some(libc::EPERM | libc::EACCES) => {
                EngineError::NotPermitted(format!("attaching to {name}: {error}"))
            }
            Some(libc::ENODEV) => EngineError::NoInterface(name),
            Some(libc::ENOSPC) => other(
                &format!(
                    "attaching to {name}: it has fewer receive queues than its peer has transmit \
                     queues; create both ends of the veth with the same numbers"
                ),
                error,
            ),
            _ => other(&format!("attaching to {name}"), error),
        })
    }

    fn into_engine(self) -> EngineError {
        match self {
            Self::Engine(error) => error,
            Self::NoNative { interface, driver } => EngineError::Other {
                what: format!("attaching to {interface}"),
                source: format!(
                    "its driver ({driver}) cannot run XDP programs itself; use --xdp-mode generic"
                )
                .into(),
            },
        }
    }
}
