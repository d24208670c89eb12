//! A packet that came in: which job it is for, whether it is admitted, and what becomes of it.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use aya_ebpf::helpers::{bpf_spin_lock, bpf_spin_unlock};
use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use xdp_agg_common::admission::{Request, Source, check_job, check_member, cost};
use xdp_agg_common::frame::{ETH_LEN, ETHERTYPE_IPV4, IP_LEN, IP_OVERHEAD};
use xdp_agg_common::maps::{
    Event, JobConf, JobCounters, MAX_JOBS, Member, Phase, Reject, member_index,
};
use xdp_agg_common::slot::{Contribution, Verdict};
use xdp_agg_common::wire::{Header, Kind};

use crate::above;
use crate::answer::{send, to_sender};
use crate::maps::{COUNTERS, EVENTS, JOBS, MEMBERS, QUOTAS, Settings};
use crate::packet::{Network, Packet};
use crate::slots;
use crate::way::Came;

/// A packet to our port that changes nothing.
#[derive(Clone, Copy)]
pub struct Refusal {
    reason: Reject,
    source: Source,
    /// Address that it was sent to.
    to: u32,
    /// Entry of the counters.
    job: u16,
    rank: u16,
    block: u64,
    version: u8,
}

impl Refusal {
    /// Of a packet of which only source and destination are known.
    #[inline(always)]
    fn of(network: &Network) -> Self {
        let port = u16::from_be_bytes(network.port_from);
        Self {
            reason: Reject::Truncated,
            source: Source { addr: network.ip.source(), port },
            to: network.ip.destination(),
            job: MAX_JOBS as u16,
            rank: u16::MAX,
            block: 0,
            version: 0,
        }
    }

    /// Whether the packet may be another host's: it was refused before its address was compared
    /// with a job's, and no job here has or had that address. Only refused packets are asked, so
    /// it costs honest packets nothing.
    #[inline(always)]
    pub fn is_others(&self, ifindex: u32) -> bool {
        // Where the address is set, `is_ours` has compared it.
        let open = Settings::data_addr() == 0 && !Settings::is_local(ifindex);
        // An entry that was never used has 0.
        let has = |conf: &JobConf| conf.addr != 0 && conf.addr == self.to;
        open && self.job == MAX_JOBS as u16
            && !(0..MAX_JOBS as u32).any(|job| JOBS.get(job).is_some_and(has))
    }
}

/// Decides over a packet. What is not ours goes on to the kernel as it came.
#[inline(always)]
pub fn receive(ctx: &XdpContext) -> Result<u32, Refusal> {
    let mut packet = Packet::new(ctx);
    let frame_len = packet.len();
    let ifindex = ctx.ingress_ifindex() as u32;
    let Some(network) = packet.network() else { return Ok(xdp_action::XDP_PASS) };
    if !is_ours(network, ifindex) {
        return Ok(xdp_action::XDP_PASS);
    }
    let (ip_len, addr) = (network.ip.total_len(), network.ip.destination());
    let mut refusal = Refusal::of(network);
    let udp_len = u16::from_be_bytes(network.udp_len);
    let len = ETH_LEN + usize::from(ip_len);
    // Where nothing is to be cut off, what other buffers hold does no harm, and asking costs 8 ns.
    if ip_len < IP_OVERHEAD as u16
        || udp_len != ip_len - IP_LEN as u16
        || frame_len < len
        || (frame_len > len && packet.is_split())
    {
        return Err(refusal);
    }
    let Some(headers) = packet.headers() else { return Err(refusal) };
    refusal.version = headers.ours[0] >> 4;
    let header = match Header::parse(&headers.ours) {
        Ok(header) => header,
        Err(error) => return Err(Refusal { reason: error.into(), ..refusal }),
    };
    refusal.rank = header.rank;
    refusal.block = header.block;
    let payload_len = ip_len - IP_OVERHEAD as u16;
    // A parent is another host.
    if header.kind.is_answer()
        && !Settings::is_local(ifindex)
        && let Some(job) = above::job_of(&header)
    {
        return from_above(ctx, &mut packet, job, (&header, addr), (ip_len, payload_len), &refusal);
    }
    let conf = match JOBS.get(header.job.into()) {
        Some(conf) if conf.phase != Phase::Off as u16 => conf,
        _ => return Err(Refusal { reason: Reject::Job, ..refusal }),
    };
    if addr != Settings::addr_behind(ifindex, conf) {
        return Ok(xdp_action::XDP_PASS);
    }
    refusal.job = header.job;
    let (member, request) = match admit(conf, &header, refusal.source, ifindex, payload_len) {
        Ok(admitted) => admitted,
        Err(reason) => return Err(Refusal { reason, ..refusal }),
    };
    if !within_quota(conf, &header) {
        return Err(Refusal { reason: Reject::Quota, ..refusal });
    }
    // From here on the frame is as long as its packet: what pads it does not come back.
    if packet.fit(ip_len).is_err() {
        return Err(refusal);
    }
    let action = match request {
        Request::Probe => answer_probe(ctx, &mut packet, &header, member),
        Request::Contribute(c) => {
            answer_contribution(ctx, &mut packet, conf, &header, (&c, member), &refusal)
        }
    };
    Ok(action.unwrap_or(xdp_action::XDP_ABORTED))
}

