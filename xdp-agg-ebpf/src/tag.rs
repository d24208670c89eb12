//! The tag of the data path's VLAN: off where a packet comes in, on where one leaves. Between the
//! two a packet is as any other, so nothing else knows of it.

use aya_ebpf::{EbpfContext as _, helpers::bpf_xdp_adjust_head, programs::XdpContext};
use xdp_agg_common::frame::{ETHERTYPE_VLAN, TAG_LEN, VLAN_MASK};

use crate::ingress::is_ours;
use crate::maps::Settings;
use crate::packet::{Mac, Packet};

/// What leads a tagged frame.
#[repr(C)]
pub struct Front {
    to: Mac,
    from: Mac,
    ethertype: [u8; 2],
    tag: [u8; 2],
}

/// Takes the tag off a packet to us in the data path's VLAN. False: it is no such packet, and is as
/// it came.
#[inline(always)]
pub fn take_off(ctx: &XdpContext, ifindex: u32) -> bool {
    try_take_off(ctx, ifindex).is_some()
}

#[inline(always)]
fn try_take_off(ctx: &XdpContext, ifindex: u32) -> Option<()> {
    let mut packet = Packet::new(ctx);
    let front: &Front = packet.view(0)?;
    let tag = u16::from_be_bytes(front.tag);
    if u16::from_be_bytes(front.ethertype) != ETHERTYPE_VLAN || tag & VLAN_MASK != Settings::vlan()
    {
        return None;
    }
    let (to, from) = (front.to, front.from);
    // From the tag on it is as without; the addresses in front are looked at by nobody yet.
    let network = packet.view(TAG_LEN)?;
    if !is_ours(network, ifindex) {
        return None;
    }
    (network.mac_to, network.mac_from) = (to, from);
    shift(ctx, TAG_LEN as i32)
}

/// Puts a tag on.
#[inline(always)]
pub fn put_on(ctx: &XdpContext, tag: u16) -> Option<()> {
    let mut packet = Packet::new(ctx);
    let network = packet.network()?;
    let (to, from) = (network.mac_to, network.mac_from);
    shift(ctx, -(TAG_LEN as i32))?;
    let ethertype = ETHERTYPE_VLAN.to_be_bytes();
    *packet.view(0)? = Front { to, from, ethertype, tag: tag.to_be_bytes() };
    Some(())
}

/// Moves the frame's start.
#[inline(always)]
fn shift(ctx: &XdpContext, by: i32) -> Option<()> {
    // SAFETY: a helper call on the program's own context, while no view of the frame is alive.
    let failed = unsafe { bpf_xdp_adjust_head(ctx.as_ptr().cast(), by) };
    if failed == 0 { Some(()) } else { None }
}
