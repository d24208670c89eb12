//! The way to a host, learned from the packets that come from it.

use aya_ebpf::programs::XdpContext;
use xdp_agg_common::frame::may_be_learned;
use xdp_agg_common::maps::{Member, Uplink};

use crate::packet::{Mac, Packet};

/// The way that a packet came: answers take it back.
#[derive(Clone, Copy)]
pub struct Came {
    ifindex: u32,
    mac: Mac,
    local_mac: Mac,
}

impl Came {
    /// Of a packet that was not turned into an answer yet.
    #[inline(always)]
    pub fn of(ctx: &XdpContext, packet: &mut Packet<'_>) -> Option<Self> {
        let network = packet.network()?;
        let (mac, local_mac) = (network.mac_from, network.mac_to);
        Some(Self { ifindex: ctx.ingress_ifindex() as u32, mac, local_mac })
    }

    /// Takes this way for that of a member whose packet it was, and which has passed all checks.
    /// True: it was another one before.
    #[inline(always)]
    pub fn learn_member(&self, member: *mut Member) -> bool {
        // SAFETY: fields of a live map value.
        unsafe {
            self.learn(
                &raw mut (*member).ifindex,
                &raw mut (*member).mac,
                &raw mut (*member).local_mac,
            )
        }
    }

    /// The same of the parent.
    #[inline(always)]
    pub fn learn_parent(&self, uplink: *mut Uplink) -> bool {
        // SAFETY: fields of a live map value.
        unsafe {
            self.learn(
                &raw mut (*uplink).ifindex,
                &raw mut (*uplink).mac,
                &raw mut (*uplink).local_mac,
            )
        }
    }

    /// Writes only what is new, so that the entry's cache line stays clean. While it is written, an
    /// answer from another CPU may take half of it and be lost, as on a wire.
    ///
    /// # Safety
    /// The pointers lead to fields of one live map value.
    #[inline(always)]
    unsafe fn learn(&self, ifindex: *mut u32, mac: *mut [u8; 6], local_mac: *mut [u8; 6]) -> bool {
        // SAFETY: as the caller says. Two packets of one host at a time write the same, or the last
        // one is right.
        unsafe {
            let known = *ifindex == self.ifindex
                && Mac::from(*mac) == self.mac
                && Mac::from(*local_mac) == self.local_mac;
            if known || !may_be_learned(self.mac.into()) {
                return false;
            }
            *mac = self.mac.into();
            *local_mac = self.local_mac.into();
            *ifindex = self.ifindex;
        }
        true
    }
}
