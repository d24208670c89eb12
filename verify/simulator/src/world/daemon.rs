//! The aggregators: the real `Jobs` and `Sums`, and what a server and an engine do around them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::{Reply, Request, decode};
use xdp_agg_common::maps::{MAX_JOBS, Phase};
use xdp_agg_protocol::daemon::{
    Answer, ConnId, Effect, Jobs, Limits, LinkId, Patience, Peer, Prepare, Snapshot,
};
use xdp_agg_protocol::sum::Sums;

use super::branch::Line;
use super::control::Client;
use super::place::{Cut, DATA_PORT, Place};
use super::{Event, World, control, place};
use crate::check::Origin;
use crate::scenario::SLOTS;
use crate::time::{Nanos, duration, nanos};
use crate::trace::Party;

/// Packets that fit the receive buffer of a stopped process.
const SOCKET_BUFFER: usize = 32;

/// A daemon's process, and its data path.
#[derive(Default)]
pub(super) struct Daemon {
    pub(super) jobs: Option<Jobs>,
    pub(super) sums: Option<Sums>,
    stopped: bool,
    /// What its host's kernel keeps for it while it is stopped.
    kept: Vec<control::Event>,
    packets: VecDeque<(Source, Vec<u8>, Origin)>,
    /// The file in which it leaves its jobs to the next one.
    saved: Snapshot,
    /// It dies soon.
    dies: Option<Death>,
    /// The timer that was asked for last.
    timer: Option<Nanos>,
    /// Its connections to branches.
    pub(super) lines: BTreeMap<LinkId, Line>,
    /// Its way to other daemons.
    pub(super) trunk: Cut,
    /// Its way to workers.
    pub(super) access: Cut,
}

/// When it dies, and how.
struct Death {
    /// After this number of effects.
    effects: u32,
    pinned: bool,
    down: Nanos,
}

impl Daemon {
    pub(super) const fn is_up(&self) -> bool {
        self.jobs.is_some()
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Something came for a stopped process.
    pub(super) fn keep(&mut self, event: control::Event) {
        self.kept.push(event);
    }

    /// A packet came for a stopped process.
    pub(super) fn keep_packet(&mut self, source: Source, bytes: Vec<u8>, origin: Origin) {
        if self.packets.len() < SOCKET_BUFFER {
            self.packets.push_back((source, bytes, origin));
        }
    }

    /// Whether this is the time that it wanted to be woken at.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.timer == Some(now)
    }

    /// It does not die any more, and is cut off from nobody.
    pub(super) fn end_troubles(&mut self, now: Nanos) {
        self.dies = None;
        self.trunk.end(now);
        self.access.end(now);
    }
}

impl World {
    pub(super) fn instant(&self) -> Instant {
        self.zero + duration(self.now)
    }

    /// A daemon starts, for the first time or again.
    pub(super) fn start_daemon(&mut self, daemon: usize) {
        if self.daemons[daemon].is_up() {
            return;
        }
        let seed = self.rng.random();
        let now = self.instant();
        let mut jobs = Jobs::new(self.limits(daemon), StdRng::seed_from_u64(seed), now);
        self.note(&[6, daemon as u64], || format!("{} starts", Party::Daemon(daemon)));
        if self.daemons[daemon].sums.is_some() {
            jobs.restore(self.take_over(daemon), now);
        } else {
            self.daemons[daemon].sums = Some(Sums::new(SLOTS, 2));
        }
        self.daemons[daemon].jobs = Some(jobs);
        self.settle(daemon);
    }

    /// What the daemon before left, as far as the data path, which is left as well, is running it.
    fn take_over(&mut self, daemon: usize) -> Snapshot {
        let place = &mut self.daemons[daemon];
        let mut snapshot = std::mem::take(&mut place.saved);
        let Some(sums) = &mut place.sums else { return snapshot };
        snapshot.jobs.retain(|job| {
            sums.job(job.job_id).is_some_and(|running| {
                let conf = &running.conf;
                (conf.epoch, conf.cookie, conf.members)
                    == (job.epoch, job.cookie, job.epoch_members)
                    && (conf.slot_base, conf.slots) == (job.slot_base, job.slots)
                    && conf.phase == Phase::Running as u16
            })
        });
        let known: Vec<_> = snapshot.jobs.iter().map(|job| job.job_id).collect();
        for job_id in (0..MAX_JOBS as u16).filter(|job_id| !known.contains(job_id)) {
            if sums.job(job_id).is_some() {
                sums.stop(job_id);
                self.checker.stopped(daemon, Some(job_id));
            }
        }
        self.stats.taken_over += known.len() as u64;
        snapshot
    }

