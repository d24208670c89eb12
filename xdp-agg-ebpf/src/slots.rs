//! A contribution and its slot: one critical section a packet.

use aya_ebpf::helpers::{bpf_spin_lock, bpf_spin_unlock};
use xdp_agg_common::lanes::{self, Chunk, MAX_CHUNKS};
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict};

use crate::maps::SLOTS;
use crate::packet::Packet;

/// What the slot machine said, and the slot's state as of then.
pub struct Outcome {
    pub verdict: Verdict,
    /// Bit `r`: rank `r` has contributed.
    pub seen: u64,
    /// Union of the flags.
    pub flags: u8,
    /// Tag of the first contribution.
    pub tag: u16,
}

/// Contributes the packet to its slot. The packet leaves with the sum where the verdict says that
/// the sum goes out. None where the job's configuration names no slot.
#[inline(always)]
pub fn contribute(packet: &mut Packet<'_>, conf: &JobConf, c: &Contribution) -> Option<Outcome> {
    let pool = Pool::new(conf.slots)?;
    let members = conf.members;
    let slot = SLOTS.get_ptr_mut(conf.slot_base.wrapping_add(pool.slot_of(c.block)))?;
    // SAFETY: a live map value. Under its lock this program is alone with it; user space reads it
    // under the same lock, and writes it only while the job is off. No function is called inside
    // (the verifier would refuse that), so everything in here is inlined.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let state: &mut SlotState = &mut (*slot).state;
        let verdict = state.contribute(pool, members, c);
        let outcome = Outcome { verdict, seen: state.seen, flags: state.flags, tag: state.tag };
        move_lanes(packet, &mut (*slot).lanes, verdict);
        bpf_spin_unlock(&raw mut (*slot).lock);
        Some(outcome)
    }
}

#[inline(always)]
fn move_lanes(packet: &mut Packet<'_>, slot: &mut [Chunk; MAX_CHUNKS], verdict: Verdict) {
    match verdict {
        Verdict::Store { .. } => for_each_chunk(packet, slot, |s, p| lanes::store(s, p)),
        Verdict::Add { complete: false } => for_each_chunk(packet, slot, |s, p| lanes::add(s, p)),
        Verdict::Add { complete: true } => for_each_chunk(packet, slot, lanes::add_and_return),
        Verdict::Resend => for_each_chunk(packet, slot, |s, p| lanes::store(p, s)),
        Verdict::Pending | Verdict::Stale | Verdict::Reject(_) => {}
    }
}

/// The packet was cut to its length before, so the payload ends where the frame ends.
#[inline(always)]
fn for_each_chunk(
    packet: &mut Packet<'_>,
    slot: &mut [Chunk; MAX_CHUNKS],
    work: impl Fn(&mut Chunk, &mut Chunk),
) {
    let mut payload = packet.payload();
    for (index, lanes) in slot.iter_mut().enumerate() {
        let Some(chunk) = payload.chunk(index) else { break };
        work(lanes, chunk);
    }
}
