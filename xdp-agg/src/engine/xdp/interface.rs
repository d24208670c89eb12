//! The interfaces that the program is attached to.

use xdp_agg_common::maps::MAX_PORTS;

use super::object::{other, wrong};
use super::sys;
use crate::engine::EngineError;
use crate::link::Links;

/// Largest MTU of a veth peer that native XDP takes: one page less what the kernel keeps in it.
pub(super) const VETH_MTU_MAX: u32 = 3506;

/// An interface as it is when the engine starts.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) mtu: u32,
    pub(super) driver: String,
}

impl Interface {
    pub(super) fn find_all(names: &[String]) -> Result<Vec<Self>, EngineError> {
        let links = links()?;
        let mut found: Vec<Self> = Vec::with_capacity(names.len());
        for name in names {
            let interface = Self::find(name, &links)?;
            if found.iter().all(|other| other.ifindex != interface.ifindex) {
                found.push(interface);
            }
        }
        match found.len() {
            0 => Err(EngineError::NoInterfaces),
            1..=MAX_PORTS => Ok(found),
            more => Err(wrong(format!("{more} interfaces; at most {MAX_PORTS} can be served"))),
        }
    }

    pub(super) fn find(name: &str, links: &Links) -> Result<Self, EngineError> {
        let ifindex = sys::ifindex(name).ok_or_else(|| EngineError::NoInterface(name.into()))?;
        let mtu = links.mtu(name).map_err(|error| other(&format!("the MTU of {name}"), error))?;
        // A device whose driver has no name is not one of those that need care.
        let driver = links.driver(name).unwrap_or_default();
        Ok(Self { name: name.into(), ifindex, mtu, driver })
    }
}

pub(super) fn links() -> Result<Links, EngineError> {
    Links::open().map_err(|error| other("asking about interfaces", error))
}
