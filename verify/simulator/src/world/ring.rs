//! Rings: the members of a job that lost its daemon meet, tell each other what they have, and sum
//! batch after batch. What a machine puts in and takes out is real. The TCP connections between are
//! not: here a batch is summed when all have given their part, and comes to each in its own time.
//! Where a member is lost, some of the others still get what was summed, and some do not. When all
//! say that they can reach the daemon, each leaves the ring as it takes in that batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;
use xdp_agg_common::control::Progress;
use xdp_agg_protocol::worker::{Batch, CallerError, Error, Lanes, State};

use super::World;
use super::control::End;
use super::place::Place;
use super::worker::Worker;
use crate::reference::combine;
use crate::time::{MILLI, Nanos, SECOND, duration};
use crate::trace::Party;

/// Longest wait for all members, and for each batch.
const PATIENCE: Nanos = 5 * SECOND;

/// Something happens to a process on a ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// All members have met.
    Enter { worker: usize, life: usize, ring: usize },
    /// A batch is summed.
    Summed { worker: usize, life: usize, ring: usize },
    /// A member is lost, or too late.
    Broken { worker: usize, life: usize, ring: usize },
    /// The wait for this batch of a ring is over; for all members, if there was none.
    Late { ring: usize, batch: Option<u64> },
}

/// A process's part in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    ring: usize,
    entered: bool,
    /// It has given its part of a batch, and waits for the sum.
    waits: bool,
}

/// What the members of one epoch make of themselves.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Job, epoch, cookie, rings before this one.
    key: (usize, u16, u64, u32),
    members: Vec<u16>,
    /// Worker, life and progress of those that have come, by rank.
    here: BTreeMap<u16, (usize, usize, Progress)>,
    formed: bool,
    /// Ranks that are lost or too late.
    lost: Vec<u16>,
    /// One of them went with what it had not passed on. A member that leaves in good order has
    /// passed all on.
    torn: bool,
    /// Number of the batch, and what each has given.
    batch: u64,
    given: BTreeMap<u16, (Batch, Lanes)>,
    /// The sum of the last batch that all gave their part of.
    sum: Option<(Batch, Lanes)>,
    /// All members that gave their part can reach the daemon: the batch is the last one.
    ends: bool,
    /// A member has left the ring behind that batch.
    left: bool,
}

impl World {
    /// Does what a process on a ring has to do. True: there may be more.
    pub(super) fn ring_step(&mut self, worker: usize) -> bool {
        let Some(process) = &mut self.workers[worker].process else { return false };
        if process.machine.state() != State::OnRing {
            return false;
        }
        match process.ring {
            None => self.meet(worker),
            Some(Part { ring, entered: true, waits: false }) => {
                let mut lanes = Lanes::default();
                let Some(batch) = process.machine.poll_ring_batch(&mut lanes) else { return false };
                process.ring = Some(Part { ring, entered: true, waits: true });
                self.give(worker, ring, batch, lanes);
                true
            }
            Some(_) => false,
        }
    }

    /// A process comes to where the members of its epoch meet.
    fn meet(&mut self, worker: usize) -> bool {
        let (job, rank) = (self.workers[worker].job, self.workers[worker].rank);
        let Some(process) = &mut self.workers[worker].process else { return false };
        let Some(seat) = process.machine.ring_seat(0) else { return false };
        let (life, progress) = (process.life, process.machine.progress());
        let key = (job, seat.epoch.0, seat.epoch.1, seat.rings);
        let known = self.rings.iter().position(|ring| ring.key == key && ring.lost.is_empty());
        let index = known.unwrap_or(self.rings.len());
        if known.is_none() {
            self.rings.push(Ring { key, members: seat.members.clone(), ..Ring::default() });
            let late = Event::Late { ring: index, batch: None };
            self.queue.push(self.now + PATIENCE, super::Event::Ring(late));
        }
        process.ring = Some(Part { ring: index, entered: false, waits: false });
        let ring = &mut self.rings[index];
        ring.here.insert(rank, (worker, life, progress));
        let (all, differs) = (ring.here.len() == ring.members.len(), ring.members != seat.members);
        self.note(&[19, worker as u64], || {
            format!("{} comes to ring {index} of {:?}", Party::Worker(worker), seat.members)
        });
        if differs {
            self.checker.fail(|| "members of one epoch build different rings".into());
        } else if all {
            self.rings[index].formed = true;
            self.stats.rings += 1;
            self.tell_ring(index, |worker, life, ring| Event::Enter { worker, life, ring });
        }
        true
    }

