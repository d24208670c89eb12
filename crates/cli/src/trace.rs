//! `xdp-agg trace`: the workers' traces and flight recordings.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use xdp_agg_trace::clock::{Basis, Clock, clocks};
use xdp_agg_trace::diagnose::diagnose;
use xdp_agg_trace::merge::merged;
use xdp_agg_trace::read::{self, File};
use xdp_agg_trace::{ReadError, Recording};

/// Put the workers' traces on one clock, or find out which rank was late
///
/// A worker writes a trace where XDP_AGG_TRACE says so, and a flight recording of its latest 1000
/// calls when one fails. Both are Chrome trace events: ui.perfetto.dev opens them.
/// docs/tracing.md says what they hold.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Merge the traces of a job's ranks into one, on one clock
    ///
    /// What is known of the clocks goes to standard error: how each was found, and how wrong it
    /// is at most.
    Merge {
        /// Traces or flight recordings, one or more a rank
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Where the merged trace goes; without it to standard output
        #[arg(short, long, value_name = "OUT")]
        output: Option<PathBuf>,
    },
    /// Say which rank was late, called something else, or stopped
    Diagnose {
        /// Traces or flight recordings, one or more a rank
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print an array of JSON objects, one a job
        #[arg(long)]
        json: bool,
        /// How many milliseconds are late
        #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = milliseconds)]
        late: f64,
    },
}

/// Runs the sub-command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.action {
        Action::Merge { files, output } => {
            let files = read_all(files)?;
            let all = read::of_one_run(&files)?;
            let clocks = clocks(&all);
            tell(&files, &all, &clocks)?;
            let text = merged(&files, &all, &clocks);
            match output {
                Some(path) => fs::write(path, text).with_context(|| place(path, "writing"))?,
                None => io::stdout().write_all(text.as_bytes())?,
            }
        }
        Action::Diagnose { files, json, late } => {
            let files = read_all(files)?;
            let all = read::of_one_run(&files)?;
            let threshold = Duration::from_secs_f64(late / 1e3).as_nanos() as u64;
            let mut found = diagnose(&all, &clocks(&all), threshold);
            if let Some(first) = found.first_mut() {
                first.notes.extend(files.iter().flat_map(|file| file.notes.clone()));
            }
            let mut out = io::stdout().lock();
            if *json {
                serde_json::to_writer_pretty(&mut out, &found)?;
                writeln!(out)?;
            } else {
                found.iter().try_for_each(|job| write!(out, "{job}"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn place(path: &Path, what: &str) -> String {
    format!("{what} {}", path.display())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<File>> {
    let read = |path: &PathBuf| -> Result<File> {
        let bytes = fs::read(path).with_context(|| place(path, "reading"))?;
        let text = String::from_utf8(bytes).map_err(|_| ReadError::NoTrace {
            file: path.display().to_string(),
            problem: "it is no text".into(),
        })?;
        Ok(read::file(&path.display().to_string(), &text)?)
    };
    paths.iter().map(read).collect()
}

/// Says how the ranks' clocks were found.
fn tell(files: &[File], all: &[&Recording], clocks: &[Clock]) -> io::Result<()> {
    let mut out = io::stderr().lock();
    files.iter().flat_map(|file| &file.notes).try_for_each(|note| writeln!(out, "note: {note}"))?;
    for (recording, clock) in all.iter().zip(clocks) {
        let how = match (clock.basis, clock.error_ns) {
            (Basis::Same, _) => "the reference clock".to_owned(),
            (Basis::Calls, Some(error)) => {
                let error = error as f64 / 1e3;
                format!("right within {error:.1} us, by {} calls", clock.calls)
            }
            _ => "by its host's time of day, as right as that is".to_owned(),
        };
        let source = &recording.source;
        writeln!(out, "rank {} of job {}: {how}", source.rank, source.job)?;
    }
    Ok(())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let time: f64 = text.parse().map_err(|_| "expected milliseconds, such as 100".to_owned())?;
    if time.is_finite() && time > 0.0 && time < 1e9 {
        Ok(time)
    } else {
        Err("expected milliseconds above 0, such as 100".into())
    }
}
