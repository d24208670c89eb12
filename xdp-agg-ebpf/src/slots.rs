//! A packet and its slot: one critical section a packet.

use aya_ebpf::helpers::{bpf_spin_lock, bpf_spin_unlock};
use xdp_agg_common::lanes::Chunk;
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::slot::{Pool, SlotState};

use crate::maps::SLOTS;

/// Does this with the slot that a block falls into. None where the job's configuration names no
/// slot. The verifier refuses calls under the lock, so everything in `work` has to be inlined.
#[inline(always)]
pub fn locked<T>(
    conf: &JobConf,
    block: u64,
    work: impl FnOnce(Pool, (&mut SlotState, &mut [Chunk])) -> T,
) -> Option<T> {
    let pool = Pool::of(conf)?;
    let slot = SLOTS.get_ptr_mut(conf.slot_base.wrapping_add(pool.slot_of(block)))?;
    // SAFETY: a live map value. Under its lock this program is alone with it; user space reads it
    // under the same lock, and writes it only while the job is off.
    unsafe {
        bpf_spin_lock(&raw mut (*slot).lock);
        let done = work(pool, (&mut (*slot).state, &mut (&mut (*slot).lanes)[..]));
        bpf_spin_unlock(&raw mut (*slot).lock);
        Some(done)
    }
}
