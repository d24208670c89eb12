//! Members that keep others waiting: how far each has come, and which a daemon may put out for it.

use std::collections::BTreeMap;

use xdp_agg_common::control::{AbortReason, WorkerLoss};
use xdp_agg_protocol::worker::Error;

use super::{Checker, Life, NONE};
use crate::scenario::Scenario;
use crate::time::{Nanos, SECOND};

/// What a daemon waits for in words of its own, where a limit is set.
const CONTRIBUTE: &str = "contribute";
/// Other waits with that limit.
const STEPS: [&str; 2] = ["pause", "report its progress"];

/// What a process does.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Calls that it has made, counted from the job's first.
    made: u64,
    /// It was stopped once: its calls may be late.
    pub(super) was_stopped: bool,
    /// The call that it is to run to.
    run_to: Option<u64>,
    /// It was told that members did not do a step in time.
    told: bool,
    /// A daemon has put it out of its job.
    put_out: bool,
    /// Its control connection broke once: what was under way then did not come.
    broken: bool,
}

/// What aggregators know of the contributors.
#[derive(Debug, Default)]
pub(super) struct Looks {
    now: Nanos,
    limit: Option<Nanos>,
    /// When a packet of a member last counted or was answered, by cookie, daemon and rank.
    heard: BTreeMap<(u64, usize, u16), Nanos>,
    /// When a daemon was last asked for a job's contributors, by the number that it gives the job.
    asked: BTreeMap<(usize, u16), Nanos>,
}

impl Looks {
    pub(super) const fn new(scenario: &Scenario) -> Self {
        let limit = scenario.straggler_timeout;
        Self { now: 0, limit, heard: BTreeMap::new(), asked: BTreeMap::new() }
    }
}

impl Checker {
    /// Time passes.
    pub(crate) const fn passes(&mut self, now: Nanos) {
        self.looks.now = now;
    }

    /// How many calls this process's job makes, once it is a member.
    pub(crate) fn limit(&self, life: usize) -> u64 {
        self.lives[life].lineage.map_or(0, |lineage| self.lineages[lineage].limit)
    }

    /// Jobs that form from now on make this number of calls.
    pub(crate) fn heal(&mut self, calls: u64) {
        for (_, plan) in &mut self.jobs {
            plan.calls = calls;
        }
    }

    /// All members make `more` calls beyond `made`, the calls that a process has made.
    pub(crate) fn extend(&mut self, life: usize, made: u64, more: u64) {
        if let Some(lineage) = self.lives[life].lineage {
            let limit = &mut self.lineages[lineage].limit;
            *limit = (*limit).max(made + more);
        }
    }

    /// A process makes a call.
    pub(crate) fn makes(&mut self, life: usize, sequence: u64) {
        self.lives[life].standing.made = sequence + 1;
    }

    /// A process gets SIGSTOP.
    pub(crate) fn stands_still(&mut self, life: usize) {
        self.lives[life].standing.was_stopped = true;
    }

    /// A process's control connection breaks.
    pub(crate) fn breaks(&mut self, life: usize) {
        self.lives[life].standing.broken = true;
    }

    /// A process is told to run to this call, or to do something else.
    pub(crate) fn runs_to(&mut self, life: usize, sequence: Option<u64>) {
        self.lives[life].standing.run_to = sequence;
    }

    /// A packet of a member has come in at an aggregator.
    pub(super) fn hears(&mut self, cookie: u64, daemon: usize, rank: u16) {
        self.looks.heard.insert((cookie, daemon, rank), self.looks.now);
    }

    /// A daemon asks its data path for the contributors to this job.
    pub(crate) fn looks_at(&mut self, daemon: usize, job_id: u16) {
        self.looks.asked.insert((daemon, job_id), self.looks.now);
    }

    /// A daemon tells a process that these ranks did not do this step in time. Whether it is one of
    /// them, put out for a step that has this limit.
    pub(crate) fn puts_out(&mut self, life: usize, ranks: &[u16], step: &str) -> bool {
        if step != CONTRIBUTE && !STEPS.contains(&step) {
            return false;
        }
        let Life { rank, epoch, ref mut standing, .. } = self.lives[life];
        standing.told = true;
        if self.looks.limit.is_none() {
            self.fail(|| format!("ranks {ranks:?} did not {step}, and that has no limit"));
        }
        if !ranks.contains(&rank) {
            return false;
        }
        self.lives[life].standing.put_out = true;
        if step == CONTRIBUTE
            && let Err(problem) = self.check_straggler(epoch, life)
        {
            self.fail(|| format!("rank {rank} is put out, {problem}"));
        }
        true
    }

    /// A member is told that others are lost: those that did not contribute in time know it, unless
    /// they are gone. A daemon that was killed may have no connection to them yet.
    pub(crate) fn loses(&mut self, life: usize, root: usize, ranks: &[u16], reason: &str) {
        if self.troubles.daemons.contains(&root) {
            return;
        }
        let epoch = self.lives[life].epoch.filter(|_| reason.starts_with("it did not contribute"));
        let Some(who) = epoch.map(|epoch| &self.epochs[epoch].who) else { return };
        let late = ranks.iter().filter_map(|rank| who.get(usize::from(*rank)).copied().flatten());
        let mut late = late.map(|late| &self.lives[late]);
        if let Some(rank) = late.find(|l| !l.standing.put_out && !l.lost).map(|life| life.rank) {
            self.fail(|| format!("rank {rank} is put out, and is not told so"));
        }
    }

