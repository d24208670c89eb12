//! The real machines of the daemons of trees, and connections between them.

use xdp_agg_common::control::{Branch, BranchReply, JobInfo, LocalMembers};

use super::*;

/// Goes on after any loss.
pub(super) const GO_ON: Policy =
    Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume };

/// A daemon, its engine, and what its connections heard.
pub(super) struct Daemon {
    pub(super) at: Ipv4Addr,
    pub(super) jobs: Jobs,
    pub(super) engine: BTreeMap<u16, JobSetup>,
    pub(super) running: BTreeSet<u16>,
    pub(super) heard: BTreeMap<ConnId, Vec<Reply>>,
    pub(super) closed: BTreeSet<ConnId>,
    pub(super) next: u64,
    /// Ways up are open.
    pub(super) uplink: bool,
    /// Members that are awaited, as the engine says.
    pub(super) missing: u64,
    /// Members that have contributed nothing, as the engine says. The others have, just now.
    pub(super) silent: u64,
    /// How long ago those that have contributed did so, if not just now.
    pub(super) contributed: Option<Duration>,
    /// Workers on its host, as the engine says.
    pub(super) local: Option<LocalMembers>,
    pub(super) is_dead: bool,
    /// It is stopped when it comes to this step.
    pub(super) stuck_at: Option<Stuck>,
}

/// What a branch never comes to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    Connect,
    Serve,
    Prepare,
    Link,
    Start,
    Heard,
    Missing,
}

impl Stuck {
    fn keeps(self, reply: &Reply) -> bool {
        let Reply::Branch(reply) = reply else { return false };
        matches!(
            (self, reply),
            (Self::Serve, BranchReply::Serving { .. })
                | (Self::Prepare, BranchReply::Prepared { .. })
                | (Self::Link, BranchReply::Linked { .. })
                | (Self::Start, BranchReply::Started { .. })
                | (Self::Heard, BranchReply::Heard { .. })
                | (Self::Missing, BranchReply::Missing { .. })
        )
    }
}

/// A root at 10.0.0.1 and branches behind it, each with the last byte of its address as its index.
pub(super) struct Woods {
    pub(super) daemons: Vec<Daemon>,
    /// Of the root to its branches: which daemon, and its number of the connection.
    pub(super) links: BTreeMap<LinkId, (usize, ConnId)>,
    pub(super) now: Instant,
}

pub(super) fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8)
}

pub(super) fn control(index: usize) -> SocketAddrV4 {
    SocketAddrV4::new(address(index), 9870)
}

pub(super) fn data(index: usize) -> SocketAddrV4 {
    SocketAddrV4::new(address(index), 48864)
}

impl Daemon {
    pub(super) fn new(index: usize, now: Instant) -> Self {
        // Epoch numbers of other jobs, and indexes, differ from daemon to daemon.
        let mut jobs = Jobs::new(limits(), StdRng::seed_from_u64(index as u64), now);
        jobs.last_epoch = 10 * index as u16;
        Self {
            at: address(index),
            jobs,
            engine: BTreeMap::new(),
            running: BTreeSet::new(),
            heard: BTreeMap::new(),
            closed: BTreeSet::new(),
            next: 0,
            uplink: true,
            missing: 0,
            silent: 0,
            contributed: None,
            local: None,
            is_dead: false,
            stuck_at: None,
        }
    }

