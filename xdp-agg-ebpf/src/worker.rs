//! The program on a worker's interface: results go into the worker's `AF_XDP` socket, and all else
//! to the stack, as if the program were not there.
//!
//! Nothing in the worker would verify a checksum again. So the program hands over only packets
//! whose checksum is good. Any other packet is the stack's: it knows which checksums a virtual link
//! has left out, and drops and counts what was damaged.
#![no_std]
#![no_main]

#[expect(dead_code, reason = "shared with the aggregator, which needs more of it")]
mod packet;

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, XskMap},
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use xdp_agg_common::checksum::{Ends, is_intact};
use xdp_agg_common::frame::{ETH_LEN, ETHERTYPE_IPV4, IP_LEN, PAYLOAD_OFFSET};
use xdp_agg_common::lanes::{CHUNK_LEN, MAX_PAYLOAD};
use xdp_agg_common::maps::QUEUES;

use packet::Packet;

/// The aggregator and this worker ([`Ends::from_words`]). Zeros: nobody's packets are wanted.
#[btf_map]
static ENDS: Array<[u32; 4], 1> = Array::new();
/// The receive queue that results came by the last time, and 1; 0: none has come.
#[btf_map]
static SEEN: Array<u32, 1> = Array::new();
/// The worker's socket, in the place of its queue.
#[btf_map]
static SOCKETS: XskMap<QUEUES> = XskMap::new();

/// A packet that came in. Those of others may lie in several buffers (`frags`).
#[xdp(frags)]
pub fn results(ctx: XdpContext) -> u32 {
    if is_result(&mut Packet::new(&ctx)).is_none() {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: the context of a program on an interface has this field.
    let queue = unsafe { (*ctx.ctx).rx_queue_index };
    if let Some(seen) = SEEN.get_ptr_mut(0) {
        // SAFETY: a live map value; a reader finds one number or another.
        unsafe {
            if *seen != queue + 1 {
                *seen = queue + 1;
            }
        }
    }
    // Without a socket for this queue the packet is the stack's, too.
    SOCKETS.redirect(queue, xdp_action::XDP_PASS.into()).unwrap_or(xdp_action::XDP_PASS)
}

/// Whether this is an undamaged packet of the aggregator for this worker, whole in one buffer.
#[inline(always)]
fn is_result(packet: &mut Packet<'_>) -> Option<()> {
    let ends = Ends::from_words(*ENDS.get(0)?);
    let len = packet.len();
    let network = packet.network()?;
    let ip = network.ip;
    let (from, to) = (network.port_from, network.port_to);
    let from = (ip.source(), u16::from_be_bytes(from));
    let to = (ip.destination(), u16::from_be_bytes(to));
    let ours = network.ethertype == ETHERTYPE_IPV4.to_be_bytes() && ip.is_plain_udp();
    if !ours || from != ends.from || to != ends.to {
        return None;
    }
    let (ip_len, udp_len) = (usize::from(ip.total_len()), network.udp_len);
    let whole = ETH_LEN + ip_len == len
        && IP_LEN + usize::from(u16::from_be_bytes(udp_len)) == ip_len
        && len >= PAYLOAD_OFFSET
        && (len - PAYLOAD_OFFSET).is_multiple_of(CHUNK_LEN)
        && len <= PAYLOAD_OFFSET + MAX_PAYLOAD;
    if !whole || ip.checksum() != 0 || packet.is_split() {
        return None;
    }
    let payload = packet.payload_sum();
    is_intact(packet.view(0)?, payload).then_some(())
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: the verifier would not accept this loop.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
