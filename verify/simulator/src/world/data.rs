//! The data network: packets are lost, come twice, late, in another order, or from a stranger.

use std::net::SocketAddrV4;
use std::time::Duration;

use rand::Rng;
use xdp_agg_common::admission::Source;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_protocol::sum::{Answer, Sums};

use super::place::{DATA_PORT, Place};
use super::{Event, World, place};
use crate::check::Origin;
use crate::scenario::{When, magnitude};
use crate::time::{MICRO, MILLI, Nanos};
use crate::trace::{Party, describe};

/// Packets that a stranger remembers.
const SEEN_MAX: usize = 64;
/// Address of a stranger.
const STRANGER: u32 = 0x0a00_00c8;

/// A packet that a stranger has seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    from: Place,
    to: Place,
    source: Source,
    bytes: Vec<u8>,
}

impl World {
    /// A party sends a packet.
    pub(super) fn send(&mut self, from: Place, source: Source, to: SocketAddrV4, bytes: Vec<u8>) {
        let port = to.port();
        let Some(to) = self.who_is_at(to) else {
            return self.checker.fail(|| format!("a packet to {to}, where nobody is"));
        };
        if self.scenario.hostile {
            if self.seen.len() == SEEN_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(Seen { from, to, source, bytes: bytes.clone() });
        }
        let arrivals = self.fate(from, to, &bytes);
        for at in arrivals.into_iter().flatten() {
            self.arrive(at, (to, port), source, bytes.clone(), Origin::Member);
        }
    }

    /// A packet is going to arrive.
    fn arrive(
        &mut self,
        at: Nanos,
        (to, port): (Place, u16),
        source: Source,
        bytes: Vec<u8>,
        origin: Origin,
    ) {
        let event = match to {
            Place::Daemon(daemon) => Event::ToDaemon { daemon, source, bytes, origin },
            Place::Worker(worker) => Event::ToWorker { worker, source, port, bytes },
        };
        self.queue.push(at, event);
    }

    /// When a packet arrives, how often.
    fn fate(&mut self, from: Place, to: Place, bytes: &[u8]) -> [Option<Nanos>; 2] {
        let link = self.link(from, to);
        let cut = self.cut_until(from, to) > self.now;
        let lost = cut || self.rng.random_bool(link.loss);
        let twice = self.rng.random_bool(link.duplicate);
        let mut arrivals = [None, None];
        let copies = if lost { 0 } else { 1 + usize::from(twice) };
        for arrival in arrivals.iter_mut().take(copies) {
            let mut delay = link.base + self.rng.random_range(0..=link.jitter);
            if self.rng.random_bool(link.late) {
                delay += self.rng.random_range(0..=link.tail);
                self.stats.late += 1;
            }
            *arrival = Some(self.now + delay);
        }
        self.stats.packets += 1;
        self.trigger_faults(bytes);
        self.stats.lost += u64::from(lost);
        self.stats.duplicated += u64::from(!lost && twice);
        let numbers = [4, from.number(), to.number(), arrivals[0].unwrap_or(0)];
        self.note(&numbers, || {
            let (from, to) = (Party::from(from), Party::from(to));
            let what = header(bytes).map_or_else(|| "?".into(), |header| describe(&header));
            let fate = match arrivals {
                [None, _] if cut => "cut off".into(),
                [None, _] => "lost".into(),
                [Some(at), None] => format!("at {:.3}", at as f64 / MICRO as f64),
                [Some(at), Some(again)] => format!(
                    "at {:.3} and {:.3}",
                    at as f64 / MICRO as f64,
                    again as f64 / MICRO as f64
                ),
            };
            format!("{from} → {to}  {what}  ({fate})")
        });
        arrivals
    }

