//! A packet of ours on its way out of an interface: most often one copy of a result.

use aya_ebpf::programs::XdpContext;
use xdp_agg_common::checksum::{Ends, Sum};
use xdp_agg_common::maps::{Fan, JobConf, Member, Phase, UNADDRESSED, copy_index, member_index};
use xdp_agg_common::wire::{EVERYBODY, Header, Kind};

use crate::answer::address;
use crate::maps::{COPIES, COUNTERS, FANS, JOBS, MEMBERS, Settings};
use crate::packet::Packet;

/// Addresses the copy to its recipient. None: it has no recipient.
#[inline(always)]
pub fn address_copy(ctx: &XdpContext, ifindex: u32) -> Option<()> {
    let mut packet = Packet::new(ctx);
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let mut header = Header::parse(&headers.ours).ok()?;
    // Only results are copied. Anything else is addressed already, and may have the parent's number
    // of a job. Also addressed are the one packet to a group, and a result to one worker, which was
    // counted where it was made (it may leave by `XDP_TX`).
    if header.kind as u8 != Kind::Result as u8 || header.rank != UNADDRESSED {
        if header.kind as u8 == Kind::Result as u8 && header.rank == EVERYBODY {
            count_copy(header.job);
        }
        return Some(());
    }
    let conf = JOBS.get(header.job.into())?;
    // The job may have ended between the broadcast and here.
    if conf.phase != Phase::Running as u16
        || conf.cookie != header.cookie
        || conf.epoch != header.epoch
    {
        return None;
    }
    let member = recipient(ifindex, conf, &mut header)?;
    let network = &mut headers.network;
    network.mac_to = member.mac.into();
    network.mac_from = member.local_mac.into();
    let from = Settings::addr_behind(member.ifindex, conf);
    let ends = Ends { from: (from, conf.port), to: (member.addr, member.port) };
    let shared = Sum::from_field(network.udp_sum);
    address(network, ends, payload_len, (shared, header.rank));
    header.emit(&mut headers.ours);
    count_copy(header.job);
    Some(())
}

#[inline(always)]
fn count_copy(job: u16) {
    if let Some(counters) = COUNTERS.get_ptr_mut(job.into()) {
        // SAFETY: this CPU's own counters; a program is not interrupted by another one.
        unsafe { (*counters).copies += 1 };
    }
}

/// The copies of a broadcast come through here one after the other, on the CPU that sent it, in
/// the order of the device map. The first of this broadcast on this interface is copy 0.
#[inline(always)]
fn recipient(ifindex: u32, conf: &JobConf, header: &mut Header) -> Option<&'static Member> {
    let fan: *mut Fan = FANS.get_ptr_mut(ifindex)?;
    // SAFETY: this CPU's own value, of an entry that stays as long as the program.
    let (port, copy) = unsafe {
        if (*fan).block != header.block || (*fan).cookie != conf.cookie {
            (*fan).block = header.block;
            (*fan).cookie = conf.cookie;
            (*fan).next = 0;
        }
        let copy = (*fan).next;
        (*fan).next = copy + 1;
        ((*fan).port, copy)
    };
    if copy >= conf.workers.into() {
        return None;
    }
    let rank = COPIES.get(copy_index(header.job, port, copy))?.checked_sub(1)?;
    header.rank = rank;
    MEMBERS.get(member_index(header.job, rank))
}
