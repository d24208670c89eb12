//! What comes down from the parent of a job in a tree: results, answers, and the way to it.

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use xdp_agg_common::admission::{Reply, Source, check_parent, is_from_above};
use xdp_agg_common::maps::{JobConf, MAX_JOBS, Reject, Uplink};
use xdp_agg_common::wire::Header;

use crate::answer::send;
use crate::ingress::count;
use crate::maps::{JOBS, UPLINKS};
use crate::packet::Packet;
use crate::slots;
use crate::way::Came;

/// The job whose parent may have sent this: the packet names it by the parent's number, so it is
/// known by its cookie.
#[inline(always)]
pub fn job_of(header: &Header) -> Option<(u16, &'static JobConf)> {
    for job in 0..MAX_JOBS as u32 {
        if let Some(conf) = JOBS.get(job)
            && is_from_above(conf, header)
        {
            return Some((job as u16, conf));
        }
    }
    None
}

/// Takes in a packet to this job's address whose IP packet has `ip_len` bytes, and `payload_len`
/// behind our header.
#[inline(always)]
pub fn answer_reply(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    (job, conf): (u16, &JobConf),
    header: &Header,
    source: Source,
    (ip_len, payload_len): (u16, u16),
) -> Result<Option<u32>, Reject> {
    let uplink = UPLINKS.get_ptr_mut(job.into()).ok_or(Reject::Job)?;
    // SAFETY: a live map value; the fields that are checked change only while the job is off.
    let (reply, said) = check_parent(conf, unsafe { &*uplink }, header, source, payload_len)?;
    packet.fit(ip_len).map_err(|()| Reject::Truncated)?;
    if reply == Reply::Path {
        return Ok(learn(ctx, packet, uplink, (job, header.epoch)));
    }
    let moved = Came::of(ctx, packet).is_some_and(|came| came.learn_parent(uplink));
    let answer = slots::locked_reply(packet, conf, reply, &said);
    let Some((reaction, rank)) = answer else { return Ok(None) };
    count(job, |counters| {
        counters.note_reply(reaction);
        counters.moves += u64::from(moved);
    });
    let header = Header { job, rank, ..*header };
    Ok(send(packet, ctx.ingress_ifindex() as u32, conf, &header, (reaction, 0)))
}

/// Learns the way to the parent from its answer to our probe, which ends here.
#[inline(always)]
fn learn(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    uplink: *mut Uplink,
    (job, epoch): (u16, u16),
) -> Option<u32> {
    let moved = Came::of(ctx, packet)?.learn_parent(uplink);
    // SAFETY: a live map value. Two answers at a time write the same.
    let before = unsafe { core::mem::replace(&mut (*uplink).learned_epoch, epoch) };
    count(job, |counters| counters.moves += u64::from(moved && before == epoch));
    Some(xdp_action::XDP_DROP)
}
