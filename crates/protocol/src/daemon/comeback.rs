//! Lost branches that come back.
//!
//! While a job runs, its root tries to reach the branches that the job does without. One that
//! answers is asked to serve the job, and is watched from then on. If it has been there for long
//! enough, the tree takes it back in a new epoch, in the place that it had. A branch that comes and
//! goes must be there for twice as long each time, and is left alone in the end.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use xdp_agg_common::control::{BranchReply, Tree};

use super::away::{Away, FORGIVEN, LOSSES_MAX, Watch};
use super::effect::LinkId;
use super::job::Job;
use super::phase::Phase;
use super::trunk::{Link, Serving, Trunk};
use super::{Effect, Happened, Jobs, LinkEffect};

/// Longest pause between two attempts to reach a branch, in [`super::Limits::return_after`]s.
const PAUSE_MAX: u32 = 32;

impl Trunk {
    /// Whether the tree would be the better for this lost daemon: a branch as it was planned comes
    /// before its spares, and any spare before none.
    fn misses(&self, daemon: SocketAddrV4, members: u64) -> bool {
        let sums = |at: SocketAddrV4| self.tree.branches.iter().any(|branch| branch.daemon == at);
        let given_up = self.losses.get(&daemon).is_some_and(|losses| losses.times >= LOSSES_MAX);
        let mut places = self.asked.branches.iter().enumerate();
        !given_up
            && places.any(|(index, branch)| {
                let vacant =
                    || !branch.spares.iter().chain([&branch.daemon]).any(|daemon| sums(*daemon));
                let fits = branch.daemon == daemon || branch.spares.contains(&daemon) && vacant();
                fits && self.asked.below(index) & members != 0
            })
    }
}

/// What follows from a daemon's loss, in words.
fn follows((asked, now): (&Tree, &Tree), daemon: SocketAddrV4, members: u64) -> String {
    let mut places = asked.branches.iter().enumerate();
    let place = places.find(|(_, b)| b.daemon == daemon || b.spares.contains(&daemon));
    let Some((_, branch)) = place.filter(|(index, _)| asked.below(*index) & members != 0) else {
        return "nobody is below it".into();
    };
    let sums = |at: &&SocketAddrV4| now.branches.iter().any(|branch| branch.daemon == **at);
    let mut stand_ins = branch.spares.iter().chain([&branch.daemon]);
    if let Some(other) = stand_ins.find(sums) {
        return format!("its place is taken by {other}, of the same rack");
    }
    let left: Vec<_> = branch.ranks.iter().filter(|rank| members >> **rank & 1 == 1).collect();
    let parent = left.first().and_then(|rank| now.branch_of(**rank));
    let parent = parent.map(|index| format!("to the aggregator {}", now.branches[index].daemon));
    format!(
        "no other daemon of its rack can take its place: {} workers of it send a copy each {}",
        left.len(),
        parent.unwrap_or_else(|| "to the tree's root".into())
    )
}

impl Job {
    /// The job does without this daemon from now on. What follows, in words.
    pub(super) fn bury(&mut self, daemon: SocketAddrV4, now: Instant, pause: Duration) -> String {
        let members = self.member_bits();
        let trunk = &mut self.life.trunk;
        let losses = trunk.losses.entry(daemon).or_default();
        if losses.back.take().is_some_and(|back| now >= back + FORGIVEN) {
            losses.times = 0;
        }
        losses.times += 1;
        trunk.dead.insert(daemon, Away { due: now + pause, pause, watch: Watch::No });
        let next = trunk.asked.pruned(members, |at| trunk.dead.contains_key(&at));
        follows((&trunk.asked, &next), daemon, members)
    }

    /// Connections to lost branches that the tree of the next epoch has no place for.
    pub(super) fn needless_watches(&mut self) -> Vec<LinkId> {
        let members = self.member_bits();
        let trunk = &mut self.life.trunk;
        let lost: Vec<_> = trunk.dead.keys().copied().collect();
        let needless = lost.into_iter().filter(|daemon| !trunk.misses(*daemon, members));
        let needless: Vec<_> = needless.collect();
        let dead = trunk.dead.iter_mut().filter(|(daemon, _)| needless.contains(daemon));
        dead.filter_map(|(_, away)| away.unwatch()).collect()
    }

