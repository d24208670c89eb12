//! What the worker's code takes is within its budgets.

use std::process::Command;

#[test]
fn instructions_are_within_their_budgets() {
    let status = Command::new(env!("CARGO_BIN_EXE_xdp-agg-budgets")).arg("check").status();
    assert!(status.expect("the program is built").success(), "see above");
}
