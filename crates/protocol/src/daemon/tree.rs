//! Jobs of several aggregators, at the root: the connections to the branches and what they say.
//!
//! A branch is greeted and asked to serve the job once; from then on it follows each of the job's
//! epochs. The loss of a branch ends a job whose policy is to fail when an aggregator is lost.
//! Otherwise the job goes on without it, in a new epoch. One of its spares takes its place; where
//! none is there, workers below it send to its parent. [`super::comeback`] takes it back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use xdp_agg_common::control::{
    AbortReason, AggregatorLoss, BranchReply, BranchRequest, BranchSetup, CONTROL_VERSION, Reply,
    Request, Tree, Uplink,
};

use xdp_agg_common::control::words::{SENTENCE_MAX, clean};

use super::away::Away;
use super::handle::agent_name;
use super::job::Job;
use super::phase::Phase;
use super::trunk::{Link, Serving};
use super::{Effect, Jobs, LinkEffect, LinkId};
use crate::engine::Started;

/// How often branches may call the number of an epoch used before it runs. Each time another one is
/// tried, some way ahead.
const CONTESTS_MAX: u32 = 64;

impl Job {
    /// The job's tree, as its first member names it.
    pub(super) fn plant(&mut self, tree: &Tree) {
        if self.life.members.is_empty() && self.life.waiting.is_empty() {
            self.life.trunk.asked = tree.clone();
        }
    }

    /// The members that contribute to this daemon itself: workers, and branches under the lowest
    /// rank below them.
    pub(super) fn root_members(&self) -> (BTreeMap<u16, SocketAddrV4>, u64) {
        self.members_at(None)
    }

    /// The same of a branch, or of the root. The second part are those that are branches.
    pub(super) fn members_at(&self, at: Option<usize>) -> (BTreeMap<u16, SocketAddrV4>, u64) {
        let trunk = &self.life.trunk;
        let here = |rank: &&u16| trunk.tree.branch_of(**rank) == at;
        let workers = self.life.members.keys().filter(here);
        let mut members: BTreeMap<_, _> =
            workers.map(|rank| (*rank, self.life.members[rank].data)).collect();
        let mut forwarders = 0;
        for child in trunk.tree.children(at) {
            let lead = trunk.tree.below(child).trailing_zeros() as u16;
            if let Some((data, _)) = trunk.data(child) {
                members.insert(lead, data);
                forwarders |= 1 << lead;
            }
        }
        (members, forwarders)
    }

    /// What a branch needs to know of the epoch that begins.
    pub(super) fn branch_setup(&self, index: usize, data_port: u16) -> Option<BranchSetup> {
        let trunk = &self.life.trunk;
        let (members, forwarders) = self.members_at(Some(index));
        let (data, job_id) = match trunk.tree.branches[index].parent {
            None => (SocketAddrV4::new(self.data_addr(), data_port), self.job_id),
            Some(parent) => trunk.data(usize::from(parent))?,
        };
        let rank = trunk.tree.below(index).trailing_zeros() as u16;
        Some(BranchSetup {
            epoch: self.life.epoch,
            cookie: self.life.cookie,
            chunks: self.life.chunks,
            members: members.into_iter().collect(),
            forwarders,
            uplink: Uplink { data, job_id, rank },
        })
    }
}

impl Jobs {
    /// The connection to a branch is open.
    pub fn handle_link_up(&mut self, link: LinkId) {
        let Some((job_id, daemon)) = self.links.get(&link) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        if let Some(link) = job.life.trunk.links.get_mut(daemon) {
            link.up = true;
        }
        let serve = BranchRequest::Serve {
            job: job.name.clone(),
            world_size: job.world_size,
            slots: job.slots,
        };
        let hello = Request::Hello {
            version: CONTROL_VERSION,
            agent: agent_name(),
            token: self.limits.tokens.first().cloned(),
        };
        self.link_says(link, hello);
        self.link_says(link, Request::Branch(serve));
    }

    /// A branch cannot be reached, or its connection has ended.
    pub fn handle_link_lost(&mut self, link: LinkId, why: &str) {
        if let Some((job_id, daemon)) = self.links.remove(&link) {
            self.lose_branch(job_id, daemon, why);
        }
    }

