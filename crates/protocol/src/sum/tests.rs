use std::net::Ipv4Addr;

use xdp_agg_common::wire::Reduction;

use super::*;

const COOKIE: u64 = 0xdead_beef_0bad_cafe;
const NOW: Duration = Duration::from_secs(5);

/// A job of two ranks, 10.0.0.1:4000 and 10.0.0.2:4000, with 4 of 8 slots.
fn two_ranks() -> Sums {
    let mut sums = Sums::new(8, 2);
    sums.prepare(&setup(1)).expect("it fits");
    sums
}

fn setup(epoch: u16) -> JobSetup {
    let conf = JobConf {
        members: 0b11,
        cookie: COOKIE,
        slot_base: 4,
        slots: 4,
        group: u32::from(Ipv4Addr::new(239, 255, 0, 1)),
        group_port: 5000,
        epoch,
        workers: 2,
        max_chunks: 2,
        ..JobConf::default()
    };
    let address = |rank| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank + 1), 4000);
    let members = (0..2_u8).map(|rank| (rank.into(), address(rank))).collect();
    JobSetup::new(3, conf, members)
}

fn running() -> Sums {
    let mut sums = two_ranks();
    for rank in 0..2 {
        assert!(matches!(send(&mut sums, Kind::Probe, rank, 0, 0), Answer::Sender { .. }));
    }
    sums.start(3, None).expect("both were heard");
    sums
}

fn bytes(kind: Kind, rank: u16, block: u64, value: u32) -> Vec<u8> {
    let reduction = Reduction::Add;
    let header =
        Header { kind, flags: 0, reduction, job: 3, cookie: COOKIE, epoch: 1, rank, block, tag: 9 };
    let mut head = [0; HEADER_LEN];
    header.emit(&mut head);
    let mut packet = head.to_vec();
    packet.extend(std::iter::repeat_n(value.to_le_bytes(), 32).flatten());
    packet
}

fn source(rank: u16) -> Source {
    Source { addr: 0x0a00_0001 + u32::from(rank), port: 4000 }
}

fn send(sums: &mut Sums, kind: Kind, rank: u16, block: u64, value: u32) -> Answer {
    sums.handle_packet(source(rank), &mut bytes(kind, rank, block, value), NOW)
}

fn payload_word(packet: &[u8]) -> u32 {
    u32::from_le_bytes(packet[HEADER_LEN..][..4].try_into().expect("four bytes"))
}

#[test]
fn a_block_is_summed_resent_and_named_while_pending() {
    let mut sums = running();
    assert_eq!(send(&mut sums, Kind::Contribution, 0, 1, 5), Answer::Nothing);
    assert_eq!(sums.missing(3, 1).expect("running"), 0b10);

    let mut again = bytes(Kind::Contribution, 0, 1, 5);
    let Answer::Sender { header, len } = sums.handle_packet(source(0), &mut again, NOW) else {
        panic!("a repetition is answered");
    };
    assert_eq!((header.kind, header.rank, len), (Kind::Pending, 0, CHUNK_LEN));
    assert_eq!(payload_word(&again), 0b01);

    let mut last = bytes(Kind::Contribution, 1, 1, 7);
    let Answer::Members { header, len } = sums.handle_packet(source(1), &mut last, NOW) else {
        panic!("the block is complete");
    };
    assert_eq!((header.kind, header.block, header.tag, len), (Kind::Result, 1, 9, 128));
    assert_eq!(payload_word(&last), 12);
    assert_eq!(sums.missing(3, 1).expect("running"), 0);

    let mut late = bytes(Kind::Contribution, 0, 1, 5);
    let Answer::Sender { header, len } = sums.handle_packet(source(0), &mut late, NOW) else {
        panic!("the result is sent again");
    };
    assert_eq!((header.kind, header.rank, len), (Kind::Result, 0, 128));
    assert_eq!(payload_word(&late), 12);

    let expected = JobCounters {
        contributions: 2,
        blocks: 1,
        duplicates: 2,
        resends: 1,
        pendings: 1,
        probes: 2,
        copies: 3,
        ..JobCounters::default()
    };
    assert_eq!(sums.counters()[3], expected);
}

#[test]
fn another_call_is_told_which_tag_the_slot_holds() {
    let mut sums = running();
    send(&mut sums, Kind::Contribution, 0, 0, 1);
    let mut other = bytes(Kind::Contribution, 1, 0, 1);
    other[21] = 8;
    let Answer::Sender { header, len } = sums.handle_packet(source(1), &mut other, NOW) else {
        panic!("a mismatch is answered");
    };
    assert_eq!((header.kind, len, payload_word(&other)), (Kind::Mismatch, CHUNK_LEN, 9));
    assert_eq!(sums.counters()[3].rejects[Reject::Mismatch as usize], 1);
    assert_eq!(sums.missing(3, 0).expect("running"), 0b10);
}

