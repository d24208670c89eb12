//! The program on interfaces: attached, or taken over from the daemon before.

use std::os::fd::{AsFd as _, OwnedFd};

use tracing::info;
use xdp_agg_common::maps::{MAX_JOBS, MAX_PORTS, Phase};
use xdp_agg_common::slot::Pool;

use super::interface::{Interface, links};
use super::object::other;
use super::phases::{self, Tables as _};
use super::sys::{self, Stamp};
use super::{Job, XdpEngine};
use crate::drivers;
use crate::engine::{EngineError, XdpMode};
use crate::link::features::SwitchedOff;

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// What attaching may switch off at an interface for longer than the program stays: the kernel does
/// so in generic mode.
const OFFLOADS: [&str; 2] = ["rx-lro", "rx-gro-hw"];

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
        for (interface, bits) in interfaces.iter().zip(found.switched_off) {
            let names = OFFLOADS.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
            self.switched_off.note(&interface.name, names.map(|(_, name)| name).collect());
        }
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

    /// Attaches once more to an interface that has lost the program.
    pub(super) fn attach_again(&mut self, number: usize) -> Result<(), EngineError> {
        let interface = &self.interfaces[number];
        let link = self.attach_to(interface)?;
        info!(interface = interface.name, "attached once more");
        if let Some(pins) = &self.pins {
            pins.pin_link_again(number, link.as_fd())?;
        }
        self.links[number] = link;
        Ok(())
    }

    fn attach_to(&self, interface: &Interface) -> Result<OwnedFd, EngineError> {
        let flags = if self.generic { XDP_FLAGS_SKB_MODE } else { XDP_FLAGS_DRV_MODE };
        let attached = sys::attach_xdp(self.object.ingress_fd()?, interface.ifindex, flags);
        attached.map_err(|error| refused(interface, error))
    }

    /// Attaches to all interfaces in one mode: copies go from any of them to any other. In generic
    /// mode there is no way in for workers of this host.
    pub(super) fn attach(
        &mut self,
        mode: XdpMode,
        interfaces: &[Interface],
    ) -> Result<(), EngineError> {
        self.generic = mode == XdpMode::Generic;
        let tunnel = interfaces.iter().find(|at| self.generic && drivers::wraps(&at.driver));
        if let Some(Interface { name, driver, .. }) = tunnel.cloned() {
            return Err(EngineError::Tunnel { interface: name, driver });
        }
        let local = self.local.pair().map(|pair| &pair.far);
        let asked = links()?;
        // Where a driver does not say, nothing is known to go off.
        let on = |at: &Interface| asked.features_on(&at.name, &OFFLOADS).unwrap_or_default();
        let before: Vec<_> = interfaces.iter().map(on).collect();
        // On an error the ones that were attached detach here.
        let attached: Result<Vec<_>, _> =
            interfaces.iter().chain(local).map(|interface| self.attach_to(interface)).collect();
        self.links = attached?;
        for (interface, mut before) in interfaces.iter().zip(before) {
            let now = on(interface);
            before.retain(|name| !now.contains(name));
            self.switched_off.note(&interface.name, before);
        }
        if !self.generic {
            tell_changes(interfaces);
        }
        let Some(pins) = &self.pins else { return Ok(()) };
        for (number, link) in self.links.iter().enumerate() {
            pins.pin_link(number, link.as_fd())?;
        }
        Ok(())
    }
}

/// What was switched off, as bits of [`OFFLOADS`], by the interfaces' order.
pub(super) fn marks(off: &SwitchedOff, interfaces: &[Interface]) -> [u8; MAX_PORTS] {
    let mut marks = [0; MAX_PORTS];
    for (mark, interface) in marks.iter_mut().zip(interfaces) {
        let names = off.of(&interface.name);
        let bits = OFFLOADS.iter().enumerate().filter(|(_, name)| names.contains(*name));
        *mark = bits.fold(0, |bits, (bit, _)| bits | 1 << bit);
    }
    marks
}

/// Says once for each driver what attaching means to others.
fn tell_changes(interfaces: &[Interface]) {
    let mut drivers: Vec<&str> = interfaces.iter().map(|at| at.driver.as_str()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    for driver in drivers {
        if let Some(changes) = drivers::changes(driver) {
            info!(driver, "until this daemon's program is detached: {changes}");
        }
    }
}

/// Why the program could not be attached to an interface.
fn refused(at: &Interface, error: std::io::Error) -> EngineError {
    let Interface { name, mtu, driver, .. } = at.clone();
    let detail = format!("{error}; its MTU is {mtu}, the driver {driver}");
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => EngineError::NoNative { interface: name, driver },
        Some(libc::EBUSY | libc::EEXIST) => EngineError::InterfaceBusy { interface: name },
        Some(libc::ERANGE | libc::EINVAL) => EngineError::MtuTooLarge { interface: name, detail },
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
    }
}
