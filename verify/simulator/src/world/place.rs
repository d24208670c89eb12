//! Where all parties are, and how good the way from one to another is now.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg_common::admission::Source;

use super::World;
use crate::scenario::{Link, address as daemon_address, daemon_at};
use crate::time::Nanos;
use crate::trace::Party;

/// UDP port of the data paths.
pub(super) const DATA_PORT: u16 = 0xbee0;

/// A party that has a place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A worker, counted through all jobs.
    Worker(usize),
    Daemon(usize),
}

impl From<Place> for Party {
    fn from(place: Place) -> Self {
        match place {
            Place::Worker(worker) => Self::Worker(worker),
            Place::Daemon(daemon) => Self::Daemon(daemon),
        }
    }
}

impl Place {
    /// A number of its own.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Worker(worker) => worker as u64,
            Self::Daemon(daemon) => (1 << 32) + daemon as u64,
        }
    }
}

/// Until when packets are cut off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// From there.
    up: Nanos,
    /// To there.
    down: Nanos,
}

impl Cut {
    /// Packets are cut off, in one direction or both, until `back`.
    pub(super) fn until(&mut self, back: Nanos, up: bool, down: bool) {
        if up {
            self.up = self.up.max(back);
        }
        if down {
            self.down = self.down.max(back);
        }
    }

    /// When the last cut ends or ended.
    pub(super) fn end_of(&self) -> Nanos {
        self.up.max(self.down)
    }

    /// Nothing is cut off any more.
    pub(super) fn end(&mut self, now: Nanos) {
        (self.up, self.down) = (self.up.min(now), self.down.min(now));
    }
}

/// Address of a worker's host.
pub(super) const fn address(job: usize, rank: u16) -> u32 {
    0x0a00_0100 + ((job as u32) << 8) + rank as u32 + 1
}

/// Where an aggregator sends from and receives.
pub(super) const fn source(daemon: usize) -> Source {
    Source { addr: daemon_address(daemon), port: DATA_PORT }
}

impl World {
    /// The party at this address.
    pub(super) fn who_is_at(&self, at: SocketAddrV4) -> Option<Place> {
        let addr = u32::from(*at.ip());
        if let Some(daemon) = daemon_at(addr) {
            let exists = daemon < self.daemons.len() && at.port() == DATA_PORT;
            return exists.then_some(Place::Daemon(daemon));
        }
        let has = |worker: &super::Worker| address(worker.job, worker.rank) == addr;
        self.workers.iter().position(has).map(Place::Worker)
    }

    /// The address of a party.
    pub(super) fn address(&self, place: Place) -> Ipv4Addr {
        Ipv4Addr::from(match place {
            Place::Worker(worker) => address(self.workers[worker].job, self.workers[worker].rank),
            Place::Daemon(daemon) => daemon_address(daemon),
        })
    }

    /// How good the way between two of them is now.
    pub(super) fn link(&self, one: Place, other: Place) -> Link {
        let mut link = self.scenario.link;
        for place in [one, other] {
            match place {
                Place::Worker(worker) if self.is_witness(self.workers[worker].job) => {
                    return Link::CLEAN;
                }
                Place::Worker(worker) => link.base *= self.scenario.far[worker],
                Place::Daemon(_) => {}
            }
        }
        if let (Place::Daemon(one), Place::Daemon(other)) = (one, other) {
            let far = &self.scenario.far_daemons;
            link.base *= far[one].max(far[other]);
        }
        if self.healed { Link { base: link.base, ..Link::CLEAN } } else { link }
    }

    /// Until when no packet comes from one to the other.
    pub(super) fn cut_until(&self, from: Place, to: Place) -> Nanos {
        self.cut(from, to).up.max(self.cut(to, from).down)
    }

    /// When the way between two is whole again, if it is cut in any direction: TCP needs both.
    pub(super) fn parted_until(&self, one: Place, other: Place) -> Nanos {
        self.cut_until(one, other).max(self.cut_until(other, one))
    }

    /// What is cut at a party on its way to another one.
    fn cut(&self, at: Place, to: Place) -> Cut {
        match (at, to) {
            (Place::Worker(worker), _) => self.workers[worker].cut,
            (Place::Daemon(daemon), Place::Daemon(_)) => self.daemons[daemon].trunk,
            (Place::Daemon(daemon), Place::Worker(_)) => self.daemons[daemon].access,
        }
    }
}