    /// All that are in a ring hear of something, each in its time.
    fn tell_ring(&mut self, ring: usize, event: impl Fn(usize, usize, usize) -> Event) {
        let all: Vec<_> = self.rings[ring].here.values().map(|(w, life, _)| (*w, *life)).collect();
        // A member that is cut off keeps all waiting, as the ring goes through all.
        let everybody = all.iter().map(|(worker, _)| Place::Worker(*worker));
        let back = everybody.map(|place| self.parted_until(place, Place::Daemon(0))).max();
        for (worker, life) in all {
            let link = self.link(Place::Worker(worker), Place::Daemon(0));
            let hops = self.rings[ring].members.len() as u64;
            let delay = hops * link.base + self.rng.random_range(0..=link.jitter.min(SECOND));
            let at = back.unwrap_or(0).max(self.now) + delay;
            self.queue.push(at, super::Event::Ring(event(worker, life, ring)));
        }
    }

    /// A process gives its part of the next batch.
    fn give(&mut self, worker: usize, index: usize, batch: Batch, lanes: Lanes) {
        let rank = self.workers[worker].rank;
        if can_return(&lanes) && !self.is_connected(worker) {
            self.checker.fail(|| format!("rank {rank} says that it can reach its daemon"));
        }
        let ring = &mut self.rings[index];
        ring.given.insert(rank, (batch, lanes));
        let (number, first) = (ring.batch, ring.given.len() == 1);
        let all = ring.given.len() == ring.members.len();
        self.note(&[20, worker as u64, number], || {
            format!("{} gives its part of {batch:?}", Party::Worker(worker))
        });
        if !self.rings[index].lost.is_empty() {
            return self.break_ring(index);
        }
        if first {
            let late = Event::Late { ring: index, batch: Some(number) };
            self.queue.push(self.now + PATIENCE, super::Event::Ring(late));
        }
        if all {
            self.sum_batch(index);
        }
    }

    /// All have given their part.
    fn sum_batch(&mut self, index: usize) {
        let ring = &mut self.rings[index];
        ring.ends = ring.given.values().all(|(_, lanes)| can_return(lanes));
        let mut given = std::mem::take(&mut ring.given).into_values();
        let Some((batch, mut sum)) = given.next() else { return };
        for (other, lanes) in given {
            let alike = other.blocks() == batch.blocks() && other.reduction == batch.reduction;
            if !alike || lanes.words.len() != sum.words.len() {
                return self.checker.fail(|| format!("members cut batches {batch:?}, {other:?}"));
            }
            let bytes = |words: &[u64]| -> Vec<u8> {
                words.iter().flat_map(|word| word.to_le_bytes()).collect()
            };
            let mut all = bytes(&sum.words);
            combine(batch.reduction, &mut all, &bytes(&lanes.words));
            sum.words = all.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            for (mark, other) in sum.marks.iter_mut().zip(&lanes.marks) {
                *mark = mark.wrapping_add(*other);
            }
        }
        self.stats.ring_blocks += batch.blocks().end - batch.blocks().start;
        self.checker.summed(index, &batch, &sum);
        let ring = &mut self.rings[index];
        ring.batch += 1;
        ring.sum = Some((batch, sum));
        self.tell_ring(index, |worker, life, ring| Event::Summed { worker, life, ring });
    }

    /// Nothing more comes of a ring.
    fn break_ring(&mut self, ring: usize) {
        self.tell_ring(ring, |worker, life, ring| Event::Broken { worker, life, ring });
    }

    /// A process is gone. The others notice when they need it.
    pub(super) fn leave_ring(&mut self, worker: usize, part: Option<Part>) {
        let Some(Part { ring, .. }) = part else { return };
        let Worker { rank, left, .. } = self.workers[worker];
        let place = &mut self.rings[ring];
        place.lost.push(rank);
        place.torn |= !left;
        let awaited = !place.given.is_empty() || !place.formed;
        if awaited {
            self.break_ring(ring);
        }
    }

