//! A packet and its slot: one critical section a packet.

use core::hint::black_box;

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::helpers::{bpf_spin_lock, bpf_spin_unlock};
use xdp_agg_common::admission::Reply;
use xdp_agg_common::answer::{Reaction, take_reply};
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::slot::{Contribution, Outcome, Pool, take_in};

use crate::maps::{SLOTS, Slot};
use crate::packet::Packet;

/// Contributes the packet to its slot. The packet leaves with the sum where the verdict says that
/// the sum goes out. None where the job's configuration names no slot.
#[inline(always)]
pub fn locked(
    packet: &mut Packet<'_>,
    conf: &JobConf,
    c: &Contribution,
) -> Option<(Pool, Outcome)> {
    let members = conf.members;
    let (pool, slot) = slot_of(conf, c.block)?;
    // No helper may be called under the lock.
    // SAFETY: the helper takes nothing.
    let now = if pool.is_timed(c.block) { unsafe { bpf_ktime_get_ns() } } else { 0 };
    // The packet was cut to its length before, so the payload ends where the frame ends.
    let mut payload = packet.payload();
    // SAFETY: a live map value. Under its lock this program is alone with it; user space reads it
    // under the same lock, and writes it only while the job is off. No function is called inside
    // (the verifier would refuse that), so everything in here is inlined.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let held = (&mut (*slot).state, &mut (&mut (*slot).lanes)[..]);
        let outcome = take_in(held, pool, members, (c, now), &mut payload);
        bpf_spin_unlock(&raw mut (*slot).lock);
        // Otherwise the compiler carries parts of it through the loop over the lanes. That takes a
        // tenth longer, and the verifier refuses a part that is undefined.
        Some((pool, black_box(outcome)))
    }
}

/// Takes in what the parent said of a block. None: as above.
#[inline(always)]
pub fn locked_reply(
    packet: &mut Packet<'_>,
    conf: &JobConf,
    reply: Reply,
    said: &Contribution,
) -> Option<(Reaction, u16)> {
    let members = conf.members;
    let (pool, slot) = slot_of(conf, said.block)?;
    let mut payload = packet.payload();
    // SAFETY: as above.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let held = (&mut (*slot).state, &mut (&mut (*slot).lanes)[..]);
        let answer = take_reply(held, pool, members, (reply, said), &mut payload);
        bpf_spin_unlock(&raw mut (*slot).lock);
        Some(answer)
    }
}

#[inline(always)]
fn slot_of(conf: &JobConf, block: u64) -> Option<(Pool, *mut Slot)> {
    let pool = Pool::of(conf)?;
    Some((pool, SLOTS.get_ptr_mut(conf.slot_base.wrapping_add(pool.slot_of(block)))?))
}
