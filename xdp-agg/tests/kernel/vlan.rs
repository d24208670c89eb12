//! A data path in a VLAN: its packets are taken, and nobody else's.

use std::net::SocketAddrV4;

use xdp_agg::engine::Engine as _;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{Header, Kind};

use crate::frames::{Frame, payload, worker_mac};
use crate::setup::{AGGREGATOR, DROP, PASS, PORT, REDIRECT, counters, header, job, loaded, worker};

const VLAN: u16 = 7;
/// The tag's priority, which is no part of the VLAN's number.
const PRIORITY: u16 = 0xa000;

/// Chunks of the largest block: with the tag, one more does not lie in a page.
const LARGEST: u16 = 53;

/// The frame with a tag in front of its EtherType.
fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    let tag = [[0x81, 0], tag.to_be_bytes()].concat();
    [&frame[..12], &tag, &frame[12..]].concat()
}

fn run(engine: &XdpEngine, frame: &mut Vec<u8>) -> u32 {
    engine.test_run(frame, 1).expect("it runs").action
}

#[test]
fn sums_in_a_vlan_are_right() {
    let Some(mut engine) = loaded(XdpEngine::detached_in(Some((VLAN, AGGREGATOR)), PORT, 32, None))
    else {
        return;
    };
    let job = job(2, 1);
    engine.prepare(&job).expect("the job fits");
    for rank in 0..2 {
        let probe = Header { kind: Kind::Probe, ..header(&job, rank, 0) };
        let probe = Frame::from_worker(rank, &probe, LARGEST).bytes;
        assert_eq!(run(&engine, &mut probe.clone()), PASS, "without a tag it is another's");
        let mut frame = tagged(&probe, VLAN | PRIORITY);
        assert_eq!(run(&engine, &mut frame), REDIRECT);
        // The tag comes where the answer leaves.
        let answer = Frame { bytes: frame }.decode();
        assert_eq!((answer.header.kind, answer.mac_to), (Kind::ProbeReply, worker_mac(rank)));
    }
    let mode = engine.start(job.job_id, None).expect("all paths are learned").mode;
    assert_eq!(mode, ResultMode::Fanout);
    for chunks in [1, LARGEST] {
        let block = u64::from(chunks == LARGEST);
        let mut frame = Vec::new();
        for (rank, action) in [(0, DROP), (1, REDIRECT)] {
            frame =
                tagged(&Frame::from_worker(rank, &header(&job, rank, block), chunks).bytes, VLAN);
            assert_eq!(run(&engine, &mut frame), action, "rank {rank}, {chunks} chunks");
        }
        let lanes = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks(4).map(|lane| u32::from_le_bytes(lane.try_into().expect("4"))).collect()
        };
        let sums =
            lanes(&payload(0, block, chunks)).into_iter().zip(lanes(&payload(1, block, chunks)));
        let sums: Vec<u32> = sums.map(|(a, b)| a.wrapping_add(b)).collect();
        assert!(lanes(&frame[64..]) == sums, "{chunks} chunks");
    }
    assert_eq!(counters(&mut engine, &job).0.blocks, 2);
}

#[test]
fn packets_of_other_vlans_pass_untouched() {
    let Some(mut engine) = loaded(XdpEngine::detached_in(Some((VLAN, AGGREGATOR)), PORT, 32, None))
    else {
        return;
    };
    let job = job(2, 1);
    engine.prepare(&job).expect("the job fits");
    let before = counters(&mut engine, &job);
    let ours = Frame::from_worker(0, &header(&job, 0, 0), 2).bytes;
    let mut elsewhere = ours.clone();
    elsewhere[30..34].copy_from_slice(&[10, 9, 9, 9]);
    let mut port = ours.clone();
    port[37] ^= 1;
    let cases = [
        ("no tag", ours.clone()),
        ("another VLAN", tagged(&ours, VLAN + 1)),
        ("priority alone", tagged(&ours, PRIORITY)),
        ("a service tag", {
            let mut frame = tagged(&ours, VLAN);
            (frame[12], frame[13]) = (0x88, 0xa8);
            frame
        }),
        ("two tags", tagged(&tagged(&ours, VLAN), VLAN)),
        ("another port", tagged(&port, VLAN)),
        ("another host", tagged(&elsewhere, VLAN | PRIORITY)),
    ];
    for (what, frame) in cases {
        for len in 14..=frame.len() {
            let mut out = frame[..len].to_vec();
            let action = run(&engine, &mut out);
            assert_eq!((action, &out[..]), (PASS, &frame[..len]), "{what}, {len} bytes");
        }
    }
    assert_eq!(counters(&mut engine, &job), before);
    // In our VLAN and to our port, and yet nothing of ours.
    let to = SocketAddrV4::new(AGGREGATOR, PORT);
    let garbage = Frame::udp(worker_mac(0), worker(0), to, &[1; 100]).bytes;
    assert_eq!(run(&engine, &mut tagged(&garbage, VLAN)), DROP);
}
