//! The latest events, numbered.

use std::collections::VecDeque;

use xdp_agg_protocol::daemon::Happened;

use super::api::{Event, Events};

/// Events that are kept.
pub const EVENTS_MAX: usize = 512;

/// The kinds besides those of [`Happened`].
pub const RANK_LATE: &str = "rank_late";
/// A late rank is late no more.
pub const RANK_CAUGHT_UP: &str = "rank_caught_up";
/// The user-space engine was taken.
pub const ENGINE_FALLBACK: &str = "engine_fallback";
/// A served interface cannot be used.
pub const PORT_DOWN: &str = "port_down";
/// It can again.
pub const PORT_UP: &str = "port_up";
/// Packets or connections were refused.
pub const REFUSED: &str = "refused";

/// All kinds of events.
pub const KINDS: [&str; Happened::ALL.len() + 6] = {
    let mut kinds = [
        RANK_LATE,
        RANK_CAUGHT_UP,
        ENGINE_FALLBACK,
        PORT_DOWN,
        PORT_UP,
        REFUSED,
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
    ];
    let mut at = 0;
    while at < Happened::ALL.len() {
        kinds[6 + at] = Happened::ALL[at].name();
        at += 1;
    }
    kinds
};

/// What an event is about.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// A job: its index and name.
    pub job: Option<(u16, String)>,
    /// A rank of it.
    pub rank: Option<u16>,
}

/// The latest events, and how many there were of each kind.
#[derive(Debug, Default)]
pub struct Journal {
    last: u64,
    kept: VecDeque<Event>,
    counts: [u64; KINDS.len()],
}

impl Journal {
    /// Adds an event.
    pub fn write(&mut self, time_unix_ms: u64, kind: &str, about: About, text: String) {
        self.last += 1;
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        if let Some(at) = KINDS.iter().position(|other| *other == kind) {
            self.counts[at] += 1;
        }
        let (job_id, job) = about.job.unzip();
        let (number, kind, rank) = (self.last, kind.to_owned(), about.rank);
        self.kept.push_back(Event { number, time_unix_ms, kind, job, job_id, rank, text });
    }

    /// Number of the latest event.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// How many events there were, by kind.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.counts)
    }

    /// The events that are kept and have a number above `since`.
    #[must_use]
    pub fn since(&self, since: u64) -> Events {
        let first = self.kept.front().map_or(self.last + 1, |event| event.number);
        let events = self.kept.iter().filter(|event| event.number > since).cloned().collect();
        Events { first, last: self.last, events }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_differ() {
        let all: BTreeSet<_> = KINDS.into_iter().collect();
        assert!(all.len() == KINDS.len() && !all.contains(""), "{all:?}");
    }

    #[test]
    fn the_latest_events_are_kept_and_all_are_counted() {
        let mut journal = Journal::default();
        assert_eq!(journal.since(0), Events { first: 1, last: 0, events: Vec::new() });
        for number in 1..=EVENTS_MAX as u64 + 3 {
            journal.write(number, PORT_UP, About::default(), String::new());
        }
        let last = EVENTS_MAX as u64 + 3;
        let all = journal.since(0);
        assert_eq!((all.first, all.last, all.events.len()), (4, last, EVENTS_MAX));
        let numbers = |since| {
            journal.since(since).events.iter().map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(last - 2), [last - 1, last]);
        assert!(numbers(last).is_empty() && numbers(u64::MAX).is_empty());
        let count = journal.counts().find(|(kind, _)| *kind == PORT_UP);
        assert_eq!(count, Some((PORT_UP, last)));
    }
}
