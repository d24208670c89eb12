//! A world of ranks on hosts of their own, whose calls a test makes up.

use crate::model::{Call, FORMAT, Kind, Source};
use crate::read::{self, File};
use crate::write::Writer;

pub(crate) const MS: u64 = 1_000_000;

type Ahead = Box<dyn Fn(u64) -> i64>;

pub(crate) struct World {
    ranks: Vec<Rank>,
    now: u64,
    number: u64,
}

struct Rank {
    source: Source,
    calls: Vec<Call>,
    ahead: Ahead,
    left: bool,
}

impl World {
    /// Ranks on as many hosts.
    pub(crate) fn new(size: u16) -> Self {
        let rank = |rank| Rank {
            source: Source {
                format: FORMAT,
                source: 1,
                kind: Kind::Trace,
                job: "train".into(),
                run: None,
                rank,
                world_size: size,
                local_rank: 0,
                local_size: 1,
                host: format!("host{rank}"),
                process: 100 + u32::from(rank),
                clock: format!("clock{rank}"),
                monotonic_ns: 0,
                realtime_ns: 1_700_000_000_000 * MS,
                reason: None,
            },
            calls: Vec::new(),
            ahead: Box::new(|_| 0),
            left: true,
        };
        let ranks = (0..size).map(rank).collect();
        Self { ranks, now: Self::START, number: 0 }
    }

    const START: u64 = 3_600_000 * MS;

    pub(crate) fn start(&self) -> u64 {
        Self::START
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn ahead(&mut self, rank: usize, nanos: i64) {
        self.clock(rank, move |_| nanos);
    }

    pub(crate) fn clock(&mut self, rank: usize, ahead: impl Fn(u64) -> i64 + 'static) {
        self.ranks[rank].ahead = Box::new(ahead);
    }

    pub(crate) fn pause(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// All call; each rank begins so much later, and a result takes `trip` to all.
    pub(crate) fn call(&mut self, late: &[u64], trip: u64) -> &mut Self {
        let begins: Vec<u64> = late.iter().map(|late| self.now + late).collect();
        let last = begins.iter().max().copied().unwrap_or(self.now);
        let end = last + trip + 10_000;
        for (rank, begin) in self.ranks.iter_mut().zip(&begins) {
            let result = end + u64::from(rank.source.rank) * 1000;
            let time = |at: u64| (at as i64 + (rank.ahead)(at)) as u64;
            let mut call = plain(self.number, time(*begin));
            call.begun = Some(time(*begin));
            call.first_sent = Some(time(begin + 5000));
            call.first_result = Some(time(result));
            call.last_result = call.first_result;
            call.ended = call.first_result;
            call.wait = result - begin - 5000;
            call.way = "aggregator".into();
            call.outcome = "done".into();
            rank.calls.push(call);
        }
        self.now = end + 100_000;
        self.number += 1;
        self
    }

    /// A rank's latest call.
    pub(crate) fn last(&mut self, rank: usize) -> &mut Call {
        self.ranks[rank].calls.last_mut().expect("it has called")
    }

    /// Changes all calls of a rank.
    pub(crate) fn every(&mut self, rank: usize, change: impl Fn(&mut Call)) {
        self.ranks[rank].calls.iter_mut().for_each(change);
    }

    /// These begin a call that does not end, and the others do not come to it.
    pub(crate) fn hang(&mut self, ranks: &[usize]) {
        for rank in ranks {
            let rank = &mut self.ranks[*rank];
            let at = (self.now as i64 + (rank.ahead)(self.now)) as u64;
            let mut call = plain(self.number, at);
            call.outcome = "running".into();
            rank.calls.push(call);
        }
        self.number += 1;
    }

    /// It writes no more: its process is gone.
    pub(crate) fn killed(&mut self, rank: usize) {
        self.ranks[rank].left = false;
    }

    pub(crate) fn source(&mut self, rank: usize) -> &mut Source {
        &mut self.ranks[rank].source
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        let text = |rank: &Rank| {
            let mut source = rank.source.clone();
            let at = |at: u64| (at as i64 + (rank.ahead)(at)) as u64;
            source.monotonic_ns = at(Self::START);
            let mut writer = Writer::default();
            writer.source(&source);
            for call in &rank.calls {
                writer.begin(1, call);
                if call.ended.is_some() {
                    writer.end(1, call);
                }
            }
            if rank.left {
                writer.left(1, at(self.now + 3000 * MS));
            }
            writer.take()
        };
        self.ranks.iter().map(text).collect()
    }

    pub(crate) fn files(&self) -> Vec<File> {
        let texts = self.texts();
        let named = texts.iter().enumerate();
        named.map(|(i, text)| read::file(&format!("r{i}.json"), text).expect("ours")).collect()
    }
}

pub(crate) fn plain(number: u64, made: u64) -> Call {
    Call {
        number,
        what: "all-reduce".into(),
        len: 1000,
        bytes: 4000,
        dtype: "f32".into(),
        op: "sum".into(),
        digest: number,
        made,
        ..Call::default()
    }
}

/// Makes calls to which all come at nearly the same time.
pub(crate) fn well(world: &mut World, calls: u64) {
    for call in 0..calls {
        let late: Vec<u64> = (0..4).map(|rank| (call * 7 + rank * 3) % 5 * 20_000).collect();
        world.call(&late, 30_000);
    }
}

/// Four ranks whose clocks are far apart.
pub(crate) fn four() -> World {
    let mut world = World::new(4);
    (0..4).for_each(|rank| world.ahead(rank, rank as i64 * 1_000_000 * MS as i64));
    world
}
