//! The daemon's state machine: several connections that say what they like.
//!
//! An input is a story, line by line. `C {json}` is a request of connection `C` (one digit), which
//! is opened and greets first if it is not there. `C open`, `C close` and `C garbled` say
//! themselves; `tick S` lets seconds pass. `fail`, `mend`, `hold` and `answer` are the engine's.
//! `restart` is a new daemon on the old one's data path and state; `state {json}` is a new daemon
//! that finds this state. A cookie, epoch or block size of 0 in a resume stands for the last one
//! that was told. So stories can tell of it. [`grove`] has the words for trees.

mod grove;
mod world;

use crate::{Outcome, Target};
use world::World;

pub(super) const TARGET: Target = Target {
    name: "jobs",
    about: "the daemon's jobs: sequences of requests from several connections",
    run,
    text: true,
    tokens: include_str!("../../dictionaries/control.txt"),
    features: &FEATURES,
};

/// The same stories, of other words: few of those above ever plant a tree.
pub(super) const TREES: Target = Target {
    name: "trees",
    about: "jobs over several aggregators: workers and branches that are late, lost or lie",
    tokens: include_str!("../../dictionaries/trees.txt"),
    ..TARGET
};

const FEATURES: [&str; 37] = [
    "a request",
    "no request",
    "welcome",
    "admitted",
    "go",
    "aborted",
    "reform",
    "pause",
    "run to",
    "resumed",
    "a new plan",
    "error: version",
    "error: protocol",
    "error: invalid",
    "error: rank taken",
    "error: world size",
    "error: no room",
    "error: no job",
    "error: busy",
    "error: engine",
    "error: other",
    "the engine fails",
    "the engine is late",
    "time passes",
    "garbled",
    "a job of several epochs",
    "a new daemon",
    "a state",
    "a branch is asked",
    "a branch speaks",
    "branches are gone",
    "a tree is planted",
    "a branch keeps silent",
    "it answers later",
    "a number is used",
    "a branch is late",
    "a job goes on without a branch",
];

/// Most lines of a story.
const LINES_MAX: usize = 128;

fn run(input: &[u8]) -> Outcome {
    let story = String::from_utf8_lossy(input);
    let mut world = World::new();
    for line in story.lines().take(LINES_MAX) {
        world.line(line);
    }
    world.end();
    world.outcome
}
