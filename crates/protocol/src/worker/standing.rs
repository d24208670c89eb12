//! How the ranks do that a worker waits for, in words.

use std::fmt::Write;
use std::time::Duration;

use xdp_agg_common::control::{Presence, Standing};

/// Ranks that are told of one by one, at most.
const TOLD: usize = 4;

/// Ranks as a sentence's subject.
pub(super) fn subject(ranks: &[u16]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        many => format!("ranks {many:?}"),
    }
}

/// One sentence for each rank. `sequence`: of the call that waits; None: the job has not begun.
pub(super) fn sentences(standing: &[Standing], sequence: Option<u64>) -> String {
    let told = standing.iter().take(TOLD).map(|standing| sentence(standing, sequence));
    let mut all: Vec<_> = told.collect();
    if standing.len() > TOLD {
        all.push(format!("and {} more", standing.len() - TOLD));
    }
    all.join("; ")
}

fn sentence(standing: &Standing, sequence: Option<u64>) -> String {
    let mut said = format!("rank {} ", standing.rank);
    let age = standing.heartbeat_ms.map(Duration::from_millis);
    // Writing to a text cannot fail.
    let _ = match (standing.presence, age) {
        (Presence::Left, _) => write!(said, "left in good order, and makes no more calls"),
        (Presence::Absent, _) if sequence.is_none() => write!(said, "has not joined"),
        (Presence::Absent, _) => write!(said, "is lost, or has not come back"),
        (Presence::Silent, age) => {
            let since = age.map(|age| format!(" for {age:?}")).unwrap_or_default();
            write!(
                said,
                "is stopped: its host is there, but its process has answered no heartbeat{since} \
                 (SIGSTOP, a debugger, or no processor or memory for it)"
            )
        }
        (Presence::Alive, age) => {
            let answered =
                age.map(|age| format!(" (its process answered {age:?} ago)")).unwrap_or_default();
            write!(said, "is alive{answered} and {}", activity(standing, sequence))
        }
    };
    said
}

/// What a live rank does, continuing "rank 1 is alive and".
fn activity(standing: &Standing, sequence: Option<u64>) -> String {
    let Some(doing) = &standing.doing else { return "has not said what it does".into() };
    let Some(sequence) = sequence else { return "has joined".into() };
    let fellows: Vec<_> = doing.fellows.clone();
    match &doing.call {
        Some(call) if doing.aside => format!("is in another call: {call}"),
        Some(_) if !fellows.is_empty() && doing.next_sequence > sequence => {
            format!("is in this call, and waits for {} of its host", subject(&fellows))
        }
        Some(_) if doing.next_sequence > sequence => {
            "is in this call, but what it sends does not arrive at the aggregator: look for a \
             firewall (UDP), a route or an MTU between the two"
                .into()
        }
        Some(call) => format!("is still in {call}"),
        None if doing.next_sequence > sequence => "has done its part of this call".into(),
        None => format!(
            "has not made this call: it is in no call, and the next one that it makes is number {}",
            doing.next_sequence
        ),
    }
}

/// How a rank does that is waited for in a call which does not go through the aggregator.
#[must_use]
pub fn standing_aside(standing: &Standing, what: &str) -> String {
    let call = standing.doing.as_ref().and_then(|doing| Some((doing.call.as_ref()?, doing.aside)));
    let age = standing.heartbeat_ms.map(Duration::from_millis);
    let alive = format!(
        "rank {} is alive{} and",
        standing.rank,
        age.map(|age| format!(" (its process answered {age:?} ago)")).unwrap_or_default()
    );
    match (standing.presence, call) {
        (Presence::Alive, None) => format!("{alive} has not made this call: it is in none"),
        (Presence::Alive, Some((call, true))) if call == what => format!("{alive} is in this call"),
        (Presence::Alive, Some((call, _))) => format!("{alive} is in another call: {call}"),
        _ => sentence(standing, Some(0)),
    }
}

/// The same in ranks of the world, for hosts of several processes each.
pub(super) fn in_ranks(
    standing: Box<[Standing]>,
    local_size: u16,
    local_rank: u16,
) -> Box<[Standing]> {
    let of_host = |mut standing: Standing| {
        let first = standing.rank * local_size;
        standing.rank = first + local_rank;
        if let Some(doing) = &mut standing.doing {
            doing.fellows.iter_mut().for_each(|fellow| *fellow += first);
        }
        standing
    };
    standing.into_iter().map(of_host).collect()
}

#[cfg(test)]
mod tests {
    use xdp_agg_common::control::Doing;

    use super::*;

    fn standing(presence: Presence, doing: Doing) -> Standing {
        Standing { rank: 1, presence, heartbeat_ms: Some(200), doing: Some(doing) }
    }

    #[test]
    fn each_reason_to_wait_has_words_of_its_own() {
        let in_call = |call: &str| Doing { call: Some(call.into()), ..Doing::default() };
        let said: Vec<_> = [
            standing(Presence::Left, Doing::default()),
            standing(Presence::Absent, Doing::default()),
            standing(Presence::Silent, Doing::default()),
            standing(Presence::Alive, Doing { next_sequence: 7, ..Doing::default() }),
            standing(Presence::Alive, Doing { aside: true, ..in_call("a broadcast") }),
            standing(Presence::Alive, Doing { next_sequence: 8, ..in_call("call 7") }),
            standing(
                Presence::Alive,
                Doing { next_sequence: 8, fellows: vec![3], ..in_call("call 7") },
            ),
        ]
        .map(|standing| sentence(&standing, Some(7)))
        .into();
        let words = [
            "left in good order",
            "is lost",
            "is stopped",
            "has not made this call",
            "is in another call: a broadcast",
            "does not arrive",
            "waits for rank 3 of its host",
        ];
        for (said, words) in said.iter().zip(words) {
            assert!(said.starts_with("rank 1 ") && said.contains(words), "{said}");
            assert_eq!(said.contains("answered 200ms ago"), said.contains("is alive"), "{said}");
        }
    }
}
