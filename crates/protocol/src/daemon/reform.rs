//! From one epoch of a job to the next.

use rand::Rng;
use xdp_agg_common::control::{AbortReason, BranchRequest, ErrorCode, Plan, Progress, Reply};
use xdp_agg_common::reform::PlanError;

use super::checks;
use super::numbers::latest;
use super::phase::Phase;
use super::setup::group_of;
use super::{ConnId, Effect, Formation, Jobs, Prepare};

/// How far apart the numbers of epochs are from which a job takes its next one, after another job
/// had taken the last one first.
const CONTEST: u16 = 64;

impl Jobs {
    /// The engine takes no more packets of the job.
    pub(super) fn silence(&mut self, job_id: u16) {
        if let Some(job) = self.jobs.get_mut(&job_id)
            && job.life.on_data_path
        {
            job.life.on_data_path = false;
            self.changed = true;
            self.effects.push_back(Effect::Stop { job_id });
            self.tell_branches(job_id, &BranchRequest::Stop);
        }
    }

    /// The epoch is over, because these ranks are lost: the others say what they have. `back` has
    /// said it already, with its new connection.
    pub(super) fn reform(&mut self, job_id: u16, lost: Vec<u16>, reason: &str, back: Option<u16>) {
        // First of all: no result of this epoch may come to a member that said what it has.
        self.silence(job_id);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        note!(self, info, job = job.name, epoch = job.life.epoch, ?lost, "reforming: {reason}");
        // Members that had come to the call of RunTo have said it already, once for this epoch.
        let all_said = matches!(job.phase(), Phase::RunningTo(..));
        let reply = Reply::Reform { lost, reason: reason.into() };
        for (rank, member) in &mut job.life.members {
            let said = all_said || back == Some(*rank);
            member.progress = member.progress.take().filter(|_| said);
            member.paused = None;
            member.ready = false;
            member.awaited = None;
            if let Some(conn) = member.conn.filter(|_| back != Some(*rank)) {
                self.effects.push_back(Effect::Reply(conn, reply.clone()));
            }
        }
        job.life.reforms = job.life.reforms.saturating_add(1);
        job.enter(Phase::Collecting(self.clock));
        self.advance(job_id);
    }

