//! Looks at jobs and data path, and notes what has changed since the last look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{self, MissedTickBehavior};
use tracing::{info, warn};
use xdp_agg_common::control::{BranchInfo, JobInfo, JobStats, Stats};
use xdp_agg_common::maps::{JobConf, JobCounters, MAX_JOBS, Reject};
use xdp_agg_common::slot::SlotState;
use xdp_agg_protocol::daemon::overview::{Overview, Seen};

use super::Facts;
use super::api::{Branch, Completion, Daemon, Job, Parent, Port, Rank, RankState, State};
use super::events::{
    About, ENGINE_FALLBACK, PORT_DOWN, PORT_UP, RANK_CAUGHT_UP, RANK_LATE, REFUSED,
};
use super::known::{Known, pace};
use super::lag::{Lag, Pace, Sight, Standing};
use super::pages::{Look, Pages, locked};
use super::ports::traffic;
use crate::engine::Watch;
use crate::engine::watch::Eye;
use crate::link::Links;
use crate::server::{Ask, View};

/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the control loop may take to answer before a look goes on without it.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// The least time between two events about refusals.
const REFUSALS: Duration = Duration::from_secs(1);

/// The observer.
pub(super) struct Sampler {
    facts: Facts,
    watch: Box<dyn Watch>,
    asks: mpsc::Sender<Ask>,
    pages: Arc<Pages>,
    begun: Instant,
    pub(super) view: View,
    answered: Option<Instant>,
    jobs: BTreeMap<u16, Known>,
    /// The latest counters of all job indexes, and whether they are of this look.
    counters: Vec<JobCounters>,
    counted: bool,
    links: Option<Links>,
    up: BTreeMap<String, bool>,
    refused: (u64, Instant),
    failures: u64,
}

/// Looks at one job.
struct JobEye<'a> {
    lag: &'a mut Lag,
    now: Duration,
    pace: Pace,
    sight: Option<Sight>,
}

impl Eye for JobEye<'_> {
    fn see(&mut self, conf: &JobConf, slot: &mut dyn FnMut(u32) -> SlotState) {
        self.sight = Some(self.lag.look(self.now, conf, self.pace, slot));
    }
}

impl Sampler {
    pub(super) fn new(
        facts: Facts,
        watch: Box<dyn Watch>,
        asks: mpsc::Sender<Ask>,
        pages: Arc<Pages>,
    ) -> Self {
        let begun = Instant::now();
        if let Some(why) = &facts.fallback {
            let mut journal = locked(&pages.journal);
            let text = format!("the user-space engine was taken: {why}");
            journal.write(unix_ms(), ENGINE_FALLBACK, About::default(), text);
        }
        Self {
            facts,
            watch,
            asks,
            pages,
            begun,
            view: View::default(),
            answered: None,
            jobs: BTreeMap::new(),
            counters: vec![JobCounters::default(); MAX_JOBS + 1],
            counted: false,
            links: Links::open().ok(),
            up: BTreeMap::new(),
            refused: (0, begun),
            failures: 0,
        }
    }

    /// Looks until the control loop has gone.
    pub(super) async fn run(&mut self) {
        let mut ticks = time::interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (ask, answer) = oneshot::channel();
            match self.asks.try_send(ask) {
                // It has not taken the last question yet: that is seen by its silence.
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
            if let Ok(Ok(view)) = time::timeout(ANSWER_TIME, answer).await {
                self.answered = Some(Instant::now());
                self.view = view;
            }
            let look = self.look();
            self.pages.show(look);
        }
    }