/// Decides over a packet that only an aggregator sends, to this address, under the cookie of a job
/// that has a parent.
#[inline(always)]
fn from_above(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    (job, conf): (u16, &JobConf),
    (header, addr): (&Header, u32),
    lens: (u16, u16),
    refusal: &Refusal,
) -> Result<u32, Refusal> {
    if addr != conf.addr {
        return Ok(xdp_action::XDP_PASS);
    }
    match above::answer_reply(ctx, packet, (job, conf), header, refusal.source, lens) {
        Ok(action) => Ok(action.unwrap_or(xdp_action::XDP_ABORTED)),
        Err(reason) => Err(Refusal { reason, job, ..*refusal }),
    }
}

#[inline(always)]
pub fn is_ours(network: &Network, ifindex: u32) -> bool {
    let local = Settings::is_local(ifindex);
    let wanted = if local { Settings::local_addr() } else { Settings::data_addr() };
    u16::from_be_bytes(network.ethertype) == ETHERTYPE_IPV4
        && network.ip.is_plain_udp()
        && u16::from_be_bytes(network.port_to) == Settings::data_port()
        && (wanted == 0 || network.ip.destination() == wanted)
}

#[inline(always)]
fn admit(
    conf: &JobConf,
    header: &Header,
    source: Source,
    ifindex: u32,
    payload_len: u16,
) -> Result<(*mut Member, Request), Reject> {
    check_job(conf, header)?;
    let member =
        MEMBERS.get_ptr_mut(member_index(header.job, header.rank)).ok_or(Reject::Member)?;
    // SAFETY: a live map value; the fields that are checked change only while the job is off.
    let request = check_member(conf, unsafe { &*member }, header, source, payload_len)?;
    // A worker of this host has one way in, and no other has it: the daemon registered which.
    // SAFETY: as above; learning a path does not change on which side of us the member is.
    if Settings::is_local(unsafe { (*member).ifindex }) != Settings::is_local(ifindex) {
        return Err(Reject::Member);
    }
    Ok((member, request))
}

/// Whether the job's quota has room for one more packet of its members.
#[inline(always)]
fn within_quota(conf: &JobConf, header: &Header) -> bool {
    if conf.packet_interval == 0 {
        return true;
    }
    let Some(quota) = QUOTAS.get_ptr_mut(header.job.into()) else { return false };
    let cost = cost(conf, header);
    // SAFETY: the helper takes nothing. Not the coarse clock: its steps are longer than bursts.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a live map value, whose pace is touched under its lock alone while the job is not
    // off. Nothing is called inside.
    unsafe {
        bpf_spin_lock(&raw mut (*quota).lock);
        let admitted = (*quota).pace.admit(conf, cost, now);
        bpf_spin_unlock(&raw mut (*quota).lock);
        admitted
    }
}