    pub(super) fn connect(&mut self, remote: Ipv4Addr) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        self.jobs.handle_connected(conn, Peer { local: Some(self.at), remote: Some(remote) });
        conn
    }

    pub(super) fn effect(&mut self, effect: Effect) -> Option<Answer> {
        match effect {
            Effect::Reply(_, Reply::Heartbeat) => {}
            Effect::Reply(conn, reply) => self.heard.entry(conn).or_default().push(reply),
            Effect::Close(conn) => drop(self.closed.insert(conn)),
            Effect::Prepare(Prepare { formation, setup }) => {
                assert!(setup.is_consistent(), "{setup:?}");
                assert!(self.engine.insert(formation.job_id, setup).is_none(), "two at a time");
                return Some(Answer::Prepared(formation, Ok(self.local)));
            }
            Effect::ProbeUplink(formation) => {
                return Some(Answer::Uplink(formation, Ok(self.uplink)));
            }
            Effect::Start(formation, _) => {
                assert!(self.engine.contains_key(&formation.job_id));
                self.running.insert(formation.job_id);
                let started = Started { mode: ResultMode::Ports, group: None };
                return Some(Answer::Started(formation, Ok(started)));
            }
            Effect::Stop { job_id } => {
                assert!(self.engine.remove(&job_id).is_some(), "stopped without a start");
                self.running.remove(&job_id);
            }
            Effect::Missing { conn, block, .. } => {
                return Some(Answer::Missing { conn, block, ranks: Ok(self.missing) });
            }
            Effect::Counters(purpose) => {
                let counters = vec![JobCounters::default(); MAX_JOBS + 1];
                return Some(Answer::Counters(purpose, Ok(counters)));
            }
            Effect::Heard { look, jobs } => {
                // A branch is a member under the lowest rank below it.
                let ago = |rank: u16| {
                    (self.silent >> rank & 1 == 0).then_some(self.contributed.unwrap_or_default())
                };
                let heard = jobs.into_iter().filter_map(|job_id| {
                    let members = self.engine.get(&job_id)?.members.keys();
                    Some((job_id, members.map(|rank| (*rank, ago(*rank))).collect()))
                });
                return Some(Answer::Heard { look, heard: heard.collect() });
            }
            Effect::Reload(_) => {}
            Effect::Persist => assert!(self.jobs.snapshot().jobs.is_empty(), "not to be kept"),
            Effect::Link(_) => unreachable!("the woods' to do"),
        }
        None
    }

    /// Does all effects of a branch alone; how often it was to try the way up.
    pub(super) fn settle(&mut self, now: Instant) -> u64 {
        let mut probes = 0;
        while let Some(effect) = self.jobs.poll_effect() {
            probes += u64::from(matches!(effect, Effect::ProbeUplink(_)));
            if let Some(answer) = self.effect(effect) {
                self.jobs.handle_answer(answer, now);
            }
        }
        probes
    }

    /// The only job.
    pub(super) fn setup(&self) -> &JobSetup {
        let mut all = self.engine.values();
        let one = all.next().expect("a job on the data path");
        assert!(all.next().is_none(), "one job");
        one
    }

    pub(super) fn members(&self) -> Vec<u16> {
        self.setup().members.keys().copied().collect()
    }
}

impl Woods {
    pub(super) fn new(branches: usize) -> Self {
        let now = Instant::now();
        let daemons = (0..=branches).map(|index| Daemon::new(index, now)).collect();
        Self { daemons, links: BTreeMap::new(), now }
    }

    /// Does everything there is to do, everywhere.
    pub(super) fn settle(&mut self) {
        loop {
            let mut did = false;
            for index in 0..self.daemons.len() {
                while let Some(effect) = self.daemons[index].jobs.poll_effect() {
                    did = true;
                    match effect {
                        Effect::Link(effect) => self.link(effect),
                        effect => {
                            let answer = self.daemons[index].effect(effect);
                            if let Some(answer) = answer {
                                self.daemons[index].jobs.handle_answer(answer, self.now);
                            }
                        }
                    }
                }
            }
            for (link, (to, conn)) in self.links.clone() {
                for reply in self.daemons[to].heard.remove(&conn).unwrap_or_default() {
                    if self.daemons[to].stuck_at.is_some_and(|step| step.keeps(&reply)) {
                        continue;
                    }
                    did = true;
                    self.daemons[0].jobs.handle_link_reply(link, reply);
                }
            }
            if !did {
                return;
            }
        }
    }

