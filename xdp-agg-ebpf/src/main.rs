//! The aggregator in the kernel: an XDP program that plays the switch.
//!
//! `xdp_agg` runs for every packet that an interface receives, `copy_out` for every copy of a
//! result on its way out. Both are a thin shell. `xdp_agg_common` decides which packets are ours,
//! which senders are admitted, what a packet does to a slot and how lanes add. The user-space
//! engine and the tests call the same functions.
#![no_std]
#![no_main]

mod above;
mod answer;
mod egress;
mod ingress;
mod maps;
#[expect(dead_code, reason = "shared with the benchmark's program, which needs more of it")]
mod packet;
mod slots;
mod way;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

use maps::Settings;

/// A packet that came in.
#[xdp]
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

/// A copy of a result that goes out.
#[xdp(map = "devmap")]
pub fn copy_out(ctx: XdpContext) -> u32 {
    match egress::address_copy(&ctx) {
        Some(()) => xdp_action::XDP_PASS,
        None => xdp_action::XDP_DROP,
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: the verifier would not accept this loop.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
