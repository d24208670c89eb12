//! The aggregator: the real `Jobs` and `Sums`, and what a server and an engine do around them.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xdp_agg::engine::sum::Sums;
use xdp_agg::jobs::{Answer, ConnId, Effect, Jobs, Limits, Peer, Prepare, Snapshot};
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::{Reply, Request, decode};
use xdp_agg_common::maps::{MAX_JOBS, Phase};

use super::{Event, World, control, data};
use crate::check::Origin;
use crate::scenario::SLOTS;
use crate::time::{Nanos, duration, nanos};

/// Packets that fit the receive buffer of a stopped process.
const SOCKET_BUFFER: usize = 32;

/// The daemon's process, and its data path.
#[derive(Default)]
pub(super) struct Daemon {
    jobs: Option<Jobs>,
    pub(super) sums: Option<Sums>,
    stopped: bool,
    /// What its host's kernel keeps for it while it is stopped.
    kept: Vec<control::Event>,
    packets: VecDeque<(Source, Vec<u8>, Origin)>,
    /// The file in which it leaves its jobs to the next one.
    saved: Snapshot,
    /// It dies soon.
    dies: Option<Death>,
    /// The virtual zero of its clock.
    zero: Option<Instant>,
    /// The timer that was asked for last.
    timer: Option<Nanos>,
}

/// When it dies, and how.
struct Death {
    /// After so many effects.
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

    fn instant(&self, now: Nanos) -> Instant {
        self.zero.unwrap_or_else(Instant::now) + duration(now)
    }
}

impl World {
    /// The daemon starts, for the first time or again.
    pub(super) fn start_daemon(&mut self) {
        if self.daemon.is_up() {
            return;
        }
        let seed = self.rng.random();
        let zero = *self.daemon.zero.get_or_insert_with(Instant::now);
        let now = zero + duration(self.now);
        let mut jobs = Jobs::new(self.limits(), StdRng::seed_from_u64(seed), now);
        self.note(&[6], || "daemon starts".into());
        if self.daemon.sums.is_some() {
            jobs.restore(self.take_over(), now);
        } else {
            self.daemon.sums = Some(Sums::new(SLOTS, 2));
        }
        self.daemon.jobs = Some(jobs);
        self.settle();
    }