    /// A branch has said something.
    pub fn handle_link_reply(&mut self, link: LinkId, reply: Reply) {
        let Some((job_id, daemon)) = self.links.get(&link).copied() else {
            return;
        };
        match reply {
            Reply::Branch(reply) => self.branch_said(link, job_id, daemon, reply),
            Reply::Heartbeat => self.link_says(link, Request::Heartbeat),
            Reply::Error { message, .. } => self.lose_branch(job_id, daemon, &message),
            _ => {}
        }
    }

    fn branch_said(&mut self, id: LinkId, job_id: u16, daemon: SocketAddrV4, reply: BranchReply) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(link) = job.life.trunk.links.get_mut(&daemon) else {
            return self.watched_said(job_id, daemon, &reply);
        };
        let current = job.life.on_data_path.then_some(job.life.epoch);
        match reply {
            BranchReply::Serving { daemon: id, .. } => {
                link.serving = Serving::said(&reply);
                let twin = job.life.trunk.twin(daemon, id).map(|twin| twin.to_string());
                let root = (id == self.daemon).then(|| "the root of the tree".to_owned());
                if let Some(twin) = root.or(twin) {
                    let why = format!(
                        "it is {twin}, under another address: every aggregator has one place in a \
                         tree; name it once (XDP_AGG_TOPOLOGY)"
                    );
                    return self.lose_branch(job_id, daemon, &why);
                }
            }
            BranchReply::Used { epoch, last_epoch } if current == Some(epoch) => {
                if let Some(serving) = &mut link.serving {
                    serving.last_epoch = last_epoch;
                }
                job.life.trunk.contests += 1;
                if job.life.trunk.contests > CONTESTS_MAX {
                    job.life.trunk.contests = 0;
                    let why = format!(
                        "it calls every number of an epoch used, {CONTESTS_MAX} times by now: do \
                         very many jobs begin there at once?"
                    );
                    return self.lose_branch(job_id, daemon, &why);
                }
                if let Phase::Preparing(end) = job.phase() {
                    self.form(job_id);
                    // However often others take the number first, it is one step.
                    if let Some(job) = self.jobs.get_mut(&job_id)
                        && matches!(job.phase(), Phase::Preparing(_))
                    {
                        job.enter(Phase::Preparing(end));
                    }
                    return;
                }
            }
            BranchReply::Prepared { epoch, local } if current == Some(epoch) => {
                (link.prepared, link.local) = (true, local);
            }
            BranchReply::Linked { epoch } if current == Some(epoch) => link.linked = true,
            BranchReply::Started { epoch, mode, group } if current == Some(epoch) => {
                link.started = Some(Started { mode, group });
            }
            BranchReply::Failed { epoch, reason } if current == Some(epoch) => {
                return self.lose_branch(job_id, daemon, &reason);
            }
            BranchReply::Missing { block, ranks } => {
                let leaves = job.life.trunk.leaves(daemon);
                return self.branch_misses(id, block, ranks & leaves);
            }
            BranchReply::Heard { number, epoch, ranks } => {
                let ranks = if current == Some(epoch) { ranks } else { Vec::new() };
                return self.branch_heard(id, (job_id, daemon), number, &ranks);
            }
            // Of an epoch that is over.
            _ => return,
        }
        self.advance(job_id);
    }

    /// Says something to a branch.
    pub(super) fn link_says(&mut self, link: LinkId, request: Request) {
        self.effects.push_back(Effect::Link(LinkEffect::Say(link, request)));
    }

    /// The same to all of a job's.
    pub(super) fn tell_branches(&mut self, job_id: u16, request: &BranchRequest) {
        let links = self.jobs.get(&job_id).map(|job| &job.life.trunk.links);
        let serving = links.into_iter().flatten().filter(|(_, link)| link.serving.is_some());
        let ids: Vec<_> = serving.map(|(_, link)| link.id).collect();
        for id in ids {
            self.link_says(id, Request::Branch(request.clone()));
        }
    }

    /// Makes sure that all branches of the next epoch serve the job, and no others. False: some are
    /// awaited.
    pub(super) fn branches_are_there(&mut self, job_id: u16) -> bool {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return false;
        };
        let members = job.member_bits();
        let policy = job.life.policy.unwrap_or_default();
        let trunk = &mut job.life.trunk;
        trunk.tree = trunk.asked.pruned(members, |daemon| trunk.dead.contains_key(&daemon));
        let wanted: BTreeSet<_> = trunk.tree.branches.iter().map(|b| b.daemon).collect();
        let gone: Vec<_> =
            trunk.links.extract_if(.., |daemon, _| !wanted.contains(daemon)).collect();
        for daemon in wanted {
            trunk.links.entry(daemon).or_insert_with(|| {
                let id = LinkId(self.next_link);
                self.next_link += 1;
                self.links.insert(id, (job_id, daemon));
                note!(self, info, job = job.name, %daemon, "connecting to a branch");
                self.effects.push_back(Effect::Link(LinkEffect::Dial(id, daemon, policy)));
                Link::new(id)
            });
        }
        let there = trunk.is_there();
        let gone = gone.into_iter().map(|(_, link)| link.id);
        let gone: Vec<_> = gone.chain(job.needless_watches()).collect();
        for link in gone {
            self.hang_up(link);
        }
        there
    }

    /// Tells all branches of the epoch that begins.
    pub(super) fn prepare_branches(&mut self, job_id: u16) {
        let data_port = self.limits.data_port;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        job.life.trunk.prepared = false;
        job.life.trunk.local = None;
        job.life.trunk.started = None;
        let mut setups = Vec::new();
        for index in 0..job.life.trunk.tree.branches.len() {
            let Some(setup) = job.branch_setup(index, data_port) else {
                continue;
            };
            let daemon = job.life.trunk.tree.branches[index].daemon;
            if let Some(link) = job.life.trunk.links.get_mut(&daemon) {
                (link.prepared, link.linked, link.started) = (false, false, None);
                setups.push((link.id, setup));
            }
        }
        for (id, setup) in setups {
            self.link_says(id, Request::Branch(BranchRequest::Prepare(setup)));
        }
    }

    pub(super) fn hang_up(&mut self, link: LinkId) {
        if self.links.remove(&link).is_some() {
            self.effects.push_back(Effect::Link(LinkEffect::HangUp(link)));
        }
        self.forget_questions(link);
        self.forget_looks(link);
    }

    /// The job needs no branches any more.
    pub(super) fn hang_up_all(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let trunk = &mut job.life.trunk;
        let links = std::mem::take(&mut trunk.links).into_values().map(|link| link.id);
        let watched = trunk.dead.values_mut().filter_map(Away::unwatch);
        let all: Vec<_> = links.chain(watched).collect();
        for link in all {
            self.hang_up(link);
        }
    }

    /// A branch is lost, or is of no use.
    pub(super) fn lose_branch(&mut self, job_id: u16, daemon: SocketAddrV4, why: &str) {
        let why = &*clean(why, SENTENCE_MAX);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(link) = job.life.trunk.links.remove(&daemon) else {
            return self.watched_lost(job_id, daemon, why);
        };
        note!(self, warn, job = job.name, %daemon, "a branch is lost: {why}");
        let goes_on = job.life.ran && job.policy().aggregator_loss != AggregatorLoss::Fail;
        let follows = job.bury(daemon, self.clock, self.limits.return_after);
        if goes_on {
            note!(self, warn, job = job.name, %daemon, "{follows}");
        }
        let phase = job.phase();
        self.hang_up(link.id);
        if !goes_on {
            let reason = why.to_owned();
            return self.abort(job_id, &AbortReason::Branch { daemon, reason });
        }
        match phase {
            Phase::Running
            | Phase::Pausing(_)
            | Phase::RunningTo(..)
            | Phase::Probing(_)
            | Phase::Starting(_) => {
                let reason = format!("the aggregator {daemon} is lost: {why}");
                self.reform(job_id, Vec::new(), &reason, None);
            }
            Phase::Preparing(_) | Phase::Branching(_) => self.plan_again(job_id),
            Phase::Collecting(_) | Phase::Returning(_) | Phase::Forming(_) => {}
        }
    }
}
