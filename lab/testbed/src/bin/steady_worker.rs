//! A worker for tests that do things to one. It joins with the settings of the environment, and
//! makes one call after the other with inputs that are known beforehand. It says what became of
//! each, a line of JSON a call (`xdp_agg_testbed::steady`).

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use xdp_agg_client::{Builder, Communicator, Element, Error, JobError, Op, Report};
use xdp_agg_common::control::AbortReason;
use xdp_agg_testbed::fork::idle_children;
use xdp_agg_testbed::steady::{Claim, Line, SCALE, Shape, digest, input};

/// How long it tries to join again.
const AGAIN: Duration = Duration::from_secs(30);
/// How long its children live.
const CHILD_LIFE: Duration = Duration::from_secs(30);

/// What a steady worker is to do.
#[derive(Parser)]
struct Cli {
    /// Calls end with this number.
    #[arg(long)]
    calls: u64,
    /// Inputs and shapes follow from it.
    #[arg(long)]
    seed: u64,
    /// Most elements of a call.
    #[arg(long)]
    longest: usize,
    /// Milliseconds that it waits between calls.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Children that it forks whenever it has joined.
    #[arg(long, default_value_t = 0)]
    children: u32,
    /// After an error it connects again.
    #[arg(long)]
    reconnects: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut failed_since: Option<Instant> = None;
    loop {
        let start = Instant::now();
        match Builder::from_env().and_then(|builder| builder.scale(SCALE).learning(false).connect())
        {
            Ok(communicator) => {
                failed_since = None;
                let (rank, epoch) = (communicator.rank(), communicator.epoch());
                if let Err(error) = idle_children(cli.children, CHILD_LIFE) {
                    eprintln!("it has no children: {error}");
                    return ExitCode::FAILURE;
                }
                say(&Line::Joined { rank, epoch, sequence: communicator.next_sequence() });
                if work(&cli, &communicator) {
                    say(&Line::Done);
                    return ExitCode::SUCCESS;
                }
            }
            Err(error) => {
                let since = *failed_since.get_or_insert(start);
                say(&failure(0, &error, start));
                if since.elapsed() > AGAIN {
                    return ExitCode::FAILURE;
                }
            }
        }
        if !cli.reconnects {
            return ExitCode::FAILURE;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Makes calls until all are made (true) or one fails.
fn work(cli: &Cli, communicator: &Communicator) -> bool {
    while communicator.next_sequence() < cli.calls {
        let sequence = communicator.next_sequence();
        let shape = Shape::of(cli.seed, sequence, cli.longest);
        let integers = input(cli.seed, sequence, communicator.rank(), shape.len);
        let start = Instant::now();
        let result = if shape.floats {
            let mut floats: Vec<f32> = integers.iter().map(|x| *x as f32).collect();
            let report = all_reduce(communicator, sequence, &mut floats, shape.op);
            report.map(|report| (report, floats.into_iter().map(f32::to_bits).collect()))
        } else {
            let mut integers = integers;
            let report = all_reduce(communicator, sequence, &mut integers, shape.op);
            report.map(|report| (report, integers.into_iter().map(i32::cast_unsigned).collect()))
        };
        let ms = start.elapsed().as_secs_f64() * 1e3;
        match result {
            Ok((report, bits)) => say(&success(cli, communicator, sequence, &report, bits, ms)),
            Err(error) => {
                say(&failure(sequence, &error, start));
                return false;
            }
        }
        thread::sleep(Duration::from_millis(cli.pause_ms));
    }
    true
}

/// One call. With `XDP_AGG_BUFFERS` its vector is in this process's own memory or in the segment,
/// in turns with the other ranks, and every fourth result is read in place.
fn all_reduce<T: Element>(
    communicator: &Communicator,
    sequence: u64,
    data: &mut [T],
    op: Op,
) -> Result<Report, Error> {
    if std::env::var_os("XDP_AGG_BUFFERS").is_none() {
        return communicator.all_reduce(data, op);
    }
    let mut buffer = if (sequence + u64::from(communicator.rank())).is_multiple_of(2) {
        None
    } else {
        let mut buffer = communicator.buffer::<T>(data.len())?;
        buffer.copy_from_slice(data);
        Some(buffer)
    };
    if sequence % 8 == 3 {
        // In flight: it keeps its input.
        let input = buffer.unwrap_or_else(|| data.to_vec().into());
        let handle = communicator.all_reduce_view_async(input, op)?;
        let (_, view, report) = handle.wait(communicator.deadline())?;
        data.copy_from_slice(&view);
        return Ok(report);
    }
    if sequence % 4 == 3 {
        let input = buffer.as_deref().unwrap_or(data);
        let (view, report) = communicator.all_reduce_view(input, op)?;
        data.copy_from_slice(&view);
        return Ok(report);
    }
    let report = communicator.all_reduce(buffer.as_deref_mut().unwrap_or(data), op)?;
    if let Some(buffer) = buffer {
        data.copy_from_slice(&buffer);
    }
    Ok(report)
}

fn success(
    cli: &Cli,
    communicator: &Communicator,
    sequence: u64,
    report: &Report,
    bits: Vec<u32>,
    ms: f64,
) -> Line {
    let Report { reforms, path, processes, .. } = *report;
    // Where the processes of a host are one worker, a bit stands for all of them.
    let ranks = |bits: u64| match processes {
        0 | 1 => bits,
        n => (0..64)
            .filter(|rank| bits >> (rank / u64::from(n)) & 1 == 1)
            .map(|rank| 1 << rank)
            .sum(),
    };
    let (contributors, partial) = (ranks(report.contributors), ranks(report.partial));
    let shape = Shape::of(cli.seed, sequence, cli.longest);
    let block_len = communicator.block_bytes() / 4;
    let claim = Claim { bits: &bits, shape, sequence, contributors, partial, block_len };
    let path = serde_json::to_value(path).ok();
    Line::Call {
        sequence,
        len: bits.len(),
        wrong: claim.wrong(cli.seed),
        digest: digest(&bits),
        contributors,
        partial,
        reforms,
        path: path.and_then(|path| path.as_str().map(str::to_owned)).unwrap_or_default(),
        ms,
    }
}

fn failure(sequence: u64, error: &Error, start: Instant) -> Line {
    let (kind, ranks) = match error {
        Error::Job(JobError::Aborted(AbortReason::MemberLost { rank })) => {
            ("member_lost", vec![*rank])
        }
        Error::Job(JobError::Aborted(AbortReason::Member { rank, .. })) => ("gave_up", vec![*rank]),
        Error::Job(JobError::Aborted(AbortReason::Expelled)) => ("expelled", vec![]),
        Error::Job(JobError::Aborted(AbortReason::Timeout { ranks, .. })) => {
            ("timeout", ranks.clone())
        }
        Error::Job(JobError::Aborted(_)) => ("aborted", vec![]),
        Error::Job(JobError::AggregatorLost(_)) => ("aggregator_lost", vec![]),
        Error::Job(JobError::Unreachable { .. }) => ("unreachable", vec![]),
        Error::Job(JobError::Absent { ranks, .. }) => ("timeout", ranks.clone()),
        Error::Job(JobError::Deadline { ranks, .. }) => ("deadline", ranks.clone()),
        Error::Job(JobError::Refused { .. }) => ("refused", vec![]),
        Error::Host(_) => ("host", vec![]),
        _ => ("other", vec![]),
    };
    let (kind, text) = (kind.into(), error.to_string());
    Line::Failed { sequence, kind, ranks, text, ms: start.elapsed().as_secs_f64() * 1e3 }
}

fn say(line: &Line) {
    let mut out = io::stdout().lock();
    // The reader may be gone.
    if let Ok(text) = serde_json::to_string(line) {
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}
