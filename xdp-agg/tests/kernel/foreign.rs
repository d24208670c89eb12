//! What is not ours: it passes as it came, or is refused, and changes nothing.

use std::net::SocketAddrV4;

use etherparse::PacketBuilder;
use xdp_agg::engine::Engine as _;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::{Header, VERSION};

use crate::frames::{Frame, OUR_MAC, worker_mac};
use crate::setup::{AGGREGATOR, DROP, PASS, PORT, counters, header, job, running, worker};

/// Frames that a host receives all the time, or that look a little like ours.
fn foreign() -> Vec<(&'static str, Vec<u8>)> {
    let honest = Frame::from_worker(0, &header(&job(2, 1), 0, 0), 2).bytes;
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut frame = honest.clone();
        change(&mut frame);
        frame
    };
    let mut arp = vec![0xff; 6];
    arp.extend(worker_mac(0));
    arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.resize(60, 0);
    let built = |builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>| {
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &honest[42..]).expect("it fits a vector");
        bytes
    };
    let mut tcp = Vec::new();
    PacketBuilder::ethernet2(worker_mac(0), OUR_MAC)
        .ipv4(worker(0).ip().octets(), AGGREGATOR.octets(), 64)
        .tcp(4000, PORT, 1, 1000)
        .write(&mut tcp, &[0; 100])
        .expect("it fits a vector");
    vec![
        ("ARP", arp),
        ("TCP", tcp),
        (
            "IPv6",
            built(
                PacketBuilder::ethernet2(worker_mac(0), OUR_MAC)
                    .ipv6([1; 16], [2; 16], 64)
                    .udp(4000, PORT),
            ),
        ),
        (
            "VLAN",
            built(
                PacketBuilder::ethernet2(worker_mac(0), OUR_MAC)
                    .single_vlan(etherparse::VlanId::try_new(7).expect("12 bits"))
                    .ipv4(worker(0).ip().octets(), AGGREGATOR.octets(), 64)
                    .udp(4000, PORT),
            ),
        ),
        ("another port", changed(|f| f[37] ^= 1)),
        ("IP options", changed(|f| f[14] = 0x46)),
        ("first fragment", changed(|f| f[20] = 0x20)),
        ("later fragment", changed(|f| f[21] = 1)),
    ]
}

#[test]
fn foreign_packets_pass_untouched() {
    let Some((mut engine, job)) = running(2) else { return };
    let before = counters(&mut engine, &job);
    for (what, frame) in foreign() {
        for len in 14..=frame.len() {
            let mut out = frame[..len].to_vec();
            let action = engine.test_run(&mut out, 1).expect("it runs").action;
            assert_eq!((action, &out[..]), (PASS, &frame[..len]), "{what}, {len} bytes");
        }
    }
    assert_eq!(counters(&mut engine, &job), before);
}

/// A host that forwards, or whose ports are bridged, sees what others send to other aggregators:
/// their port is the same, and so may their jobs' numbers be.
#[test]
fn packets_to_another_aggregator_pass_untouched() {
    let Some((mut engine, job)) = running(2) else { return };
    let before = counters(&mut engine, &job);
    let ours = header(&job, 0, 0);
    let of_job = |number| Frame::from_worker(0, &Header { job: number, ..ours }, 2).bytes;
    let cases = [
        ("a job that is not here", of_job(job.job_id + 1)),
        ("no job's number at all", of_job(u16::from(u8::MAX))),
        ("a job of the same number", of_job(job.job_id)),
        ("garbage", {
            let to = SocketAddrV4::new(AGGREGATOR, PORT);
            Frame::udp(worker_mac(0), worker(0), to, &[1; 100]).bytes
        }),
        ("cut", of_job(job.job_id)[..50].to_vec()),
    ];
    for (what, mut frame) in cases {
        let run = |engine: &XdpEngine, frame: &[u8]| {
            let mut out = frame.to_vec();
            let action = engine.test_run(&mut out, 1).expect("it runs").action;
            assert_eq!(out, frame, "{what}");
            action
        };
        if what != "a job of the same number" {
            assert_eq!(run(&engine, &frame), DROP, "{what}, to us");
        }
        // The address is read from the packet alone.
        frame[30..34].copy_from_slice(&[10, 9, 9, 9]);
        assert_eq!(run(&engine, &frame), PASS, "{what}");
    }
    let (own, unattributed) = counters(&mut engine, &job);
    assert_eq!(own, before.0);
    let rejects = |reason: Reject| unattributed.rejects[reason as usize];
    assert_eq!((rejects(Reject::Job), rejects(Reject::Truncated)), (2, 1));
    // What comes late to a job that was here is still ours.
    engine.stop(job.job_id).expect("it is there");
    let mut late = of_job(job.job_id);
    assert_eq!(engine.test_run(&mut late, 1).expect("it runs").action, DROP);
}