    fn limits(&self, daemon: usize) -> Limits {
        let scenario = &self.scenario;
        Limits {
            engine: "simulation".into(),
            slots: SLOTS,
            job_slots: 8,
            max_chunks: 2,
            single_packets: false,
            data_addr: Some(self.address(Place::Daemon(daemon))),
            data_port: DATA_PORT,
            join_timeout: duration(scenario.join_timeout),
            join_timeout_max: duration(scenario.join_timeout),
            probe_timeout: duration(scenario.join_timeout),
            return_after: duration(scenario.return_after),
            resume_timeout: duration(scenario.resume_timeout),
            patience: Patience(Some(duration(scenario.dead_after))),
            straggler_timeout: scenario.straggler_timeout.map(duration),
            silent_timeout: None,
            tokens: Vec::new(),
            job_slots_max: None,
            job_packet_rate: None,
        }
    }

    /// SIGKILL: at once, or in the middle of what it does a little later.
    pub(super) fn kill_daemon_soon(&mut self, daemon: usize, pinned: bool, down: Nanos) {
        if !self.daemons[daemon].is_up() {
            return;
        }
        if self.rng.random_bool(0.5) {
            return self.end_daemon(daemon, pinned, down);
        }
        let effects = self.rng.random_range(0..12);
        self.daemons[daemon].dies = Some(Death { effects, pinned, down });
    }

    fn end_daemon(&mut self, daemon: usize, pinned: bool, down: Nanos) {
        self.note(&[17, u64::from(pinned)], || {
            format!("{} dies (pinned: {pinned})", Party::Daemon(daemon))
        });
        self.checker.troubled(daemon);
        self.kill_daemon(daemon, pinned);
        self.queue.push(self.now + down, Event::StartDaemon(daemon));
    }

    /// SIGKILL.
    fn kill_daemon(&mut self, daemon: usize, pinned: bool) {
        let place = &mut self.daemons[daemon];
        place.jobs = None;
        place.dies = None;
        place.stopped = false;
        place.kept.clear();
        place.packets.clear();
        self.forget_away(daemon);
        let place = &mut self.daemons[daemon];
        if !pinned || !self.scenario.kernel_data_path {
            place.sums = None;
            self.checker.stopped(daemon, None);
        }
        for index in 0..self.connections.len() {
            let control::Connection { daemon: to, at_daemon, .. } = self.connections[index];
            if to == daemon && at_daemon == control::End::Open {
                self.close_at_daemon(index, true);
            }
        }
        self.drop_lines(daemon);
    }

    /// SIGSTOP.
    pub(super) fn stop_daemon(&mut self, daemon: usize) {
        self.daemons[daemon].stopped = true;
    }

    /// SIGCONT: what was kept comes now.
    pub(super) fn continue_daemon(&mut self, daemon: usize) {
        let place = &mut self.daemons[daemon];
        if !place.stopped {
            return;
        }
        place.stopped = false;
        let kept = std::mem::take(&mut place.kept);
        let packets = std::mem::take(&mut place.packets);
        self.note(&[7, daemon as u64], || format!("{} goes on", Party::Daemon(daemon)));
        self.tell_troubles(daemon);
        for (source, bytes, origin) in packets {
            self.at_daemon(daemon, source, bytes, origin);
        }
        for event in kept {
            match event {
                control::Event::Syn(index) => self.accept(index, true),
                control::Event::Up(_) | control::Event::EndAtDaemon(_) => {
                    self.control_at_daemon(event);
                }
                event => self.control_at_client(event),
            }
        }
        self.daemon_timer(daemon);
    }

    /// A connection comes in.
    pub(super) fn daemon_meets(&mut self, daemon: usize, conn: ConnId, peer: Peer) {
        if let Some(jobs) = &mut self.daemons[daemon].jobs {
            jobs.handle_connected(conn, peer);
        }
        self.settle(daemon);
    }

    /// A frame comes in.
    pub(super) fn daemon_hears(&mut self, index: usize, mut frame: Vec<u8>) {
        let now = self.instant();
        let control::Connection { client, daemon, .. } = self.connections[index];
        let Some(jobs) = &mut self.daemons[daemon].jobs else { return };
        match decode::<Request>(&mut frame) {
            Ok(Some(request)) => {
                match (client, &request) {
                    (Client::Worker { life, .. }, Request::Abort { .. }) => {
                        self.checker.gave_up(life);
                    }
                    (Client::Worker { life, .. }, Request::Join(join)) if join.resume.is_none() => {
                        self.checker.joins(life);
                    }
                    _ => {}
                }
                jobs.handle_request(ConnId(index as u64), request, now);
            }
            other => self.checker.fail(|| format!("a request is not understood: {other:?}")),
        }
        self.settle(daemon);
    }

    /// A connection has ended.
    pub(super) fn daemon_loses(&mut self, index: usize) {
        let control::Connection { client, daemon, .. } = self.connections[index];
        match client {
            Client::Worker { life, .. } => self.checker.lost(life),
            Client::Root { daemon: root, .. } => self.checker.parted(root, daemon),
        }
        if let Some(jobs) = &mut self.daemons[daemon].jobs {
            jobs.handle_closed(ConnId(index as u64));
        }
        self.settle(daemon);
    }

