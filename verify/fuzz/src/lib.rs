//! Fuzzing of everything in xdp-agg that reads what others wrote.
//!
//! A [`Target`] is a plain function of bytes that panics when something is wrong. [`driver`] calls
//! it with inputs that it makes from a corpus (`corpus/TARGET/`) by [`mutate`]; everything follows
//! from one seed. `cargo xtask fuzz` runs it, by the program of `verify/kernel` that fuzzes the
//! kernel program too, and tests run a small part of it ([`bounded`]).
//!
//! It is a driver of our own and not libFuzzer because it needs no nightly compiler, runs in the
//! test suite and repeats a run exactly. What it has instead of edge coverage: a target tells which
//! of its named outcomes an input led to ([`Outcome::features`]), and inputs that lead to a new
//! combination are mutated further.

pub mod bounded;
pub mod driver;
pub mod mutate;
mod random;
pub mod script;
pub mod targets;

pub use random::Random;

use std::path::{Path, PathBuf};

/// Where a directory of this crate is: the corpus, and the finds.
pub fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What an input led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Something behind the first checks was reached: a packet counted, a message was understood.
    pub accepted: bool,
    /// One bit for each of [`Target::features`] that occurred.
    pub features: u64,
}

impl Outcome {
    /// Notes that the feature with this number occurred.
    pub fn note(&mut self, feature: usize) {
        self.features |= 1 << (feature & 63);
    }
}

/// Something to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As on the command line, and the directory of its corpus.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Panics if something is wrong.
    pub run: fn(&[u8]) -> Outcome,
    /// Inputs are text: words, numbers and lines are mutated as such, too.
    pub text: bool,
    /// Words that random changes would not find, one a line.
    pub tokens: &'static str,
    /// Names of the outcomes.
    pub features: &'static [&'static str],
}