    /// Faults that waited for this packet happen soon.
    fn trigger_faults(&mut self, bytes: &[u8]) {
        let keys = header(bytes).is_some_and(|header| header.reduction == Reduction::Max16);
        self.key_packets += u64::from(keys);
        let (sent, sent_keys) = (self.stats.packets, self.key_packets);
        let is_due = |when: When| match when {
            When::After(packets) => packets == sent,
            When::AfterKeys(packets) => keys && packets == sent_keys,
            When::At(_) => false,
        };
        if self.pending.iter().any(|(when, _)| is_due(*when)) {
            let due: Vec<_> = self.pending.extract_if(.., |(when, _)| is_due(*when)).collect();
            for (when, index) in due {
                // While the keys, or what comes of them, are on their way.
                let trips =
                    matches!(when, When::AfterKeys(_)).then_some(4 * self.scenario.link.base);
                let soon = self.now + self.rng.random_range(0..trips.unwrap_or(200 * MICRO));
                self.queue.push(soon, Event::Fault(index));
            }
        }
    }

    /// A packet reaches an aggregator's host.
    pub(super) fn at_daemon(
        &mut self,
        daemon: usize,
        source: Source,
        mut bytes: Vec<u8>,
        origin: Origin,
    ) {
        if self.daemons[daemon].is_stopped() && !self.scenario.kernel_data_path {
            return self.daemons[daemon].keep_packet(source, bytes, origin);
        }
        let Some(mut sums) = self.daemons[daemon].sums.take() else { return };
        let before = self.checker.before(daemon, &sums, source, &bytes, origin);
        let answer = sums.handle_packet(source, &mut bytes, Duration::from_nanos(self.now));
        self.checker.after(&before, &sums, &answer, &bytes, origin);
        if origin != Origin::Foreign {
            self.stats.count_answer(&answer, before.is_from_above());
            self.answer(daemon, &sums, answer, source, &mut bytes);
        }
        self.daemons[daemon].sums = Some(sums);
    }

    fn answer(
        &mut self,
        daemon: usize,
        sums: &Sums,
        answer: Answer,
        source: Source,
        bytes: &mut [u8],
    ) {
        let (header, len) = match answer {
            Answer::Nothing => return,
            Answer::Sender { header, len }
            | Answer::Members { header, len }
            | Answer::Member { header, len }
            | Answer::Parent { header, len, .. } => (header, len),
        };
        let packet = &mut bytes[..HEADER_LEN + len];
        let to = |to: SocketAddrV4, rank: u16, world: &mut Self, packet: &mut [u8]| {
            if let Some(bytes) = packet.first_chunk_mut::<HEADER_LEN>() {
                Header { rank, ..header }.emit(bytes);
            }
            world.send(Place::Daemon(daemon), place::source(daemon), to, packet.to_vec());
        };
        let at = |addr: u32, port: u16| SocketAddrV4::new(addr.into(), port);
        let job_id = if let Answer::Parent { job_id, .. } = answer { job_id } else { header.job };
        let Some(job) = sums.job(job_id) else { return };
        match answer {
            Answer::Nothing => {}
            Answer::Sender { .. } => {
                to(at(source.addr, source.port), header.rank, self, packet);
            }
            Answer::Parent { .. } => {
                to(at(job.uplink.addr, job.uplink.port), header.rank, self, packet);
            }
            Answer::Member { .. } => {
                let member = job.members[usize::from(header.rank)];
                to(at(member.addr, member.port), header.rank, self, packet);
            }
            Answer::Members { .. } => {
                let multicast = job.conf.mode == ResultMode::Multicast as u16;
                for (rank, member) in (0..).zip(&job.members).filter(|(_, m)| m.addr != 0) {
                    let rank = if multicast { EVERYBODY } else { rank };
                    to(at(member.addr, member.port), rank, self, packet);
                }
            }
        }
    }

