//! The copy of the sources, with all edits of the list.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::members::{self, Members};
use super::{Mutant, Tests, root};

/// The crate whose program runs the mutants.
const SIMULATOR: &str = "xdp-agg-simulator";
/// The crate that has the switch.
const COMMON: &str = "xdp-agg-common";
/// What tests read besides their crates.
const DOCS: &str = "docs";
/// What an edit writes where the switch of its mutant is asked.
const SWITCH: &str = "MUTANT";

/// Copies the crates and makes all edits. Files that do not change are not touched, so that a
/// second build has little to do.
pub(super) fn copy(place: &Path, mutants: &[Mutant]) -> Result<()> {
    let to = place.join("src");
    let tests = mutants.iter().filter_map(|mutant| mutant.tests.as_ref());
    let tested = tests.map(|Tests(name, _)| name.as_str());
    let crates = Members::of(root())?.needed(tested.chain([SIMULATOR]))?;
    let mut misfits = Vec::new();
    for path in crates.iter().map(PathBuf::as_path).chain([Path::new(DOCS)]) {
        copy_directory(path, &to, mutants, &mut misfits)?;
    }
    for mutant in mutants {
        if !crates.iter().any(|path| Path::new(&mutant.file).starts_with(path)) {
            misfits.push(format!("no crate that is built has {} ({})", mutant.file, mutant.name));
        }
    }
    if !misfits.is_empty() {
        bail!("correct verify/simulator/mutants.toml: {}", misfits.join("; "));
    }
    let manifest = manifest(&crates)?;
    let changed = write(&to.join("Cargo.toml"), manifest.as_bytes())?;
    // Cargo drops from its copy what is not needed here; it must not be overwritten each time.
    let lock = fs::read(root().join("Cargo.lock")).context("Cargo.lock")?;
    if write(&place.join("Cargo.lock"), &lock)? || changed {
        write(&to.join("Cargo.lock"), &lock)?;
    }
    Ok(())
}

fn manifest(crates: &[PathBuf]) -> Result<String> {
    let mut table = members::read(&root().join("Cargo.toml"))?;
    let workspace = table.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml has no workspace")?;
    let members: Vec<_> =
        crates.iter().map(|path| toml::Value::from(path.to_string_lossy().as_ref())).collect();
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
    if path.ends_with("Cargo.toml") {
        let directory = path.parent().unwrap_or(path);
        let mutated = mutants.iter().any(|mutant| Path::new(&mutant.file).starts_with(directory));
        return if mutated { with_switch(bytes) } else { Ok(bytes) };
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

/// A crate's manifest, in which the crate that has the switch is named.
fn with_switch(manifest: Vec<u8>) -> Result<Vec<u8>> {
    let text = String::from_utf8(manifest).context("Cargo.toml is no text")?;
    let mut table: toml::Table = text.parse().context("Cargo.toml")?;
    let name = table.get("package").and_then(|package| package.get("name"));
    if name.and_then(toml::Value::as_str) == Some(COMMON) {
        return Ok(text.into_bytes());
    }
    let dependencies = table.entry("dependencies").or_insert_with(|| toml::Table::new().into());
    let dependencies = dependencies.as_table_mut().context("dependencies are no table")?;
    if dependencies.contains_key(COMMON) {
        return Ok(text.into_bytes());
    }
    let whole: toml::Table = "workspace = true".parse().context("a dependency")?;
    dependencies.insert(COMMON.into(), whole.into());
    Ok(table.to_string().into_bytes())
}

/// What the copy of `xdp-agg-common` has besides. The variable is that of [`super::trial`].
const SWITCH_SOURCE: &str = "
#[allow(unused_extern_crates)]
extern crate self as xdp_agg_common;

/// Which mutant runs.
#[allow(unused_extern_crates)]
pub mod mutant {
    extern crate std;

    use core::sync::atomic::{AtomicU32, Ordering};

    /// The number; none yet: what the environment says.
    pub static NUMBER: AtomicU32 = AtomicU32::new(u32::MAX);

    /// Whether it is this one.
    pub fn is(number: u32) -> bool {
        let mut runs = NUMBER.load(Ordering::Relaxed);
        if runs == u32::MAX {
            let told = std::env::var(\"XDP_AGG_MUTANT\").ok();
            runs = told.and_then(|told| told.parse().ok()).unwrap_or(0);
            NUMBER.store(runs, Ordering::Relaxed);
        }
        runs == number
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

/// Writes a file, if it does not hold this already. True: it did not.
fn write(path: &Path, bytes: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())?;
    Ok(true)
}
