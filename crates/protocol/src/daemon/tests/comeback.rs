//! Branches that are lost, whose place is taken, and that come back.

use super::super::away::LOSSES_MAX;
use super::woods::{GO_ON, Woods, branch, control, data};
use super::*;

/// Root with rank 0, branch 1 with 1 and 2, for which 2 and 3 stand in, and branch 4 with 3, which
/// is always there.
fn spared() -> Tree {
    let mut tree = lone();
    tree.branches[0].spares = vec![control(2), control(3)];
    tree
}

/// The same without spares.
fn lone() -> Tree {
    Tree { branches: vec![branch(1, None, &[1, 2]), branch(4, None, &[3])] }
}

/// Where the workers send to when ranks 1 and 2 send there.
fn told(index: usize) -> [SocketAddrV4; 4] {
    [data(0), data(index), data(index), data(4)]
}

impl Woods {
    /// A daemon that was killed is there again, and knows of nothing.
    fn revive(&mut self, index: usize) {
        self.daemons[index] = super::woods::Daemon::new(index, self.now);
    }

    /// The workers that were told of a loss or a return go on; where they send to.
    fn go_on(&mut self, conns: &[ConnId], base: u64) -> Vec<SocketAddrV4> {
        self.progress(conns, base);
        self.ready(conns).iter().map(|admitted| admitted.data).collect()
    }

    /// Whether anybody was told anything.
    fn is_quiet(&self, conns: &[ConnId]) -> bool {
        conns.iter().all(|conn| self.daemons[0].heard.get(conn).is_none_or(Vec::is_empty))
    }

    /// Waits until the workers are told of something, for this long at most; how long it took.
    fn until_told(&mut self, conns: &[ConnId], longest: Duration) -> Option<Duration> {
        let begin = self.now;
        while self.now - begin < longest {
            if !self.is_quiet(conns) {
                return Some(self.now - begin);
            }
            self.wait_for(Duration::from_millis(100));
        }
        None
    }
}

#[test]
fn a_spare_takes_the_place_of_a_lost_branch() {
    let mut woods = Woods::new(4);
    let free = woods.daemons[2].jobs.pool.free();
    let conns = woods.run(&spared(), 4, GO_ON);
    assert_eq!(woods.daemons[2].jobs.pool.free(), free, "a spare keeps no slots");
    woods.kill(1);
    assert_eq!(woods.go_on(&conns, 7), told(2));
    assert_eq!(woods.daemons[0].members(), [0, 1, 3], "one sum of both");
    assert_eq!(woods.daemons[2].members(), [1, 2]);
    // The next one, and in the end none.
    woods.kill(2);
    assert_eq!(woods.go_on(&conns, 8), told(3));
    woods.kill(3);
    assert_eq!(woods.go_on(&conns, 9), told(0));
    assert_eq!(woods.daemons[0].members(), [0, 1, 2, 3], "a copy each");
}

#[test]
fn a_branch_that_is_there_again_is_taken_back() {
    for tree in [spared(), lone()] {
        let mut woods = Woods::new(4);
        let free = woods.daemons[2].jobs.pool.free();
        let conns = woods.run(&tree, 4, GO_ON);
        woods.kill(1);
        woods.go_on(&conns, 7);
        // As long as it is away nobody is told anything, however often it is tried.
        woods.wait_for(Duration::from_secs(1));
        woods.wait_for(Duration::from_secs(5));
        assert!(woods.is_quiet(&conns));
        woods.revive(1);
        let took = woods.until_told(&conns, Duration::from_secs(60)).expect("it is taken back");
        assert!(took >= limits().return_after, "{took:?}: it has to stay");
        assert_eq!(woods.go_on(&conns, 9), told(1));
        assert_eq!(woods.daemons[1].members(), [1, 2]);
        assert!(woods.daemons[2].engine.is_empty() && woods.daemons[2].jobs.served.is_empty());
        assert_eq!(woods.daemons[2].jobs.pool.free(), free);
        woods.wait_for(Duration::from_secs(100));
        assert!(woods.is_quiet(&conns), "and nothing more happens");
        // The job's end leaves nothing behind.
        for conn in conns {
            woods.say(conn, Request::Leave);
        }
        assert!(woods.links.is_empty());
    }
}