    /// It has contributed nothing for as long as the limit says, and another member cannot go on
    /// without it.
    fn check_straggler(&mut self, epoch: Option<usize>, late: usize) -> Result<(), String> {
        let Looks { now, limit: Some(limit), .. } = self.looks else { return Ok(()) };
        let Some(epoch) = epoch else { return Err("and was a member of no epoch".into()) };
        let rank = self.lives[late].rank;
        let cookie = self.epochs[epoch].admitted.cookie;
        let Some((daemon, job_id)) = self.leaf(cookie, rank) else {
            return Err("and no aggregator knows it".into());
        };
        let Some(asked) = self.looks.asked.get(&(daemon, job_id)).copied() else {
            return Err("and nobody asked whether it contributes".into());
        };
        if let Some(heard) = self.looks.heard.get(&(cookie, daemon, rank)).copied() {
            // What came after the look was not known.
            if heard > asked {
                return Ok(());
            }
            if heard + limit > now {
                let ago = (now - heard) as f64 / SECOND as f64;
                return Err(format!("and contributed {ago:.3} s ago"));
            }
        }
        let members = self.members_of(epoch);
        if members.into_iter().any(|other| self.waits_for(other, late)) {
            Ok(())
        } else {
            Err("and nobody waits for it".into())
        }
    }

    /// Whether a member of the same epoch has a call that is not done, and whose oldest block lacks
    /// the contribution of `late`.
    pub(crate) fn waits_for(&mut self, other: usize, late: usize) -> bool {
        let Life { rank, epoch, .. } = self.lives[late];
        let Life { rank: other_rank, base, lineage, epoch: its, ref standing, .. } =
            self.lives[other];
        let made = standing.made;
        let (Some(lineage), Some(epoch)) = (lineage, epoch) else { return false };
        if other == late || its != Some(epoch) || base >= self.first_block(lineage, made) {
            return false;
        }
        let cookie = self.epochs[epoch].admitted.cookie;
        let block = self.epochs[epoch].bases[usize::from(other_rank)];
        let open = self.epochs[epoch].block(block).completion == NONE;
        let Some((leaf, _)) = self.leaf(cookie, rank) else { return false };
        let part = self.part(cookie, leaf, block);
        open && part.is_some_and(|part| part.seen >> rank & 1 == 0)
    }

    /// The aggregator that a worker sends to, and its number of the job.
    fn leaf(&self, cookie: u64, rank: u16) -> Option<(usize, u16)> {
        let mut nodes = self.trunks.get(&cookie).into_iter().flatten();
        let leaf = nodes.find(|(_, node)| {
            node.setup.members.contains_key(&rank) && node.setup.forwarders >> rank & 1 == 0
        });
        leaf.map(|(daemon, node)| (*daemon, node.setup.job_id))
    }

    /// Whether a daemon has put this process out of its job.
    pub(crate) fn is_put_out(&self, life: usize) -> bool {
        self.lives[life].standing.put_out
    }

    /// A process that a daemon put out for a step other than contributing was well all the time.
    pub(crate) fn is_blameless(&mut self, life: usize, root: usize, step: &str) {
        let Life { rank, lost, standing: Standing { made, run_to, .. }, .. } = self.lives[life];
        let has_calls_to_make = run_to.is_some_and(|to| made < to);
        if STEPS.contains(&step) && !lost && !has_calls_to_make && !self.is_troubled(Some(root)) {
            self.fail(|| format!("rank {rank} is put out, as it did not {step}: it was well"));
        }
    }

    /// A process that was put out does not come back as if nothing had happened. It may if its
    /// daemon's word did not reach it.
    pub(super) fn check_return(&mut self, life: usize) {
        let Life { rank, lost, standing: Standing { put_out, broken, .. }, .. } = self.lives[life];
        if put_out && !lost && !broken {
            self.fail(|| format!("rank {rank} was put out, and is a member all the same"));
        }
    }

    /// Whether a process may end with this error, as far as waits with a limit go.
    pub(super) fn explain_wait(&self, life: usize, error: &Error) -> Result<(), &'static str> {
        let Life { job, rank, lost, has_run, standing, .. } = &self.lives[life];
        match error {
            Error::Aborted(AbortReason::Timeout { ranks, step }) => {
                if (step == CONTRIBUTE || STEPS.contains(&&**step)) && !standing.told {
                    return Err("its daemon did not say so");
                }
                let shrinks = self.jobs[*job].1.policy.worker_loss == WorkerLoss::Shrink;
                if standing.told && shrinks && *has_run && !ranks.contains(rank) {
                    return Err("its policy is to go on without them");
                }
                Ok(())
            }
            Error::Aborted(_) | Error::Refused { .. }
                if standing.put_out && !lost && !standing.broken =>
            {
                Err("it was put out, and is not told why")
            }
            _ => Ok(()),
        }
    }
}
