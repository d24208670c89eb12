//! Which packets may touch a slot: version, job, cookie, epoch, member address and sizes, in this
//! order, and at last the job's quota of packets.
//!
//! A packet that fails any of these changes nothing (invariant 4). Both engines ask here. Only
//! packets of members count against a quota, so that a stranger cannot use it up.
//!
//! What an aggregator sends is for the members of a job; a forwarder gets it from its parent, under
//! the parent's number of the job. So the forwarder knows its job by the cookie ([`is_from_above`])
//! and asks [`check_parent`]. A parent's packets are answers to what was sent up, which the quota
//! has counted already.

use crate::lanes::CHUNK_LEN;
use crate::maps::{JobConf, Member, Pace, Phase, Reject, ResultMode, Uplink};
use crate::slot::Contribution;
use crate::wire::{Header, HeaderError, Kind, Reduction};

impl From<HeaderError> for Reject {
    #[inline(always)]
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Version(_) => Self::Version,
            HeaderError::Malformed => Self::Malformed,
        }
    }
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// IPv4 address, host byte order.
    pub addr: u32,
    /// UDP port.
    pub port: u16,
}

/// What an admitted packet asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Contribute a block.
    Contribute(Contribution),
    /// Answer a probe.
    Probe,
}

/// What an admitted packet of the parent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The result of a block.
    Result,
    /// Not all others have contributed to the block that was sent up again.
    Pending,
    /// Our sum is of another call than the others'.
    Mismatch,
    /// The answer to our probe.
    Path,
}

/// Whether a packet that only an aggregator sends may be the parent's of this job. If so,
/// [`check_parent`] decides; if it is of no job, it is checked and refused as a worker's.
#[inline(always)]
#[must_use]
pub fn is_from_above(conf: &JobConf, header: &Header) -> bool {
    conf.forwards != 0 && conf.phase != Phase::Off as u16 && conf.cookie == header.cookie
}

/// Checks a packet of the parent: `conf` and `uplink` are those of the job whose cookie it has.
/// Returns what the packet is, and its block in the form of a contribution to it.
///
/// # Errors
/// The first check that fails.
#[inline(always)]
pub fn check_parent(
    conf: &JobConf,
    uplink: &Uplink,
    header: &Header,
    source: Source,
    payload_len: u16,
) -> Result<(Reply, Contribution), Reject> {
    check_job(conf, header)?;
    if header.job != uplink.job {
        return Err(Reject::Job);
    }
    let parent = uplink.addr != 0 && uplink.addr == source.addr && uplink.port == source.port;
    if !parent || header.rank != uplink.rank {
        return Err(Reject::Member);
    }
    let chunks = chunks_of(conf, payload_len)?;
    let reply = match header.kind {
        Kind::ProbeReply => Reply::Path,
        _ if conf.phase != Phase::Running as u16 => return Err(Reject::Epoch),
        Kind::Result => Reply::Result,
        Kind::Pending => Reply::Pending,
        Kind::Mismatch => Reply::Mismatch,
        Kind::Contribution | Kind::Probe | Kind::Ask => return Err(Reject::Malformed),
    };
    Ok((reply, packet_of(header, chunks)))
}

/// Checks a packet against its job (the entry that `header.job` names).
///
/// # Errors
/// The first check that fails.
#[inline(always)]
pub fn check_job(conf: &JobConf, header: &Header) -> Result<(), Reject> {
    if conf.phase == Phase::Off as u16 {
        return Err(Reject::Job);
    }
    if header.cookie != conf.cookie {
        return Err(Reject::Cookie);
    }
    if header.epoch != conf.epoch {
        return Err(Reject::Epoch);
    }
    if header.rank >= conf.workers {
        return Err(Reject::Member);
    }
    Ok(())
}

/// Checks a packet against its sender's entry (job and rank passed [`check_job`]) and its size:
/// `payload_len` is the number of bytes behind our header.
///
/// # Errors
/// The first check that fails.
#[inline(always)]
pub fn check_member(
    conf: &JobConf,
    member: &Member,
    header: &Header,
    source: Source,
    payload_len: u16,
) -> Result<Request, Reject> {
    if member.addr == 0 || member.addr != source.addr || member.port != source.port {
        return Err(Reject::Member);
    }
    let chunks = chunks_of(conf, payload_len)?;
    match header.kind {
        Kind::Probe => Ok(Request::Probe),
        Kind::Contribution | Kind::Ask if conf.phase != Phase::Running as u16 => {
            // While paths are being learned it cannot come from an honest member.
            Err(Reject::Epoch)
        }
        Kind::Contribution | Kind::Ask if is_consistent(conf, header) => {
            Ok(Request::Contribute(packet_of(header, chunks)))
        }
        _ => Err(Reject::Malformed),
    }
}