#[test]
fn a_branch_that_comes_and_goes_is_taken_back_later_and_later() {
    let mut woods = Woods::new(4);
    let conns = woods.run(&lone(), 4, GO_ON);
    let mut last = Duration::ZERO;
    for loss in 1..LOSSES_MAX {
        woods.kill(1);
        woods.go_on(&conns, 20 + u64::from(loss));
        woods.revive(1);
        let took = woods.until_told(&conns, Duration::from_secs(600)).expect("it is taken back");
        let least = limits().return_after * (1 << (loss - 1));
        assert!(took >= least && took >= last, "{loss}: {took:?} after {last:?}");
        assert!(took < 2 * least + Duration::from_secs(2), "{loss}: {took:?}");
        last = took;
        assert_eq!(woods.go_on(&conns, 20 + u64::from(loss)), told(1));
    }
    woods.kill(1);
    woods.go_on(&conns, 40);
    woods.revive(1);
    assert_eq!(woods.until_told(&conns, Duration::from_secs(1200)), None, "it is left alone");
    assert!(woods.links.values().all(|(to, _)| *to == 4), "nor is it tried");
}

#[test]
fn losses_of_long_ago_are_forgiven() {
    let mut woods = Woods::new(4);
    let conns = woods.run(&lone(), 4, GO_ON);
    for loss in 1..=2 * LOSSES_MAX {
        woods.kill(1);
        woods.go_on(&conns, 20 + u64::from(loss));
        woods.revive(1);
        let took = woods.until_told(&conns, Duration::from_secs(60)).expect("it is taken back");
        assert!(took < Duration::from_secs(4), "{loss}: {took:?}");
        woods.go_on(&conns, 20 + u64::from(loss));
        woods.wait_for(Duration::from_secs(600));
    }
}

/// A spare that is back while another one sums changes nothing; it is taken where nobody sums.
#[test]
fn a_spare_comes_back_where_it_is_needed_alone() {
    let mut woods = Woods::new(4);
    let conns = woods.run(&spared(), 4, GO_ON);
    woods.kill(1);
    woods.go_on(&conns, 7);
    woods.kill(2);
    woods.go_on(&conns, 8);
    woods.revive(2);
    assert_eq!(woods.until_told(&conns, Duration::from_secs(60)), None);
    woods.kill(3);
    assert_eq!(woods.go_on(&conns, 9), told(0));
    woods.until_told(&conns, Duration::from_secs(60)).expect("the spare is needed now");
    assert_eq!(woods.go_on(&conns, 10), told(2));
    // The branch itself comes before it.
    woods.revive(1);
    woods.until_told(&conns, Duration::from_secs(120)).expect("it is taken back");
    assert_eq!(woods.go_on(&conns, 11), told(1));
}

/// A branch that is there for a moment alone is not taken back.
#[test]
fn a_branch_that_does_not_stay_is_not_taken_back() {
    let mut woods = Woods::new(4);
    let conns = woods.run(&lone(), 4, GO_ON);
    woods.kill(1);
    woods.go_on(&conns, 7);
    for _ in 0..20 {
        woods.revive(1);
        let seen = |woods: &Woods| woods.links.values().any(|(to, _)| *to == 1);
        for _ in 0..2000 {
            if seen(&woods) {
                break;
            }
            woods.wait_for(Duration::from_millis(100));
        }
        assert!(seen(&woods), "it is tried");
        woods.wait_for(limits().return_after / 2);
        woods.kill(1);
    }
    assert!(woods.is_quiet(&conns));
    assert_eq!(woods.info().phase, "running");
}

/// The branch is lost again while the members say what they have: the epoch forms without it.
#[test]
fn a_branch_that_is_lost_as_it_is_taken_back_is_left_out() {
    let mut woods = Woods::new(4);
    let conns = woods.run(&lone(), 4, GO_ON);
    woods.kill(1);
    woods.go_on(&conns, 7);
    woods.revive(1);
    woods.until_told(&conns, Duration::from_secs(60)).expect("it is taken back");
    woods.kill(1);
    assert_eq!(woods.go_on(&conns, 8), told(0));
    assert_eq!(woods.info().phase, "running");
}
