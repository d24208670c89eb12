//! Which members contribute, as the data path tells: for people, and to end the wait for one that
//! does not.
//!
//! A straggler is a member whose contribution the others lack. They say so by asking for the ranks
//! that a block misses. Without [`Limits::straggler_timeout`] nothing follows from it, nor without
//! [`Limits::silent_timeout`] if it answers no heartbeats either.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use xdp_agg_common::control::{AbortReason, BranchRequest, Cause, ErrorCode, Reply, Request};
use xdp_agg_common::wire::BLOCK_MASK;

use super::job::{Job, Member};
use super::open::OpenLook;
use super::{ConnId, Effect, Formation, Heard, Jobs, Limits, LinkId, Look, Purpose};

/// How long branches may take to tell which members contribute.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// The least time between two questions to a branch for people that want to see it.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

impl Job {
    /// When these members last contributed; those that are members.
    fn contributed(
        &mut self,
        heard: &[(u16, Option<Duration>)],
        now: Instant,
    ) -> impl Iterator<Item = u16> {
        let mut known = Vec::new();
        for (rank, ago) in heard {
            if let Some(member) = self.life.members.get_mut(rank) {
                member.contributed = ago.and_then(|ago| now.checked_sub(ago));
                known.push(*rank);
            }
        }
        known.into_iter()
    }
}

impl Jobs {
    /// A member asks which of the ranks that it waits for have not contributed to a block.
    pub(super) fn missing(&mut self, conn: ConnId, job_id: u16, (block, of): (u64, Option<u64>)) {
        if block > BLOCK_MASK {
            let message = format!("block {block}: block numbers are below 2^48");
            return self.refuse(conn, (ErrorCode::Invalid, message));
        }
        match self.jobs.get(&job_id) {
            // No sum is awaited, or none yet: the members have to say something.
            Some(job) if !job.is_summing() || of == Some(0) => {
                let ranks = job.awaited();
                self.reply(conn, Reply::Missing { block, ranks });
            }
            job => {
                if job.is_some_and(|job| !job.life.trunk.tree.is_single()) {
                    self.ask_tree(conn, job_id, (block, of));
                }
                let of = of.unwrap_or(u64::MAX);
                self.effects.push_back(Effect::Missing { conn, job_id, block, of });
            }
        }
    }

