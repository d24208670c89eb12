//! Trees in the stories: the daemons that they name, and short words for what their workers say.
//!
//! `tree 1:0,1 2<0:2` is the tree of the next joins: host 1 under the root with ranks 0 and 1, host
//! 2 under the first branch with rank 2; `1+3:0` has host 3 to stand in for host 1. `C joins R N`
//! may have `go-on` behind it, where the job shall go on after any loss. `C returns R N` and
//! `C offers R N` may have the same and a number of rings behind it. These, `C ready`,
//! `C progress B`, `C paused S`, `C missing B` and `C leaves` are a worker's requests in few bytes.
//! Almost every change of one is another request; of JSON almost none is.
//!
//! `grove` says that daemons are where a tree names them, and do what the root wants; `fell` that
//! they are gone. `lost K` takes away the connection to one. `mute` keeps all that they would say,
//! `whisper` lets the first of it be heard, and `speak` all of it. `used K` says that the epoch's
//! number is used; `branch {json}` is what the first of them says.

use std::collections::{BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg_common::control::{
    AggregatorLoss, Branch, BranchReply, BranchRequest, BranchSetup, CONTROL_PORT, Join, Policy,
    Progress, Reply, Request, Resume, Tree, WorkerLoss,
};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_protocol::daemon::{LinkEffect, LinkId};

use super::world::World;

/// Daemons where trees name them.
#[derive(Debug, Default)]
pub(super) struct Grove {
    /// They are there.
    grown: bool,
    /// The tree that workers join with.
    tree: Tree,
    links: BTreeSet<LinkId>,
    /// They keep silent: this is what they would have said.
    unsaid: Option<VecDeque<(LinkId, BranchReply)>>,
    /// The last epoch that one was asked to prepare.
    epoch: u16,
    /// Most of them that were asked for an epoch, and how many the last one has.
    most: usize,
    last: usize,
}

impl Grove {
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The daemon that had the connections is gone.
    pub(super) fn restart(&mut self) {
        self.links.clear();
        self.unsaid = self.unsaid.take().map(|_| VecDeque::new());
    }

    /// The last epoch had fewer branches than one before it.
    pub(super) const fn was_reduced(&self) -> bool {
        self.last < self.most
    }
}

impl World {
    pub(super) fn grove_line(&mut self, word: &str, rest: &str) {
        match word {
            "tree" => self.grove.tree = tree(rest),
            "grove" => self.grove.grown = true,
            "fell" => self.fell(),
            "lost" => self.lost(rest.trim().parse().unwrap_or(0)),
            "mute" => drop(self.grove.unsaid.get_or_insert_default()),
            "whisper" => self.whisper(),
            "speak" => {
                while self.grove.unsaid.as_ref().is_some_and(|unsaid| !unsaid.is_empty()) {
                    self.whisper();
                }
                self.grove.unsaid = None;
            }
            "used" => {
                let epoch = self.grove.epoch;
                let last_epoch = epoch.wrapping_add(rest.trim().parse().unwrap_or(0));
                let used = BranchReply::Used { epoch, last_epoch };
                self.first_says(Reply::Branch(used));
            }
            "branch" => {
                if let Ok(reply) = serde_json::from_str(rest) {
                    self.first_says(reply);
                }
            }
            _ => {}
        }
    }

    /// A worker's request, in JSON or in few words.
    pub(super) fn request(&self, what: &str) -> Option<Request> {
        let (word, rest) = what.split_once(' ').unwrap_or((what, ""));
        let number = || rest.trim().parse::<u64>().ok();
        Some(match word {
            "ready" => Request::Ready,
            "leaves" => Request::Leave,
            "missing" => Request::Missing { block: number()?, of: None },
            "progress" => Request::Progress(progress(number()?)),
            "paused" => Request::Paused { next_sequence: number()? },
            "joins" => Request::Join(self.join(rest)?),
            "returns" | "offers" => {
                let join = self.join(rest)?;
                let members = u64::MAX >> (64 - join.world_size.clamp(1, 64));
                // The last that any connection was told.
                let (epoch, cookie, chunks) = (0, 0, 0);
                let rings = rest.split(' ').nth(3).and_then(|rings| rings.parse().ok());
                let (rings, progress) = (rings.unwrap_or(0), progress(5));
                let resume = Resume { epoch, cookie, members, chunks, progress, rings };
                let join = Join { resume: Some(resume), ..join };
                if word == "offers" { Request::Offer(join) } else { Request::Join(join) }
            }
            _ => return serde_json::from_str(what).ok(),
        })
    }

    fn join(&self, rest: &str) -> Option<Join> {
        let mut words = rest.split(' ');
        let rank: u16 = words.next()?.parse().ok()?;
        let world_size = words.next()?.parse().ok()?;
        let policy = match words.next() {
            Some("go-on") => {
                Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume }
            }
            _ => Policy::default(),
        };
        Some(Join {
            job: "t".into(),
            rank,
            world_size,
            data_port: rank.wrapping_add(4000),
            max_chunks: 22,
            policy,
            tree: self.grove.tree.clone(),
            ..Join::default()
        })
    }

    /// What becomes of the root's connections to its branches.
    pub(super) fn link(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Dial(link, ..) if self.grove.grown => {
                self.outcome.note(31);
                assert!(self.grove.links.insert(link), "dialled twice");
                self.jobs.handle_link_up(link);
            }
            // Nobody is there.
            LinkEffect::Dial(link, ..) => self.jobs.handle_link_lost(link, "unreachable"),
            LinkEffect::Say(link, request) => {
                assert!(self.grove.links.contains(&link), "to nobody: {request:?}");
                if let Request::Branch(request) = request {
                    self.outcome.note(28);
                    self.branch_asked(link, request);
                }
            }
            LinkEffect::HangUp(link) => self.hang_up(link),
        }
    }

    fn branch_asked(&mut self, link: LinkId, request: BranchRequest) {
        if let BranchRequest::Prepare(setup) = &request {
            let grove = &mut self.grove;
            grove.last = if grove.epoch == setup.epoch { grove.last + 1 } else { 1 };
            grove.epoch = setup.epoch;
            grove.most = grove.most.max(grove.last);
        }
        for reply in obey(link, self.grove.epoch, request) {
            match &mut self.grove.unsaid {
                Some(unsaid) => {
                    self.outcome.note(32);
                    unsaid.push_back((link, reply));
                }
                None => self.jobs.handle_link_reply(link, Reply::Branch(reply)),
            }
        }
    }

    fn hang_up(&mut self, link: LinkId) {
        self.grove.links.remove(&link);
        if let Some(unsaid) = &mut self.grove.unsaid {
            unsaid.retain(|(from, _)| *from != link);
        }
    }

    /// The first thing that was kept is heard.
    fn whisper(&mut self) {
        let first = self.grove.unsaid.as_mut().and_then(VecDeque::pop_front);
        if let Some((link, reply)) = first {
            self.outcome.note(33);
            self.jobs.handle_link_reply(link, Reply::Branch(reply));
            self.settle();
        }
    }

    /// The branches die.
    fn fell(&mut self) {
        self.grove.grown = false;
        while !self.grove.links.is_empty() {
            self.lost(0);
        }
    }

    fn lost(&mut self, nth: usize) {
        if let Some(link) = self.grove.links.iter().nth(nth).copied() {
            self.outcome.note(30);
            self.hang_up(link);
            self.jobs.handle_link_lost(link, "felled");
            self.settle();
        }
    }

    /// The first branch says something.
    fn first_says(&mut self, reply: Reply) {
        if let Some(link) = self.grove.links.first() {
            self.outcome.note(29);
            if matches!(reply, Reply::Branch(BranchReply::Used { .. })) {
                self.outcome.note(34);
            }
            self.jobs.handle_link_reply(*link, reply);
            self.settle();
        }
    }
}

