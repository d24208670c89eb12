//! What comes down from the parent of a job in a tree: results, answers, and the way to it.

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use xdp_agg_common::admission::{Reply, Source, check_parent, is_from_above};
use xdp_agg_common::maps::{JobConf, MAX_JOBS, Reject, ResultMode, Uplink, member_index};
use xdp_agg_common::wire::Header;

use crate::answer::{Way, to_all, to_one};
use crate::ingress::count;
use crate::maps::{JOBS, MEMBERS, UPLINKS};
use crate::packet::{Headers, Packet};
use crate::slots;

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
pub fn take_in(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    (job, conf): (u16, &JobConf),
    header: &Header,
    source: Source,
    (ip_len, payload_len): (u16, u16),
) -> Result<Option<u32>, Reject> {
    let uplink = UPLINKS.get_ptr_mut(job.into()).ok_or(Reject::Job)?;
    // SAFETY: a live map value; the fields that are checked change only while the job is off.
    let reply = check_parent(conf, unsafe { &*uplink }, header, source, payload_len)?;
    packet.fit(ip_len).map_err(|()| Reject::Truncated)?;
    let header = &Header { job, ..*header };
    Ok(match reply {
        Reply::Path => learn(ctx, packet, uplink, header),
        Reply::Result(result) => match slots::deliver(packet, conf, &result) {
            Some(()) => {
                count(job, |counters| counters.deliveries += 1);
                let multicast = conf.mode == ResultMode::Multicast as u16;
                to_all(packet, conf, header, header.flags, multicast)
            }
            None => late(job),
        },
        Reply::Pending => match slots::waiting(conf, header) {
            Some(rank) => relay(packet, conf, header, rank),
            None => late(job),
        },
        Reply::Mismatch => relay(packet, conf, header, conf.members.trailing_zeros() as u16),
    })
}

#[inline(always)]
fn late(job: u16) -> Option<u32> {
    count(job, |counters| counters.late += 1);
    Some(xdp_action::XDP_DROP)
}

/// Learns the way to the parent from its answer to our probe, which ends here.
#[inline(always)]
fn learn(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    uplink: *mut Uplink,
    header: &Header,
) -> Option<u32> {
    let Headers { network, .. } = packet.headers()?;
    // SAFETY: a live map value. Two answers at a time write the same.
    unsafe {
        (*uplink).mac = network.mac_from.into();
        (*uplink).local_mac = network.mac_to.into();
        (*uplink).ifindex = ctx.ingress_ifindex() as u32;
        (*uplink).learned_epoch = header.epoch;
    }
    Some(xdp_action::XDP_DROP)
}

/// Hands the parent's answer on to a member.
#[inline(always)]
fn relay(packet: &mut Packet<'_>, conf: &JobConf, header: &Header, rank: u16) -> Option<u32> {
    let member = MEMBERS.get(member_index(header.job, rank))?;
    count(header.job, |counters| counters.relays += 1);
    to_one(packet, conf, &Way::to_member(member, conf), &Header { rank, ..*header })
}