    /// Something happens to a process on a ring.
    pub(super) fn ring_event(&mut self, event: Event) {
        let (Event::Enter { worker, life, ring }
        | Event::Summed { worker, life, ring }
        | Event::Broken { worker, life, ring }) = event
        else {
            return self.ring_is_late(event);
        };
        let is_here = |part: Part| part.ring == ring;
        let process = self.workers[worker].process.as_ref();
        if !process.is_some_and(|p| p.life == life && p.ring.is_some_and(is_here)) {
            return;
        }
        if self.workers[worker].is_stopped() {
            return self.queue.push(self.now + MILLI, super::Event::Ring(event));
        }
        let is_torn = self.rings[ring].torn && self.rng.random_bool(0.5);
        match event {
            Event::Enter { .. } if !is_torn => self.enter_ring(worker, life, ring),
            Event::Summed { .. } if !is_torn => self.take_batch(worker, life, ring),
            _ => self.lose_ring(worker, ring),
        }
        self.drive(worker);
    }

    /// Whether a process has a connection to its daemon, as far as it knows.
    fn is_connected(&self, worker: usize) -> bool {
        let process = self.workers[worker].process.as_ref();
        let connection = process.and_then(|process| process.connection);
        connection.is_some_and(|index| self.connections[index].at_client == End::Open)
    }

    fn enter_ring(&mut self, worker: usize, life: usize, index: usize) {
        let now = duration(self.now);
        let here = &self.rings[index].here;
        let all: Vec<_> = here.iter().map(|(rank, (_, _, p))| (*rank, p.clone())).collect();
        let lives: Vec<_> = here.iter().map(|(rank, (_, life, _))| (*rank, *life)).collect();
        let Some(process) = &mut self.workers[worker].process else { return };
        // A member that was lost after all had met does not keep the others from hearing of each
        // other.
        if process.machine.handle_ring_formed(&all, now).is_err() {
            return;
        }
        process.ring = Some(Part { ring: index, entered: true, waits: false });
        if let Some(admitted) = process.machine.admitted().cloned() {
            self.checker.enters_ring(index, life, &admitted, &lives);
        }
    }

    fn take_batch(&mut self, worker: usize, life: usize, index: usize) {
        let Some(process) = &mut self.workers[worker].process else { return };
        let Some((batch, sum)) = &self.rings[index].sum else { return };
        process.machine.handle_ring_result(*batch, sum, duration(self.now));
        let (batch, failed) = (*batch, process.machine.failure().is_some());
        let left = process.machine.state() != State::OnRing && !failed;
        process.ring = (!left).then_some(Part { ring: index, entered: true, waits: false });
        self.note(&[21, worker as u64], || {
            format!("{} takes in {batch:?} of ring {index}", Party::Worker(worker))
        });
        if !failed {
            self.checker.took_batch(index, life, &batch);
            self.check_end(worker, life, index, left);
        }
    }

    /// A process has taken in a batch, and left the ring with it or not.
    fn check_end(&mut self, worker: usize, life: usize, index: usize, left: bool) {
        let ring = &mut self.rings[index];
        if left != ring.ends {
            let who = Party::Worker(worker);
            return self.checker.fail(|| format!("{who} leaves ring {index}: {left}"));
        }
        if !left {
            return;
        }
        self.stats.returns += u64::from(!std::mem::replace(&mut ring.left, true));
        self.checker.leaves_ring(life);
    }

    fn lose_ring(&mut self, worker: usize, index: usize) {
        let ranks = self.rings[index].lost.clone();
        let Some(process) = &mut self.workers[worker].process else { return };
        process.machine.fail(Error::Caller(Arc::new(RingLost { ranks })));
    }

    /// A wait is over.
    fn ring_is_late(&mut self, event: Event) {
        let Event::Late { ring: index, batch } = event else { return };
        let ring = &mut self.rings[index];
        let absent = |here: &dyn Fn(&u16) -> bool| -> Vec<u16> {
            ring.members.iter().copied().filter(|rank| !here(rank)).collect()
        };
        let lost = match batch {
            None if !ring.formed => absent(&|rank| ring.here.contains_key(rank)),
            Some(batch) if batch == ring.batch && !ring.given.is_empty() => {
                absent(&|rank| ring.given.contains_key(rank))
            }
            _ => return,
        };
        ring.lost.extend(lost);
        self.break_ring(index);
    }
}

/// What a ring's driver says of it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the ring is lost at ranks {ranks:?}")]
struct RingLost {
    ranks: Vec<u16>,
}

impl CallerError for RingLost {}

/// A member's word on whether its daemon would take it back.
fn can_return(lanes: &Lanes) -> bool {
    matches!(lanes.marks.last_chunk(), Some([1, _, _]))
}
