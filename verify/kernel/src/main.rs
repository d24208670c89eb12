//! `cargo xtask fuzz`: fuzzes what was asked for, says how far it got, and keeps what failed.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use xdp_agg_common::maps::Reject;
use xdp_agg_fuzz::driver::{self, Failure, Plan, Summary};
use xdp_agg_fuzz::{Target, directory, targets};
use xdp_agg_fuzz_kernel::targets as others;
use xdp_agg_fuzz_kernel::{FuzzConfig, FuzzError, FuzzReport, fuzz_kernel};

/// The target that has a driver of its own.
const KERNEL: &str = "kernel";

/// Fuzzes everything that reads what others wrote: packets, control messages, settings, plans for
/// a new epoch, and the kernel program itself (as root).
///
/// A failure is written to verify/fuzz/crashes/, made as short as it could be, with what was said;
/// the exit status is then 1. `--replay FILE` runs one such file alone.
#[derive(Parser)]
#[command(name = "cargo xtask fuzz", bin_name = "cargo xtask fuzz", version)]
struct Cli {
    /// What to fuzz: packet, forwarder, control, jobs, trees, config, topology, tuning, mesh,
    /// reform, kernel. Default: everything.
    targets: Vec<String>,
    /// Inputs for each.
    #[arg(long, default_value_t = 1_000_000)]
    inputs: u64,
    /// Everything follows from it: the same seed makes the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No longer than this for each.
    #[arg(long)]
    seconds: Option<u64>,
    /// Run this input alone, on the one target that is named, and print what it says.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<bool> {
    let all = [&targets::ALL[..], &others::ALL[..]].concat();
    let mut chosen = Vec::new();
    let mut with_kernel = cli.targets.is_empty();
    for name in &cli.targets {
        if name == KERNEL {
            with_kernel = true;
            continue;
        }
        let wrong = || {
            let names: Vec<_> = all.iter().map(|target| target.name).collect();
            format!("no target {name:?}; there are {}, {KERNEL}", names.join(", "))
        };
        chosen.push(*all.iter().find(|target| target.name == name).with_context(wrong)?);
    }
    if let Some(file) = &cli.replay {
        let [target] = chosen[..] else { bail!("--replay needs the name of one target") };
        return replay(&target, file);
    }
    if cli.targets.is_empty() {
        chosen = all;
    }
    let plan =
        Plan { inputs: cli.inputs, seed: cli.seed, time: cli.seconds.map(Duration::from_secs) };
    let mut good = true;
    for target in chosen {
        let summary = fuzz(&target, plan)?;
        print_summary(&target, &summary);
        if let Some(failure) = &summary.failure {
            good = false;
            keep(&target, plan.seed, failure)?;
        }
    }
    Ok(if with_kernel { fuzz_the_kernel_program(cli)? && good } else { good })
}

/// The kernel program has a driver of its own: its inputs go through `BPF_PROG_TEST_RUN`, and what
/// it may write is in the kernel. Its corpus holds failures, which are run first.
fn fuzz_the_kernel_program(cli: &Cli) -> Result<bool> {
    let corpus = Some(directory("corpus").join(KERNEL));
    let config = FuzzConfig { inputs: cli.inputs, seed: cli.seed, corpus, disturb: None };
    let shows = std::io::stderr().is_terminal();
    let start = Instant::now();
    let result = fuzz_kernel(&config, &mut |inputs| {
        if shows {
            eprint!("\r\x1b[K{KERNEL:<8} {inputs} inputs");
            // As above.
            let _ = std::io::stderr().flush();
        }
    });
    if shows {
        eprint!("\r\x1b[K");
    }
    match result {
        Ok(report) => {
            print_kernel(&report, start.elapsed());
            Ok(true)
        }
        Err(FuzzError::Engine(error)) if cli.targets.is_empty() => {
            println!("{KERNEL:<8} left out: {error}");
            Ok(true)
        }
        Err(error @ FuzzError::Found { .. }) => {
            println!("{KERNEL:<8} FAILED: {error}");
            println!("         its frames are in {}", directory("corpus").join(KERNEL).display());
            Ok(false)
        }
        Err(error) => Err(error).context("fuzzing the kernel program"),
    }
}

