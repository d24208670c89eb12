//! The way to a job's parent: probes, and what a forwarder needs before it may start.

use std::net::SocketAddrV4;

use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobConf, ResultMode, Uplink};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use super::Error;

/// Where the parent receives.
#[must_use]
pub fn address(up: &Uplink) -> SocketAddrV4 {
    SocketAddrV4::new(up.addr.into(), up.port)
}

/// Whether nothing is to be learned (any more): there is no parent, or it has answered a probe of
/// this epoch.
#[must_use]
pub fn is_learned(conf: &JobConf, up: &Uplink) -> bool {
    conf.forwards == 0 || up.learned_epoch == conf.epoch
}

/// Whether the parent of a job that is to start has answered, by a way that is `usable`.
///
/// # Errors
/// It has not.
pub fn check(
    conf: &JobConf,
    up: &Uplink,
    usable: impl FnOnce(&Uplink) -> bool,
) -> Result<(), Error> {
    let ready = conf.forwards == 0 || is_learned(conf, up) && usable(up);
    if ready { Ok(()) } else { Err(Error::NoUplink(address(up))) }
}

/// Whether the results of a job with these forwarders among its members may go out in this mode.
///
/// # Errors
/// They may not: a mode that fits.
pub fn check_mode(mode: ResultMode, forwarders: u64) -> Result<(), Error> {
    if mode != ResultMode::Multicast || forwarders == 0 {
        return Ok(());
    }
    let ranks = (0..64).filter(|rank| forwarders >> rank & 1 == 1).map(|rank| rank.to_string());
    let why = format!(
        "the members {} are aggregators, which take only results that are addressed to them; \
         fanout fits (with the XDP engine: on interfaces whose driver takes native XDP)",
        ranks.collect::<Vec<_>>().join(", ")
    );
    Err(Error::Mode { mode: mode.name(), why })
}

/// A probe of full block size: what the parent's answer to it proves, a contribution can rely on.
#[must_use]
pub fn probe(conf: &JobConf, up: &Uplink) -> Vec<u8> {
    let header = Header {
        kind: Kind::Probe,
        flags: 0,
        reduction: Reduction::Add,
        job: up.job,
        rank: up.rank,
        cookie: conf.cookie,
        epoch: conf.epoch,
        block: 0,
        tag: 0,
    };
    let mut packet = vec![0; HEADER_LEN + usize::from(conf.max_chunks) * CHUNK_LEN];
    if let Some(front) = packet.first_chunk_mut() {
        header.emit(front);
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: JobConf = JobConf {
        members: 0b11,
        cookie: 7,
        addr: 0x0a00_0001,
        slot_base: 0,
        slots: 8,
        group: 0,
        packet_interval: 0,
        packet_burst: 0,
        group_port: 0,
        port: 0xBEE0,
        epoch: 3,
        workers: 4,
        max_chunks: 22,
        phase: 1,
        mode: 0,
        forwards: 1,
    };

    #[test]
    fn a_forwarder_starts_when_its_parent_answered_in_this_epoch() {
        let up = Uplink { addr: 0x0a00_0002, port: 5, learned_epoch: 2, ..Uplink::default() };
        let error = check(&CONF, &up, |_| true).expect_err("that was in another epoch");
        assert!(error.to_string().contains("10.0.0.2:5"), "{error}");
        let here = Uplink { learned_epoch: 3, ..up };
        check(&CONF, &here, |_| true).expect("it answered");
        let error = check(&CONF, &here, |_| false).expect_err("by no interface of ours");
        assert!(matches!(error, Error::NoUplink(_)), "{error}");
        let root = JobConf { forwards: 0, ..CONF };
        check(&root, &Uplink::default(), |_| false).expect("it has no parent");
    }

    #[test]
    fn forwarders_and_multicast_do_not_go_together() {
        check_mode(ResultMode::Fanout, 0b101).expect("each has its own copy");
        check_mode(ResultMode::Multicast, 0).expect("workers join the group");
        let error = check_mode(ResultMode::Multicast, 0b101).expect_err("forwarders do not");
        assert!(error.to_string().contains("members 0, 2 are"), "{error}");
    }

    #[test]
    fn a_probe_has_the_size_of_a_block_and_the_parents_number() {
        let up = Uplink { job: 9, rank: 2, ..Uplink::default() };
        let packet = probe(&CONF, &up);
        assert_eq!(packet.len(), HEADER_LEN + 1408);
        let header = Header::parse(packet.first_chunk().expect("a header")).expect("it is ours");
        assert_eq!((header.kind, header.job, header.rank), (Kind::Probe, 9, 2));
        assert_eq!((header.cookie, header.epoch), (7, 3));
    }
}
