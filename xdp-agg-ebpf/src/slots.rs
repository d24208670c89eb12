//! A contribution and its slot: one critical section a packet.

use aya_ebpf::helpers::{bpf_spin_lock, bpf_spin_unlock};
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::slot::{Contribution, Outcome, Pool, take_in, take_result};
use xdp_agg_common::wire::Header;

use crate::maps::{SLOTS, Slot};
use crate::packet::Packet;

/// Contributes the packet to its slot. The packet leaves with the sum where the verdict says that
/// the sum goes out. None where the job's configuration names no slot.
#[inline(always)]
pub fn contribute(packet: &mut Packet<'_>, conf: &JobConf, c: &Contribution) -> Option<Outcome> {
    let members = conf.members;
    let (pool, slot) = slot_of(conf, c.block)?;
    // The packet was cut to its length before, so the payload ends where the frame ends.
    let mut payload = packet.payload();
    // SAFETY: a live map value. Under its lock this program is alone with it; user space reads it
    // under the same lock, and writes it only while the job is off. No function is called inside
    // (the verifier would refuse that), so everything in here is inlined.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let held = (&mut (*slot).state, &mut (&mut (*slot).lanes)[..]);
        let outcome = take_in(held, pool, members, c, &mut payload);
        bpf_spin_unlock(&raw mut (*slot).lock);
        Some(outcome)
    }
}

/// Takes in the parent's result, which is in the packet. None: nothing was changed.
#[inline(always)]
pub fn deliver(packet: &mut Packet<'_>, conf: &JobConf, result: &Contribution) -> Option<()> {
    let members = conf.members;
    let (pool, slot) = slot_of(conf, result.block)?;
    let mut payload = packet.payload();
    // SAFETY: as above.
    let taken = unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let held = (&mut (*slot).state, &mut (&mut (*slot).lanes)[..]);
        let taken = take_result(held, pool, members, result, &mut payload);
        bpf_spin_unlock(&raw mut (*slot).lock);
        taken
    };
    taken.then_some(())
}

/// The member that the parent's answer about this block is for.
#[inline(always)]
pub fn waiting(conf: &JobConf, header: &Header) -> Option<u16> {
    let members = conf.members;
    let (pool, slot) = slot_of(conf, header.block)?;
    // SAFETY: as above.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let waiting = (*slot).state.waiting(pool, members, header.epoch, header.block);
        bpf_spin_unlock(&raw mut (*slot).lock);
        waiting
    }
}

#[inline(always)]
fn slot_of(conf: &JobConf, block: u64) -> Option<(Pool, *mut Slot)> {
    let pool = Pool::new(conf.slots)?.forwarding(conf.forwards != 0);
    Some((pool, SLOTS.get_ptr_mut(conf.slot_base.wrapping_add(pool.slot_of(block)))?))
}
