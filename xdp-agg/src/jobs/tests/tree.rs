//! Jobs of several aggregators: the real machines of all daemons, and connections between them.

use xdp_agg_common::control::{Branch, JobInfo, LocalMembers, TreeError};

use super::*;

/// Goes on whoever is lost.
const GO_ON: Policy =
    Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume };

/// A daemon, its engine, and what its connections heard.
struct Daemon {
    at: Ipv4Addr,
    jobs: Jobs,
    engine: BTreeMap<u16, JobSetup>,
    running: BTreeSet<u16>,
    heard: BTreeMap<ConnId, Vec<Reply>>,
    closed: BTreeSet<ConnId>,
    next: u64,
    /// Ways up are open.
    uplink: bool,
    /// Members that are awaited, as the engine says.
    missing: u64,
    /// Workers on its host, as the engine says.
    local: Option<LocalMembers>,
    is_dead: bool,
}

/// A root at 10.0.0.1 and branches behind it, each with the last byte of its address as its index.
struct Woods {
    daemons: Vec<Daemon>,
    /// Of the root to its branches: which daemon, and its number of the connection.
    links: BTreeMap<LinkId, (usize, ConnId)>,
    now: Instant,
}

fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8)
}

fn control(index: usize) -> SocketAddrV4 {
    SocketAddrV4::new(address(index), 9870)
}

fn data(index: usize) -> SocketAddrV4 {
    SocketAddrV4::new(address(index), 48864)
}

impl Daemon {
    fn new(index: usize, now: Instant) -> Self {
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
            local: None,
            is_dead: false,
        }
    }

    fn connect(&mut self, remote: Ipv4Addr) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        self.jobs.connected(conn, Peer { local: Some(self.at), remote: Some(remote) });
        conn
    }

    fn effect(&mut self, effect: Effect) -> Option<Answer> {
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
            Effect::Heard { look, .. } => return Some(Answer::Heard { look, heard: vec![] }),
            Effect::Persist => assert!(self.jobs.snapshot().jobs.is_empty(), "not to be kept"),
            Effect::Link(_) => unreachable!("the woods' to do"),
        }
        None
    }

    /// The only job.
    fn setup(&self) -> &JobSetup {
        let mut all = self.engine.values();
        let one = all.next().expect("a job on the data path");
        assert!(all.next().is_none(), "one job");
        one
    }

    fn members(&self) -> Vec<u16> {
        self.setup().members.keys().copied().collect()
    }
}

impl Woods {
    fn new(branches: usize) -> Self {
        let now = Instant::now();
        let daemons = (0..=branches).map(|index| Daemon::new(index, now)).collect();
        Self { daemons, links: BTreeMap::new(), now }
    }

    /// Does everything there is to do, everywhere.
    fn settle(&mut self) {
        loop {
            let mut did = false;
            for index in 0..self.daemons.len() {
                while let Some(effect) = self.daemons[index].jobs.next_effect() {
                    did = true;
                    match effect {
                        Effect::Link(effect) => self.link(effect),
                        effect => {
                            let answer = self.daemons[index].effect(effect);
                            if let Some(answer) = answer {
                                self.daemons[index].jobs.answer(answer, self.now);
                            }
                        }
                    }
                }
            }
            for (link, (to, conn)) in self.links.clone() {
                for reply in self.daemons[to].heard.remove(&conn).unwrap_or_default() {
                    did = true;
                    self.daemons[0].jobs.link_said(link, reply);
                }
            }
            if !did {
                return;
            }
        }
    }

