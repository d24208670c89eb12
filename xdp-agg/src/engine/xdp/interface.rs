//! The interfaces that the program is attached to.

use xdp_agg_common::frame::TAG_LEN;
use xdp_agg_common::maps::MAX_PORTS;

use super::object::{other, wrong};
use super::sys;
use crate::drivers;
use crate::engine::EngineError;
use crate::link::{Links, vlan};

/// An interface as it is when the engine starts.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) mtu: u32,
    pub(super) driver: String,
}

impl Interface {
    /// The largest packet that it takes as one of ours. `wanted`: the user's word.
    pub(super) fn room(&self, wanted: Option<u32>, vlan: u16) -> u32 {
        let told = wanted.map(|mtu| mtu.min(self.mtu));
        // An MTU does not count a tag, a buffer does.
        let tag = if vlan == 0 { 0 } else { TAG_LEN as u32 };
        told.unwrap_or_else(|| drivers::room(&self.driver, self.mtu + tag) - tag)
    }

    /// The interfaces of these names, and the VLAN that they carry for us; 0: none. An interface
    /// that stands for a VLAN is served by the one that carries it.
    pub(super) fn find_all(
        names: &[String],
        vlan: Option<u16>,
    ) -> Result<(Vec<Self>, u16), EngineError> {
        let links = links()?;
        let mut found: Vec<Self> = Vec::with_capacity(names.len());
        let mut agreed = vlan;
        for name in names {
            let own = vlan::of(name).map_err(|error| other(&format!("the VLAN {name}"), error))?;
            let (id, carrier) = own.map_or((vlan.unwrap_or(0), name.clone()), |own| own);
            match agreed {
                Some(before) if before != id => {
                    let (its, others) = (in_words(id), in_words(before));
                    return Err(EngineError::Vlans { interface: name.clone(), its, others });
                }
                _ => agreed = Some(id),
            }
            let interface = Self::find(&carrier, &links)?;
            // A veth's peer decides whether the tag is in the frame.
            let keeps = id == 0 || interface.driver == "veth";
            if !keeps && links.offloads(&carrier).rx_vlan == Some(true) {
                return Err(EngineError::TagsTakenOff { interface: carrier });
            }
            if found.iter().all(|other| other.ifindex != interface.ifindex) {
                found.push(interface);
            }
        }
        let vlan = agreed.unwrap_or(0);
        match found.len() {
            0 => Err(EngineError::NoInterfaces),
            1..=MAX_PORTS => Ok((found, vlan)),
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

fn in_words(vlan: u16) -> String {
    if vlan == 0 { "in none".into() } else { format!("in VLAN {vlan}") }
}

pub(super) fn links() -> Result<Links, EngineError> {
    Links::open().map_err(|error| other("asking about interfaces", error))
}
