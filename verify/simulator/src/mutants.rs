//! Shows that the simulation bites: breaks the sources on purpose, and sees whether it notices.
//!
//! `verify/simulator/mutants.toml` lists edits of the sources. All of them are made in one copy,
//! each behind a switch that is thrown when the program runs, so that one build serves all. Mutant
//! 0 has no edit, and must be clean.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Seeds that a mutant is run over at most.
pub const SEEDS: u64 = 8000;
/// Seeds that the unchanged program has to pass.
const CLEAN_SEEDS: u64 = 300;
/// The crates that are copied.
const CRATES: [&str; 4] =
    ["crates/common", "crates/quantize", "crates/protocol", "verify/simulator"];
/// What an edit writes where the switch of its mutant is asked.
const SWITCH: &str = "MUTANT";

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
}

#[derive(Debug, Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

/// What became of one.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which one.
    pub mutant: Mutant,
    /// The simulation's words, if it noticed.
    pub caught: Option<String>,
}

/// Builds and runs all; true if each was noticed.
///
/// # Errors
/// An edit that does not apply, or a copy that does not build.
pub fn main(seeds: u64) -> Result<bool> {
    let all = run(seeds.min(SEEDS))?;
    let missed = all.iter().filter(|verdict| verdict.caught.is_none()).count();
    for (number, Verdict { mutant, caught }) in (1..).zip(&all) {
        let words = caught.as_deref().unwrap_or("NOT NOTICED");
        println!("{number:>3} {}: {words}", mutant.name);
    }
    println!("{} mutants, {missed} not noticed", all.len());
    Ok(missed == 0)
}

/// Builds the program with all mutants, and runs each over up to `seeds` seeds.
///
/// # Errors
/// An edit that does not apply, a copy that does not build, or a violation without any edit.
pub fn run(seeds: u64) -> Result<Vec<Verdict>> {
    let mutants = load()?;
    let place = place();
    copy(&place, &mutants)?;
    let program = build(&place)?;
    if let Some(violation) = simulate(&program, 0, CLEAN_SEEDS, false)? {
        bail!("the simulation finds fault with the unchanged sources: {violation}");
    }
    let verdicts = (1..).zip(mutants).map(|(number, mutant)| {
        let caught = simulate(&program, number, seeds, mutant.trees)?;
        Ok(Verdict { mutant, caught })
    });
    verdicts.collect()
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
    let path = root().join("verify/simulator/mutants.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let list: List = toml::from_str(&text).context("verify/simulator/mutants.toml")?;
    Ok(list.mutant)
}

/// Copies the crates and makes all edits. Files that do not change are not touched, so that a
/// second build has little to do.
fn copy(place: &Path, mutants: &[Mutant]) -> Result<()> {
    let to = place.join("src");
    let mut misfits = Vec::new();
    for name in CRATES {
        copy_directory(Path::new(name), &to, mutants, &mut misfits)?;
    }
    if !misfits.is_empty() {
        bail!("correct verify/simulator/mutants.toml: {}", misfits.join("; "));
    }
    write(&to.join("Cargo.toml"), manifest()?.as_bytes())?;
    // Cargo drops from its copy what is not needed here; it must not be overwritten each time.
    if !to.join("Cargo.lock").exists() {
        fs::copy(root().join("Cargo.lock"), to.join("Cargo.lock")).context("Cargo.lock")?;
    }
    Ok(())
}

fn manifest() -> Result<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).context("Cargo.toml")?;
    let mut table: toml::Table = text.parse().context("Cargo.toml")?;
    let workspace = table.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml has no workspace")?;
    let members: Vec<_> = CRATES.iter().map(|name| toml::Value::from(*name)).collect();
    workspace.insert("members".into(), members.into());
    workspace.remove("exclude");
    // Quick to build, quick enough to run.
    let profile = "[dev]\nopt-level = 1\ndebug = false\n[dev.package.\"*\"]\nopt-level = 0";
    let profile: toml::Table = profile.parse().context("the profile of mutants")?;
    table.insert("profile".into(), profile.into());
    Ok(table.to_string())
}

