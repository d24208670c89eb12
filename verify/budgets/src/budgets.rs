//! Counting, and the budgets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::workloads::Workload;

/// How much less and more than its budget a workload may take, in percent. A budget that is far
/// above what is taken would hide what comes next.
const RANGE: [u64; 2] = [10, 3];
/// The same where another compiler made the budgets.
const RANGE_ELSEWHERE: [u64; 2] = [25, 25];
/// Instructions that callgrind knows: it has no AVX-512.
const SIMD: (&str, &str) = ("XDP_AGG_SIMD", "avx2");

/// What is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Budgets {
    /// The compiler that made what was counted: another one makes other instructions.
    compiler: String,
    /// Instructions of each workload.
    instructions: BTreeMap<Workload, u64>,
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("budgets.toml")
}

/// Counts all workloads, and compares them with their budgets.
pub(crate) fn check() -> Result<()> {
    let path = file();
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let budgets: Budgets = toml::from_str(&text)?;
    let here = compiler()?;
    let range = if budgets.compiler == here { RANGE } else { RANGE_ELSEWHERE };
    println!("{here}; budgets are of {}", budgets.compiler);
    let mut wrong = Vec::new();
    for workload in Workload::value_variants() {
        let taken = count(*workload)?;
        let budget = *budgets.instructions.get(workload).context("a workload without a budget")?;
        let line = line(*workload, taken, budget);
        println!("{line}");
        if !is_within(taken, budget, range) {
            wrong.push(line);
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let [less, more] = range;
    bail!(
        "not within -{less} to +{more} % of the budget:\n{}\n`cargo xtask budgets --record` stores \
         what is right",
        wrong.join("\n")
    )
}

/// Counts all workloads, and stores that.
pub(crate) fn record() -> Result<()> {
    let mut budgets = Budgets { compiler: compiler()?, ..Budgets::default() };
    for workload in Workload::value_variants() {
        let taken = count(*workload)?;
        println!("{}", line(*workload, taken, taken));
        budgets.instructions.insert(*workload, taken);
    }
    fs::write(file(), toml::to_string(&budgets)?)?;
    Ok(())
}

fn is_within(taken: u64, budget: u64, [less, more]: [u64; 2]) -> bool {
    (budget * (100 - less)..=budget * (100 + more)).contains(&(taken * 100))
}

fn line(workload: Workload, taken: u64, budget: u64) -> String {
    let name = workload.to_possible_value().map(|value| value.get_name().to_owned());
    let more = 100.0 * (taken as f64 / budget as f64 - 1.0);
    format!("{:16} {taken:>11} instructions, {more:+.1} %", name.unwrap_or_default())
}

/// The compiler of the path: its version is all that is known of the one that made this program.
fn compiler() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().context("rustc --version")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Instructions that the measured part of a workload takes.
fn count(workload: Workload) -> Result<u64> {
    let name = workload.to_possible_value().context("a workload without a name")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*workloads::measured*")
        .arg(env::current_exe()?)
        .args(["run", name.get_name()])
        .env(SIMD.0, SIMD.1)
        .output()
        .context("valgrind cannot be run: install it (`apt-get install valgrind`)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {said}", name.get_name());
    // ==123== Collected : 456
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let taken = collected.and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0);
    ensure!(taken > 0, "callgrind has counted nothing of {}: {said}", name.get_name());
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_has_an_upper_and_a_lower_end() {
        let taken = [899, 900, 1000, 1030, 1031];
        let within = taken.map(|taken| is_within(taken * 1000, 1_000_000, RANGE));
        assert_eq!(within, [false, true, true, true, false]);
    }
}
