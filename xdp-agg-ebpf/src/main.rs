//! The aggregator in the kernel: an XDP program that plays the switch.
//!
//! `xdp_agg` runs for every packet that an interface receives, `copy_out` for every copy of a
//! result on its way out. Both are a thin shell. `xdp_agg_common` decides which packets are ours,
//! which senders are admitted, what a packet does to a slot and how lanes add. The user-space
//! engine and the tests call the same functions.
#![no_std]
#![no_main]
// The BPF target has no methods of atomic integers.
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "the compiler is pinned")]

mod above;
mod answer;
mod egress;
mod ingress;
mod maps;
#[expect(dead_code, reason = "shared with the benchmark's program, which needs more of it")]
mod packet;
mod slots;
mod tag;
mod way;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

use maps::{NEXT, Settings};

/// A packet that came in. Those of others may lie in several buffers (`frags`), ours may not.
#[xdp(frags)]
pub fn xdp_agg(ctx: XdpContext) -> u32 {
    match ingress::receive(&ctx) {
        // Behind the local interface there is nobody but us.
        Ok(xdp_action::XDP_PASS) if Settings::is_local(ctx.ingress_ifindex() as u32) => {
            xdp_action::XDP_DROP
        }
        Ok(action) => action,
        Err(refusal) if refusal.is_others(ctx.ingress_ifindex() as u32) => xdp_action::XDP_PASS,
        Err(refusal) => {
            ingress::report(&refusal);
            xdp_action::XDP_DROP
        }
    }
}

/// A packet that came in where the data path is in a VLAN: goes on in `xdp_agg` without its tag.
/// There it cannot pass any more. So the loader sets the data path's address then, and answers
/// leave by redirects.
#[xdp(frags)]
pub fn xdp_agg_tagged(ctx: XdpContext) -> u32 {
    let ifindex = ctx.ingress_ifindex() as u32;
    if !Settings::is_local(ifindex) && !tag::take_off(&ctx, ifindex) {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: nothing is left to drop here; on success this does not return.
    unsafe { NEXT.tail_call(&ctx, 0) };
    xdp_action::XDP_ABORTED
}

/// A copy of a result that goes out. The kernel wants both programs to be of one kind.
#[xdp(frags, map = "devmap")]
pub fn copy_out(ctx: XdpContext) -> u32 {
    // SAFETY: the context of a program that runs from a device map has this field.
    let ifindex = unsafe { (*ctx.ctx).egress_ifindex };
    let addressed = egress::address_copy(&ctx, ifindex);
    if Settings::is_tagged(ifindex) && addressed.is_some() {
        return match tag::put_on(&ctx, Settings::vlan()) {
            Some(()) => xdp_action::XDP_PASS,
            None => xdp_action::XDP_ABORTED,
        };
    }
    if addressed.is_some() { xdp_action::XDP_PASS } else { xdp_action::XDP_DROP }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: the verifier would not accept this loop.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