    pub(super) fn link(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Dial(link, to, _) => {
                let index = usize::from(to.ip().octets()[3]) - 1;
                if self.daemons[index].is_dead {
                    return self.daemons[0].jobs.handle_link_lost(link, "nobody is there");
                }
                if self.daemons[index].stuck_at == Some(Stuck::Connect) {
                    return;
                }
                let conn = self.daemons[index].connect(address(0));
                self.links.insert(link, (index, conn));
                self.daemons[0].jobs.handle_link_up(link);
            }
            LinkEffect::Say(link, request) => {
                if let Some((to, conn)) = self.links.get(&link) {
                    self.daemons[*to].jobs.handle_request(*conn, request, self.now);
                }
            }
            LinkEffect::HangUp(link) => {
                if let Some((to, conn)) = self.links.remove(&link) {
                    self.daemons[to].jobs.handle_closed(conn);
                }
            }
        }
    }

    pub(super) fn wait_for(&mut self, time: Duration) {
        self.now += time;
        for daemon in &mut self.daemons {
            daemon.jobs.handle_timeout(self.now);
        }
        self.settle();
    }

    /// A daemon dies with all its connections.
    pub(super) fn kill(&mut self, index: usize) {
        let dead: Vec<_> = self.links.extract_if(.., |_, (to, _)| *to == index).collect();
        self.daemons[index].is_dead = true;
        for (link, (_, conn)) in dead {
            self.daemons[0].jobs.handle_link_lost(link, "its connection ended");
            self.daemons[index].jobs.handle_closed(conn);
        }
        self.settle();
    }

    pub(super) fn say(&mut self, conn: ConnId, request: Request) -> Vec<Reply> {
        self.daemons[0].jobs.handle_request(conn, request, self.now);
        self.settle();
        self.daemons[0].heard.remove(&conn).unwrap_or_default()
    }

    pub(super) fn join(&mut self, join: Join) -> ConnId {
        let conn = self.daemons[0].connect(Ipv4Addr::new(10, 0, 1, join.rank as u8));
        assert!(matches!(self.say(conn, hello(None))[..], [Reply::Welcome { .. }]));
        let heard = self.say(conn, Request::Join(join));
        self.daemons[0].heard.entry(conn).or_default().extend(heard);
        conn
    }

    /// Joins all ranks of a job over `tree`.
    pub(super) fn join_all(&mut self, tree: &Tree, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let wish = |rank| Join { policy, tree: tree.clone(), ..wish("trees", rank, world_size) };
        (0..world_size).map(|rank| self.join(wish(rank))).collect()
    }

    /// Brings a job over `tree` to its running state.
    pub(super) fn run(&mut self, tree: &Tree, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let conns = self.join_all(tree, world_size, policy);
        self.ready(&conns);
        assert_eq!(self.info().phase, "running");
        conns
    }

    /// The workers say that their paths are open; what they heard before stays unread.
    pub(super) fn all_ready(&mut self, conns: &[ConnId]) {
        for conn in conns {
            let heard = self.say(*conn, Request::Ready);
            self.daemons[0].heard.entry(*conn).or_default().extend(heard);
        }
        self.wait_for(Duration::from_millis(20));
    }

    /// The workers are admitted, say so, and hear `Go`; what they were admitted to.
    pub(super) fn ready(&mut self, conns: &[ConnId]) -> Vec<Admitted> {
        let mut all = Vec::new();
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            let admitted = heard.into_iter().find_map(|reply| match reply {
                Reply::Admitted(admitted) => Some(admitted),
                _ => None,
            });
            all.push(admitted.expect("it is admitted"));
        }
        self.all_ready(conns);
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            assert!(matches!(heard[..], [Reply::Go { .. }]), "{heard:?}");
        }
        all
    }

    /// The survivors of a loss say that they have all up to block `base`.
    pub(super) fn progress(&mut self, conns: &[ConnId], base: u64) {
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            assert!(matches!(heard[..], [Reply::Reform { .. }]), "{heard:?}");
        }
        for conn in conns {
            let heard = self.say(*conn, Request::Progress(progress(base, 1)));
            self.daemons[0].heard.entry(*conn).or_default().extend(heard);
        }
    }

    pub(super) fn info(&mut self) -> JobInfo {
        let tool = self.daemons[0].connect(address(9));
        self.say(tool, hello(None));
        let heard = self.say(tool, Request::Jobs);
        self.daemons[0].jobs.handle_closed(tool);
        match &heard[..] {
            [Reply::Jobs(all)] if all.len() == 1 => all[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn aborted(&mut self, conns: &[ConnId]) -> Vec<AbortReason> {
        let heard = conns.iter().flat_map(|c| self.daemons[0].heard.remove(c).unwrap_or_default());
        heard
            .filter_map(|reply| match reply {
                Reply::Aborted(reason) => Some(reason),
                _ => None,
            })
            .collect()
    }
}

pub(super) fn branch(index: usize, parent: Option<u16>, ranks: &[u16]) -> Branch {
    Branch::new(control(index), parent, ranks.to_vec())
}

/// Root with rank 0, branch 1 with 1 and 2, below it branch 2 with 3 and 4.
pub(super) fn path() -> Tree {
    Tree { branches: vec![branch(1, None, &[1, 2]), branch(2, Some(0), &[3, 4])] }
}
