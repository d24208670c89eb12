//! Several roots at one branch, and what is left of a tree.

use xdp_agg_common::control::{Branch, BranchReply, BranchRequest};

use super::*;

const BRANCH: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 9), 9870);

/// A root with a job of one rank, which is below a branch.
struct Root {
    jobs: Jobs,
    now: Instant,
    link: Option<LinkId>,
    /// The number that the branch is asked to take.
    wants: Option<u16>,
    /// What its worker was told.
    aborted: Option<AbortReason>,
}

fn tree() -> Tree {
    Tree { branches: vec![Branch::new(BRANCH, None, vec![0])] }
}

impl Root {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let jobs = Jobs::new(limits(), StdRng::seed_from_u64(seed), now);
        let mut root = Self { jobs, now, link: None, wants: None, aborted: None };
        root.jobs.handle_connected(ConnId(0), PEER);
        root.jobs.handle_request(ConnId(0), hello(None), now);
        let join = Join { tree: tree(), policy: SHRINK, ..wish("woods", 0, 1) };
        root.jobs.handle_request(ConnId(0), Request::Join(join), now);
        root.settle();
        let link = root.link.expect("it connects to its branch");
        root.jobs.handle_link_up(link);
        let data = SocketAddrV4::new(*BRANCH.ip(), 48864);
        root.said(BranchReply::Serving {
            job_id: 0,
            data,
            max_chunks: 22,
            last_epoch: 7,
            daemon: 1,
            single_packets: false,
        });
        root
    }

    fn said(&mut self, reply: BranchReply) {
        self.wants = None;
        let link = self.link.expect("it is connected");
        self.jobs.handle_link_reply(link, Reply::Branch(reply));
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(effect) = self.jobs.poll_effect() {
            match effect {
                Effect::Link(LinkEffect::Dial(link, ..)) => self.link = Some(link),
                Effect::Link(LinkEffect::Say(
                    _,
                    Request::Branch(BranchRequest::Prepare(setup)),
                )) => self.wants = Some(setup.epoch),
                Effect::Reply(_, Reply::Aborted(reason)) => self.aborted = Some(reason),
                Effect::Prepare(Prepare { formation, .. }) => {
                    self.jobs.handle_answer(Answer::Prepared(formation, Ok(None)), self.now);
                }
                _ => {}
            }
        }
    }
}

/// The simulation found it. Two roots that shared branches asked for the same number in step, each
/// was told that the other had it, and so on without end.
#[test]
fn roots_in_step_do_not_contend_for_ever() {
    let mut roots = [Root::new(1), Root::new(2)];
    for round in 0..5 {
        let [one, other] = [0, 1].map(|index| roots[index].wants.expect("it asks for a number"));
        if one != other {
            assert!(round > 0, "they begin with the same");
            return;
        }
        for root in &mut roots {
            root.said(BranchReply::Used { epoch: one, last_epoch: one });
        }
    }
    panic!("five times the same numbers");
}

#[test]
fn a_contest_has_an_end() {
    let mut root = Root::new(1);
    let mut tries = 0;
    while let Some(epoch) = root.wants {
        root.said(BranchReply::Used { epoch, last_epoch: epoch });
        tries += 1;
        assert!(tries < 1000, "as often as it likes");
    }
    let reason = root.aborted.expect("it is told");
    for words in ["10.0.9.9:9870", "every number of an epoch used"] {
        assert!(reason.to_string().contains(words), "{reason}");
    }
}

/// The simulation found it. A job whose branches were all lost was left to the next daemon without
/// its tree. That daemon refused the workers that named the tree.
#[test]
fn the_next_daemon_knows_the_tree_that_was_asked_for() {
    let mut world = World::new();
    let conns = [world.connect(), world.connect()];
    for (rank, conn) in (0..).zip(conns) {
        let wish = Join { policy: SHRINK, ..wish("alone", rank, 2) };
        world.say(conn, Request::Join(wish));
    }
    for conn in conns {
        world.say(conn, Request::Ready);
    }
    let mut snapshot = world.jobs.snapshot();
    let [job] = &mut snapshot.jobs[..] else { panic!("one job runs") };
    assert!(job.tree.is_single());
    job.tree = tree();
    let mut next = Jobs::new(limits(), StdRng::seed_from_u64(3), world.now);
    next.restore(snapshot, world.now);
    assert_eq!(next.snapshot().jobs[0].tree, tree());
}