    fn link(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Dial(link, to) => {
                let index = usize::from(to.ip().octets()[3]) - 1;
                if self.daemons[index].is_dead {
                    return self.daemons[0].jobs.link_lost(link, "nobody is there");
                }
                let conn = self.daemons[index].connect(address(0));
                self.links.insert(link, (index, conn));
                self.daemons[0].jobs.link_up(link);
            }
            LinkEffect::Say(link, request) => {
                if let Some((to, conn)) = self.links.get(&link) {
                    self.daemons[*to].jobs.request(*conn, request, self.now);
                }
            }
            LinkEffect::HangUp(link) => {
                if let Some((to, conn)) = self.links.remove(&link) {
                    self.daemons[to].jobs.closed(conn);
                }
            }
        }
    }

    fn wait_for(&mut self, time: Duration) {
        self.now += time;
        for daemon in &mut self.daemons {
            daemon.jobs.handle_timeout(self.now);
        }
        self.settle();
    }

    /// A daemon dies with all its connections.
    fn kill(&mut self, index: usize) {
        let dead: Vec<_> = self.links.extract_if(.., |_, (to, _)| *to == index).collect();
        self.daemons[index].is_dead = true;
        for (link, (_, conn)) in dead {
            self.daemons[0].jobs.link_lost(link, "its connection ended");
            self.daemons[index].jobs.closed(conn);
        }
        self.settle();
    }

    fn say(&mut self, conn: ConnId, request: Request) -> Vec<Reply> {
        self.daemons[0].jobs.request(conn, request, self.now);
        self.settle();
        self.daemons[0].heard.remove(&conn).unwrap_or_default()
    }

    fn join(&mut self, join: Join) -> ConnId {
        let conn = self.daemons[0].connect(Ipv4Addr::new(10, 0, 1, join.rank as u8));
        assert!(matches!(self.say(conn, hello(None))[..], [Reply::Welcome { .. }]));
        let heard = self.say(conn, Request::Join(join));
        self.daemons[0].heard.entry(conn).or_default().extend(heard);
        conn
    }

    /// Joins all ranks of a job over `tree`.
    fn join_all(&mut self, tree: &Tree, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let wish = |rank| Join { policy, tree: tree.clone(), ..wish("trees", rank, world_size) };
        (0..world_size).map(|rank| self.join(wish(rank))).collect()
    }

    /// Brings a job over `tree` to its running state.
    fn run(&mut self, tree: &Tree, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let conns = self.join_all(tree, world_size, policy);
        self.ready(&conns);
        assert_eq!(self.info().phase, "running");
        conns
    }

    /// The workers are admitted, say so, and hear `Go`; what they were admitted to.
    fn ready(&mut self, conns: &[ConnId]) -> Vec<Admitted> {
        let mut all = Vec::new();
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            let admitted = heard.into_iter().find_map(|reply| match reply {
                Reply::Admitted(admitted) => Some(admitted),
                _ => None,
            });
            all.push(admitted.expect("it is admitted"));
        }
        for conn in conns {
            let heard = self.say(*conn, Request::Ready);
            self.daemons[0].heard.entry(*conn).or_default().extend(heard);
        }
        self.wait_for(Duration::from_millis(20));
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            assert!(matches!(heard[..], [Reply::Go { .. }]), "{heard:?}");
        }
        all
    }

    /// The survivors of a loss say that they have all up to block `base`.
    fn progress(&mut self, conns: &[ConnId], base: u64) {
        for conn in conns {
            let heard = self.daemons[0].heard.remove(conn).unwrap_or_default();
            assert!(matches!(heard[..], [Reply::Reform { .. }]), "{heard:?}");
        }
        for conn in conns {
            let heard = self.say(*conn, Request::Progress(progress(base, 1)));
            self.daemons[0].heard.entry(*conn).or_default().extend(heard);
        }
    }

    fn info(&mut self) -> JobInfo {
        let tool = self.daemons[0].connect(address(9));
        self.say(tool, hello(None));
        let heard = self.say(tool, Request::Jobs);
        self.daemons[0].jobs.closed(tool);
        match &heard[..] {
            [Reply::Jobs(all)] if all.len() == 1 => all[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    fn aborted(&mut self, conns: &[ConnId]) -> Vec<AbortReason> {
        let heard = conns.iter().flat_map(|c| self.daemons[0].heard.remove(c).unwrap_or_default());
        heard
            .filter_map(|reply| match reply {
                Reply::Aborted(reason) => Some(reason),
                _ => None,
            })
            .collect()
    }
}

fn branch(index: usize, parent: Option<u16>, ranks: &[u16]) -> Branch {
    Branch { daemon: control(index), parent, ranks: ranks.to_vec() }
}

/// Root with rank 0, branch 1 with 1 and 2, below it branch 2 with 3 and 4.
fn path() -> Tree {
    Tree { branches: vec![branch(1, None, &[1, 2]), branch(2, Some(0), &[3, 4])] }
}

/// A worker on its aggregator's host is told where it sends to, by the root whoever says it; the
/// others' address stays, and so does that of ranks that are none of a branch's own.
#[test]
fn workers_beside_their_aggregator_are_told_another_address() {
    let mut woods = Woods::new(2);
    let local = |nth: u8| SocketAddrV4::new([169, 254, 109, nth].into(), 48864);
    woods.daemons[0].local = Some(LocalMembers { ranks: 0b1, data: local(1) });
    woods.daemons[1].local = Some(LocalMembers { ranks: 0b1010, data: local(2) });
    let conns = woods.join_all(&path(), 5, GO_ON);
    let told: Vec<_> = woods.ready(&conns).iter().map(|admitted| admitted.data).collect();
    assert_eq!(told, [local(1), local(2), data(1), data(2), data(2)]);
    // In the next epoch it may be another one, or none.
    woods.daemons[0].local = None;
    woods.daemons[1].local = Some(LocalMembers { ranks: 0b10, data: local(3) });
    woods.daemons[0].jobs.closed(conns[4]);
    woods.settle();
    woods.progress(&conns[..4], 8);
    let told: Vec<_> = woods.ready(&conns[..4]).iter().map(|admitted| admitted.data).collect();
    assert_eq!(told, [data(0), local(3), data(1), data(2)]);
}

#[test]
fn all_aggregators_of_a_tree_learn_their_part() {
    let mut woods = Woods::new(2);
    // Jobs before it move the indexes.
    let stranger = woods.daemons[1].connect(address(8));
    woods.daemons[1].jobs.request(stranger, hello(None), woods.now);
    woods.daemons[1].jobs.request(stranger, join("another", 0, 2), woods.now);
    woods.settle();
    let conns: Vec<_> =
        (0..5).map(|rank| woods.join(Join { tree: path(), ..wish("trees", rank, 5) })).collect();
    let admitted = woods.ready(&conns);
    let told: Vec<_> = admitted.iter().map(|a| (a.data, a.job_id, a.members)).collect();
    assert_eq!(told[0], (data(0), 0, 0b11111));
    assert_eq!(told[1..3], [(data(1), 1, 0b11111); 2]);
    assert_eq!(told[3..], [(data(2), 0, 0b11111); 2]);
    // Of all daemons' numbers, a later one.
    assert!(admitted.iter().all(|a| a.epoch == 21 && a.cookie == admitted[0].cookie));
    let [root, middle, leaf] = [0, 1, 2].map(|index| woods.daemons[index].setup().clone());
    assert_eq!(root.members[&1], data(1));
    assert_eq!((root.members.len(), root.forwarders, root.uplink), (2, 0b10, None));
    assert_eq!(middle.members.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((middle.members[&3], middle.forwarders), (data(2), 0b1000));
    let up = middle.uplink.expect("a branch has a parent");
    assert_eq!((up.addr, up.job, up.rank), (data(0), 0, 1));
    let up = leaf.uplink.expect("a branch has a parent");
    assert_eq!((up.addr, up.job, up.rank), (data(1), 1, 3));
    for setup in [&root, &middle, &leaf] {
        assert_eq!((setup.conf.cookie, setup.conf.epoch), (admitted[0].cookie, 21));
        assert_eq!((setup.conf.slots, setup.conf.workers), (16, 5));
    }
    assert!(woods.daemons.iter().all(|daemon| daemon.running.len() == 1));
    let branches = woods.info().branches;
    assert_eq!(branches.len(), 2);
    assert!(branches.iter().all(|branch| branch.linked));
    assert_eq!(branches[1].parent, Some(control(1)));
}

#[test]
fn the_end_of_a_job_is_the_end_of_its_branches() {
    let mut woods = Woods::new(2);
    let free = woods.daemons[2].jobs.pool.free();
    let conns = woods.run(&path(), 5, Policy::default());
    assert_eq!(woods.daemons[2].jobs.pool.free(), free - 16);
    for conn in conns {
        woods.say(conn, Request::Leave);
    }
    assert!(woods.links.is_empty());
    for daemon in &woods.daemons {
        assert!(daemon.engine.is_empty() && daemon.jobs.served.is_empty());
        assert_eq!(daemon.jobs.pool.free(), free);
    }
}

/// No `Go` before every aggregator has found its parent: the first block would be lost for long.
#[test]
fn nobody_goes_before_all_ways_up_are_open() {
    let mut woods = Woods::new(2);
    woods.daemons[2].uplink = false;
    let conns = woods.join_all(&path(), 5, Policy::default());
    for conn in &conns {
        woods.say(*conn, Request::Ready);
    }
    woods.wait_for(Duration::from_secs(1));
    assert_eq!(woods.info().phase, "probing");
    woods.daemons[2].uplink = true;
    woods.wait_for(Duration::from_millis(20));
    assert_eq!(woods.info().phase, "running");
}

#[test]
fn a_branch_without_a_way_up_is_named() {
    let mut woods = Woods::new(2);
    woods.daemons[2].uplink = false;
    let conns = woods.join_all(&path(), 5, Policy::default());
    for conn in &conns {
        woods.say(*conn, Request::Ready);
    }
    woods.wait_for(Duration::from_millis(20));
    woods.wait_for(limits().probe_timeout);
    let reasons = woods.aborted(&conns);
    assert_eq!(reasons.len(), 5);
    let named = |reason: &AbortReason| match reason {
        AbortReason::Branch { daemon, .. } => *daemon == control(2),
        _ => false,
    };
    assert!(reasons.iter().all(named), "{reasons:?}");
}

#[test]
fn a_branch_that_is_lost_ends_the_job_or_leaves_its_ranks_to_its_parent() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, Policy::default());
    woods.kill(1);
    let reasons = woods.aborted(&conns);
    assert_eq!(reasons.len(), 5);
    assert!(reasons[0].to_string().contains("10.0.0.2:9870"), "{}", reasons[0]);
    assert!(woods.daemons[2].engine.is_empty());

    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, GO_ON);
    woods.kill(1);
    woods.progress(&conns, 7);
    let admitted = woods.ready(&conns);
    assert_eq!(admitted[1].data, data(0));
    assert_eq!(admitted[3].data, data(2));
    assert_eq!(woods.daemons[0].members(), [0, 1, 2, 3]);
    assert_eq!(woods.daemons[2].setup().uplink.expect("a parent").addr, data(0));
    assert!(admitted.iter().all(|a| a.plan.is_some() && a.members == 0b11111));
}