/// The chunks of a payload of this many bytes.
#[inline(always)]
fn chunks_of(conf: &JobConf, payload_len: u16) -> Result<u16, Reject> {
    if !payload_len.is_multiple_of(CHUNK_LEN as u16) {
        return Err(Reject::Truncated);
    }
    let chunks = payload_len / CHUNK_LEN as u16;
    if chunks == 0 || chunks > conf.max_chunks {
        return Err(Reject::Size);
    }
    Ok(chunks)
}

/// Whether the packet is allowed: copies alone are asked for, and no copies are above a forwarder
/// ([`crate::copies`]).
#[inline(always)]
fn is_consistent(conf: &JobConf, header: &Header) -> bool {
    match (header.kind, header.reduction) {
        (_, Reduction::Copy) => conf.forwards == 0,
        (kind, _) => !matches!(kind, Kind::Ask),
    }
}

/// What the slot machine needs to know of a packet.
#[inline(always)]
fn packet_of(header: &Header, chunks: u16) -> Contribution {
    Contribution {
        rank: header.rank,
        epoch: header.epoch,
        tag: header.tag,
        chunks,
        flags: header.flags,
        reduction: header.reduction,
        asks: matches!(header.kind, Kind::Ask),
        block: header.block,
    }
}

/// How many packets of the job's quota an admitted packet costs: as many as may go out for it. A
/// contribution to a sum is one of those that the sum's copies go back to. A broadcast's root makes
/// all copies of its block by itself, whether it sends the block for the first time or again.
#[inline(always)]
#[must_use]
pub fn cost(conf: &JobConf, header: &Header) -> u32 {
    match (header.kind, header.reduction) {
        (Kind::Contribution, Reduction::Copy) if conf.mode != ResultMode::Multicast as u16 => {
            conf.members.count_ones()
        }
        _ => 1,
    }
}