/// Notes that the member contributes. The coarse clock costs a load, and its steps of some
/// milliseconds keep the entry's cache line clean between them.
#[inline(always)]
fn hear(member: *mut Member) {
    // SAFETY: the helper takes nothing.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    // SAFETY: a live map value. Two packets of one member at a time write the same or nearly so.
    unsafe {
        if (*member).heard != now {
            (*member).heard = now;
        }
    }
}

/// Learns the way to the sender, and sends the probe back.
#[inline(always)]
fn answer_probe(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    header: &Header,
    member: *mut Member,
) -> Option<u32> {
    let moved = Came::of(ctx, packet)?.learn_member(member);
    // SAFETY: a live map value. Two probes of one member at a time write the same.
    let before = unsafe { core::mem::replace(&mut (*member).learned_epoch, header.epoch) };
    count(header.job, |counters| {
        counters.probes += 1;
        counters.moves += u64::from(moved && before == header.epoch);
    });
    let reply = Header { kind: Kind::ProbeReply, flags: 0, ..*header };
    let sum = packet.payload_sum();
    to_sender(packet, ctx.ingress_ifindex() as u32, sum, &reply)
}

/// Takes a contribution in, and answers it as the slot machine says.
#[inline(always)]
fn answer_contribution(
    ctx: &XdpContext,
    packet: &mut Packet<'_>,
    conf: &JobConf,
    header: &Header,
    (c, member): (&Contribution, *mut Member),
    refusal: &Refusal,
) -> Option<u32> {
    let (pool, outcome) = slots::locked(packet, conf, c)?;
    if let Verdict::Reject(reason) = outcome.verdict {
        report(&Refusal { reason, ..*refusal });
    } else {
        hear(member);
        if outcome.verdict.is_repetition(c.asks) {
            // SAFETY: a live map value. Other CPUs may count the same member's. The result is not
            // used.
            unsafe {
                let repetitions = &raw mut (*member).repetitions;
                atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(repetitions, 1);
            }
        }
        let moved = Came::of(ctx, packet)?.learn_member(member);
        count(header.job, |counters| {
            counters.note(&outcome, c.asks, pool);
            counters.moves += u64::from(moved);
        });
    }
    let header = Header { flags: outcome.flags, ..*header };
    let answer = (outcome.reaction(pool), outcome.word());
    send(packet, ctx.ingress_ifindex() as u32, conf, &header, answer)
}

/// Counts something of a job, or of packets that belong to no job.
#[inline(always)]
pub fn count(job: u16, change: impl FnOnce(&mut JobCounters)) {
    if let Some(counters) = COUNTERS.get_ptr_mut(job.into()) {
        // SAFETY: this CPU's own counters; a program is not interrupted by another one.
        change(unsafe { &mut *counters });
    }
}

/// Counts a refused packet, and tells user space about a few of them.
#[inline(always)]
pub fn report(refusal: &Refusal) {
    let mut times = 0_u64;
    // The compiler knows that a reason is below the number of counters and would leave the check
    // out; the verifier knows no enums, and wants it.
    let reason = core::hint::black_box(refusal.reason as u8);
    count(refusal.job, |counters| {
        if let Some(counter) = counters.rejects.get_mut(usize::from(reason)) {
            *counter += 1;
            times = *counter;
        }
    });
    if !times.is_power_of_two() {
        return;
    }
    let event = Event {
        block: refusal.block,
        addr: refusal.source.addr,
        count: times as u32,
        port: refusal.source.port,
        job: if refusal.job == MAX_JOBS as u16 { u16::MAX } else { refusal.job },
        rank: refusal.rank,
        reason,
        version: refusal.version,
    };
    // Where the ring is full, the counters still tell.
    let _ = EVENTS.output(event, 0);
}
