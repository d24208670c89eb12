//! The data network: packets are lost, come twice, late, in another order, or from a stranger.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use rand::Rng;
use xdp_agg::engine::sum::Answer;
use xdp_agg_common::admission::Source;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header, Kind, Reduction};

use super::{Event, World};
use crate::check::Origin;
use crate::scenario::{When, magnitude};
use crate::time::{MICRO, MILLI, Nanos};
use crate::trace::{Party, describe};

/// Address of the aggregator.
pub(super) const DAEMON: u32 = 0x0a00_0064;
/// UDP port of the data path.
pub(super) const DATA_PORT: u16 = 0xbee0;
/// Where results come from.
const FROM_DAEMON: Source = Source { addr: DAEMON, port: DATA_PORT };
/// Packets that a stranger remembers.
const SEEN_MAX: usize = 64;
/// Address of a stranger.
const STRANGER: u32 = 0x0a00_00c8;

/// Address of a worker's host.
pub(super) const fn address(job: usize, rank: u16) -> u32 {
    0x0a00_0100 + ((job as u32) << 8) + rank as u32 + 1
}

/// A packet that a stranger has seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    worker: usize,
    up: bool,
    source: Source,
    bytes: Vec<u8>,
}

impl World {
    /// A worker sends the first `len` bytes of the buffer to the aggregator.
    pub(super) fn send_up(&mut self, worker: usize, port: u16, len: usize) {
        let bytes = self.buffer[..len].to_vec();
        let (job, rank) = (self.workers[worker].job, self.workers[worker].rank);
        let source = Source { addr: address(job, rank), port };
        self.remember(worker, true, source, &bytes);
        let arrivals = self.fate(worker, true, &bytes);
        for at in arrivals.into_iter().flatten() {
            let bytes = bytes.clone();
            self.queue.push(at, Event::ToDaemon { source, bytes, origin: Origin::Member });
        }
    }

    /// The aggregator sends a packet to a worker.
    fn send_down(&mut self, worker: usize, port: u16, bytes: &[u8]) {
        self.remember(worker, false, FROM_DAEMON, bytes);
        let arrivals = self.fate(worker, false, bytes);
        for at in arrivals.into_iter().flatten() {
            self.queue.push(at, Event::ToWorker { worker, port, bytes: bytes.to_vec() });
        }
    }

    fn remember(&mut self, worker: usize, up: bool, source: Source, bytes: &[u8]) {
        if self.scenario.hostile {
            if self.seen.len() == SEEN_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(Seen { worker, up, source, bytes: bytes.to_vec() });
        }
    }

