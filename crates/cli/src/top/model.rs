//! What `top` shows: the latest look, rates since the one before, and what is chosen.

use std::fmt::Write as _;

use clap::ValueEnum;
use xdp_agg::observe::api::{Event, Events, Job, Port, Rank, RankState, State};

use crate::table::{columns, row};

/// Events that are shown at most.
const EVENTS_MAX: usize = 100;

/// A column that jobs can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// How long the latest rank keeps the others waiting
    Lag,
    /// Blocks a second
    Rate,
    /// Slots in use
    Slots,
    /// Repetitions a second
    Repeats,
    /// Name
    Name,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Lag, Self::Rate, Self::Slots, Self::Repeats, Self::Name];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::Rate => "rate",
            Self::Slots => "slots",
            Self::Repeats => "repeats",
            Self::Name => "name",
        }
    }
}

/// Rates of a job since the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) blocks: f64,
    pub(super) bytes: f64,
    pub(super) repeats: f64,
}

/// Rates of a port since the look before, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PortRates {
    pub(super) rx_packets: f64,
    pub(super) rx_bytes: f64,
    pub(super) tx_packets: f64,
    pub(super) tx_bytes: f64,
}

/// All that is shown.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) state: State,
    before: Option<State>,
    pub(super) events: Vec<Event>,
    seen: u64,
    pub(super) error: Option<String>,
    pub(super) sort: Sort,
    reverse: bool,
    chosen: usize,
    /// The job whose ranks are shown.
    pub(super) inside: Option<(u16, String)>,
    pub(super) paused: bool,
}

impl Model {
    pub(super) fn new(sort: Sort) -> Self {
        Self {
            state: State::default(),
            before: None,
            events: Vec::new(),
            seen: 0,
            error: None,
            sort,
            reverse: false,
            chosen: 0,
            inside: None,
            paused: false,
        }
    }

    /// Takes in a look.
    pub(super) fn take(&mut self, state: State) {
        let before = std::mem::replace(&mut self.state, state);
        // A daemon that has started anew counts from zero, and so do its events.
        let goes_on = before.daemon.uptime_seconds <= self.state.daemon.uptime_seconds;
        let known = before.daemon.time_unix_ms > 0 && goes_on;
        if !goes_on {
            self.seen = 0;
        }
        self.before = known.then_some(before);
        self.error = None;
        self.choose(0);
        // A later job of that name is another one.
        if self.shown().is_none() {
            self.inside = None;
        }
    }

    /// Takes in events.
    pub(super) fn hear(&mut self, events: Events) {
        self.seen = events.last;
        self.events.extend(events.events);
        let surplus = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..surplus);
    }

    pub(super) const fn events_seen(&self) -> u64 {
        self.seen
    }

    /// Shows that there was no answer.
    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    pub(super) fn sort_by_next(&mut self) {
        let at = Sort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
    }

    pub(super) fn turn_round(&mut self) {
        self.reverse = !self.reverse;
    }

    /// Moves the choice.
    pub(super) fn choose(&mut self, by: isize) {
        let last = self.state.jobs.len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(last);
    }

    /// Shows the ranks of the chosen job.
    pub(super) fn enter(&mut self) {
        self.inside = self.jobs().get(self.chosen).map(|job| (job.id, job.name.clone()));
    }

    pub(super) fn back(&mut self) {
        self.inside = None;
    }

    pub(super) const fn chosen(&self) -> usize {
        self.chosen
    }

    /// The jobs in their order.
    pub(super) fn jobs(&self) -> Vec<&Job> {
        let mut jobs: Vec<_> = self.state.jobs.iter().collect();
        // The largest first, and names from A to Z.
        let largest_first = |key: &dyn Fn(&Job) -> f64, a: &Job, b: &Job| key(b).total_cmp(&key(a));
        jobs.sort_by(|one, other| {
            let (a, b): (&Job, &Job) = (one, other);
            let order = match self.sort {
                Sort::Lag => largest_first(&lag, a, b),
                Sort::Rate => {
                    largest_first(&|job: &Job| self.rates(job).map_or(0.0, |r| r.blocks), a, b)
                }
                Sort::Slots => largest_first(&|job: &Job| job.slots_in_use.into(), a, b),
                Sort::Repeats => {
                    largest_first(&|job: &Job| self.rates(job).map_or(0.0, |r| r.repeats), a, b)
                }
                Sort::Name => a.name.cmp(&b.name),
            };
            let order = if self.reverse { order.reverse() } else { order };
            order.then_with(|| a.name.cmp(&b.name)).then(a.id.cmp(&b.id))
        });
        jobs
    }

    /// The job whose ranks are shown, if it is still there.
    pub(super) fn shown(&self) -> Option<&Job> {
        let (id, name) = self.inside.as_ref()?;
        self.state.jobs.iter().find(|job| job.id == *id && job.name == *name)
    }

    /// Seconds from the look before to the latest one.
    fn elapsed(&self) -> Option<(&State, f64)> {
        let before = self.before.as_ref()?;
        let ms = self.state.daemon.time_unix_ms.checked_sub(before.daemon.time_unix_ms)?;
        (ms > 0).then_some((before, ms as f64 / 1000.0))
    }

    pub(super) fn rates(&self, job: &Job) -> Option<Rates> {
        let (before, seconds) = self.elapsed()?;
        let old = before.jobs.iter().find(|old| old.id == job.id && old.name == job.name)?;
        // Fewer than before: another job of the same name.
        let blocks = job.blocks_completed.checked_sub(old.blocks_completed)? as f64 / seconds;
        let repeats = job.duplicates.checked_sub(old.duplicates)? as f64 / seconds;
        Some(Rates { blocks, bytes: blocks * f64::from(job.block_bytes), repeats })
    }

    pub(super) fn port_rates(&self, port: &Port) -> Option<PortRates> {
        let (before, seconds) = self.elapsed()?;
        let old = before.ports.iter().find(|old| old.name == port.name)?;
        let rate = |now: u64, then: u64| Some(now.checked_sub(then)? as f64 / seconds);
        Some(PortRates {
            rx_packets: rate(port.rx_packets, old.rx_packets)?,
            rx_bytes: rate(port.rx_bytes, old.rx_bytes)?,
            tx_packets: rate(port.tx_packets, old.tx_packets)?,
            tx_bytes: rate(port.tx_bytes, old.tx_bytes)?,
        })
    }

    /// All of it as plain text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", self.headline());
        for warning in &self.state.daemon.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        let mut rows = vec![row("JOB|PHASE|EPOCH|MEMBERS|BLOCKS|MEDIAN|P99|SLOTS|REPEATS|LATE")];
        for job in self.jobs() {
            rows.push(vec![
                job.name.clone(),
                job.phase.clone(),
                job.epoch.to_string(),
                members(job),
                job.blocks_completed.to_string(),
                block_time(job.completion.p50_seconds),
                block_time(job.completion.p99_seconds),
                slots(job),
                job.duplicates.to_string(),
                late(job),
            ]);
        }
        text += &columns(&rows);
        let mut rows =
            vec![row("JOB|RANK|STATE|ADDRESS|NEXT BLOCK|BEHIND|WAITED FOR|HEARTBEAT|REPEATS")];
        for job in self.jobs() {
            for rank in &job.ranks {
                rows.push([vec![job.name.clone()], rank_cells(rank)].concat());
            }
        }
        text += &columns(&rows);
        let mut rows = vec![row("PORT|STATE|RX PACKETS|RX BYTES|TX PACKETS|TX BYTES")];
        for port in &self.state.ports {
            let counts = [port.rx_packets, port.rx_bytes, port.tx_packets, port.tx_bytes];
            let state = if port.up { "up" } else { "down" };
            let mut cells = vec![port.name.clone(), state.into()];
            cells.extend(counts.map(|count| count.to_string()));
            rows.push(cells);
        }
        text + &columns(&rows)
    }

    /// A line about the daemon.
    pub(super) fn headline(&self) -> String {
        let daemon = &self.state.daemon;
        let seconds = daemon.uptime_seconds as u64;
        let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let ready = if daemon.ready { "ready" } else { "NOT READY" };
        format!(
            "xdp-agg {}, engine {}, up {h}:{m:02}:{s:02}, {ready}, slots {} of {} free, {} jobs",
            daemon.version,
            daemon.engine,
            daemon.slots_free,
            daemon.slots,
            self.state.jobs.len()
        )
    }
}

