//! One machine, and what it is told by hand.

use std::time::Duration;

use xdp_agg_common::control::{
    Admitted, AggregatorLoss, ErrorCode, Held, Plan, Policy, Progress, Reply, Request, Run,
    RunKind, WorkerLoss,
};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

use super::waits::standing;
use super::world::integers;
use crate::worker::{Buffer, Config, Control, Error, Lanes, Local, Machine, RETRY, State};

pub(super) const NOW: Duration = Duration::from_secs(5);
/// Elements of a chunk. A block has two, and the last one of a call has room for its seal.
const CHUNK: usize = 16;

pub(super) struct Alone {
    pub(super) machine: Machine,
}

impl Alone {
    fn new() -> Self {
        Self::with(AggregatorLoss::Resume)
    }

    fn with(aggregator_loss: AggregatorLoss) -> Self {
        let policy = Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss };
        let config = Config { policy, ..Config::new("alone", 1, 3) };
        let mut alone = Self { machine: Machine::new(config, NOW) };
        assert_eq!(alone.machine.poll_control(NOW), Some(Control::Connect));
        alone.machine.handle_connected(NOW);
        alone.said();
        alone
    }

    /// Rank 1 of 0, 1, 2, running.
    pub(super) fn running() -> Self {
        let mut alone = Self::new();
        alone.enter(1, None);
        alone
    }

    fn admit(&mut self, epoch: u16, members: u64, plan: Option<Plan>) {
        let admitted = Admitted {
            job_id: 0,
            cookie: 1000 + u64::from(epoch),
            epoch,
            members,
            chunks: 2,
            slots: 16,
            data: "10.0.0.1:48864".parse().expect("an address"),
            single_packets: false,
            plan,
            ring: vec!["10.0.0.1:1".parse().expect("an address"); 3],
        };
        self.machine.handle_reply(Reply::Admitted(admitted), NOW);
    }

    pub(super) fn enter(&mut self, epoch: u16, plan: Option<Plan>) {
        self.admit(epoch, 0b111, plan);
        let [probe] = &self.sent()[..] else { panic!("one probe") };
        let (mut header, payload) = parse(probe);
        assert_eq!((header.kind, header.epoch, payload.len()), (Kind::Probe, epoch, 128));
        header.kind = Kind::ProbeReply;
        self.deliver(header, payload);
        assert_eq!(self.said(), [Request::Ready]);
        self.machine.handle_reply(Reply::Go { mode: ResultMode::Ports, group: None }, NOW);
        assert_eq!(self.machine.state(), State::Running);
    }

    pub(super) fn call(&mut self, blocks: usize) -> u64 {
        let len = (2 * blocks).saturating_sub(1) * CHUNK;
        self.machine.start(integers(vec![1_i32; len], 3)).expect("it runs")
    }

    pub(super) fn said(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.machine.poll_control(NOW))
            .filter_map(|control| match control {
                Control::Send(request) => Some(request),
                _ => None,
            })
            .collect()
    }

    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut packet = [0; 2048];
        std::iter::from_fn(|| {
            self.machine.poll_transmit(NOW, &mut packet).map(|len| packet[..len].to_vec())
        })
        .collect()
    }

    fn deliver(&mut self, header: Header, payload: &[u8]) {
        let mut packet = vec![0; HEADER_LEN];
        header.emit(packet.first_chunk_mut().expect("long enough"));
        packet.extend_from_slice(payload);
        self.machine.handle_packet(&packet, NOW);
    }

    /// The result of a contribution of its own, as if all three had contributed the same.
    fn result(&mut self, packet: &[u8]) {
        let (header, payload) = parse(packet);
        let payload: Vec<u8> = payload
            .as_chunks()
            .0
            .iter()
            .flat_map(|lane| u32::from_le_bytes(*lane).wrapping_mul(3).to_le_bytes())
            .collect();
        self.deliver(Header { kind: Kind::Result, ..header }, &payload);
    }

    fn reform_unanswered(&mut self) {
        let reply = Reply::Reform { lost: vec![2], reason: "a test".into() };
        self.machine.handle_reply(reply, NOW);
    }

    fn reform(&mut self) -> Request {
        self.reform_unanswered();
        let mut said = self.said();
        assert_eq!(said.len(), 1, "{said:?}");
        said.remove(0)
    }
}