    /// A member says what it has.
    pub(super) fn progress(
        &mut self,
        conn: ConnId,
        job_id: u16,
        rank: u16,
        mut progress: Progress,
    ) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        match job.phase() {
            Phase::RunningTo(..) | Phase::Collecting(_) => {
                if let Phase::RunningTo(call, None) = job.phase() {
                    job.enter(Phase::RunningTo(call, Some(self.clock)));
                }
                if let Err(refusal) = checks::progress(rank, &progress, job) {
                    return self.lose_liar(job_id, rank, &refusal.1);
                }
                if let Some(member) = job.life.members.get_mut(&rank) {
                    // It may be kept for long, in no more memory than it needs.
                    progress.held.shrink_to_fit();
                    member.progress = Some(progress);
                }
                self.advance(job_id);
            }
            // Said before it heard that the others went on without waiting for it to say it again.
            Phase::Branching(_) | Phase::Preparing(_) | Phase::Probing(_) | Phase::Starting(_)
                if job.life.ran => {}
            _ => self.protocol_error(conn, "Progress without Reform or RunTo"),
        }
    }

    /// A member says which call it would start next.
    pub(super) fn paused(&mut self, job_id: u16, rank: u16, next_sequence: u64) {
        // In another phase: said before it heard of something that came between.
        if let Some(job) = self.jobs.get_mut(&job_id)
            && matches!(job.phase(), Phase::Pausing(_))
            && let Some(member) = job.life.members.get_mut(&rank)
        {
            member.paused = Some(next_sequence);
            self.advance(job_id);
        }
    }

    /// All that go on have said what they have: a plan, and a new epoch.
    pub(super) fn replan(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let liar = job.liar();
        let members = job.life.members.iter();
        let all = members.filter_map(|(rank, m)| Some((*rank, m.progress.clone()?)));
        let all: Vec<_> = all.collect();
        let plan = liar.map_or_else(|| Plan::new(&all), |rank| Err(PlanError::Impossible { rank }));
        match plan {
            Ok(plan) => {
                let joined = matches!(job.phase(), Phase::RunningTo(..));
                job.life.span = job.span_of(&plan);
                job.life.plan = plan;
                if joined {
                    self.let_in(job_id);
                }
                self.form(job_id);
            }
            Err(error @ PlanError::Impossible { rank }) => {
                self.lose_liar(job_id, rank, &error.to_string());
            }
            Err(PlanError::NoSource(block)) => {
                self.abort(job_id, &AbortReason::Unrecoverable { block });
            }
        }
    }

    /// A member's progress cannot be true. It does not get another chance to say something else.
    fn lose_liar(&mut self, job_id: u16, rank: u16, why: &str) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        job.life.epoch_members &= !(1 << rank);
        let conn = job.life.members.get(&rank).and_then(|member| member.conn);
        self.detach(job_id, rank);
        if let Some(conn) = conn {
            self.protocol_error(conn, why);
        }
        self.lose(job_id, &[rank], "what it said of its progress is impossible");
    }

    /// The epoch that the engine prepares is another one. Nobody was told of it yet; ranks that
    /// were to join in it wait again.
    pub(super) fn plan_again(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let joining = job.life.members.extract_if(.., |_, member| member.progress.is_none());
        let joining: Vec<_> = joining.collect();
        job.life.waiting.extend(joining);
        if job.life.members.is_empty() { self.end(job_id) } else { self.replan(job_id) }
    }

    /// All calls before the new members' first one are done: they are in.
    fn let_in(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if !job.life.plan.runs.is_empty() {
            // A new member cannot take part in what came before it.
            let why = "its members have not all done the same calls";
            return self.turn_away(job_id, why);
        }
        let waiting = std::mem::take(&mut job.life.waiting);
        for (rank, member) in waiting {
            note!(self, info, job = job.name, rank, "joins a running job");
            job.life.lost.remove(&rank);
            job.life.left.remove(&rank);
            job.life.members.insert(rank, member);
        }
    }

    /// All members of a new epoch are there.
    pub(super) fn form(&mut self, job_id: u16) {
        self.silence(job_id);
        let end = self.clock + self.limits.probe_timeout;
        if !self.branches_are_there(job_id) {
            if let Some(job) = self.jobs.get_mut(&job_id)
                && !matches!(job.phase(), Phase::Branching(_))
            {
                job.enter(Phase::Branching(end));
            }
            return;
        }
        let groups: Vec<_> = self.jobs.values().map(|job| group_of(job.life.cookie)).collect();
        let mut cookie = self.rng.random();
        while groups.contains(&group_of(cookie)) {
            cookie = self.rng.random();
        }
        let life = self.jobs.get(&job_id).map(|job| &job.life);
        // The job's own may be one of another daemon.
        let theirs = life.map_or([0; 2], |life| [life.trunk.last_epoch(), life.epoch]);
        let contested = life.is_some_and(|life| life.trunk.contests > 0);
        // Roots that share branches and take the same numbers at the same time would do so for
        // ever. If the numbers differ, all take the latest.
        let step = if contested { self.rng.random_range(1..=CONTEST) } else { 1 };
        let last = latest([self.last_epoch].into_iter().chain(theirs));
        self.last_epoch = last.checked_add(step).unwrap_or(step);
        let epoch = self.last_epoch;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if !job.life.ran {
            let theirs = job.life.members.values().map(|member| member.max_chunks).min();
            let engines = self.limits.max_chunks.min(job.life.trunk.max_chunks());
            job.life.chunks = theirs.unwrap_or(0).min(engines);
            job.life.span = job.slots.into();
        }
        job.life.cookie = cookie;
        job.life.epoch = epoch;
        job.life.identities.push((epoch, cookie, 0));
        job.life.epoch_members = job.member_bits();
        job.life.on_data_path = true;
        job.life.restored = None;
        job.life.looking = false;
        job.enter(Phase::Preparing(end));
        for member in job.life.members.values_mut() {
            member.ready = false;
            member.paused = None;
            member.contributed = None;
            member.awaited = None;
        }
        let setup = job.setup(&self.limits);
        let formation = Formation { job_id, epoch };
        self.effects.push_back(Effect::Prepare(Prepare { formation, setup }));
        self.prepare_branches(job_id);
    }

    /// Makes the member's refusal its loss.
    pub(super) fn protocol_error(&mut self, conn: ConnId, why: &str) {
        self.refuse_and_close(conn, ErrorCode::Protocol, why);
    }
}