    /// These ranks keep the one that asked waiting: they had not contributed when it `asked`, or
    /// later. They may have done so before all aggregators had answered.
    pub(super) fn keep_waiting(&mut self, conn: ConnId, bits: u64, asked: Instant) {
        let asker = self.sessions.get(&conn).and_then(|session| session.member);
        let Some((job_id, rank)) = asker else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.is_summing()) else {
            return;
        };
        for (other, member) in &mut job.life.members {
            if bits >> other & 1 == 1 && *other != rank {
                member.awaited.get_or_insert(asked);
            }
        }
        // A member that has left contributes no more: the others wait for it in vain.
        let left: Vec<_> =
            job.life.left.iter().copied().filter(|left| bits >> left & 1 == 1).collect();
        let Some(&rank) = left.first() else {
            return;
        };
        if job.shrinks() {
            self.reform(job_id, left, "it left, and the others make another call", None);
        } else {
            let (reason, cause) = ("it left".into(), Some(Cause::Left));
            self.abort(job_id, &AbortReason::Member { rank, reason, cause });
        }
    }

    /// When the data path is to be asked about members that others wait for.
    pub(super) fn straggler_due(&self, job: &Job) -> Option<Instant> {
        if job.life.looking || !job.is_summing() {
            return None;
        }
        let members = job.life.members.iter();
        members.filter_map(|(rank, member)| self.given_up_at(job, *rank, member.awaited?)).min()
    }

    /// When the others do without a rank that they wait for `since` then, if it stays as it is.
    pub(super) fn given_up_at(&self, job: &Job, rank: u16, since: Instant) -> Option<Instant> {
        let Limits { straggler_timeout, silent_timeout, .. } = self.limits;
        let slow = straggler_timeout.map(|limit| since + limit);
        let session = || self.sessions.get(&job.life.members.get(&rank)?.conn?);
        let silent = silent_timeout.and_then(|limit| {
            let silent_since = session()?.answered.unwrap_or(since);
            Some((silent_since + limit).max(since))
        });
        slow.into_iter().chain(silent).min()
    }

    pub(super) fn look_for_stragglers(&mut self, job_id: u16) {
        let now = self.clock;
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        let due = self.straggler_due(job);
        if due.is_some_and(|due| due <= now)
            && let Some(job) = self.jobs.get_mut(&job_id)
        {
            job.life.looking = true;
            let look = Look::Straggler(Formation { job_id, epoch: job.life.epoch });
            self.effects.push_back(Effect::Heard { look, jobs: vec![job_id] });
        }
    }

    /// Asks the data path which members contribute, for a connection that wants to see it.
    pub(super) fn look(&mut self, look: Look) {
        let summing = self.jobs.values().filter(|job| job.is_summing()).map(|job| job.job_id);
        let jobs = summing.collect();
        self.effects.push_back(Effect::Heard { look, jobs });
    }

    /// This daemon's data path has told which members contribute. A branch tells of those below it:
    /// here all of them are one member.
    pub(super) fn heard(&mut self, look: Look, heard: &[(u16, Heard)]) {
        if let Look::Root { conn, number } = look {
            return self.tell_root(conn, number, heard);
        }
        let now = self.clock;
        let mut told = BTreeSet::new();
        for (job_id, ranks) in heard {
            let Some(job) = self.jobs.get_mut(job_id) else {
                continue;
            };
            let tree = &job.life.trunk.tree;
            let here = |rank: u16| tree.branch_of(rank).is_none();
            let ranks: Vec<_> = ranks.iter().copied().filter(|(rank, _)| here(*rank)).collect();
            told.extend(job.contributed(&ranks, now).map(|rank| (*job_id, rank)));
        }
        let number = self.next_look;
        self.next_look += 1;
        let open = self.ask_branches(look, number);
        let look = OpenLook { look, open, told, until: now + LOOK_TIME };
        if look.open.is_empty() {
            self.conclude(&look);
        } else {
            self.looks.insert(number, look);
        }
    }

    /// Asks the branches of running jobs the same. Those that answer are yet to be heard.
    fn ask_branches(&mut self, look: Look, number: u64) -> BTreeSet<LinkId> {
        let now = self.clock;
        let mut open = BTreeSet::new();
        for job in self.jobs.values_mut().filter(|job| job.is_summing()) {
            let may = match look {
                Look::Straggler(formation) => formation.job_id == job.job_id,
                _ => true,
            };
            for link in job.life.trunk.links.values_mut().filter(|_| may) {
                // However many want to see it, a branch is not asked too often.
                let fresh = link.asked.is_some_and(|asked| now < asked + LOOK_PAUSE);
                if !fresh || matches!(look, Look::Straggler(_)) {
                    link.asked = Some(now);
                    open.insert(link.id);
                }
            }
        }
        for link in &open {
            self.link_says(*link, Request::Branch(BranchRequest::Heard { number }));
        }
        open
    }

    /// A branch has told which members contribute to it.
    pub(super) fn branch_heard(
        &mut self,
        link: LinkId,
        (job_id, daemon): (u16, SocketAddrV4),
        number: u64,
        ranks: &[(u16, Option<u64>)],
    ) {
        let now = self.clock;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let leaves = job.life.trunk.leaves(daemon);
        let own = ranks.iter().filter(|(rank, _)| *rank < 64 && leaves >> rank & 1 == 1);
        let own: Vec<_> = own.map(|(rank, ms)| (*rank, ms.map(Duration::from_millis))).collect();
        let told = job.contributed(&own, now);
        let Some(look) = self.looks.get_mut(&number) else {
            return;
        };
        look.told.extend(told.map(|rank| (job_id, rank)));
        look.open.remove(&link);
        if look.open.is_empty()
            && let Some(look) = self.looks.remove(&number)
        {
            self.conclude(&look);
        }
    }

    /// A branch will tell nothing any more. What follows from it has to wait: the job may be
    /// between two epochs.
    pub(super) fn forget_looks(&mut self, link: LinkId) {
        for look in self.looks.values_mut() {
            if look.open.remove(&link) && look.open.is_empty() {
                look.until = self.clock;
            }
        }
    }

    /// Does without the branches that have not told in time which members contribute.
    pub(super) fn end_looks(&mut self) {
        let now = self.clock;
        let over: Vec<_> = self.looks.extract_if(.., |_, look| look.until <= now).collect();
        for (_, look) in over {
            self.conclude(&look);
        }
    }

    /// No further answers about contributions will come.
    fn conclude(&mut self, OpenLook { look, told, .. }: &OpenLook) {
        let now = self.clock;
        match *look {
            Look::Jobs(conn) => {
                let answered = |conn| self.sessions.get(&conn).and_then(|s| s.answered);
                let led = self.jobs.values().map(|job| job.info(now, answered));
                let served = self.served.iter().map(|(job_id, served)| served.info(*job_id));
                let all = led.chain(served).collect();
                self.reply(conn, Reply::Jobs(all));
            }
            Look::Stats(conn) => self.effects.push_back(Effect::Counters(Purpose::Stats(conn))),
            Look::Straggler(formation) => self.judge(formation, told),
            Look::Root { .. } => {}
        }
    }

    /// Ends the wait for members that have contributed nothing since others wait for them.
    fn judge(&mut self, Formation { job_id, epoch }: Formation, told: &BTreeSet<(u16, u16)>) {
        let now = self.clock;
        let Some(job) = self.jobs.get(&job_id).filter(|job| job.life.epoch == epoch) else {
            return;
        };
        let due = |(rank, member): (&u16, &Member)| {
            let at = self.given_up_at(job, *rank, member.awaited?);
            at.is_some_and(|at| at <= now).then_some(*rank)
        };
        let due: BTreeSet<_> = job.life.members.iter().filter_map(due).collect();
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        // Even if the epoch has ended meanwhile: stragglers of the next one are looked for.
        job.life.looking = false;
        if !job.is_summing() {
            return;
        }
        let mut late = Vec::new();
        for (rank, member) in &mut job.life.members {
            let Some(since) = member.awaited else {
                continue;
            };
            // Without knowledge nobody is condemned.
            let known = told.contains(&(job_id, *rank));
            if !known || member.contributed.is_some_and(|at| at >= since) {
                member.awaited = None;
            } else if due.contains(rank) {
                late.push(*rank);
            }
        }
        if !late.is_empty() {
            self.give_up_on(job_id, &late, "contribute");
        }
    }
}