fn parse(packet: &[u8]) -> (Header, &[u8]) {
    let (header, payload) = packet.split_first_chunk::<HEADER_LEN>().expect("whole");
    (Header::parse(header).expect("ours"), payload)
}

fn plan(from: u64, kinds: &[RunKind]) -> Option<Plan> {
    let runs = kinds.iter().map(|kind| Run { len: 1, kind: *kind }).collect();
    Some(Plan { from, runs, next_sequence: 1 })
}

/// What was said of the progress stays true: a result that comes later is of no use, and its block
/// is summed again, once.
#[test]
fn a_result_after_the_progress_is_not_taken_in() {
    let mut alone = Alone::running();
    let sequence = alone.call(3);
    let sent = alone.sent();
    alone.result(&sent[1]);
    let Request::Progress(progress) = alone.reform() else { panic!("its progress") };
    assert_eq!((progress.base, progress.next_sequence), (0, 1));
    assert_eq!(progress.held, [Held { from: 1, len: 1, members: 0b111 }]);
    alone.result(&sent[0]);
    assert_eq!(alone.machine.progress(), progress);
    assert!(alone.sent().is_empty(), "nothing is sent meanwhile");
    alone.enter(2, plan(0, &[RunKind::Redo, RunKind::Skip]));
    alone.result(&sent[0]); // of an epoch that is over
    let sent = alone.sent();
    let blocks: Vec<_> = sent.iter().map(|packet| parse(packet).0.block).collect();
    assert_eq!(blocks, [0, 1], "the second block of the call has no number");
    assert!(alone.machine.poll_call(sequence).is_none());
    sent.iter().for_each(|packet| alone.result(packet));
    let call = alone.machine.poll_call(sequence).expect("it has ended").expect("well");
    assert_eq!(call.report().reforms, 1);
    assert_eq!(call.contributors(), [Held { from: 0, len: 3, members: 0b111 }]);
}

/// A holder whose call is over hands its sum on; a worker that neither holds nor lacks it sends
/// only zeros without a bias.
#[test]
fn a_sum_is_handed_on_after_its_call() {
    let copy = |source| RunKind::Copy { source, members: 0b111 };
    for (source, tripled) in [(1, true), (0, false)] {
        let mut alone = Alone::running();
        let sequence = alone.call(1);
        let sent = alone.sent();
        alone.result(&sent[0]);
        drop(alone.machine.poll_call(sequence).expect("it has ended").expect("well"));
        alone.reform();
        alone.enter(2, plan(0, &[copy(source)]));
        let [packet] = &alone.sent()[..] else { panic!("one block") };
        let (header, payload) = parse(packet);
        assert_eq!((header.block, header.tag, payload.len()), (0, 0, 128));
        let mine = u32::from_le_bytes(*parse(&sent[0]).1.first_chunk().expect("a lane"));
        let lane = u32::from_le_bytes(*payload.first_chunk().expect("a lane"));
        assert_eq!(lane, if tripled { mine.wrapping_mul(3) } else { 0 });
        // And the next reform finds it still there.
        let Request::Progress(progress) = alone.reform() else { panic!("its progress") };
        assert_eq!(progress.base, 1);
        assert_eq!(progress.held, [Held { from: 0, len: 1, members: 0b111 }]);
    }
}

#[test]
fn who_joins_a_running_job_starts_where_the_others_are() {
    let mut alone = Alone::new();
    alone.enter(9, Some(Plan { from: 50, runs: Vec::new(), next_sequence: 7 }));
    assert_eq!(alone.machine.next_sequence(), 7);
    let sequence = alone.call(2);
    assert_eq!(sequence, 7);
    let sent = alone.sent();
    assert_eq!(parse(&sent[0]).0.block, 0);
    sent.iter().for_each(|packet| alone.result(packet));
    let call = alone.machine.poll_call(7).expect("it has ended").expect("well");
    assert_eq!((call.first_block().0, call.report().contributors), (50, 0b111));
}