    /// When a packet arrives, how often.
    fn fate(&mut self, worker: usize, up: bool, bytes: &[u8]) -> [Option<Nanos>; 2] {
        let link = self.link(worker);
        let cut = self.is_cut(worker, up);
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
        let numbers = [4, worker as u64, u64::from(up), arrivals[0].unwrap_or(0)];
        self.note(&numbers, || {
            let (from, to) = (Party::Worker(worker), Party::Daemon);
            let (from, to) = if up { (from, to) } else { (to, from) };
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

    /// A packet reaches the aggregator's host.
    pub(super) fn at_daemon(&mut self, source: Source, mut bytes: Vec<u8>, origin: Origin) {
        let stopped = self.daemon.is_stopped() && !self.scenario.kernel_data_path;
        if stopped {
            return self.daemon.keep_packet(source, bytes, origin);
        }
        let Some(mut sums) = self.daemon.sums.take() else { return };
        let before = self.checker.before(&sums, source, &bytes, origin);
        let answer = sums.packet(source, &mut bytes, Duration::from_nanos(self.now));
        self.checker.after(&before, &sums, &answer, &bytes, origin);
        if origin != Origin::Foreign {
            self.answer(&sums, answer, source, &mut bytes);
        }
        self.daemon.sums = Some(sums);
    }

    fn answer(
        &mut self,
        sums: &xdp_agg::engine::sum::Sums,
        answer: Answer,
        source: Source,
        bytes: &mut [u8],
    ) {
        let (header, len, members) = match answer {
            Answer::Nothing => return,
            Answer::Sender { header, len } => (header, len, false),
            Answer::Members { header, len } => (header, len, true),
            Answer::Member { .. } | Answer::Parent { .. } => {
                unreachable!("no job of the simulation has a parent")
            }
        };
        let Some(job) = sums.job(header.job) else { return };
        let packet = &mut bytes[..HEADER_LEN + len];
        let to = |to: SocketAddrV4, rank: u16, world: &mut Self, packet: &mut [u8]| {
            if let Some(bytes) = packet.first_chunk_mut::<HEADER_LEN>() {
                Header { rank, ..header }.emit(bytes);
            }
            if let Some(worker) = world.host(u32::from(*to.ip())) {
                world.send_down(worker, to.port(), packet);
            }
        };
        if !members {
            let at = SocketAddrV4::new(Ipv4Addr::from(source.addr), source.port);
            return to(at, header.rank, self, packet);
        }
        let multicast = job.conf.mode == ResultMode::Multicast as u16;
        for (rank, member) in (0..).zip(&job.members).filter(|(_, member)| member.addr != 0) {
            let at = SocketAddrV4::new(member.addr.into(), member.port);
            to(at, if multicast { EVERYBODY } else { rank }, self, packet);
        }
    }

    /// The worker whose host has this address.
    fn host(&self, addr: u32) -> Option<usize> {
        self.workers.iter().position(|worker| address(worker.job, worker.rank) == addr)
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
        let Seen { worker, up, mut source, mut bytes } = self.seen[index].clone();
        // Unchanged it may come from its true source: that is a late copy. Changed, it comes from
        // its true source only where the change makes it foreign.
        let changed = self.rng.random_bool(0.7) && self.mutate(&mut source, &mut bytes);
        let origin = if changed { Origin::Stranger } else { Origin::Member };
        self.stats.hostile += 1;
        self.note(&[5, worker as u64, u64::from(up)], || {
            let what = header(&bytes).map_or_else(|| "?".into(), |header| describe(&header));
            let to = if up { Party::Daemon } else { Party::Worker(worker) };
            format!("{} → {to}  {what}  (as if from {source:?})", Party::Stranger)
        });
        let at = self.now + self.link(worker).base;
        if up {
            self.queue.push(at, Event::ToDaemon { source, bytes, origin });
        } else if let Some(port) = self.workers[worker].port()
            && source == FROM_DAEMON
        {
            // A worker's socket takes packets of the aggregator's address and port alone.
            self.queue.push(at, Event::ToWorker { worker, port, bytes });
        }
    }

    /// A member sends what it must not send: a block that would need a slot that is in use, or one
    /// that is to be combined otherwise than the others' contributions to it.
    fn overreach(&mut self, index: usize) {
        if self.daemon.is_stopped() {
            return; // it would come later, when it may be allowed
        }
        let Seen { worker, up, source, mut bytes } = self.seen[index].clone();
        let Some(mut header) = header(&bytes).filter(|h| up && h.kind == Kind::Contribution) else {
            return;
        };
        let slot = self.daemon.sums.as_ref().and_then(|sums| {
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
            let unfinished = slot.seen != conf.members && self.rng.random_bool(0.5);
            let generations = if unfinished { 1 } else { self.rng.random_range(2..5) };
            header.block = slot.block + generations * u64::from(conf.slots);
        }
        if let Some(place) = bytes.first_chunk_mut::<HEADER_LEN>() {
            header.emit(place);
        }
        self.stats.hostile += 1;
        self.note(&[18, worker as u64], || {
            format!("{} → daemon  {}  (against the rules)", Party::Stranger, describe(&header))
        });
        self.at_daemon(source, bytes, Origin::Foreign);
    }

    /// Changes a packet so that nobody may take it for theirs. False: it stayed as it was.
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
                // Reduction 7, or a bit that has no meaning.
                1 => place[1] |= [0x0e, 0x10, 0x20, 0x40, 0x80][self.rng.random_range(0..5)],
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