    pub(super) fn look(&mut self) -> Look {
        let start = Instant::now();
        self.tell_news();
        let counters = self.watch.counters();
        self.counted = counters.is_ok();
        match counters {
            Ok(counters) => self.counters = counters,
            Err(error) => {
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    warn!(failures = self.failures, "counters cannot be observed: {error}");
                }
            }
        }
        let view = self.view.clone();
        let mut seen = view.overview.jobs.clone();
        let ids: BTreeSet<u16> = seen.iter().map(|job| job.info.job_id).collect();
        self.jobs.retain(|job_id, _| ids.contains(job_id));
        let jobs: Vec<Job> = seen.iter_mut().map(|job| self.job(job)).collect();
        let stats = Stats {
            engine: self.facts.engine.clone(),
            uptime_s: self.begun.elapsed().as_secs(),
            slots: view.overview.slots,
            slots_free: view.overview.slots_free,
            jobs: seen
                .into_iter()
                .map(|seen| JobStats { counters: seen.counters(&self.counters), info: seen.info })
                .collect(),
            unattributed: Box::new(self.counters.get(MAX_JOBS).copied().unwrap_or_default()),
            control: view.control,
        };
        let ports = self.ports();
        self.tell_refusals(&stats);
        let daemon = self.daemon(&view, &ports);
        let events_last = locked(&self.pages.journal).last();
        let verdicts = verdicts(&self.counters);
        let (fallback, answered) = (self.facts.fallback.clone(), self.answered);
        let state = State { daemon, ports, verdicts, jobs, events_last };
        Look { stats, state, taken: Instant::now(), answered, cost: start.elapsed(), fallback }
    }

    fn daemon(&self, view: &View, ports: &[Port]) -> Daemon {
        let facts = &self.facts;
        let Overview { slots, slots_free, members, troubles, jobs, .. } = &view.overview;
        let unlinked = jobs.iter().filter(|job| !job.linked);
        let mut not_ready: Vec<_> = unlinked
            .map(|job| format!("the way to the parent of {} is not open", job.info.job))
            .collect();
        if !ports.is_empty() && ports.iter().all(|port| !port.up) {
            not_ready.push("no served interface is up".into());
        }
        let fallback = facts.fallback.iter().map(|why| format!("summing in user space: {why}"));
        let warnings = facts.warnings.iter().chain(troubles).cloned().chain(fallback).collect();
        Daemon {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: facts.engine.clone(),
            interfaces: facts.interfaces.clone(),
            control: facts.control.to_string(),
            data_port: facts.data_port,
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            time_unix_ms: unix_ms(),
            ready: not_ready.is_empty(),
            not_ready,
            warnings,
            slots: *slots,
            slots_free: *slots_free,
            connections: view.connections,
            members: *members,
        }
    }

    /// What is shown of a job. Puts in what the data path says of its members.
    fn job(&mut self, seen: &mut Seen) -> Job {
        let counters = seen.counters(&self.counters);
        let info = &seen.info;
        let known = self.jobs.entry(info.job_id).or_default();
        if known.name != info.job {
            *known = Known { name: info.job.clone(), ..Known::default() };
        }
        let before = std::mem::replace(&mut known.counters, self.counted.then_some(counters));
        let pace = pace(before.as_ref().filter(|_| self.counted), &counters);
        let quiet = pace != Pace::Busy;
        let recent = known.recent.take(Instant::now(), &counters.times);
        let completion = Completion::new(&counters.times, &recent);
        let runs = info.phase == "running" || info.phase == "pausing";
        let (sight, repetitions) =
            if runs { self.see(&mut seen.info, pace) } else { Default::default() };
        let info = &seen.info;
        let ranks = (0..info.world_size).filter_map(|rank| {
            let repetitions = repetitions.get(&rank).copied();
            Some(Rank { repetitions, ..rank_of(seen, &sight, rank)? })
        });
        let ranks: Vec<_> = ranks.collect();
        let branch = |branch| branch_of_job(branch, &info.branches, &sight);
        let branches: Vec<_> = info.branches.iter().map(branch).collect();
        let parent = info.parent.map(|address| Parent {
            address,
            linked: seen.linked,
            lag_blocks: sight.parent.map(|parent| parent.behind),
            lag_seconds: sight.parent.map(|parent| parent.wait.as_secs_f64()),
            late: sight.parent.is_some_and(|parent| parent.is_late()),
        });
        let late = ranks.iter().filter(|rank| rank.state == RankState::Late);
        let late: BTreeSet<u16> = late.map(|rank| rank.rank).collect();
        let any_late = !late.is_empty()
            || branches.iter().any(|branch| branch.late)
            || parent.as_ref().is_some_and(|parent| parent.late);
        let known = self.jobs.entry(info.job_id).or_default();
        let before = std::mem::replace(&mut known.late, late);
        let job = Job {
            id: info.job_id,
            name: info.job.clone(),
            phase: info.phase.clone(),
            epoch: info.epoch,
            workers: info.world_size,
            reforms: info.reforms,
            slots: info.slots,
            slots_in_use: sight.in_use,
            block_bytes: info.block_bytes,
            mode: info.mode.map(|mode| mode.name().into()),
            blocks_completed: counters.blocks,
            contributions: counters.contributions,
            duplicates: counters.duplicates,
            resends: counters.resends,
            rejected: counters.rejects.iter().sum(),
            completion,
            uptime_seconds: known.running_since.map(|since| since.elapsed().as_secs_f64()),
            stalled: quiet && any_late,
            parent,
            branches,
            ranks,
        };
        self.tell_late(&job, &before);
        job
    }

    /// Looks at the slots of a job that runs, and at when its members contributed. Returns what
    /// these have sent again, too, by rank.
    fn see(&mut self, info: &mut JobInfo, pace: Pace) -> (Sight, BTreeMap<u16, u64>) {
        let now = self.begun.elapsed();
        let known = self.jobs.entry(info.job_id).or_default();
        known.running_since.get_or_insert_with(Instant::now);
        let mut eye = JobEye { lag: &mut known.lag, now, pace, sight: None };
        // A job that is not there is between two epochs. The view may be of the one before.
        let there = self.watch.look(info.job_id, &mut eye).is_ok_and(|there| there);
        let sight = eye.sight.filter(|sight| there && sight.epoch == info.epoch);
        let mut repetitions = BTreeMap::new();
        for watched in self.watch.members(info.job_id).unwrap_or_default() {
            let rank = watched.rank;
            // A branch contributes under the rank of one of its members.
            let here = branch_of(&info.branches, rank).is_none();
            let member = info.members.iter_mut().find(|member| member.rank == rank && here);
            if let Some(member) = member {
                member.contributed_ms = watched.heard.map(|ago| ago.as_millis() as u64);
                let all = known.members.entry(rank).or_default();
                repetitions.insert(rank, all.take(watched.epoch, watched.repetitions));
            }
        }
        (sight.unwrap_or_default(), repetitions)
    }

    /// Says which ranks have become late, or are late no more.
    fn tell_late(&self, job: &Job, before: &BTreeSet<u16>) {
        let mut journal = locked(&self.pages.journal);
        let (name, now) = (&job.name, unix_ms());
        for rank in &job.ranks {
            let late = rank.state == RankState::Late;
            if late == before.contains(&rank.rank) {
                continue;
            }
            let about = About { job: Some((job.id, name.clone())), rank: Some(rank.rank) };
            let (number, next) = (rank.rank, rank.blocks_contributed.unwrap_or(0));
            if late {
                let wait = rank.lag_seconds.unwrap_or(0.0);
                let text = format!(
                    "rank {number} of {name} is late: the others have waited for block {next} for \
                     {wait:.1} s"
                );
                info!("{text}");
                journal.write(now, RANK_LATE, about, text);
            } else {
                let text = format!("rank {number} of {name} keeps nobody waiting any more");
                journal.write(now, RANK_CAUGHT_UP, about, text);
            }
        }
    }

    fn tell_news(&mut self) {
        let mut journal = locked(&self.pages.journal);
        let now = unix_ms();
        for news in std::mem::take(&mut self.view.news) {
            let at = now.saturating_sub(news.at.elapsed().as_millis() as u64);
            let about = About { job: Some((news.job_id, news.job)), rank: news.rank };
            journal.write(at, news.what.name(), about, news.text);
        }
    }

    /// The kernel's counters of the served interfaces, and whether they can be used.
    fn ports(&mut self) -> Vec<Port> {
        let all = traffic().unwrap_or_default();
        let named = &self.facts.interfaces;
        let served = all.into_iter().filter(|one| named.is_empty() || named.contains(&one.name));
        let ports: Vec<_> = served
            .filter_map(|one| {
                let state = self.links.as_ref().map(|links| links.state(&one.name));
                let up = matches!(state, Some(Ok((true, true))));
                // Nobody has named the others.
                (up || !named.is_empty()).then_some(Port {
                    up,
                    rx_packets: one.rx_packets,
                    rx_bytes: one.rx_bytes,
                    tx_packets: one.tx_packets,
                    tx_bytes: one.tx_bytes,
                    rx_dropped: one.rx_dropped,
                    tx_dropped: one.tx_dropped,
                    name: one.name,
                })
            })
            .collect();
        let gone = named.iter().filter(|name| ports.iter().all(|port| port.name != **name));
        let gone: Vec<_> =
            gone.map(|name| Port { name: name.clone(), ..Port::default() }).collect();
        let ports: Vec<_> = ports.into_iter().chain(gone).collect();
        let mut journal = locked(&self.pages.journal);
        for Port { name, up, .. } in &ports {
            let before = self.up.insert(name.clone(), *up);
            if before.unwrap_or(true) != *up {
                let (kind, word) = if *up { (PORT_UP, "up") } else { (PORT_DOWN, "down") };
                journal.write(unix_ms(), kind, About::default(), format!("{name} is {word}"));
            }
        }
        ports
    }

    /// Says that something was refused, and how much.
    fn tell_refusals(&mut self, stats: &Stats) {
        let jobs = self.counters.iter().flat_map(|counters| counters.rejects);
        let packets: u64 = jobs.sum();
        let connections: u64 = stats.control.refusals().into_iter().map(|(_, count)| count).sum();
        let (before, at) = self.refused;
        let all = packets + connections;
        if all > before && (before == 0 || at.elapsed() >= REFUSALS) {
            self.refused = (all, Instant::now());
            let text = format!(
                "{} more packets or connections were refused: {packets} packets and {connections} \
                 connections until now",
                all - before
            );
            locked(&self.pages.journal).write(unix_ms(), REFUSED, About::default(), text);
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Packets of all jobs, and of none, by what became of them.
fn verdicts(counters: &[JobCounters]) -> BTreeMap<String, u64> {
    let mut all = JobCounters::default();
    counters.iter().for_each(|one| all.merge(one));
    let named = [
        ("contributions", all.contributions),
        ("duplicates", all.duplicates),
        ("stale", all.stale),
        ("resends", all.resends),
        ("pendings", all.pendings),
        ("probes", all.probes),
        ("late", all.late),
    ];
    let refused =
        Reject::ALL.into_iter().map(|reason| (reason.name(), all.rejects[reason as usize]));
    named.into_iter().chain(refused).map(|(name, count)| (name.to_owned(), count)).collect()
}

/// The branch that a rank sends to.
fn branch_of(branches: &[BranchInfo], rank: u16) -> Option<&BranchInfo> {
    branches.iter().find(|branch| branch.ranks.contains(&rank))
}

fn rank_of(seen: &Seen, sight: &Sight, rank: u16) -> Option<Rank> {
    let info = &seen.info;
    let member = info.members.iter().find(|member| member.rank == rank);
    // A branch does not know of ranks that send elsewhere.
    if info.parent.is_some() && member.is_none() {
        return None;
    }
    let branch = branch_of(&info.branches, rank).map(|branch| branch.daemon);
    let standing = sight.members.iter().find(|(of, _)| *of == rank && branch.is_none());
    let standing: Option<Standing> = standing.map(|(_, standing)| *standing);
    let late = standing.is_some_and(|standing| standing.is_late());
    let state = if info.lost.contains(&rank) {
        RankState::Lost
    } else if seen.left.contains(&rank) {
        RankState::Left
    } else if info.waiting.contains(&rank) {
        RankState::Waiting
    } else if !info.joined.contains(&rank) {
        RankState::Missing
    } else if late {
        RankState::Late
    } else {
        RankState::Ok
    };
    let seconds = |ms: u64| ms as f64 / 1000.0;
    Some(Rank {
        rank,
        address: member.map(|member| member.data),
        branch,
        state,
        blocks_contributed: standing.map(|standing| standing.next),
        lag_blocks: standing.map(|standing| standing.behind),
        lag_seconds: standing.map(|standing| standing.wait.as_secs_f64()),
        heartbeat_seconds: member.and_then(|member| member.heartbeat_ms).map(seconds),
        contributed_seconds: member.and_then(|member| member.contributed_ms).map(seconds),
        repetitions: None,
    })
}

/// A branch contributes under the lowest rank below it.
fn branch_of_job(branch: &BranchInfo, all: &[BranchInfo], sight: &Sight) -> Branch {
    let mut below = vec![branch.daemon];
    let mut ranks = branch.ranks.clone();
    while let Some(at) = below.pop() {
        for child in all.iter().filter(|child| child.parent == Some(at)) {
            below.push(child.daemon);
            ranks.extend(&child.ranks);
        }
    }
    let lowest = ranks.into_iter().min().filter(|_| branch.parent.is_none());
    let standing = sight.members.iter().find(|(rank, _)| Some(*rank) == lowest);
    let standing = standing.map(|(_, standing)| *standing);
    Branch {
        daemon: branch.daemon,
        ranks: branch.ranks.clone(),
        linked: branch.linked,
        lag_blocks: standing.map(|standing| standing.behind),
        lag_seconds: standing.map(|standing| standing.wait.as_secs_f64()),
        late: standing.is_some_and(|standing| standing.is_late()),
    }
}