#[test]
fn a_worker_that_is_lost_leaves_its_branch() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, GO_ON);
    // The lowest rank of the middle branch: it contributes under another one from now on.
    woods.daemons[0].jobs.closed(conns[1]);
    woods.settle();
    let left = [conns[0], conns[2], conns[3], conns[4]];
    woods.progress(&left, 7);
    woods.ready(&left);
    assert_eq!(woods.daemons[0].members(), [0, 2]);
    assert_eq!(woods.daemons[1].members(), [2, 3]);
    assert_eq!(woods.daemons[1].setup().uplink.expect("a parent").rank, 2);
    // A branch whose last worker goes is needed no more.
    for conn in [conns[3], conns[4]] {
        woods.daemons[0].jobs.closed(conn);
    }
    woods.settle();
    woods.progress(&left[..2], 9);
    woods.ready(&left[..2]);
    assert_eq!(woods.daemons[1].members(), [2]);
    assert!(woods.daemons[2].engine.is_empty() && woods.daemons[2].jobs.served.is_empty());
}

#[test]
fn who_is_missing_is_asked_everywhere() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, Policy::default());
    // The root lacks branch 1, which lacks rank 2 and branch 2, which lacks rank 4.
    for (index, bits) in [0b00010, 0b01100, 0b10000].into_iter().enumerate() {
        woods.daemons[index].missing = bits;
    }
    let heard = woods.say(conns[0], Request::Missing { block: 3, of: None });
    assert_eq!(heard, [missing(3, &[2, 4])]);
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let mut woods = Woods::new(2);
    woods.daemons[2].is_dead = true;
    let conns = woods.join_all(&path(), 5, Policy::default());
    let reasons = woods.aborted(&conns);
    assert!(reasons[0].to_string().contains("10.0.0.3:9870"), "{reasons:?}");
    assert!(woods.links.is_empty(), "the others are let go");
}