    /// A stranger sends something: what it saw, as it was or with changes.
    pub(super) fn hostile(&mut self) {
        if self.healed {
            return;
        }
        let next = self.now + magnitude(&mut self.rng, 20 * MICRO, 40 * MILLI);
        self.queue.push(next, Event::Hostile);
        if self.seen.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.seen.len());
        if self.rng.random_bool(0.15) {
            return self.overreach(index);
        }
        let Seen { from, to, mut source, mut bytes } = self.seen[index].clone();
        // Unchanged it may come from its true source: that is a late copy. Changed, it comes from
        // its true source only where the change makes it foreign.
        let changed = self.rng.random_bool(0.7) && self.mutate(&mut source, &mut bytes);
        let origin = if changed { Origin::Stranger } else { Origin::Member };
        self.stats.hostile += 1;
        self.note(&[5, from.number(), to.number()], || {
            let what = header(&bytes).map_or_else(|| "?".into(), |header| describe(&header));
            let to = Party::from(to);
            format!("{} → {to}  {what}  (as if from {source:?})", Party::Stranger)
        });
        let at = self.now + self.link(from, to).base;
        let port = match to {
            Place::Worker(worker) => self.workers[worker].port(),
            Place::Daemon(_) => Some(DATA_PORT),
        };
        if let Some(port) = port {
            self.arrive(at, (to, port), source, bytes, origin);
        }
    }

    /// A member sends what it must not send: a block that would need a slot that is in use, or one
    /// that is to be combined otherwise than the others' contributions to it.
    fn overreach(&mut self, index: usize) {
        let Seen { from, to, source, mut bytes } = self.seen[index].clone();
        let Place::Daemon(daemon) = to else { return };
        if self.daemons[daemon].is_stopped() {
            return; // it would come later, when it may be allowed
        }
        let header = header(&bytes).filter(|header| header.kind == Kind::Contribution);
        let Some(mut header) = header else { return };
        let slot = self.daemons[daemon].sums.as_ref().and_then(|sums| {
            Some((*sums.slot(header.job, header.block)?, sums.job(header.job)?.conf))
        });
        let Some((slot, conf)) = slot.filter(|(slot, _)| slot.epoch == header.epoch) else {
            return;
        };
        if slot.block == header.block && self.rng.random_bool(0.5) {
            let other = header.reduction as usize + self.rng.random_range(1..Reduction::ALL.len());
            header.reduction = Reduction::ALL[other % Reduction::ALL.len()];
        } else {
            // The next generation, where this one is not finished; or one beyond the next.
            let awaited = conf.forwards != 0 && slot.settled == 0;
            let copied = slot.reduction == Reduction::Copy as u8;
            let missing = slot.seen != conf.members && !copied;
            let unfinished = (missing || awaited) && self.rng.random_bool(0.5);
            let generations = if unfinished { 1 } else { self.rng.random_range(2..5) };
            header.block = slot.block + generations * u64::from(conf.slots);
        }
        if let Some(place) = bytes.first_chunk_mut::<HEADER_LEN>() {
            header.emit(place);
        }
        self.stats.hostile += 1;
        self.note(&[18, from.number()], || {
            let (to, what) = (Party::from(to), describe(&header));
            format!("{} → {to}  {what}  (against the rules)", Party::Stranger)
        });
        self.at_daemon(daemon, source, bytes, Origin::Foreign);
    }

    /// Changes a packet so that no job may take it for its own. False: it stayed as it was.
    fn mutate(&mut self, source: &mut Source, bytes: &mut Vec<u8>) -> bool {
        let Some(mut header) = header(bytes) else { return false };
        let foreign = self.rng.random_range(0..7);
        match foreign {
            0 => header.cookie ^= 1 << self.rng.random_range(0..64),
            1 => header.epoch = header.epoch.wrapping_add(self.rng.random_range(1..=3)).max(1),
            2 => header.job ^= 1 << self.rng.random_range(0..4),
            3 => bytes.truncate(self.rng.random_range(0..HEADER_LEN)),
            4 if header.kind == Kind::Contribution => {
                header.kind = [Kind::ProbeReply, Kind::Result][self.rng.random_range(0..2)]
            }
            _ => {}
        }
        let was_foreign = (0..=3).contains(&foreign);
        if let Some(place) = bytes.first_chunk_mut::<HEADER_LEN>() {
            header.emit(place);
            match self.rng.random_range(0..8) {
                0 => place[0] ^= 1 << self.rng.random_range(4..8),
                // A bit that has no meaning.
                1 => place[1] |= [0x10, 0x20, 0x40, 0x80][self.rng.random_range(0..4)],
                _ if !was_foreign => *source = Source { addr: STRANGER, port: source.port },
                _ => {}
            }
        }
        true
    }
}

fn header(bytes: &[u8]) -> Option<Header> {
    Header::parse(bytes.first_chunk()?).ok()
}
