//! Files of a run: its directory, what its programs write, and what it keeps.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// A directory for the files of one run, gone with this value.
pub(crate) fn scratch() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("xdp-agg-lab-").tempdir();
    made.context("making a directory among the temporary files")
}

/// Where a rank writes its report.
pub(crate) fn report_file(scratch: &TempDir, rank: impl std::fmt::Display) -> PathBuf {
    scratch.path().join(format!("{rank}.json"))
}

/// The reports of this number of ranks, in their order.
pub(crate) fn reports<T: DeserializeOwned>(scratch: &TempDir, ranks: u16) -> Result<Vec<T>> {
    (0..ranks).map(|rank| read_json(&report_file(scratch, rank))).collect()
}

/// Reads what a program has written as JSON.
pub(crate) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let json = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    serde_json::from_slice(&json).with_context(|| format!("{} is not as expected", file.display()))
}

/// Writes rows as a JSON array.
pub(crate) fn write_json<T: Serialize>(file: &Path, rows: &[T]) -> Result<()> {
    let json = serde_json::to_string_pretty(rows)?;
    make_parent(file)?;
    fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))
}

/// Makes the directory of a file.
pub(crate) fn make_parent(file: &Path) -> Result<()> {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => make_directory(parent),
        _ => Ok(()),
    }
}

/// Makes a directory, and those that it lies in.
pub(crate) fn make_directory(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("making the directory {}", directory.display()))
}