fn copy_directory(
    path: &Path,
    to: &Path,
    mutants: &[Mutant],
    misfits: &mut Vec<String>,
) -> Result<()> {
    let from = root().join(path);
    for entry in fs::read_dir(&from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let path = path.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&path, to, mutants, misfits)?;
            continue;
        }
        let bytes = fs::read(entry.path()).with_context(|| path.display().to_string())?;
        write(&to.join(&path), &edit(&path, bytes, mutants, misfits)?)?;
    }
    forget_what_is_gone(&from, &to.join(path))
}

/// Removes from the copy what the sources do not have any more.
fn forget_what_is_gone(from: &Path, to: &Path) -> Result<()> {
    // A directory without files has no copy.
    let Ok(copies) = fs::read_dir(to) else { return Ok(()) };
    for copy in copies {
        let copy = copy?;
        if from.join(copy.file_name()).exists() {
            continue;
        }
        let path = copy.path();
        let gone = if copy.file_type()?.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        gone.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// A source with all edits that are its own; those that do not apply are added to `misfits`.
fn edit(
    path: &Path,
    bytes: Vec<u8>,
    mutants: &[Mutant],
    misfits: &mut Vec<String>,
) -> Result<Vec<u8>> {
    let name = path.to_str().unwrap_or_default();
    match name {
        "crates/common/src/lib.rs" => {
            let mut text = String::from_utf8(bytes).context("lib.rs is no text")?;
            text.push_str(SWITCH_SOURCE);
            return Ok(text.into_bytes());
        }
        "verify/simulator/src/switch.rs" => return Ok(CHOOSE_SOURCE.into()),
        _ => {}
    }
    let own = || (1..).zip(mutants).filter(|(_, mutant)| mutant.file == name);
    if own().next().is_none() {
        return Ok(bytes);
    }
    let mut text = String::from_utf8(bytes).with_context(|| name.to_owned())?;
    for (number, Mutant { name, file, find, replace, .. }) in own() {
        let places = text.matches(find).count();
        if places != 1 {
            misfits.push(format!(
                "mutant {number} ({name}) does not apply: what it replaces is at {places} places \
                 of {file}, not at one"
            ));
            continue;
        }
        let switch = format!("xdp_agg_common::mutant::is({number})");
        text = text.replace(find, &replace.replace(SWITCH, &switch));
    }
    Ok(text.into_bytes())
}

/// What the copy of `xdp-agg-common` has besides.
const SWITCH_SOURCE: &str = "
extern crate self as xdp_agg_common;

/// Which mutant runs.
pub mod mutant {
    use core::sync::atomic::{AtomicU32, Ordering};

    /// The number.
    pub static NUMBER: AtomicU32 = AtomicU32::new(0);

    /// Whether it is this one.
    pub fn is(number: u32) -> bool {
        NUMBER.load(Ordering::Relaxed) == number
    }
}
";

/// What stands in the copy instead of `verify/simulator/src/switch.rs`.
const CHOOSE_SOURCE: &str = "//! Which mutant runs.

/// Runs as this mutant from now on; 0: as none.
pub fn choose(mutant: u32) -> bool {
    xdp_agg_common::mutant::NUMBER.store(mutant, std::sync::atomic::Ordering::Relaxed);
    true
}
";

/// Writes a file, if it does not hold this already.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Builds the copy; its program.
fn build(place: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = place.join("target");
    let status = Command::new(cargo)
        .current_dir(place.join("src"))
        // What this build was told is not meant for that one.
        .env_remove("RUSTFLAGS")
        .env("CARGO_TARGET_DIR", &target)
        .args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "xdp-agg-simulator",
            "--bin",
            "xdp-agg-simulator",
        ])
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the mutants cannot be built ({status}); the compiler's messages are above");
    }
    Ok(target.join("debug/xdp-agg-simulator"))
}

/// Runs a mutant until it is noticed; how that showed.
fn simulate(program: &Path, number: u32, seeds: u64, trees: bool) -> Result<Option<String>> {
    let output = Command::new(program)
        .args(["--stop", "--mutant", &number.to_string(), "--seeds", &seeds.to_string()])
        .args(trees.then_some("--trees"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let violation = text.lines().find(|line| line.contains("VIOLATION"));
    match (output.status.code(), violation) {
        (Some(0), None) => Ok(None),
        (Some(1), Some(violation)) => Ok(Some(violation.replace("VIOLATION: ", ""))),
        _ => bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
