//! Stragglers behind the branches of a tree.

use super::woods::{GO_ON, Stuck, Woods, path};
use super::*;

const LIMIT: Duration = Duration::from_secs(4);

/// A job of five over two branches with a limit. Ranks 1 and 2 are behind the first branch, which
/// the root knows as its member 1, and has nothing to send up without rank 2.
fn woods() -> (Woods, Vec<ConnId>) {
    let mut woods = Woods::new(2);
    woods.daemons[0].jobs.limits.straggler_timeout = Some(LIMIT);
    let conns = woods.run(&path(), 5, GO_ON);
    woods.wait_for(Duration::from_secs(100));
    woods.daemons[0].missing = 0b10;
    woods.daemons[0].silent = 0b10;
    woods.daemons[1].missing = 0b100;
    woods.daemons[1].silent = 0b100;
    (woods, conns)
}

fn ask(woods: &mut Woods, conn: ConnId, ranks: &[u16]) {
    let heard = woods.say(conn, Request::Missing { block: 3, of: None });
    assert_eq!(heard, [missing(3, ranks)]);
}

/// Rank 2 is given up, and the others go on without it.
fn rank_2_is_lost(woods: &mut Woods, conns: &[ConnId]) {
    let reason = AbortReason::Timeout { ranks: vec![2], step: "contribute".into() };
    assert_eq!(woods.aborted(&conns[2..3]), [reason]);
    let left = [conns[0], conns[1], conns[3], conns[4]];
    for conn in &left {
        assert_eq!(reform(&woods.daemons[0].heard[conn]), [2]);
    }
    woods.progress(&left, 8);
    assert!(woods.ready(&left).iter().all(|admitted| admitted.members == 0b11011));
}

#[test]
fn a_straggler_behind_a_branch_is_lost() {
    let (mut woods, conns) = woods();
    ask(&mut woods, conns[0], &[2]);
    woods.wait_for(LIMIT);
    rank_2_is_lost(&mut woods, &conns);
}

/// The branch cannot contribute under the number of its lowest rank, which is there.
#[test]
fn a_member_that_shares_its_branch_with_a_straggler_is_none() {
    let (mut woods, conns) = woods();
    // At first both are late.
    woods.daemons[1].missing = 0b110;
    ask(&mut woods, conns[0], &[1, 2]);
    woods.wait_for(LIMIT / 2);
    woods.daemons[1].missing = 0b100;
    ask(&mut woods, conns[3], &[2]);
    woods.wait_for(LIMIT / 2);
    rank_2_is_lost(&mut woods, &conns);
}

/// A branch that does not answer condemns no member, and holds up no tool.
#[test]
fn a_branch_that_does_not_tell_is_done_without() {
    let (mut woods, conns) = woods();
    woods.daemons[1].stuck_at = Some(Stuck::Heard);
    ask(&mut woods, conns[0], &[2]);
    woods.wait_for(LIMIT);
    let tool = woods.daemons[0].connect(Ipv4Addr::new(10, 0, 0, 9));
    woods.say(tool, hello(None));
    woods.wait_for(Duration::from_millis(600));
    assert_eq!(woods.say(tool, Request::Jobs), []);
    woods.wait_for(Duration::from_secs(1));
    let told = woods.daemons[0].heard.remove(&tool);
    assert!(matches!(told.as_deref(), Some([Reply::Jobs(_)])), "{told:?}");
    assert_eq!(woods.aborted(&conns), []);
    // It tells again, and the others still wait.
    woods.daemons[1].stuck_at = None;
    ask(&mut woods, conns[0], &[2]);
    woods.wait_for(LIMIT);
    rank_2_is_lost(&mut woods, &conns);
}

/// What is known is told without a branch whose daemon is stopped.
#[test]
fn a_question_does_not_wait_for_a_branch_that_does_not_tell() {
    let (mut woods, conns) = woods();
    woods.daemons[0].missing = 0b11;
    woods.daemons[1].stuck_at = Some(Stuck::Missing);
    assert_eq!(woods.say(conns[3], Request::Missing { block: 3, of: None }), []);
    woods.wait_for(Duration::from_millis(400));
    assert!(!woods.daemons[0].heard.contains_key(&conns[3]));
    woods.wait_for(Duration::from_millis(100));
    assert_eq!(woods.daemons[0].heard.remove(&conns[3]), Some(vec![missing(3, &[0])]));
    assert!(woods.daemons[0].jobs.questions.is_empty());
}

