//! Several areas of one group, used in turn.

mod common;

use common::{on_all, run};
use xdp_agg_intranode::Error;
use xdp_agg_intranode::csc::Csc;

/// A process that is ahead in one area does not change what others still compare in the other one.
#[test]
fn two_areas_in_turn() {
    let room = |options: &mut xdp_agg_intranode::Options| options.segment = 16 << 20;
    run(3, room, |group| {
        let area = || Csc::new(&group, 64 << 10).expect("an area");
        let (mut one, mut other) = (area(), area());
        let own = group.local_rank() as u8;
        let (mut short, mut long) = ([0; 3 * 8], [0; 3 * 16]);
        for _ in 0..5000 {
            one.all_gather(&[own; 8], &mut short).expect("all make this call");
            other.all_gather(&[own; 16], &mut long).expect("all make this call");
            assert!((0..3).all(|rank| short[rank * 8] == rank as u8));
            assert!((0..3).all(|rank| long[rank * 16] == rank as u8));
        }
    });
}

#[test]
fn a_view_that_others_do_not_call_is_named() {
    let errors = on_all(2, |group| {
        let mut area = Csc::new(&group, 64 << 10).expect("an area");
        if group.local_rank() == 0 {
            return area.all_gather_view(&[0; 8]).map(drop).expect_err("the other does not");
        }
        area.all_gather(&[0; 8], &mut [0; 16]).expect_err("the other does not")
    });
    for error in errors {
        assert!(matches!(&error, Error::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("all_gather_view"), "{error}");
    }
}
