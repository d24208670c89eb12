//! Waits of one machine: for how long, and what it says of them.

use std::time::Duration;

use xdp_agg_common::control::{Doing, Policy, Presence, Reply, Request, Standing};

use super::by_hand::{Alone, NOW};
use crate::worker::{Config, Control, Error, Limit, Machine};

/// A rank that lives; the first block that it has not sent.
pub(super) fn standing(rank: u16, sent: Option<u64>) -> Standing {
    let doing = sent.map(|sent| Doing { epoch: 1, sent, next_sequence: sent, ..Doing::default() });
    Standing { rank, presence: Presence::Alive, heartbeat_ms: Some(100), doing }
}

/// A rank that has not called is waited for, and one that has is not for long.
#[test]
fn what_is_sent_and_does_not_arrive_ends_the_wait() {
    let seconds = Duration::from_secs;
    for (ranks, sent, silent, stalls) in [
        (vec![0, 2], [Some(1), Some(1)], false, true),
        (vec![0, 2], [Some(1), Some(0)], false, false),
        (vec![0, 2], [Some(1), None], false, false),
        (vec![0, 2], [Some(1), Some(1)], true, false),
        (vec![], [None, None], false, true),
        (vec![1], [None, None], false, true),
    ] {
        let mut alone = Alone::running();
        let call = alone.call(1);
        assert_eq!(alone.sent().len(), 1);
        let (mut now, mut warned) = (NOW, Vec::new());
        // Ten minutes, or until it gives up.
        while now < NOW + seconds(600) && alone.machine.failure().is_none() {
            now = alone.machine.poll_timeout().expect("it waits").max(now);
            alone.machine.handle_timeout(now);
            while alone.machine.poll_transmit(now, &mut [0; 2048]).is_some() {}
            warned.extend(alone.machine.poll_warning().map(|warning| (now - NOW, warning)));
            for request in alone.said() {
                let reply = match request {
                    Request::Missing { block: 0, of: None } => {
                        Reply::Missing { block: 0, ranks: ranks.clone() }
                    }
                    Request::Standing { .. } => {
                        let of = |rank: u16| {
                            let sent = sent[usize::from(rank / 2)];
                            let mut standing = standing(rank, sent);
                            if silent && rank == 2 {
                                standing.presence = Presence::Silent;
                            }
                            standing
                        };
                        Reply::Standing(ranks.iter().map(|rank| of(*rank)).collect())
                    }
                    Request::Abort { .. } => continue,
                    other => panic!("{other:?}"),
                };
                alone.machine.handle_reply(reply, now);
            }
        }
        let what = format!("{ranks:?} {sent:?} {silent}");
        let stall = |error: &Error| matches!(error, Error::Deadline { limit: Limit::Stall, .. });
        assert_eq!(alone.machine.failure().is_some_and(stall), stalls, "{what}");
        let times: Vec<_> = warned.iter().map(|(at, _)| at.as_secs()).collect();
        let expected: &[u64] = if stalls { &[10, 20] } else { &[10, 20, 40, 80, 160, 320] };
        assert_eq!(times, expected, "{what}");
        let said = warned[1].1.to_string();
        assert!(said.starts_with("call 0 has waited 20 s: "), "{said}");
        assert!(said.contains("XDP_AGG_DEADLINE"), "{said}");
        if !stalls {
            let words = if silent { "rank 2 is stopped" } else { "rank 2 is alive" };
            assert!(said.contains(words), "{said}");
            let error = alone.machine.give_up(call, seconds(600));
            let Error::Deadline { ranks: named, limit: Limit::Call, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(named, &ranks);
        }
    }
}

/// A daemon that answers nothing may be stopped: nobody is known to be alive.
#[test]
fn a_daemon_that_answers_nothing_is_not_waited_for() {
    let mut alone = Alone::running();
    alone.call(1);
    alone.sent();
    alone.machine.handle_timeout(NOW);
    let mut now = NOW;
    while alone.machine.failure().is_none() {
        now = alone.machine.poll_timeout().expect("it waits").max(now);
        alone.machine.handle_timeout(now);
        while alone.machine.poll_transmit(now, &mut [0; 2048]).is_some() {}
        alone.said();
    }
    assert_eq!(now - NOW, Duration::from_secs(30));
    let said = alone.machine.failure().map(ToString::to_string).unwrap_or_default();
    assert!(said.contains("is it stopped?") && said.contains("XDP_AGG_STALL_DEADLINE"), "{said}");
}

/// What a worker does is told with its answers to heartbeats, as far as it is news.
#[test]
fn heartbeats_say_what_a_worker_does() {
    let mut alone = Alone::running();
    let beat = |alone: &mut Alone| {
        alone.machine.handle_reply(Reply::Heartbeat, NOW);
        let said = alone.said();
        assert_eq!(said.last(), Some(&Request::Heartbeat));
        match &said[..] {
            [Request::Doing(doing), _] => Some(doing.clone()),
            [_] => None,
            other => panic!("{other:?}"),
        }
    };
    let idle = beat(&mut alone).expect("it is the first");
    assert_eq!((idle.epoch, idle.sent, idle.next_sequence, &idle.call), (1, 0, 0, &None));
    assert_eq!(beat(&mut alone), None);
    alone.call(2);
    alone.sent();
    let busy = beat(&mut alone).expect("it is news");
    assert_eq!((busy.sent, busy.next_sequence, busy.aside), (2, 1, false));
    assert!(busy.call.is_some_and(|call| call.starts_with("call 0: sum of 48 i32")));
    alone.machine.turn_aside(Some("a broadcast".into()));
    assert_eq!(beat(&mut alone), None, "the call through the aggregator comes first");
}

/// A rank that makes a call among the workers in place of the one that waits never comes to it.
/// One that is a call behind may.
#[test]
fn a_call_beside_the_aggregator_in_place_of_this_one_is_found_out() {
    for (made, differs) in [(1, false), (2, true)] {
        let policy = Policy::default();
        let config = Config { policy, ..Config::new("alone", 1, 3) };
        let mut alone = Alone { machine: Machine::new(config, NOW) };
        assert_eq!(alone.machine.poll_control(NOW), Some(Control::Connect));
        alone.machine.handle_connected(NOW);
        alone.said();
        alone.enter(1, None);
        // A broadcast was made before.
        alone.machine.make_aside();
        alone.call(1);
        alone.sent();
        alone.machine.handle_reply(Reply::Missing { block: 0, ranks: vec![2] }, NOW);
        let call = Some("a broadcast".into());
        let doing = Doing { made, call, aside: true, ..Doing::default() };
        let standing = Standing { doing: Some(doing), ..standing(2, None) };
        alone.machine.handle_reply(Reply::Standing(vec![standing]), NOW);
        let failure = alone.machine.failure().map(ToString::to_string).unwrap_or_default();
        assert_eq!(failure.contains("rank 2 made a broadcast"), differs, "{failure}");
    }
}
