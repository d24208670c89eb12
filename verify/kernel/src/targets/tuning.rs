//! The table of ways for collectives. The worker library reads it, which has these collectives.

use xdp_agg_client::collectives::{Kind, Tuning};
use xdp_agg_fuzz::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "tuning",
    about: "the table of ways for collectives",
    run,
    text: true,
    tokens: include_str!("../../../fuzz/dictionaries/tuning.txt"),
    features: &["a table", "refused"],
};

fn run(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    match Tuning::parse(&String::from_utf8_lossy(input)) {
        Ok(table) => {
            outcome.accepted = true;
            outcome.note(0);
            let written = table.to_toml().expect("what was read can be written");
            assert_eq!(Tuning::parse(&written).as_ref(), Ok(&table));
            for kind in Kind::ALL {
                for (ranks, bytes) in [(1, 0), (2, 1), (64, 1 << 20), (u16::MAX, u64::MAX)] {
                    let choice = table.choose(kind, ranks, bytes);
                    assert!(!choice.way.name().is_empty());
                }
            }
        }
        Err(problem) => {
            outcome.note(1);
            assert!(!problem.is_empty());
        }
    }
    outcome
}