fn progress(base: u64) -> Progress {
    Progress { base, next_sequence: 1, held: Vec::new() }
}

/// `1:0,1 2<0:2`, or `1+3:0` with host 3 as a spare; words of another form are left out.
fn tree(text: &str) -> Tree {
    let branches = text.split(' ').filter_map(|word| {
        let (place, ranks) = word.split_once(':')?;
        let (host, parent) = match place.split_once('<') {
            Some((host, parent)) => (host, Some(parent.parse().ok()?)),
            None => (place, None),
        };
        let at = |host: &str| {
            let host = Ipv4Addr::new(10, 0, 9, host.parse().ok()?);
            Some(SocketAddrV4::new(host, CONTROL_PORT))
        };
        let mut hosts = host.split('+').filter_map(at);
        let daemon = hosts.next()?;
        let ranks = ranks.split(',').filter_map(|rank| rank.parse().ok()).collect();
        Some(Branch { spares: hosts.collect(), ..Branch::new(daemon, parent, ranks) })
    });
    Tree { branches: branches.collect() }
}

/// The answer of a branch that does what it is told.
fn obey(link: LinkId, epoch: u16, request: BranchRequest) -> Vec<BranchReply> {
    let data = SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, link.0 as u8), 48_864);
    match request {
        BranchRequest::Serve { .. } => {
            vec![BranchReply::Serving {
                job_id: 1,
                data,
                max_chunks: 20,
                last_epoch: 3,
                daemon: link.0,
                single_packets: link.0 % 2 == 1,
            }]
        }
        BranchRequest::Prepare(BranchSetup { epoch, members, .. }) => {
            assert!(!members.is_empty() && epoch != 0, "an epoch of nobody");
            vec![BranchReply::Prepared { epoch, local: None }, BranchReply::Linked { epoch }]
        }
        BranchRequest::Start { epoch, .. } => {
            vec![BranchReply::Started { epoch, mode: ResultMode::Fanout, group: None }]
        }
        BranchRequest::Stop => vec![],
        BranchRequest::Missing { block } => vec![BranchReply::Missing { block, ranks: 1 }],
        BranchRequest::Heard { number } => {
            let ranks = (0..4).map(|rank| (rank, Some(60_000))).collect();
            vec![BranchReply::Heard { number, epoch, ranks }]
        }
    }
}
