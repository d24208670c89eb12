//! What lets a test run of the kernel repeat a packet that counts only once.
//!
//! `BPF_PROG_TEST_RUN` runs a program again and again on one packet. The aggregator takes a
//! contribution once; a repetition takes another path. So the benchmark runs `step`: it writes the
//! headers of the next contribution into the packet and goes on in the aggregator, as it is, by a
//! tail call. What `step` itself takes is measured by letting it go on in `floor`.
#![no_std]
#![no_main]

#[expect(dead_code, reason = "shared with the aggregator, which needs more of it")]
mod packet;

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, ProgramArray},
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use xdp_agg_common::frame::{ETH_LEN, PAYLOAD_OFFSET};
use xdp_agg_common::lanes::{self, Chunk};

use packet::Packet;

/// Which contribution is next. Written by the benchmark.
#[repr(C)]
pub struct Step {
    /// Contributions made so far.
    done: u64,
    /// The first block.
    first_block: u64,
    /// Two to this power is the number of blocks in a round.
    blocks_log2: u32,
    /// Rank of the first round.
    first_rank: u16,
    /// UDP port of rank 0; the others follow.
    first_port: u16,
    /// Length of the frame.
    frame_len: u32,
    /// Blocks that a round begins after the one before it.
    blocks_per_round: u16,
    /// Ranks that a round is after the one before it.
    ranks_per_round: u16,
}

#[btf_map]
static STEP: Array<Step, 1> = Array::new();
/// All headers of rank 0's contribution to block 0.
#[btf_map]
static HEADERS: Array<Chunk, 1> = Array::new();
/// Where `step` goes on.
#[btf_map]
static NEXT: ProgramArray<1> = ProgramArray::new();

/// Prepares the next contribution and goes on in the program under test.
#[xdp(frags)]
pub fn step(ctx: XdpContext) -> u32 {
    if next(&ctx).is_some() {
        // SAFETY: nothing is left to drop here; on success this does not return.
        unsafe { NEXT.tail_call(&ctx, 0) };
    }
    xdp_action::XDP_ABORTED
}

/// As short as a program can be: what the run itself takes.
#[xdp(frags)]
pub fn floor(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_DROP
}

#[inline(always)]
fn next(ctx: &XdpContext) -> Option<()> {
    let step = STEP.get_ptr_mut(0)?;
    // SAFETY: a live map value that one test run at a time uses.
    let step = unsafe { &mut *step };
    let turn = step.done;
    step.done = turn + 1;
    let log2 = step.blocks_log2 & 31;
    let round = turn >> log2;
    let in_round = turn & ((1 << log2) - 1);
    let block = step.first_block + round * u64::from(step.blocks_per_round) + in_round;
    let rank = step.first_rank + round as u16 * step.ranks_per_round;
    let mut packet = Packet::new(ctx);
    // An answer may have cut the packet.
    packet.fit((step.frame_len - ETH_LEN as u32) as u16).ok()?;
    lanes::store(packet.front()?, HEADERS.get(0)?);
    let headers = packet.headers()?;
    headers.network.port_from = (step.first_port + rank).to_be_bytes();
    let [_, _, b @ ..] = block.to_be_bytes();
    // Ranks are below 256, so one byte holds them (`xdp_agg_common::wire`).
    headers.ours[3] = rank as u8;
    headers.ours[14..20].copy_from_slice(&b);
    Some(())
}

const _: () = assert!(size_of::<Chunk>() == PAYLOAD_OFFSET);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: the verifier would not accept this loop.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