fn print_kernel(report: &FuzzReport, time: Duration) {
    let FuzzReport { inputs, passed, refused, probes, contributions, blocks, .. } = report;
    let FuzzReport { repetitions, deliveries, relays, .. } = report;
    let share = |count: u64| 100.0 * count as f64 / (*inputs).max(1) as f64;
    println!(
        "{KERNEL:<8} ok: {inputs} inputs in {:.1} s ({:.0}/s), {:.1} % got behind the first checks",
        time.as_secs_f64(),
        *inputs as f64 / time.as_secs_f64().max(1e-9),
        share(probes + contributions + repetitions + deliveries + relays),
    );
    let counts = [
        ("not ours", *passed),
        ("contribution", *contributions),
        ("sum", *blocks),
        ("repetition", *repetitions),
        ("probe", *probes),
        ("parent's result", *deliveries),
        ("parent's answer", *relays),
    ];
    let mut shares: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {:.2} %", share(*count))).collect();
    for (reason, count) in Reject::ALL.iter().zip(refused) {
        shares.push(format!("refused: {} {:.2} %", reason.name(), share(*count)));
    }
    println!("         {}", shares.join(", "));
}

fn fuzz(target: &Target, plan: Plan) -> Result<Summary> {
    let corpus = driver::corpus(&directory("corpus").join(target.name))
        .with_context(|| format!("reading the corpus of {}", target.name))?;
    let corpus: Vec<_> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let shows = std::io::stderr().is_terminal();
    let mut shown = Instant::now();
    let summary = driver::run(target, &corpus, plan, |summary| {
        if shows && shown.elapsed() > Duration::from_millis(200) {
            shown = Instant::now();
            eprint!("\r\x1b[K{:<8} {}", target.name, figures(summary));
            // Whether progress is seen changes nothing.
            let _ = std::io::stderr().flush();
        }
    });
    if shows {
        eprint!("\r\x1b[K");
    }
    Ok(summary)
}

fn figures(summary: &Summary) -> String {
    let Summary { inputs, accepted, combinations, time, .. } = summary;
    let rate = *inputs as f64 / time.as_secs_f64().max(1e-9);
    let share = 100.0 * *accepted as f64 / (*inputs).max(1) as f64;
    format!(
        "{inputs} inputs in {:.1} s ({rate:.0}/s), {share:.1} % got behind the first checks, \
         {combinations} combinations of outcomes",
        time.as_secs_f64()
    )
}

fn print_summary(target: &Target, summary: &Summary) {
    let verdict = if summary.failure.is_some() { "FAILED" } else { "ok" };
    println!("{:<8} {verdict}: {}", target.name, figures(summary));
    let shares = target.features.iter().zip(&summary.features).map(|(name, count)| {
        format!("{name} {:.2} %", 100.0 * *count as f64 / summary.inputs.max(1) as f64)
    });
    println!("         {}", shares.collect::<Vec<_>>().join(", "));
}

fn keep(target: &Target, seed: u64, failure: &Failure) -> Result<()> {
    let Failure { input, original_len, message, number } = failure;
    let directory = directory("crashes");
    let write = || -> std::io::Result<PathBuf> {
        fs::create_dir_all(&directory)?;
        let name = format!("{}-{seed}-{number}", target.name);
        let file = directory.join(&name);
        fs::write(&file, input)?;
        let text = format!(
            "target {}, seed {seed}, input {number} ({original_len} bytes, made {} bytes long)\n\
             {message}\n",
            target.name,
            input.len()
        );
        fs::write(directory.join(name + ".txt"), text)?;
        Ok(file)
    };
    let file = write().with_context(|| format!("writing to {}", directory.display()))?;
    eprintln!("{}, input {number} of seed {seed}: {message}", target.name);
    eprintln!("again: cargo xtask fuzz {} --replay {}", target.name, file.display());
    Ok(())
}

fn replay(target: &Target, file: &Path) -> Result<bool> {
    let input = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    match driver::attempt(target, &input) {
        Ok(outcome) => {
            let names = target.features.iter().enumerate();
            let led_to: Vec<_> = names
                .filter(|(feature, _)| outcome.features >> feature & 1 == 1)
                .map(|(_, name)| *name)
                .collect();
            println!("{}: nothing is wrong; it led to: {}", target.name, led_to.join(", "));
            Ok(true)
        }
        Err(message) => {
            println!("{}: {message}", target.name);
            Ok(false)
        }
    }
}