/// A jumbo frame lies in several buffers, of which the program sees the first.
#[test]
fn frames_of_several_buffers_pass_or_are_refused() {
    let Some((mut engine, job)) = running(2) else { return };
    let honest = Frame::from_worker(0, &header(&job, 0, 0), 2).bytes;
    let mut padded = honest.clone();
    padded.resize(9000, 7);
    let mut others = padded.clone();
    others[37] ^= 1;
    for (what, frame, expected) in [("another's", others, PASS), ("padded", padded, DROP)] {
        let mut out = frame.clone();
        let action = engine.test_run(&mut out, 1).expect("it runs").action;
        assert!((action, out) == (expected, frame), "{what}: {action}");
    }
    let (_, unattributed) = counters(&mut engine, &job);
    assert_eq!(unattributed.rejects[Reject::Truncated as usize], 1);
    let (state, _) = engine.slot(job.job_id, 0).expect("the job is there");
    assert_eq!(state, Default::default());
}

#[test]
fn a_packet_of_ours_cut_at_any_length_changes_nothing() {
    let Some((mut engine, job)) = running(2) else { return };
    let whole = Frame::from_worker(0, &header(&job, 0, 0), 2).bytes;
    for len in 14..whole.len() {
        let mut out = whole[..len].to_vec();
        let action = engine.test_run(&mut out, 1).expect("it runs").action;
        // Shorter than up to the UDP port it cannot be told from others' packets.
        let expected = if len < 42 { PASS } else { DROP };
        assert_eq!((action, &out[..]), (expected, &whole[..len]), "{len} bytes");
    }
    let (_, unattributed) = counters(&mut engine, &job);
    assert_eq!(unattributed.rejects[Reject::Truncated as usize], (42..whole.len()).len() as u64);
    let (state, _) = engine.slot(job.job_id, 0).expect("the job is there");
    assert_eq!(state, Default::default());
}

/// Lengths in the headers that do not agree with each other or with the frame.
#[test]
fn headers_that_lie_about_lengths_change_nothing() {
    let Some((engine, job)) = running(2) else { return };
    let honest = Frame::from_worker(0, &header(&job, 0, 0), 2).bytes;
    for (at, value) in [(16, 0xffff), (16, 49), (16, 0), (38, 0), (38, 0xffff), (38, 100)] {
        let mut frame = honest.clone();
        frame[at..at + 2].copy_from_slice(&u16::to_be_bytes(value));
        let action = engine.test_run(&mut frame, 1).expect("it runs").action;
        assert_eq!(action, DROP, "{value} at {at}");
    }
    let (state, _) = engine.slot(job.job_id, 0).expect("the job is there");
    assert_eq!(state, Default::default());
}

/// Any bytes to our port: nothing but the counters of refused packets moves.
#[test]
fn garbage_to_our_port_is_refused() {
    use proptest::prelude::*;
    let Some((mut engine, job)) = running(2) else { return };
    let before = counters(&mut engine, &job).0;
    let cell = std::cell::RefCell::new(&mut engine);
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() };
    proptest!(config, |(data in prop::collection::vec(any::<u8>(), 0..400), version: bool)| {
        let mut data = data;
        if let (true, Some(first)) = (version, data.first_mut()) {
            *first = VERSION << 4 | 1; // far enough to be believed a little longer
        }
        let to = SocketAddrV4::new(AGGREGATOR, PORT);
        let frame = Frame::udp(worker_mac(0), worker(0), to, &data);
        let mut out = frame.clone();
        let action = cell.borrow_mut().test_run(&mut out.bytes, 1).expect("it runs").action;
        prop_assert_eq!((action, &out), (DROP, &frame));
    });
    let after = counters(&mut engine, &job).0;
    assert_eq!(after.contributions, before.contributions);
    assert_eq!(engine.slot(job.job_id, 0).expect("the job is there").0, Default::default());
}