    /// Time has passed for the daemon.
    pub(super) fn daemon_timer(&mut self, daemon: usize) {
        let now = self.instant();
        let place = &mut self.daemons[daemon];
        place.timer = None;
        if place.stopped {
            return;
        }
        if let Some(jobs) = &mut place.jobs {
            jobs.handle_timeout(now);
        }
        self.settle(daemon);
    }

    /// Does what the jobs ask for, until they are content.
    pub(super) fn settle(&mut self, daemon: usize) {
        let now = self.instant();
        while let Some(effect) = self.daemons[daemon].jobs.as_mut().and_then(Jobs::poll_effect) {
            if let Some(Death { effects, pinned, down }) = &mut self.daemons[daemon].dies {
                if *effects == 0 {
                    let (pinned, down) = (*pinned, *down);
                    return self.end_daemon(daemon, pinned, down);
                }
                *effects -= 1;
            }
            let answer = self.effect(daemon, effect);
            if let (Some(jobs), Some(answer)) = (&mut self.daemons[daemon].jobs, answer) {
                jobs.handle_answer(answer, now);
            }
        }
        let zero = self.zero;
        let place = &mut self.daemons[daemon];
        if let Some(due) = place.jobs.as_ref().and_then(Jobs::poll_timeout) {
            let at = nanos(due.saturating_duration_since(zero)).max(self.now);
            if place.timer.is_none_or(|timer| at < timer) {
                place.timer = Some(at);
                self.queue.push(at, Event::DaemonTimer(daemon));
            }
        }
    }

    fn effect(&mut self, daemon: usize, effect: Effect) -> Option<Answer> {
        match effect {
            Effect::Reply(conn, reply) => self.reply(conn, &reply),
            Effect::Close(conn) => self.close_at_daemon(conn.0 as usize, false),
            Effect::Prepare(Prepare { formation, setup }) => {
                let sums = self.daemons[daemon].sums.as_mut()?;
                let done = sums.prepare(&setup).map_err(|error| error.to_string());
                self.checker.prepared(daemon, &setup);
                return Some(Answer::Prepared(formation, done.map(|()| None)));
            }
            Effect::Start(formation, wanted) => {
                let sums = self.daemons[daemon].sums.as_mut()?;
                let done = sums.start(formation.job_id, wanted).map_err(|error| error.to_string());
                self.checker.started(daemon, formation.job_id);
                return Some(Answer::Started(formation, done));
            }
            Effect::Stop { job_id } => {
                self.daemons[daemon].sums.as_mut()?.stop(job_id);
                self.checker.stopped(daemon, Some(job_id));
            }
            Effect::Missing { conn, job_id, block, of } => {
                let sums = self.daemons[daemon].sums.as_mut()?;
                let missing = sums.missing(job_id, block).map_err(|error| error.to_string());
                let ranks = missing.map(|bits| bits & of);
                return Some(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = self.daemons[daemon].sums.as_ref()?.counters().to_vec();
                return Some(Answer::Counters(purpose, Ok(counters)));
            }
            Effect::Reload(_) => {}
            Effect::Persist => {
                self.daemons[daemon].saved =
                    self.daemons[daemon].jobs.as_ref().map(Jobs::snapshot)?;
            }
            Effect::Link(effect) => self.link_effect(daemon, effect),
            Effect::ProbeUplink(formation) => {
                let probe = self.daemons[daemon].sums.as_mut()?.probe_up(formation.job_id);
                let open = match probe {
                    Ok(Some((to, probe))) => {
                        let from = Place::Daemon(daemon);
                        self.send(from, place::source(daemon), to, probe);
                        Ok(false)
                    }
                    Ok(None) => Ok(true),
                    Err(error) => Err(error.to_string()),
                };
                return Some(Answer::Uplink(formation, open));
            }
            Effect::Heard { look, jobs } => {
                let now = Duration::from_nanos(self.now);
                for job_id in &jobs {
                    self.checker.looks_at(daemon, *job_id);
                }
                let sums = self.daemons[daemon].sums.as_mut()?;
                let heard = |job_id: u16| Some((job_id, sums.heard(job_id, now).ok()?));
                let heard = jobs.into_iter().filter_map(heard).collect();
                return Some(Answer::Heard { look, heard });
            }
        }
        None
    }

    fn reply(&mut self, conn: ConnId, reply: &Reply) {
        let index = conn.0 as usize;
        if let Reply::Admitted(admitted) = reply {
            self.stats.admissions += 1;
            if let Client::Worker { worker, life } = self.connections[index].client {
                self.stats.count_plan(admitted, self.workers[worker].rank);
                self.checker.admitted(life, admitted);
            }
        }
        self.stats.count_reply(reply);
        self.check_waits(index, reply);
        self.say_down(index, reply);
    }
}