#[test]
fn impossible_trees_and_different_ones_are_refused() {
    let mut world = World::new();
    let conn = world.connect();
    let wrong = Tree { branches: vec![branch(1, Some(0), &[1])] };
    let told = wrong.check(2).map_err(|error| matches!(error, TreeError::Order { .. }));
    assert_eq!(told, Err(true));
    let heard = world.say(conn, Request::Join(Join { tree: wrong, ..wish("odd", 0, 2) }));
    assert_eq!(refused(&heard, &["tree", "cycle", "topology"]), ErrorCode::Invalid);
    let tree = Tree { branches: vec![branch(1, None, &[1])] };
    assert!(world.say(conn, Request::Join(Join { tree, ..wish("odd", 0, 2) })).is_empty());
    let other = world.connect();
    let heard = world.say(other, join("odd", 1, 2));
    assert_eq!(refused(&heard, &["another tree", "XDP_AGG_TOPOLOGY"]), ErrorCode::Invalid);
}

/// A branch does not send to whatever address it was told for ever.
#[test]
fn a_way_up_is_not_tried_for_ever() {
    use xdp_agg_common::control::{BranchReply, BranchRequest, BranchSetup, Uplink};
    let now = Instant::now();
    let mut branch = Daemon::new(1, now);
    branch.uplink = false;
    let root = branch.connect(address(0));
    let serve = BranchRequest::Serve { job: "far".into(), world_size: 2, slots: 16 };
    let setup = BranchSetup {
        epoch: 50,
        cookie: 1,
        chunks: 22,
        members: vec![(0, data(3))],
        forwarders: 0,
        uplink: Uplink { data: data(0), job_id: 0, rank: 0 },
    };
    for request in
        [hello(None), Request::Branch(serve), Request::Branch(BranchRequest::Prepare(setup))]
    {
        branch.jobs.request(root, request, now);
        while let Some(effect) = branch.jobs.next_effect() {
            if let Some(answer) = branch.effect(effect) {
                branch.jobs.answer(answer, now);
            }
        }
    }
    let mut probes = 0;
    for step in 1..3000 {
        let now = now + Duration::from_millis(20 * step);
        branch.jobs.handle_timeout(now);
        while let Some(effect) = branch.jobs.next_effect() {
            probes += u64::from(matches!(effect, Effect::ProbeUplink(_)));
            if let Some(answer) = branch.effect(effect) {
                branch.jobs.answer(answer, now);
            }
        }
    }
    let most = limits().probe_timeout.as_millis() as u64 / 20 + 1;
    assert!((most / 2..=most).contains(&probes), "{probes}");
    assert!(branch.engine.is_empty(), "it has given up");
    let last = branch.heard.remove(&root).and_then(|mut heard| heard.pop());
    assert!(matches!(last, Some(Reply::Branch(BranchReply::Failed { epoch: 50, .. }))), "{last:?}");
}

/// A branch does not take what it cannot do.
#[test]
fn a_branch_refuses_what_does_not_fit() {
    use xdp_agg_common::control::{BranchRequest, BranchSetup, Uplink};
    let serve = |slots| BranchRequest::Serve { job: "far".into(), world_size: 2, slots };
    let mut world = World::new();
    let conn = world.connect();
    let heard = world.say(conn, Request::Branch(serve(1024)));
    assert_eq!(refused(&heard, &["1024 slots", "64"]), ErrorCode::NoRoom);
    assert!(matches!(world.say(conn, Request::Branch(serve(16)))[..], [Reply::Branch(_)]));
    let setup = BranchSetup {
        epoch: 5,
        cookie: 1,
        chunks: 99,
        members: vec![(0, data(3))],
        forwarders: 0,
        uplink: Uplink { data: data(0), job_id: 0, rank: 0 },
    };
    let heard = world.say(conn, Request::Branch(BranchRequest::Prepare(setup)));
    assert_eq!(refused(&heard, &["99 chunks", "22"]), ErrorCode::Invalid);
    assert!(world.engine.is_empty());
    let heard = world.say(conn, Request::Branch(serve(16)));
    assert_eq!(refused(&heard, &["serves a job already"]), ErrorCode::Protocol);
}
