//! The side of the one that holds the meeting.

use super::*;
use crate::callers::{Callers, length, other_version, other_world};
use crate::meet::is_gone;

/// How often the holder looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(50);
/// Longest time that a guest may take to be told.
const TELL: Duration = Duration::from_secs(2);

/// The ranks that have come.
struct Guests<'a> {
    meeting: &'a Meeting,
    nonce: u64,
    /// By rank.
    seats: Vec<Option<(TcpStream, Visit)>>,
    /// Callers that were turned away, and why.
    refused: Vec<String>,
}

impl Meeting {
    /// Holds the meeting: collects all ranks, then tells them of each other.
    pub(super) fn hold(&self, hall: TcpListener, stop: &AtomicBool, end: Instant) {
        let nonce = random();
        let mut greeting = Vec::new();
        // Writing to memory does not fail.
        let _ = write_message(&mut greeting, &Greeting { version: VERSION, nonce });
        let seats = (0..self.world_size).map(|_| None).collect();
        let mut guests = Guests { meeting: self, nonce, seats, refused: Vec::new() };
        let mut callers = Callers::new(&hall, length).greeted(greeting);
        let mut tell = Tell::new(Instant::now(), self.warn_after);
        while !guests.are_here() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let now = Instant::now();
            if now >= end {
                return guests.tell_missing();
            }
            if let Some(waited) = tell.is_long(now) {
                let (place, missing) = (&self.place, guests.absent());
                tracing::warn!(
                    "waiting for ranks {missing:?} to come to the meeting at {place}, {waited} s"
                );
            }
            if let Some((stream, words)) = callers.next(end.min(now + GLANCE))
                && let Ok(visit) = read_message(&mut &*words)
            {
                guests.take_in(stream, visit);
            }
        }
        guests.tell_all();
    }

    /// Why a caller is turned away, if it is; and whether it is so only now.
    fn objection(&self, visit: &Visit, nonce: u64) -> Option<(String, bool)> {
        let Visit { version, rank, world_size, occasion, run, .. } = visit;
        let lasting = |reason: String| Some((reason, false));
        if let Some(reason) = other_version(*version, VERSION) {
            return lasting(reason);
        }
        if *occasion != self.occasion {
            let reason = format!(
                "it comes for {occasion:?}, this one is here for {:?}: give all ranks of a job the \
                 same XDP_AGG_JOB",
                self.occasion
            );
            return Some((reason, matches!(self.place, MeetingPoint::Named { .. })));
        }
        if *run != self.run {
            let name = |run: &Option<String>| match run {
                Some(run) => format!("run {run:?}"),
                None => "a run without a name".into(),
            };
            let reason = format!(
                "it is of {}, this one of {}: another run needs another XDP_AGG_JOB or \
                 XDP_AGG_PORT, the ranks of one run the same XDP_AGG_RUN",
                name(run),
                name(&self.run)
            );
            return Some((reason, true));
        }
        if !self.secret.is_proved(&visit.vouched(nonce), &visit.proof) {
            let (of_job, advice) = match self.secret.name {
                name if name.contains("XDP_AGG") => (name, "give it to all ranks"),
                name => (name, "is it of another job?"),
            };
            return lasting(format!("it does not know {of_job}: {advice}"));
        }
        other_world((*rank, *world_size), (self.rank, self.world_size)).and_then(lasting)
    }
}

impl Guests<'_> {
    fn take_in(&mut self, mut stream: TcpStream, visit: Visit) {
        let _ = stream.set_write_timeout(Some(TELL));
        let objection = self.meeting.objection(&visit, self.nonce).or_else(|| {
            visit.ends.is_none().then(|| ("it does not say where it is".into(), false))
        });
        let objection = objection.or_else(|| {
            let rank = visit.rank;
            let (other, holder) = self.seats[usize::from(rank)].as_ref()?;
            (!is_gone(other)).then(|| {
                let by = match holder.ends {
                    Some((at, _)) => format!("a worker on {}", at.ip()),
                    None => "another worker".into(),
                };
                (format!("rank {rank} is taken by {by}; give every worker its own RANK"), false)
            })
        });
        let Some((reason, passing)) = objection else {
            let rank = usize::from(visit.rank);
            self.seats[rank] = Some((stream, visit));
            return;
        };
        let from = stream.peer_addr().map_or_else(|_| "a stranger".into(), |a| a.ip().to_string());
        // It may quote the visitor.
        let reason = clean(&reason, SENTENCE_MAX);
        let text = format!("{from}: {reason}");
        // One that tries again is told of once; strangers may come in any number.
        if !self.refused.contains(&text) && self.refused.len() < 8 {
            tracing::warn!(rank = visit.rank, from, reason, "turned away");
            self.refused.push(text);
        }
        // It may be gone already; then nobody needs the answer.
        let _ = write_message(&mut stream, &Outcome::Refused { reason, passing });
    }

    /// True when all have come. A rank that is gone again does not count: it may come once more, as
    /// a new process.
    fn are_here(&mut self) -> bool {
        if !self.absent().is_empty() {
            return false;
        }
        for seat in &mut self.seats {
            seat.take_if(|(stream, _)| is_gone(stream));
        }
        self.absent().is_empty()
    }

    fn absent(&self) -> Vec<u16> {
        let seats = self.seats.iter().enumerate();
        seats.filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank as u16).collect()
    }

    fn tell_missing(mut self) {
        let (ranks, mut refused) = (self.absent(), std::mem::take(&mut self.refused));
        if let MeetingPoint::Named { host, name, .. } = &self.meeting.place
            && (host == "localhost" || host.starts_with("127."))
        {
            refused.push(format!("{name} is {host}, by which no other host reaches this one"));
        }
        for (stream, _) in self.seats.iter_mut().flatten() {
            let (ranks, refused) = (ranks.clone(), refused.clone());
            // A rank that is gone meanwhile needs no answer.
            let _ = write_message(stream, &Outcome::Missing { ranks, refused });
        }
    }

    /// A rank on this host has the address by which the first one of another host came here: its
    /// own may be a loopback's.
    fn tell_all(mut self) {
        let ends = |visit: &Visit| visit.ends.filter(|ends| !is_same_host(*ends));
        let here = self.seats.iter().flatten().find_map(|(_, visit)| ends(visit));
        let seats = self.seats.iter().flatten().filter_map(|(_, visit)| {
            let own = visit.ends?;
            let ip = match here {
                Some((_, here)) if is_same_host(own) => here.ip(),
                _ => own.0.ip(),
            };
            Some(Seat { at: (ip, visit.port).into(), words: visit.words.clone() })
        });
        let (seats, number): (Vec<_>, _) = (seats.collect(), random());
        for (stream, visit) in self.seats.iter_mut().flatten() {
            let words = vouched((self.nonce, visit.nonce), visit.rank, number, &seats);
            let proof = self.meeting.secret.proof(&words);
            let held = Outcome::Held { seats: seats.clone(), number, proof };
            // A guest that died meanwhile is noticed when the connections are made.
            let _ = write_message(stream, &held);
        }
    }
}