    /// What the daemon before left, as far as the data path, which it left too, is running it.
    fn take_over(&mut self) -> Snapshot {
        let mut snapshot = std::mem::take(&mut self.daemon.saved);
        let Some(sums) = &mut self.daemon.sums else { return snapshot };
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
                self.checker.stopped(Some(job_id));
            }
        }
        self.stats.taken_over += known.len() as u64;
        snapshot
    }

    fn limits(&self) -> Limits {
        let scenario = &self.scenario;
        Limits {
            engine: "simulation".into(),
            slots: SLOTS,
            job_slots: 8,
            max_chunks: 2,
            data_addr: Some(Ipv4Addr::from(data::DAEMON)),
            data_port: data::DATA_PORT,
            join_timeout: duration(scenario.join_timeout),
            probe_timeout: duration(scenario.join_timeout),
            resume_timeout: duration(scenario.resume_timeout),
            dead_after: duration(scenario.dead_after),
            straggler_timeout: None,
            token: None,
            job_slots_max: None,
            job_packet_rate: None,
        }
    }

    /// SIGKILL: at once, or in the middle of what it does a little later.
    pub(super) fn kill_daemon_soon(&mut self, pinned: bool, down: Nanos) {
        if !self.daemon.is_up() {
            return;
        }
        if self.rng.random_bool(0.5) {
            return self.end_daemon(pinned, down);
        }
        let effects = self.rng.random_range(0..12);
        self.daemon.dies = Some(Death { effects, pinned, down });
    }

    /// It does not die any more.
    pub(super) fn spare_daemon(&mut self) {
        self.daemon.dies = None;
    }

    fn end_daemon(&mut self, pinned: bool, down: Nanos) {
        self.note(&[17, u64::from(pinned)], || format!("daemon dies (pinned: {pinned})"));
        self.kill_daemon(pinned);
        self.queue.push(self.now + down, Event::StartDaemon);
    }

    /// SIGKILL.
    fn kill_daemon(&mut self, pinned: bool) {
        self.daemon.jobs = None;
        self.daemon.dies = None;
        self.daemon.stopped = false;
        self.daemon.kept.clear();
        self.daemon.packets.clear();
        if !pinned || !self.scenario.kernel_data_path {
            self.daemon.sums = None;
            self.checker.stopped(None);
        }
        for index in 0..self.connections.len() {
            if self.connections[index].at_daemon == control::End::Open {
                self.close_at_daemon(index, true);
            }
        }
    }

    /// SIGSTOP.
    pub(super) fn stop_daemon(&mut self) {
        self.daemon.stopped = true;
    }

    /// SIGCONT: what was kept comes now.
    pub(super) fn continue_daemon(&mut self) {
        if !self.daemon.stopped {
            return;
        }
        self.daemon.stopped = false;
        self.note(&[7], || "daemon goes on".into());
        let kept = std::mem::take(&mut self.daemon.kept);
        let packets = std::mem::take(&mut self.daemon.packets);
        for (source, bytes, origin) in packets {
            self.at_daemon(source, bytes, origin);
        }
        for event in kept {
            match event {
                control::Event::Syn(index) => self.accept(index, true),
                event => self.control_at_daemon(event),
            }
        }
        self.daemon_timer();
    }

    /// A connection comes in.
    pub(super) fn daemon_meets(&mut self, conn: ConnId, peer: Peer) {
        if let Some(jobs) = &mut self.daemon.jobs {
            jobs.connected(conn, peer);
        }
        self.settle();
    }

    /// A frame comes in.
    pub(super) fn daemon_hears(&mut self, index: usize, mut frame: Vec<u8>) {
        let now = self.daemon.instant(self.now);
        let Some(jobs) = &mut self.daemon.jobs else { return };
        match decode::<Request>(&mut frame) {
            Ok(Some(request)) => {
                let life = self.connections[index].life;
                match &request {
                    Request::Abort { .. } => self.checker.gave_up(life),
                    Request::Join(join) if join.resume.is_none() => self.checker.joins(life),
                    _ => {}
                }
                jobs.request(ConnId(index as u64), request, now);
            }
            other => self.checker.fail(|| format!("a request is not understood: {other:?}")),
        }
        self.settle();
    }

    /// A connection has ended.
    pub(super) fn daemon_loses(&mut self, index: usize) {
        self.checker.lost(self.connections[index].life);
        if let Some(jobs) = &mut self.daemon.jobs {
            jobs.closed(ConnId(index as u64));
        }
        self.settle();
    }

    /// Time has passed for the daemon.
    pub(super) fn daemon_timer(&mut self) {
        self.daemon.timer = None;
        if self.daemon.stopped {
            return;
        }
        let now = self.daemon.instant(self.now);
        if let Some(jobs) = &mut self.daemon.jobs {
            jobs.handle_timeout(now);
        }
        self.settle();
    }

    /// Does what the jobs ask for, until they are content.
    fn settle(&mut self) {
        let now = self.daemon.instant(self.now);
        while let Some(effect) = self.daemon.jobs.as_mut().and_then(Jobs::next_effect) {
            if let Some(Death { effects, pinned, down }) = &mut self.daemon.dies {
                if *effects == 0 {
                    let (pinned, down) = (*pinned, *down);
                    return self.end_daemon(pinned, down);
                }
                *effects -= 1;
            }
            let answer = self.effect(effect);
            if let (Some(jobs), Some(answer)) = (&mut self.daemon.jobs, answer) {
                jobs.answer(answer, now);
            }
        }
        let zero = self.daemon.zero;
        let due = self.daemon.jobs.as_ref().and_then(Jobs::poll_timeout);
        if let (Some(due), Some(zero)) = (due, zero) {
            let at = nanos(due.saturating_duration_since(zero)).max(self.now);
            if self.daemon.timer.is_none_or(|timer| at < timer) {
                self.daemon.timer = Some(at);
                self.queue.push(at, Event::DaemonTimer);
            }
        }
    }

    fn effect(&mut self, effect: Effect) -> Option<Answer> {
        match effect {
            Effect::Reply(conn, reply) => self.reply(conn, &reply),
            Effect::Close(conn) => self.close_at_daemon(conn.0 as usize, false),
            Effect::Prepare(Prepare { formation, setup }) => {
                let sums = self.daemon.sums.as_mut()?;
                let done = sums.prepare(&setup).map_err(|error| error.to_string());
                self.checker.prepared(&setup);
                return Some(Answer::Prepared(formation, done.map(|()| None)));
            }
            Effect::Start(formation, wanted) => {
                let sums = self.daemon.sums.as_mut()?;
                let done = sums.start(formation.job_id, wanted).map_err(|error| error.to_string());
                self.checker.started(formation.job_id);
                return Some(Answer::Started(formation, done));
            }
            Effect::Stop { job_id } => {
                self.daemon.sums.as_mut()?.stop(job_id);
                self.checker.stopped(Some(job_id));
            }
            Effect::Missing { conn, job_id, block } => {
                let sums = self.daemon.sums.as_mut()?;
                let ranks = sums.missing(job_id, block).map_err(|error| error.to_string());
                return Some(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = self.daemon.sums.as_ref()?.counters().to_vec();
                return Some(Answer::Counters(purpose, Ok(counters)));
            }
            Effect::Persist => {
                self.daemon.saved = self.daemon.jobs.as_ref().map(Jobs::snapshot)?;
            }
            // Jobs of one aggregator have neither.
            Effect::ProbeUplink(_) | Effect::Link(_) => {}
            Effect::Heard { look, .. } => {
                return Some(Answer::Heard { look, heard: Vec::new() });
            }
        }
        None
    }

    fn reply(&mut self, conn: ConnId, reply: &Reply) {
        let index = conn.0 as usize;
        if let Reply::Admitted(admitted) = reply {
            self.stats.admissions += 1;
            let control::Connection { worker, life, .. } = self.connections[index];
            self.stats.count_plan(admitted, self.workers[worker].rank);
            self.checker.admitted(life, admitted);
        }
        self.stats.count_reply(reply);
        self.say_down(index, reply);
    }
}