#[test]
fn what_is_refused_changes_nothing_and_is_counted() {
    let mut sums = running();
    send(&mut sums, Kind::Contribution, 0, 0, 1);
    let change = |at: usize, to: u8| {
        let mut packet = bytes(Kind::Contribution, 1, 0, 1);
        packet[at] = to;
        packet
    };
    let cut = |to: usize| bytes(Kind::Contribution, 1, 0, 1)[..to].to_vec();
    let long = [bytes(Kind::Contribution, 1, 0, 1), vec![0; 64]].concat();
    // Packet, reason, and whether the job is to be believed.
    let cases = [
        (cut(0), Reject::Truncated, false),
        (cut(21), Reject::Truncated, false),
        (cut(100), Reject::Truncated, true),
        (cut(22), Reject::Size, true),
        (long, Reject::Size, true),
        (change(0, 0x11), Reject::Version, false),
        (change(0, 0x2f), Reject::Malformed, false),
        (change(2, 5), Reject::Job, false),
        (change(2, 255), Reject::Job, false),
        (change(4, 0), Reject::Cookie, true),
        (change(13, 2), Reject::Epoch, true),
        (change(3, 2), Reject::Member, true),
        (change(3, 0), Reject::Member, true),
        (change(19, 4), Reject::Window, true),
        (change(0, 0x22), Reject::Malformed, true),
    ];
    let mut expected = sums.counters().to_vec();
    let state = sums.slots.clone();
    for (i, (mut packet, reason, attributed)) in cases.into_iter().enumerate() {
        assert_eq!(sums.handle_packet(source(1), &mut packet, NOW), Answer::Nothing, "case {i}");
        expected[if attributed { 3 } else { MAX_JOBS }].rejects[reason as usize] += 1;
        assert_eq!(sums.counters(), expected, "case {i}");
        assert_eq!(sums.slots, state, "case {i}");
    }
    let events = sums.take_events();
    assert!(events.iter().all(|e| e.count.is_power_of_two()), "{events:?}");
    assert!(events.iter().any(|e| e.reason == Reject::Version as u8 && e.version == 1));
    // The honest packet still completes the block.
    assert!(matches!(send(&mut sums, Kind::Contribution, 1, 0, 1), Answer::Members { .. }));
}

#[test]
fn a_flood_is_told_logarithmically() {
    let mut sums = Sums::new(8, 2);
    for _ in 0..1000 {
        sums.handle_packet(source(0), &mut [0x20], NOW);
    }
    assert_eq!(sums.take_events().len(), 10);
    assert_eq!(sums.counters()[MAX_JOBS].rejects[Reject::Truncated as usize], 1000);
}

#[test]
fn a_job_starts_only_when_all_paths_are_open() {
    let mut sums = two_ranks();
    assert!(matches!(sums.start(3, None), Err(Error::NoPath(0))));
    send(&mut sums, Kind::Probe, 0, 0, 0);
    assert!(matches!(sums.start(3, None), Err(Error::NoPath(1))));
    assert_eq!(send(&mut sums, Kind::Contribution, 0, 0, 1), Answer::Nothing);
    assert_eq!(sums.counters()[3].rejects[Reject::Epoch as usize], 1);
    send(&mut sums, Kind::Probe, 1, 0, 0);
    let started = sums.start(3, Some(ResultMode::Multicast)).expect("both were heard");
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 5000);
    assert_eq!(started, Started { mode: ResultMode::Multicast, group: Some(group) });
}

#[test]
fn a_new_epoch_starts_clean_and_a_stopped_job_is_gone() {
    let mut sums = running();
    send(&mut sums, Kind::Contribution, 0, 0, 1);
    sums.prepare(&setup(2)).expect("it fits");
    assert!(matches!(sums.start(3, None), Err(Error::NoPath(0))));
    assert_eq!(sums.missing(3, 0).expect("it is there"), 0b11);
    sums.stop(3);
    assert_eq!(send(&mut sums, Kind::Contribution, 0, 0, 1), Answer::Nothing);
    assert_eq!(sums.counters()[MAX_JOBS].rejects[Reject::Job as usize], 1);
    assert!(sums.missing(3, 0).is_err());
}