impl Pace {
    /// Takes in a packet of this [`cost`] at the time `now`, by a clock that does not go back.
    /// False: it is beyond the quota of `conf`, and changes nothing.
    #[inline(always)]
    pub const fn admit(&mut self, conf: &JobConf, cost: u32, now: u64) -> bool {
        if conf.packet_interval == 0 {
            return true;
        }
        let due = if self.due > now { self.due } else { now };
        if due - now > conf.packet_burst as u64 {
            return false;
        }
        self.due = due.wrapping_add(conf.packet_interval as u64 * cost as u64);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: JobConf = JobConf {
        members: 0b11,
        cookie: 0xdead_beef_0bad_cafe,
        addr: 0x0a00_0001,
        slot_base: 0,
        slots: 8,
        group: 0,
        packet_interval: 0,
        packet_burst: 0,
        group_port: 0,
        port: 0xBEE0,
        epoch: 3,
        workers: 2,
        max_chunks: 22,
        phase: Phase::Running as u16,
        mode: 1,
        forwards: 0,
    };
    const MEMBER: Member = Member {
        heard: 0,
        addr: 0x0a00_0002,
        port: 4000,
        learned_epoch: 3,
        ifindex: 1,
        mac: [0; 6],
        local_mac: [0; 6],
        repetitions: 0,
    };
    const SOURCE: Source = Source { addr: 0x0a00_0002, port: 4000 };
    const HEADER: Header = Header {
        kind: Kind::Contribution,
        flags: 0,
        reduction: Reduction::Min32,
        job: 0,
        cookie: 0xdead_beef_0bad_cafe,
        epoch: 3,
        rank: 1,
        block: 5,
        tag: 9,
    };

    fn admit(
        conf: &JobConf,
        header: &Header,
        source: Source,
        payload_len: u16,
    ) -> Result<Request, Reject> {
        check_job(conf, header)?;
        check_member(conf, &MEMBER, header, source, payload_len)
    }

    #[test]
    fn an_honest_contribution_is_admitted() {
        let request = admit(&CONF, &HEADER, SOURCE, 1408).expect("it is honest");
        let expected = Contribution {
            rank: 1,
            epoch: 3,
            tag: 9,
            chunks: 22,
            flags: 0,
            reduction: Reduction::Min32,
            asks: false,
            block: 5,
        };
        assert_eq!(request, Request::Contribute(expected));
    }

    #[test]
    fn every_check_refuses_with_its_reason() {
        let with = |change: fn(&mut Header)| {
            let mut header = HEADER;
            change(&mut header);
            admit(&CONF, &header, SOURCE, 1408)
        };
        assert_eq!(with(|h| h.cookie += 1), Err(Reject::Cookie));
        assert_eq!(with(|h| h.epoch -= 1), Err(Reject::Epoch));
        assert_eq!(with(|h| h.rank = 2), Err(Reject::Member));
        assert_eq!(with(|h| h.kind = Kind::Result), Err(Reject::Malformed));
        let off = JobConf { phase: Phase::Off as u16, ..CONF };
        assert_eq!(admit(&off, &HEADER, SOURCE, 1408), Err(Reject::Job));
        let probing = JobConf { phase: Phase::Probing as u16, ..CONF };
        assert_eq!(admit(&probing, &HEADER, SOURCE, 1408), Err(Reject::Epoch));
        let probe = Header { kind: Kind::Probe, ..HEADER };
        assert_eq!(admit(&probing, &probe, SOURCE, 1408), Ok(Request::Probe));
        for source in [Source { addr: 1, ..SOURCE }, Source { port: 4001, ..SOURCE }] {
            assert_eq!(admit(&CONF, &HEADER, source, 1408), Err(Reject::Member));
        }
        assert_eq!(admit(&CONF, &HEADER, SOURCE, 1407), Err(Reject::Truncated));
        assert_eq!(admit(&CONF, &HEADER, SOURCE, 0), Err(Reject::Size));
        assert_eq!(admit(&CONF, &HEADER, SOURCE, 1472), Err(Reject::Size));
    }

    #[test]
    fn copies_alone_are_asked_for_and_not_above_a_forwarder() {
        let ask = Header { kind: Kind::Ask, reduction: Reduction::Copy, ..HEADER };
        let Ok(Request::Contribute(c)) = admit(&CONF, &ask, SOURCE, 1408) else {
            panic!("it is honest");
        };
        assert!(c.asks && c.reduction == Reduction::Copy);
        let copy = Header { kind: Kind::Contribution, ..ask };
        assert!(matches!(
            admit(&CONF, &copy, SOURCE, 1408),
            Ok(Request::Contribute(Contribution { asks: false, .. }))
        ));
        let sum = Header { reduction: Reduction::Add, ..ask };
        assert_eq!(admit(&CONF, &sum, SOURCE, 1408), Err(Reject::Malformed));
        let probing = JobConf { phase: Phase::Probing as u16, ..CONF };
        assert_eq!(admit(&probing, &ask, SOURCE, 1408), Err(Reject::Epoch));
        let forwarder = JobConf { forwards: 1, ..CONF };
        for header in [ask, copy] {
            assert_eq!(admit(&forwarder, &header, SOURCE, 1408), Err(Reject::Malformed));
        }
    }

    const UPLINK: Uplink = Uplink {
        addr: 0x0a00_0063,
        port: 0xBEE0,
        job: 5,
        rank: 1,
        learned_epoch: 3,
        ifindex: 2,
        mac: [0; 6],
        local_mac: [0; 6],
    };
    const ABOVE: JobConf = JobConf { forwards: 1, ..CONF };
    const PARENT: Source = Source { addr: 0x0a00_0063, port: 0xBEE0 };
    const RESULT: Header = Header { kind: Kind::Result, job: 5, ..HEADER };

    #[test]
    fn the_parent_is_admitted_by_what_it_may_send() {
        assert!(is_from_above(&ABOVE, &RESULT) && !is_from_above(&CONF, &RESULT));
        assert!(!is_from_above(&ABOVE, &Header { cookie: 1, ..RESULT }));
        let off = JobConf { phase: Phase::Off as u16, ..ABOVE };
        assert!(!is_from_above(&off, &RESULT));
        let reply = |conf: &JobConf, kind| {
            check_parent(conf, &UPLINK, &Header { kind, ..RESULT }, PARENT, 1408)
        };
        let Ok(Request::Contribute(same)) = admit(&CONF, &HEADER, SOURCE, 1408) else {
            panic!("it is honest");
        };
        let probing = JobConf { phase: Phase::Probing as u16, ..ABOVE };
        for (kind, expected, early) in [
            (Kind::Result, Ok((Reply::Result, same)), Err(Reject::Epoch)),
            (Kind::Pending, Ok((Reply::Pending, same)), Err(Reject::Epoch)),
            (Kind::Mismatch, Ok((Reply::Mismatch, same)), Err(Reject::Epoch)),
            (Kind::ProbeReply, Ok((Reply::Path, same)), Ok((Reply::Path, same))),
            (Kind::Probe, Err(Reject::Malformed), Err(Reject::Epoch)),
            (Kind::Contribution, Err(Reject::Malformed), Err(Reject::Epoch)),
            (Kind::Ask, Err(Reject::Malformed), Err(Reject::Epoch)),
        ] {
            assert_eq!(reply(&ABOVE, kind), expected, "{kind:?}");
            assert_eq!(reply(&probing, kind), early, "{kind:?}");
        }
    }

    #[test]
    fn nobody_else_is_the_parent() {
        let check = |header: &Header, source, len| {
            check_parent(&ABOVE, &UPLINK, header, source, len).expect_err("it is refused")
        };
        let with = |change: fn(&mut Header)| {
            let mut header = RESULT;
            change(&mut header);
            check(&header, PARENT, 1408)
        };
        assert_eq!(with(|h| h.cookie += 1), Reject::Cookie);
        assert_eq!(with(|h| h.epoch -= 1), Reject::Epoch);
        assert_eq!(with(|h| h.rank = 2), Reject::Member);
        assert_eq!(with(|h| h.rank = 0), Reject::Member);
        assert_eq!(with(|h| h.job = 0), Reject::Job);
        for source in [Source { addr: 1, ..PARENT }, Source { port: 1, ..PARENT }, SOURCE] {
            assert_eq!(check(&RESULT, source, 1408), Reject::Member);
        }
        let none = Uplink { addr: 0, port: 0, ..UPLINK };
        let nobody = Source { addr: 0, port: 0 };
        let refused = check_parent(&ABOVE, &none, &RESULT, nobody, 64);
        assert_eq!(refused, Err(Reject::Member), "without a parent nobody is it");
        for (len, reason) in [(1407, Reject::Truncated), (0, Reject::Size), (1472, Reject::Size)] {
            assert_eq!(check(&RESULT, PARENT, len), reason);
        }
    }

    /// Rank 1's own entry is empty before it registers: nobody may speak for it, not even address
    /// 0.
    #[test]
    fn an_empty_entry_admits_nobody() {
        let empty = Member::default();
        let nobody = Source { addr: 0, port: 0 };
        assert_eq!(check_member(&CONF, &empty, &HEADER, nobody, 64), Err(Reject::Member));
    }

    #[test]
    fn a_quota_lets_its_rate_through_and_no_more() {
        let conf = JobConf { packet_interval: 1000, packet_burst: 10_000, ..CONF };
        let mut pace = Pace::default();
        let at_once = (0..100).filter(|_| pace.admit(&conf, 1, 5_000_000)).count();
        assert_eq!(at_once, 11, "the burst, and the one that is due");
        // Ten times the rate, for a second: a tenth of it passes, whatever was refused.
        let passed =
            (0..10_000_000_u64).filter(|i| pace.admit(&conf, 1, 5_000_000 + i * 100)).count();
        assert!((999_990..=1_000_010).contains(&passed), "{passed}");
        let mut free = Pace::default();
        assert!((0..1000).all(|_| free.admit(&CONF, 64, 0)));
    }

    #[test]
    fn a_packet_costs_what_it_makes() {
        let copy = Header { reduction: Reduction::Copy, ..HEADER };
        let of_all = JobConf { members: u64::MAX, packet_interval: 10, packet_burst: 0, ..CONF };
        assert_eq!((cost(&CONF, &HEADER), cost(&of_all, &HEADER)), (1, 1));
        assert_eq!((cost(&CONF, &copy), cost(&of_all, &copy)), (2, 64));
        let others = [Kind::Ask, Kind::Probe].map(|kind| cost(&of_all, &Header { kind, ..copy }));
        assert_eq!(others, [1, 1], "one answer goes out");
        let group = JobConf { mode: ResultMode::Multicast as u16, ..of_all };
        assert_eq!(cost(&group, &copy), 1, "the switch makes the copies");
        // At any rate of packets in, a broadcast to 64 sends no more than the quota.
        let mut pace = Pace::default();
        let out: u32 = (0..1_000_000)
            .filter(|now| pace.admit(&of_all, cost(&of_all, &copy), 1 + now))
            .map(|_| 64)
            .sum();
        assert!((100_000 - 64..=100_000 + 64).contains(&out), "{out}");
    }
}
