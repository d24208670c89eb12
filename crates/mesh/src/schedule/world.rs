//! All ranks' schedules, carried out in rounds, for tests: what each element of each rank is made
//! of.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::{Effect, Schedule};

/// What an element is made of: the ranks whose values are in it, with how often.
type Made = Vec<u16>;

/// The vectors of all ranks.
pub(super) struct World<'a> {
    schedules: &'a [Schedule],
    values: Vec<Vec<Made>>,
    done: Vec<Vec<bool>>,
    next_send: Vec<usize>,
    /// Messages between two ranks that wait for their receiver, in order.
    wires: Vec<Vec<VecDeque<Vec<Made>>>>,
    /// Received values are joined with those that are there, also where they would replace them.
    pub(super) gossips: bool,
}

impl<'a> World<'a> {
    /// Each rank's vector is made of itself.
    pub(super) fn of_own_ranks(schedules: &'a [Schedule], len: usize) -> Self {
        let n = schedules.len();
        Self {
            schedules,
            values: (0..n).map(|rank| vec![vec![rank as u16]; len]).collect(),
            done: schedules.iter().map(|s| vec![false; s.receives.len()]).collect(),
            next_send: vec![0; n],
            wires: (0..n).map(|_| (0..n).map(|_| VecDeque::new()).collect()).collect(),
            gossips: false,
        }
    }

    fn prefix(&self, rank: usize) -> usize {
        self.done[rank].iter().position(|done| !done).unwrap_or(self.done[rank].len())
    }

    /// Carries everything out: in a round a rank sends at most `ports` messages, which arrive at
    /// the round's end. How many rounds it took.
    pub(super) fn run(&mut self, ports: usize) -> usize {
        let n = self.schedules.len();
        let mut rounds = 0;
        while (0..n).any(|rank| self.next_send[rank] < self.schedules[rank].sends.len()) {
            let mut sent = false;
            let known: Vec<usize> = (0..n).map(|rank| self.prefix(rank)).collect();
            for (rank, known) in known.into_iter().enumerate() {
                let sends = &self.schedules[rank].sends;
                for _ in 0..ports {
                    let Some(send) = sends.get(self.next_send[rank]) else { break };
                    if send.after > known {
                        break;
                    }
                    let message = self.values[rank][send.range.clone()].to_vec();
                    self.wires[rank][usize::from(send.to)].push_back(message);
                    self.next_send[rank] += 1;
                    sent = true;
                }
            }
            assert!(sent, "nobody can send: a deadlock");
            (0..n).for_each(|rank| self.deliver(rank));
            rounds += 1;
        }
        for (rank, done) in self.done.iter().enumerate() {
            assert!(done.iter().all(|done| *done), "rank {rank} waits for ever");
        }
        assert!(self.wires.iter().flatten().all(VecDeque::is_empty), "nobody takes it");
        rounds
    }

    /// Takes what has come for a rank, as far as its schedule lets it.
    fn deliver(&mut self, rank: usize) {
        loop {
            let prefix = self.prefix(rank);
            let mut seen = BTreeSet::new();
            let mut taken = false;
            for (index, receive) in self.schedules[rank].receives.iter().enumerate() {
                // The first of each sender's that has not ended.
                if self.done[rank][index] || !seen.insert(receive.from) || receive.after > prefix {
                    continue;
                }
                if matches!(receive.effect, Effect::Beside { sent } if sent > self.next_send[rank])
                {
                    continue;
                }
                let wire = &mut self.wires[usize::from(receive.from)][rank];
                let Some(message) = wire.pop_front() else { continue };
                assert_eq!(message.len(), receive.range.len(), "another range than expected");
                for (at, made) in receive.range.clone().zip(message) {
                    let value = &mut self.values[rank][at];
                    if receive.effect != Effect::Replace || self.gossips {
                        value.extend(made);
                    } else {
                        *value = made;
                    }
                }
                self.done[rank][index] = true;
                taken = true;
            }
            if !taken {
                return;
            }
        }
    }

    /// These elements of a rank have every rank's value in them; once, unless they gossip.
    pub(super) fn has_all(&self, rank: usize, range: Range<usize>) -> bool {
        let n = self.schedules.len() as u16;
        self.values[rank][range].iter().all(|made| {
            let ranks: BTreeSet<u16> = made.iter().copied().collect();
            ranks.into_iter().eq(0..n) && (self.gossips || made.len() == usize::from(n))
        })
    }

    /// These elements of a rank are another one's.
    pub(super) fn has_only(&self, rank: usize, owner: usize, range: Range<usize>) -> bool {
        self.values[rank][range].iter().all(|made| made.as_slice() == [owner as u16])
    }
}

/// Carries out a broadcast and checks what everybody has; the number of rounds.
pub(super) fn spread(schedules: &[Schedule], root: u16, len: usize, ports: usize) -> usize {
    let mut world = World::of_own_ranks(schedules, len);
    let rounds = world.run(ports);
    for rank in 0..schedules.len() {
        assert!(world.has_only(rank, root.into(), 0..len), "rank {rank}");
    }
    rounds
}

/// Each of `len` elements is received `times` times.
pub(super) fn exactly_once(schedule: &Schedule, len: usize, times: usize) -> bool {
    let mut counts = vec![0; len];
    for receive in &schedule.receives {
        counts[receive.range.clone()].iter_mut().for_each(|count| *count += 1);
    }
    counts.iter().all(|count| *count == times)
}