/// How long the latest rank or aggregator keeps the others waiting.
fn lag(job: &Job) -> f64 {
    let ranks = job.ranks.iter().filter_map(|rank| rank.lag_seconds);
    let branches = job.branches.iter().filter_map(|branch| branch.lag_seconds);
    let parent = job.parent.iter().filter_map(|parent| parent.lag_seconds);
    ranks.chain(branches).chain(parent).fold(0.0, f64::max)
}

/// The late ranks, the latest first, and by how much.
pub(super) fn late(job: &Job) -> String {
    let ranks = job.ranks.iter().filter(|rank| rank.state == RankState::Late);
    let ranks = ranks.map(|rank| (rank.lag_seconds.unwrap_or(0.0), format!("rank {}", rank.rank)));
    let branches = job.branches.iter().filter(|branch| branch.late);
    let branches = branches.map(|b| (b.lag_seconds.unwrap_or(0.0), format!("branch {}", b.daemon)));
    let parent = job.parent.iter().filter(|parent| parent.late);
    let parent = parent.map(|p| (p.lag_seconds.unwrap_or(0.0), format!("parent {}", p.address)));
    let mut all: Vec<_> = ranks.chain(branches).chain(parent).collect();
    all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let words: Vec<_> = all.iter().map(|(lag, who)| format!("{who}: {lag:.1} s")).collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

pub(super) fn members(job: &Job) -> String {
    let there = |rank: &&Rank| matches!(rank.state, RankState::Ok | RankState::Late);
    format!("{}/{}", job.ranks.iter().filter(there).count(), job.workers)
}

pub(super) fn slots(job: &Job) -> String {
    format!("{}/{}", job.slots_in_use, job.slots)
}

/// How long blocks take, in at most six characters.
pub(super) fn block_time(seconds: Option<f64>) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (0.0, "µs")];
    let Some(seconds) = seconds else { return "-".into() };
    let unit =
        units.into_iter().find(|(least, _)| seconds >= *least).map_or("µs", |(_, unit)| unit);
    let number = match unit {
        "s" => seconds,
        "ms" => seconds * 1e3,
        _ => seconds * 1e6,
    };
    if number < 9.95 { format!("{number:.1}{unit}") } else { format!("{number:.0}{unit}") }
}

/// A rank's cells, from its number on.
pub(super) fn rank_cells(rank: &Rank) -> Vec<String> {
    let or = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let wait = rank.lag_seconds.map(|lag| format!("{lag:.1} s"));
    // The branch tells who of its ranks is late.
    let address = rank.address.map(|address| match rank.branch {
        Some(branch) => format!("{address} by {branch}"),
        None => address.to_string(),
    });
    vec![
        rank.rank.to_string(),
        rank.state.name().into(),
        or(address),
        or(rank.blocks_contributed.map(|next| next.to_string())),
        or(rank.lag_blocks.map(|behind| behind.to_string())),
        or(wait),
        or(rank.heartbeat_seconds.map(|ago| format!("{ago:.1} s ago"))),
        or(rank.repetitions.map(|count| count.to_string())),
    ]
}