/// Calls wait at the gate, and the epoch ends there.
#[test]
fn a_pause_holds_later_calls_back() {
    let mut alone = Alone::running();
    alone.machine.handle_reply(Reply::Pause { joining: vec![2] }, NOW);
    assert_eq!(alone.said(), [Request::Paused { next_sequence: 0 }]);
    alone.call(1);
    alone.call(1);
    assert!(alone.sent().is_empty());
    alone.machine.handle_reply(Reply::RunTo { sequence: 1 }, NOW);
    let [packet] = &alone.sent()[..] else { panic!("one call may go") };
    assert!(alone.said().is_empty());
    alone.result(packet);
    let said = alone.said();
    let [Request::Progress(progress)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((progress.base, progress.next_sequence), (1, 1));
    alone.enter(2, plan(1, &[]));
    assert_eq!(alone.sent().len(), 1, "the second call");
}

/// A call that may not begin waits for a rank, though not for its contribution.
#[test]
fn who_holds_up_a_pause_is_asked() {
    let mut alone = Alone::running();
    alone.call(0);
    assert!(!alone.machine.ask_for_missing(), "nobody holds it up");
    let ask = |alone: &mut Alone, block: u64| {
        assert!(alone.machine.ask_for_missing());
        assert_eq!(alone.said(), [Request::Missing { block, of: Some(0) }]);
        alone.machine.handle_reply(Reply::Missing { block, ranks: vec![2] }, NOW);
        assert_eq!(alone.said(), [Request::Standing { of: 0b100 }]);
        assert_eq!(alone.machine.missing(), None, "half of the answer");
        alone.machine.handle_reply(Reply::Standing(vec![standing(2, None)]), NOW);
        assert_eq!(alone.machine.missing(), Some(&vec![2]));
    };
    alone.machine.handle_reply(Reply::Pause { joining: vec![0] }, NOW);
    alone.said();
    alone.call(1);
    ask(&mut alone, 0);
    alone.machine.handle_reply(Reply::RunTo { sequence: 2 }, NOW);
    let [packet] = &alone.sent()[..] else { panic!("one call may go") };
    assert!(alone.machine.ask_for_missing());
    assert_eq!(alone.said(), [Request::Missing { block: 0, of: None }]);
    alone.result(packet);
    alone.said();
    alone.call(1);
    ask(&mut alone, 1);
    // The same holds if a member is lost, and another does not tell what it has.
    alone.reform_unanswered();
    ask(&mut alone, 1);
}

/// The daemon that named the last call is gone, and its data path goes on. The next daemon does not
/// expect to hear that the call is done, unless it names it, too.
#[test]
fn what_a_lost_daemon_asked_for_is_not_told_to_the_next() {
    for named_again in [false, true] {
        let mut alone = Alone::running();
        alone.machine.handle_reply(Reply::Pause { joining: vec![2] }, NOW);
        alone.call(1);
        alone.call(1);
        alone.machine.handle_reply(Reply::RunTo { sequence: 1 }, NOW);
        let [packet] = &alone.sent()[..] else { panic!("one call may go") };
        alone.machine.handle_disconnected("a test".into(), NOW);
        while alone.machine.poll_control(NOW) != Some(Control::Connect) {}
        alone.machine.handle_connected(NOW);
        alone.said();
        alone.machine.handle_reply(Reply::Resumed, NOW);
        if named_again {
            alone.machine.handle_reply(Reply::RunTo { sequence: 1 }, NOW);
        }
        alone.result(packet);
        let said = alone.said();
        assert_eq!(matches!(said[..], [Request::Progress(_)]), named_again, "{said:?}");
        let later = NOW + Duration::from_secs(2);
        alone.machine.handle_timeout(later);
        let mut packet = [0; 2048];
        let next = alone.machine.poll_transmit(later, &mut packet).is_some();
        assert_eq!(next, !named_again, "nobody waits to join any more");
    }
}

/// A plan that does not fit what this worker has would count something twice or not at all.
/// What a caller had lent is the caller's again.
#[test]
fn who_has_failed_takes_in_no_result() {
    let mut alone = Alone::running();
    let mut memory = vec![7_i32; CHUNK];
    #[expect(unsafe_code, reason = "memory is lent as a blocking call lends it")]
    // SAFETY: the machine is used no more when the memory is looked at.
    let buffer = unsafe { Buffer::lend(&mut memory) };
    let format = Format::new(ElementType::I32, Op::Sum, Scaling::Block, None, 3).expect("sums");
    alone.machine.start(Box::new(Local::new(buffer, format))).expect("it runs");
    let sent = alone.sent();
    alone.machine.fail(Error::Closed);
    alone.result(&sent[0]);
    drop(alone);
    assert_eq!(memory, [7; CHUNK]);
}

#[test]
fn impossible_plans_are_refused() {
    let copy = |source, members| RunKind::Copy { source, members };
    let redo = RunKind::Redo;
    for (why, plan) in [
        ("no plan", None),
        ("what it has is done again", plan(0, &[redo, redo])),
        ("and is left out of the plan", plan(0, &[redo])),
        ("what it lacks is finished", plan(1, &[])),
        ("what it lacks is skipped", plan(0, &[RunKind::Skip, RunKind::Skip])),
        ("to hand on what it lacks", plan(0, &[copy(1, 0b111), RunKind::Skip])),
        ("to hand on another sum", plan(0, &[redo, copy(1, 0b011)])),
        ("beyond its calls", plan(0, &[redo, RunKind::Skip, redo, redo])),
        (
            "for ever",
            Some(Plan { from: 0, runs: vec![Run { len: u64::MAX, kind: redo }], next_sequence: 1 }),
        ),
    ] {
        let mut alone = Alone::running();
        alone.call(3);
        let sent = alone.sent();
        alone.result(&sent[1]);
        alone.reform();
        alone.admit(2, 0b111, plan);
        let failure = alone.machine.failure();
        assert!(matches!(failure, Some(Error::Protocol(_))), "{why}: {failure:?}");
        assert!(matches!(alone.said()[..], [Request::Abort { .. }]), "{why}");
    }
}

#[test]
fn probes_end() {
    let mut alone = Alone::new();
    alone.admit(1, 0b111, None);
    let mut now = NOW;
    let mut probes = 0;
    while alone.machine.failure().is_none() {
        let mut packet = [0; 2048];
        probes += u32::from(alone.machine.poll_transmit(now, &mut packet).is_some());
        now = alone.machine.poll_timeout().expect("a timer").max(now);
        alone.machine.handle_timeout(now);
    }
    assert_eq!(probes, super::super::PROBES);
    assert!(matches!(alone.machine.failure(), Some(Error::DataPath { .. })));
}

/// In a later epoch the path was open before: a link may be away, and the daemon says when it has
/// waited enough.
#[test]
fn probes_of_a_later_epoch_go_on() {
    let mut alone = Alone::running();
    alone.reform();
    alone.admit(2, 0b111, plan(0, &[]));
    let (mut now, mut probes) = (NOW, 0);
    while now < NOW + Duration::from_secs(15) {
        let mut packet = [0; 2048];
        probes += u32::from(alone.machine.poll_transmit(now, &mut packet).is_some());
        now = alone.machine.poll_timeout().expect("a timer").max(now);
        alone.machine.handle_timeout(now);
    }
    assert!(alone.machine.failure().is_none());
    assert!(probes > 2 * super::super::PROBES, "{probes}");
}

/// What answers in the daemon's place and is another release, or has another secret, is no daemon
/// where there is a ring to go on over. Elsewhere it ends the membership, by name.
#[test]
fn a_daemon_that_takes_nobody_is_none_where_there_is_a_ring() {
    let refused = |code| Reply::Error { code, message: "not here".into() };
    let other = Reply::Welcome { version: 99, agent: "x".into(), engine: String::new() };
    let codes = [ErrorCode::Version, ErrorCode::Unauthorised, ErrorCode::Invalid];
    for reply in codes.map(refused).into_iter().chain([other]) {
        for policy in [AggregatorLoss::Ring, AggregatorLoss::Resume] {
            let mut alone = Alone::with(policy);
            alone.enter(1, None);
            alone.machine.handle_disconnected("gone".into(), NOW);
            let mut now = NOW;
            while now < NOW + Duration::from_secs(3) && alone.machine.failure().is_none() {
                match alone.machine.poll_control(now) {
                    Some(Control::Connect) => {
                        alone.machine.handle_connected(now);
                        alone.machine.handle_reply(reply.clone(), now);
                    }
                    Some(_) => {}
                    None => {
                        let Some(next) = alone.machine.poll_timeout() else { break };
                        now = next.max(now);
                        alone.machine.handle_timeout(now);
                    }
                }
            }
            let state = alone.machine.state();
            if policy == AggregatorLoss::Ring {
                assert_eq!(state, State::OnRing, "{reply:?}");
                assert!(alone.machine.ring_seat(0).is_some());
            } else {
                assert_eq!(state, State::Failed, "{reply:?}");
            }
        }
    }
}

/// Too many come at once: a worker that is turned away comes again. It does so also where the loss
/// of the aggregator would end the job, and although the connection ends before it has hung up.
#[test]
fn who_is_turned_away_before_the_job_comes_again() {
    let mut alone = Alone::with(AggregatorLoss::Fail);
    let turned_away = Reply::Error { code: ErrorCode::Limit, message: "too many".into() };
    alone.machine.handle_reply(turned_away, NOW);
    alone.machine.handle_disconnected("connection reset".into(), NOW);
    assert!(alone.machine.failure().is_none(), "{:?}", alone.machine.failure());
    assert_eq!(alone.machine.poll_control(NOW), None);
    assert_eq!(alone.machine.poll_control(NOW + RETRY), Some(Control::Connect));
}

/// A worker that never reached the daemon is told so, whatever deadline ends it.
#[test]
fn an_absent_daemon_is_named_at_the_deadline() {
    for (patience, tries) in [(300, 4), (60_000, 90)] {
        let join_deadline = Duration::from_millis(patience);
        let config = Config { join_deadline, ..Config::new("alone", 0, 1) };
        let mut machine = Machine::new(config, NOW);
        let (mut now, mut tried) = (NOW, 0);
        while machine.failure().is_none() {
            if machine.poll_control(now) == Some(Control::Connect) {
                tried += 1;
                machine.handle_connect_failed("refused".into(), now);
            }
            let Some(next) = machine.poll_timeout() else { break };
            now = next.max(now);
            machine.handle_timeout(now);
        }
        let failure = machine.failure();
        assert!(matches!(failure, Some(Error::Unreachable { .. })), "{failure:?}");
        assert!((tries - tries / 4..=tries + tries / 4).contains(&tried), "{tried}");
        assert!(now >= join_deadline, "{now:?}");
    }
}

/// A member whose call's digest differs in any bit ends the batch, and nothing of it is taken in.
#[test]
fn a_ring_tells_calls_apart() {
    for bit in [None, Some(0), Some(31), Some(32), Some(63)] {
        let mut alone = Alone::with(AggregatorLoss::Ring);
        alone.enter(1, None);
        alone.call(2);
        alone.machine.handle_disconnected("a test".into(), NOW);
        let later = NOW + Duration::from_secs(3);
        alone.machine.handle_timeout(later);
        let progress = alone.machine.progress();
        let all = [0, 1, 2].map(|rank| (rank, progress.clone()));
        alone.machine.handle_ring_formed(&all, later).expect("they fit");
        let mut lanes = Lanes::default();
        let batch = alone.machine.poll_ring_batch(&mut lanes).expect("it has one");
        for word in &mut lanes.words {
            let [low, high] = [*word as u32, (*word >> 32) as u32].map(|lane| lane.wrapping_mul(3));
            *word = u64::from(low) | u64::from(high) << 32;
        }
        lanes.marks.iter_mut().for_each(|mark| *mark = mark.wrapping_mul(3));
        if let Some(bit) = bit {
            let halves: &mut [i32; 2] = lanes.marks.last_chunk_mut().expect("two at least");
            halves[bit / 32] = halves[bit / 32].wrapping_add(1 << (bit % 32));
        }
        alone.machine.handle_ring_result(batch, &lanes, later);
        let differs = matches!(alone.machine.failure(), Some(Error::CallMismatch { .. }));
        assert_eq!(differs, bit.is_some(), "{bit:?}: {:?}", alone.machine.failure());
    }
}

/// As long as a ring has blocks to hand on, members have different results: no member says that it
/// could leave. After these blocks the sum of all words decides, not what this worker has learned
/// since.
#[test]
fn a_ring_is_left_behind_what_it_hands_on() {
    let mut alone = Alone::with(AggregatorLoss::Ring);
    alone.enter(1, None);
    let format = Format::new(ElementType::I32, Op::Min, Scaling::Block, None, 3);
    let local = Local::new(Buffer::owned(vec![1_i32; 8 * CHUNK]), format.expect("it makes sense"));
    alone.machine.start(Box::new(local)).expect("it runs");
    let sent = alone.sent();
    let (header, lanes) = parse(&sent[1]);
    alone.deliver(Header { kind: Kind::Result, ..header }, lanes);
    alone.machine.handle_disconnected("a test".into(), NOW);
    let later = NOW + Duration::from_secs(3);
    alone.machine.handle_timeout(later);
    let seat = alone.machine.ring_seat(0).expect("no daemon came");
    assert_eq!((seat.epoch, seat.rings), ((1, 1001), 0));
    let own = alone.machine.progress();
    assert_eq!((own.base, own.held.len()), (0, 1));
    let others = Progress { next_sequence: 1, ..Progress::default() };
    let all = [(0, others.clone()), (1, own), (2, others)];
    alone.machine.handle_ring_formed(&all, later).expect("they fit");
    // The daemon is there.
    let soon = later + Duration::from_secs(1);
    while alone.machine.poll_control(soon) != Some(Control::Connect) {}
    alone.machine.handle_connected(soon);
    let said = alone.said();
    assert!(matches!(&said[..], [Request::Hello { .. }, Request::Offer(_)]), "{said:?}");
    alone.machine.handle_reply(Reply::Done, soon);
    let mut lanes = Lanes::default();
    // What to redo, what to hand on, and what was sent by nobody.
    for (blocks, says, sum) in [(0..1, 0, 3), (1..2, 1, 2), (2..4, 1, 3)] {
        let batch = alone.machine.poll_ring_batch(&mut lanes).expect("it has one");
        assert_eq!(batch.blocks(), blocks);
        let marks: &mut [i32; 3] = lanes.marks.last_chunk_mut().expect("three at least");
        let [back, digest @ ..] = *marks;
        assert_eq!(back, says);
        // Nobody can say it of the first.
        let [low, high] = digest.map(|half| half.wrapping_mul(3));
        *marks = [if says == 0 { 0 } else { sum }, low, high];
        if blocks == (2..4) {
            alone.machine.handle_disconnected("again".into(), soon);
            alone.call(2);
        }
        assert_eq!(alone.machine.state(), State::OnRing);
        alone.machine.handle_ring_result(batch, &lanes, soon);
    }
    assert_eq!(alone.machine.state(), State::Reconnecting);
    assert!(alone.sent().is_empty(), "its blocks have other numbers there");
    let progress = alone.machine.progress();
    assert_eq!((progress.base, progress.held.len()), (4, 0));
    while alone.machine.poll_control(soon) != Some(Control::Connect) {}
    alone.machine.handle_connected(soon);
    let said = alone.said();
    let [Request::Hello { .. }, Request::Join(join)] = &said[..] else { panic!("{said:?}") };
    let resume = join.resume.as_ref().expect("it was a member");
    assert_eq!((resume.epoch, resume.rings, &resume.progress), (1, 1, &progress));
    // An epoch that is over is not gone on with.
    alone.machine.handle_reply(Reply::Resumed, soon);
    assert_eq!(alone.machine.state(), State::Reconnecting);
    assert!(alone.sent().is_empty());
}

/// The ring goes from rack to rack, whatever the ranks' numbers. Ranks without a place come last.
#[test]
fn a_ring_visits_its_members_rack_by_rack() {
    let mut alone = Alone::with(AggregatorLoss::Ring);
    alone.machine.config.ring_order = vec![2, 7, 0];
    alone.enter(1, None);
    alone.machine.handle_disconnected("a test".into(), NOW);
    let later = NOW + Duration::from_secs(3);
    alone.machine.handle_timeout(later);
    let seat = alone.machine.ring_seat(0).expect("no daemon came");
    assert_eq!((&seat.members[..], seat.index), (&[2, 0, 1][..], 2));
    let listens = alone.machine.admitted().expect("it was a member").ring.clone();
    assert_eq!(seat.addresses, [listens[2], listens[0], listens[1]]);
    // What the members say comes in that order, and is understood by rank.
    let own = alone.machine.progress();
    let all = [(2, Progress::default()), (0, Progress::default()), (1, own)];
    alone.machine.handle_ring_formed(&all, later).expect("they fit");
    let ring = alone.machine.admitted().expect("it is on a ring").ring.clone();
    assert_eq!(ring, listens);
}