    /// When something is to be done about a lost branch: no epoch ends for it before it has run.
    pub(super) fn comeback_due(&self) -> Option<Instant> {
        if self.phase() != Phase::Running {
            return None;
        }
        let (members, trunk) = (self.member_bits(), &self.life.trunk);
        let away = trunk.dead.iter().filter(|(daemon, away)| {
            !matches!(away.watch, Watch::Trying(_)) && trunk.misses(**daemon, members)
        });
        away.map(|(_, away)| away.due).min()
    }
}

impl Jobs {
    /// Tries to reach lost branches, and takes those back that are there again. True: an epoch has
    /// ended for one.
    pub(super) fn look_for_lost_branches(&mut self, job_id: u16) -> bool {
        let now = self.clock;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return false;
        };
        if job.comeback_due().is_none_or(|due| due > now) {
            return false;
        }
        let (members, policy) = (job.member_bits(), job.life.policy.unwrap_or_default());
        let trunk = &mut job.life.trunk;
        let due = trunk.dead.iter().filter(|(_, away)| away.due <= now).map(|(daemon, _)| *daemon);
        let due: Vec<_> = due.filter(|daemon| trunk.misses(*daemon, members)).collect();
        let mut back = None;
        for daemon in due {
            let Some(away) = trunk.dead.get_mut(&daemon) else { continue };
            match away.watch {
                Watch::Trying(_) => {}
                Watch::There(link, serving) => {
                    trunk.dead.remove(&daemon);
                    trunk.losses.entry(daemon).or_default().back = Some(now);
                    let link = Link { up: true, serving: Some(serving), ..Link::new(link) };
                    trunk.links.insert(daemon, link);
                    back = Some(daemon);
                }
                Watch::No => {
                    let id = LinkId(self.next_link);
                    self.next_link += 1;
                    self.links.insert(id, (job_id, daemon));
                    away.watch = Watch::Trying(id);
                    self.effects.push_back(Effect::Link(LinkEffect::Dial(id, daemon, policy)));
                }
            }
        }
        let Some(daemon) = back else {
            return false;
        };
        note!(self, info, job = job.name, %daemon, "a lost branch is back: the tree takes it back");
        let text = format!("{}: the branch {daemon} is back", job.name);
        self.tell(job_id, Happened::BranchBack, None, text);
        self.reform(job_id, Vec::new(), &format!("the aggregator {daemon} is back"), None);
        true
    }

    /// A lost branch has answered.
    pub(super) fn watched_said(&mut self, job_id: u16, daemon: SocketAddrV4, reply: &BranchReply) {
        let (now, own) = (self.clock, self.daemon);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let trunk = &mut job.life.trunk;
        let Some(serving) = Serving::said(reply) else {
            return;
        };
        // The same daemon may have another place by now, under another address.
        let is_twin = serving.daemon == own || trunk.twin(daemon, serving.daemon).is_some();
        let is_small = serving.max_chunks < job.life.chunks;
        if is_twin || is_small {
            let why = if is_twin { "it is part of the tree" } else { "its blocks are too small" };
            return self.watched_lost(job_id, daemon, why);
        }
        let losses = trunk.losses.get(&daemon).map_or(1, |losses| losses.times.max(1));
        if let Some(away) = trunk.dead.get_mut(&daemon)
            && let Watch::Trying(link) = away.watch
        {
            let wait = self.limits.return_after.saturating_mul(1 << (losses - 1).min(LOSSES_MAX));
            (away.watch, away.due) = (Watch::There(link, serving), now + wait);
            note!(
                self,
                info,
                job = job.name,
                %daemon,
                "a lost branch is there again: the tree takes it back if it stays for {wait:?}"
            );
        }
    }

    /// A lost branch is not there (any more).
    pub(super) fn watched_lost(&mut self, job_id: u16, daemon: SocketAddrV4, why: &str) {
        let longest = self.limits.return_after.saturating_mul(PAUSE_MAX);
        let now = self.clock;
        let away = self.jobs.get_mut(&job_id).and_then(|job| job.life.trunk.dead.get_mut(&daemon));
        let Some(away) = away else {
            return;
        };
        let Some(link) = away.unwatch() else {
            return;
        };
        tracing::debug!(%daemon, "a lost branch is not back yet: {why}");
        away.due = now + away.pause;
        away.pause = away.pause.saturating_mul(2).min(longest);
        self.hang_up(link);
    }
}