/// Rank 0 lacked when it was asked, and contributed before all had answered. Nobody waits for it.
#[test]
fn who_contributes_before_all_have_told_is_no_straggler() {
    let (mut woods, conns) = woods();
    woods.daemons[0].missing = 0b11;
    woods.daemons[1].stuck_at = Some(Stuck::Missing);
    woods.say(conns[3], Request::Missing { block: 3, of: None });
    let asked = woods.now;
    let came = asked + Duration::from_millis(300);
    woods.wait_for(Duration::from_millis(500));
    assert_eq!(woods.daemons[0].heard.remove(&conns[3]), Some(vec![missing(3, &[0])]));
    let look = woods.daemons[0]
        .jobs
        .jobs
        .values()
        .filter_map(|job| woods.daemons[0].jobs.straggler_due(job));
    let due = look.min().expect("a look is due");
    woods.daemons[0].contributed = Some(due - came);
    woods.wait_for(due - woods.now);
    assert_eq!(woods.aborted(&conns), []);
}

/// Rank 0 lacked when it was asked, contributed, and left before all had answered. So it is asked
/// anew, and no one is told that a rank left before its part was done.
#[test]
fn who_leaves_before_all_have_told_had_done_its_part() {
    let (mut woods, conns) = woods();
    woods.daemons[0].missing = 0b11;
    woods.daemons[1].missing = 0;
    woods.daemons[1].stuck_at = Some(Stuck::Missing);
    woods.say(conns[3], Request::Missing { block: 3, of: None });
    woods.daemons[0].missing = 0;
    woods.say(conns[0], Request::Leave);
    woods.wait_for(Duration::from_millis(500));
    let told = woods.daemons[0].heard.remove(&conns[3]);
    assert_eq!(told, Some(vec![missing(3, &[0])]), "as it was when it was asked");
    woods.wait_for(Duration::from_millis(500));
    let told = woods.daemons[0].heard.remove(&conns[3]);
    assert_eq!(told, Some(vec![missing(3, &[])]), "as it is");
    assert_eq!(woods.aborted(&conns[1..]), []);
    // One that truly lacks is told of.
    woods.daemons[0].missing = 0b1;
    woods.say(conns[3], Request::Missing { block: 4, of: None });
    woods.wait_for(Duration::from_millis(500));
    let reply = woods.daemons[0].heard.remove(&conns[3]).unwrap_or_default();
    assert_eq!(reply.first(), Some(&missing(4, &[0])));
    assert!(reply.len() > 1, "the job goes on without it, or ends: {reply:?}");
}

/// Blocks have other numbers in another epoch.
#[test]
fn a_question_of_an_earlier_epoch_shows_no_straggler() {
    let (mut woods, conns) = woods();
    woods.daemons[0].missing = 0b11;
    woods.daemons[1].stuck_at = Some(Stuck::Missing);
    woods.say(conns[3], Request::Missing { block: 3, of: None });
    woods.daemons[0].jobs.handle_closed(conns[4]);
    woods.wait_for(Duration::from_millis(100));
    woods.progress(&conns[..4], 8);
    assert_eq!(woods.ready(&conns[..4]).len(), 4);
    woods.wait_for(Duration::from_millis(400));
    assert!(woods.daemons[0].jobs.questions.is_empty());
    woods.daemons[0].silent = 0b11;
    woods.wait_for(LIMIT);
    woods.wait_for(LIMIT);
    assert_eq!(woods.aborted(&conns), []);
}

/// A branch that is lost is asked no more.
#[test]
fn a_look_ends_with_its_branch() {
    let (mut woods, conns) = woods();
    woods.daemons[1].stuck_at = Some(Stuck::Heard);
    ask(&mut woods, conns[0], &[2]);
    woods.wait_for(LIMIT);
    woods.kill(1);
    woods.wait_for(Duration::ZERO);
    assert!(woods.daemons[0].jobs.looks.is_empty());
    woods.progress(&conns, 8);
    assert_eq!(woods.ready(&conns).len(), 5);
}

#[test]
fn who_contributes_to_a_branch_is_shown() {
    let (mut woods, _) = woods();
    let shown = |woods: &mut Woods| -> Vec<_> {
        woods.info().members.iter().map(|member| member.contributed_ms.is_some()).collect()
    };
    assert_eq!(shown(&mut woods), [true, true, false, true, true]);
    // A caller that looks often sees what was known.
    woods.daemons[1].silent = 0;
    assert_eq!(shown(&mut woods), [true, true, false, true, true]);
    woods.wait_for(Duration::from_secs(1));
    assert_eq!(shown(&mut woods), [true; 5]);
}