#[test]
fn a_setup_that_does_not_fit_is_refused() {
    let mut sums = Sums::new(8, 2);
    let with = |change: fn(&mut JobSetup)| {
        let mut setup = setup(1);
        change(&mut setup);
        setup
    };
    for wrong in [
        with(|s| s.job_id = MAX_JOBS as u16),
        with(|s| s.conf.slots = 3),
        with(|s| s.conf.slot_base = 5),
        with(|s| s.conf.max_chunks = 3),
        with(|s| _ = s.members.pop_last()),
    ] {
        assert!(sums.prepare(&wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn contributions_that_count_are_heard_and_no_others() {
    let mut sums = running();
    let at = |seconds| Duration::from_secs(seconds);
    assert_eq!(sums.heard(3, at(9)).expect("running"), [(0, None), (1, None)]);
    let mut say = |block, value, now| {
        let mut packet = bytes(Kind::Contribution, 0, block, value);
        sums.handle_packet(source(0), &mut packet, at(now))
    };
    say(0, 1, 10); // new
    say(0, 1, 11); // a repetition: it contributes still
    say(9, 1, 20); // beyond the window
    assert_eq!(sums.heard(3, at(30)).expect("running"), [(0, Some(at(19))), (1, None)]);
    sums.prepare(&setup(2)).expect("it fits");
    assert_eq!(sums.heard(3, at(31)).expect("there"), [(0, None), (1, None)], "a new epoch");
}

#[test]
fn beyond_the_quota_nothing_changes() {
    let mut sums = Sums::new(16, 2);
    let mut limited = setup(1);
    (limited.conf.packet_interval, limited.conf.packet_burst) = (1000, 4000);
    let mut free = setup(1);
    (free.job_id, free.conf.slot_base) = (4, 8);
    for job in [&limited, &free] {
        sums.prepare(job).expect("it fits");
        for rank in 0..2 {
            let mut probe = bytes(Kind::Probe, rank, 0, 0);
            probe[2] = job.job_id as u8;
            sums.handle_packet(source(rank), &mut probe, Duration::from_secs(1));
        }
        sums.start(job.job_id, None).expect("both were heard");
    }
    let mut from = |rank: u16, claimed: u16, job: u8| {
        let mut packet = bytes(Kind::Contribution, claimed, 0, 1);
        packet[2] = job;
        sums.handle_packet(source(rank), &mut packet, NOW)
    };
    // A packet from another address than the rank's does not use it up.
    (0..100).for_each(|_| assert_eq!(from(1, 0, 3), Answer::Nothing));
    assert_eq!(from(0, 0, 3), Answer::Nothing);
    (0..4).for_each(|_| assert!(matches!(from(0, 0, 3), Answer::Sender { .. })));
    // The burst is used up: rank 1, which would complete the block, is refused. Another job is not.
    (0..10).for_each(|_| assert_eq!(from(1, 1, 3), Answer::Nothing));
    assert_eq!(from(0, 0, 4), Answer::Nothing);
    assert!(matches!(from(1, 1, 4), Answer::Members { .. }));
    let [limited, free] = [3, 4].map(|job| sums.counters()[job]);
    assert_eq!(limited.rejects[Reject::Quota as usize], 10);
    assert_eq!((limited.contributions, free.rejects), (1, [0; Reject::COUNT]));
    assert_eq!(sums.missing(3, 0).expect("running"), 0b10);
    // Later there is room again.
    let mut last = bytes(Kind::Contribution, 1, 0, 1);
    let later = sums.handle_packet(source(1), &mut last, NOW + Duration::from_micros(9));
    assert!(matches!(later, Answer::Members { .. }));
}

/// What goes out for the packets of a broadcast's root counts, and not that it is one packet in.
#[test]
fn copies_count_as_many_packets_as_go_out() {
    let mut sums = Sums::new(8, 2);
    let mut limited = setup(1);
    (limited.conf.packet_interval, limited.conf.packet_burst) = (1000, 4000);
    sums.prepare(&limited).expect("it fits");
    for rank in 0..2 {
        send(&mut sums, Kind::Probe, rank, 0, 0);
    }
    sums.start(3, None).expect("both were heard");
    let later = NOW + Duration::from_secs(1);
    let mut out = |block| {
        let mut packet = bytes(Kind::Contribution, 0, block, 1);
        let mut header =
            Header::parse(packet.first_chunk().expect("a header")).expect("it is ours");
        header.reduction = Reduction::Copy;
        header.emit(packet.first_chunk_mut().expect("a header"));
        match sums.handle_packet(source(0), &mut packet, later) {
            Answer::Members { .. } => 2,
            Answer::Nothing => 0,
            other => panic!("{other:?}"),
        }
    };
    let blocks: Vec<u32> = (0..4).map(&mut out).collect();
    // The burst of four, and the one that is due.
    assert_eq!(blocks, [2, 2, 2, 0]);
    assert_eq!(sums.counters()[3].rejects[Reject::Quota as usize], 1);
    assert_eq!(sums.counters()[3].copies, 6);
}
