//! Shows that the simulation bites: breaks the sources on purpose, and sees whether it notices.
//!
//! `verify/simulator/mutants.toml` lists edits of the sources. All of them are made in one copy,
//! each behind a switch that is thrown when the program runs, so that one build serves all. Mutant
//! 0 has no edit, and must be clean. What no simulated run can show, a unit test has to notice:
//! that of the mutant's `tests`.
//!
//! `verify/simulator/noticed.toml` has the seed by which each was noticed last. That seed is tried
//! before all others. A stale one costs time alone: all seeds are tried then.

mod copy;
mod members;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Seeds that a mutant is run over at most.
pub const SEEDS: u64 = 8000;
/// Seeds that the unchanged program has to pass.
const CLEAN_SEEDS: u64 = 300;

/// An edit of the sources.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// A few words.
    pub name: String,
    /// The source, from the root of the repository.
    pub file: String,
    /// What is replaced: exactly one place.
    pub find: String,
    /// By what; `MUTANT` stands for "this mutant runs".
    pub replace: String,
    /// What it breaks.
    pub why: String,
    /// It shows only where there are several aggregators.
    #[serde(default)]
    pub trees: bool,
    /// The unit test that notices it instead of the simulation.
    pub tests: Option<Tests>,
}

/// Unit tests of a crate's library: `[CRATE, NAME]` in the list, those that
/// `cargo test -p CRATE --lib NAME` runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Tests(pub String, pub String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// The seed by which each mutant was noticed, by its name.
type Seeds = BTreeMap<String, u64>;

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The words of the simulation or of the test.
    pub words: String,
    /// The simulated run's seed; none of a test.
    pub seed: Option<u64>,
}

/// What became of one.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which one.
    pub mutant: Mutant,
    /// None: nothing noticed it.
    pub caught: Option<Caught>,
}

/// Builds and runs all; true if each was noticed. `record` keeps the seeds for the next time.
///
/// # Errors
/// An edit that does not apply, or a copy that does not build.
pub fn main(seeds: u64, record: bool) -> Result<bool> {
    let all = run(seeds.min(SEEDS))?;
    if record {
        write_seeds(&all)?;
    }
    let missed = all.iter().filter(|verdict| verdict.caught.is_none()).count();
    for (number, Verdict { mutant, caught }) in (1..).zip(&all) {
        let words = match caught {
            Some(Caught { words, .. }) => words,
            None => "NOT NOTICED",
        };
        println!("{number:>3} {}: {words}", mutant.name);
    }
    println!("{} mutants, {missed} not noticed", all.len());
    Ok(missed == 0)
}

/// Builds the program and the tests with all mutants, so that [`run`] has less to do.
///
/// # Errors
/// An edit that does not apply, or a copy that does not build.
pub fn build() -> Result<()> {
    let (mutants, place) = (load()?, place());
    copy::copy(&place, &mutants)?;
    trial::build(&place)?;
    let tests = mutants.iter().filter_map(|mutant| mutant.tests.as_ref());
    let packages: BTreeSet<&str> = tests.map(|Tests(package, _)| package.as_str()).collect();
    packages.iter().try_for_each(|package| trial::build_tests(&place, package))
}

/// Builds the program and the tests with all mutants. Runs each mutant over up to `seeds` seeds, or
/// the tests that are to notice it.
///
/// # Errors
/// An edit that does not apply, a copy that does not build, or a violation without any edit.
pub fn run(seeds: u64) -> Result<Vec<Verdict>> {
    let mutants = load()?;
    let noticed = load_seeds()?;
    let place = place();
    copy::copy(&place, &mutants)?;
    let program = trial::build(&place)?;
    let simulate = |number, first, seeds, trees| {
        trial::simulate(&program, number, first..first + seeds, trees)
    };
    if let Some(Caught { words, .. }) = simulate(0, 0, CLEAN_SEEDS, false)? {
        bail!("the simulation finds fault with the unchanged sources: {words}");
    }
    let mut passed: Vec<&Tests> = Vec::new();
    for tests in mutants.iter().filter_map(|mutant| mutant.tests.as_ref()) {
        if passed.contains(&tests) {
            continue;
        }
        if let Some(Caught { words, .. }) = trial::test(&place, 0, tests)? {
            bail!("the unchanged sources fail a test: {words}");
        }
        passed.push(tests);
    }
    let caught = (1..).zip(&mutants).map(|(number, mutant)| {
        if let Some(tests) = &mutant.tests {
            return trial::test(&place, number, tests);
        }
        if let Some(&seed) = noticed.get(&mutant.name)
            && let Some(caught) = simulate(number, seed, 1, mutant.trees)?
        {
            return Ok(Some(caught));
        }
        simulate(number, 0, seeds, mutant.trees)
    });
    let caught: Vec<_> = caught.collect::<Result<_>>()?;
    let verdicts = mutants.into_iter().zip(caught);
    Ok(verdicts.map(|(mutant, caught)| Verdict { mutant, caught }).collect())
}

fn root() -> &'static Path {
    // The crate lies in `verify`, and that in the repository.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."))
}

/// Where copy and build go.
fn place() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root().join("target"), PathBuf::from).join("mutants")
}

/// The list.
pub fn load() -> Result<Vec<Mutant>> {
    const LIST: &str = "verify/simulator/mutants.toml";
    let list: List = toml::from_str(&read(LIST)?).context(LIST)?;
    Ok(list.mutant)
}

/// Where the seeds are kept.
const NOTICED: &str = "verify/simulator/noticed.toml";

fn load_seeds() -> Result<Seeds> {
    toml::from_str(&read(NOTICED)?).context(NOTICED)
}

fn write_seeds(verdicts: &[Verdict]) -> Result<()> {
    let seed =
        |verdict: &Verdict| Some((verdict.mutant.name.clone(), verdict.caught.as_ref()?.seed?));
    let seeds: Seeds = verdicts.iter().filter_map(seed).collect();
    let text = format!(
        "# By which seed each mutant was noticed last: it is tried first. Written by\n\
         # `cargo xtask sim --mutants --record`.\n\n{}",
        toml::to_string(&seeds).context(NOTICED)?
    );
    fs::write(root().join(NOTICED), text).context(NOTICED)
}

/// A file of the repository.
fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}
