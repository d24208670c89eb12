//! `xdp-agg stats`: what the daemon counts, once or live.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xdp_agg_common::control::{Chosen, ControlCounters, JobStats, Reply, Request, Stats};
use xdp_agg_common::maps::{JobCounters, Reject};

use crate::control::Target;
use crate::table::{columns, row};

/// Show the daemon's counters: per job, of packets of no job, and of control connections
///
/// `blocks` are sums that were completed, `contributions` packets that were added (workers × blocks
/// when a job is done). `duplicates` are repeated ones, answered by a `resend` of the result or by
/// `pending` (others are missing). `stale` ones are older than what their slot holds; `rejects`
/// were refused, by reason. `moves` are packets that came from a member by another way than the one
/// before: another interface or link-layer address.
///
/// A second table has the aggregators of trees: `forwards` are sums sent up to the parent,
/// `again` those sent once more because a member asked. `deliveries` are the parent's results that
/// went down, `late` those that were not needed any more, `relays` its other answers that were
/// handed on. A job whose workers follow a topology has a line with its strategy, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Print JSON: one object, or one a line with --watch
    #[arg(long)]
    json: bool,
    /// Show again every SECS seconds, with rates, until interrupted
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    watch: Option<f64>,
    /// With --watch: stop after N times
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Show each member too: how long ago its process answered a heartbeat, and how long ago the
    /// data path took in a contribution of it
    #[arg(long)]
    members: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("0.1 to 86400 seconds are expected".into()),
    }
}

/// Runs the sub-command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let shows = if args.watch.is_none() { 1 } else { args.count.unwrap_or(u64::MAX) };
    let interval = Duration::from_secs_f64(args.watch.unwrap_or(0.0));
    // Clearing the screen is for screens; a file gets one table below the other.
    let clear = args.watch.is_some() && io::stdout().is_terminal();
    let mut last: Option<(Instant, Stats)> = None;
    for show in 0..shows {
        if show > 0 {
            sleep(interval);
        }
        // A connection each time: the daemon may be restarted while we watch.
        let stats = match args.target.connect()?.ask(&Request::Stats)? {
            Reply::Stats(stats) => stats,
            other => bail!("an unexpected answer of the daemon: {other:?}"),
        };
        let now = Instant::now();
        let mut out = io::stdout().lock();
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&stats)?)?;
        } else {
            let since = last.as_ref().map(|(then, old)| (now.duration_since(*then), old));
            let home = if clear { "\x1b[H\x1b[J" } else { "" };
            write!(out, "{home}{}", text(&stats, since))?;
            if args.members {
                write!(out, "{}", members(&stats.jobs))?;
            }
        }
        out.flush()?;
        last = Some((now, stats));
    }
    Ok(ExitCode::SUCCESS)
}

/// The table; with rates if there is an older state to compare with.
fn text(stats: &Stats, since: Option<(Duration, &Stats)>) -> String {
    let Stats { engine, uptime_s, slots, slots_free, jobs, unattributed, control } = stats;
    let mut text = format!(
        "engine {engine}, up {}, slots {slots_free} of {slots} free\n",
        duration(*uptime_s)
    );
    let mut rows = vec![row(
        "JOB|PHASE|BLOCKS|CONTRIBUTIONS|DUPLICATES|RESENDS|PENDING|STALE|REJECTS|BLOCKS/S|SUM MB/S",
    )];
    for job in jobs {
        let (blocks, megabytes) =
            since.map_or((None, None), |(elapsed, old)| rates(job, elapsed, old));
        rows.push(counters(&job.info.job, &job.info.phase, &job.counters, blocks, megabytes));
    }
    rows.push(counters("(no job)", "-", unattributed, None, None));
    text.push_str(&columns(&rows));
    text += &trees(jobs);
    for info in jobs.iter().map(|job| &job.info) {
        if let Some(Chosen { strategy, reason }) = &info.chosen {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "strategy of {}: {strategy} ({reason})", info.job);
        }
    }
    for (name, counters) in jobs
        .iter()
        .map(|job| (job.info.job.as_str(), &job.counters))
        .chain([("(no job)", &**unattributed)])
    {
        let reasons: Vec<_> = Reject::ALL
            .into_iter()
            .filter(|reason| counters.rejects[*reason as usize] > 0)
            .map(|reason| format!("{} {}", reason.name(), counters.rejects[reason as usize]))
            .collect();
        if !reasons.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "rejects of {name}: {}", reasons.join(", "));
        }
        if counters.moves > 0 {
            let _ = writeln!(text, "moves of {name}: {}", counters.moves);
        }
    }
    text + &connections(control)
}

/// A table of the jobs that are part of a tree of aggregators; empty if there are none.
fn trees(jobs: &[JobStats]) -> String {
    let mut rows = vec![row("JOB|ROLE|PARENT|BRANCHES|FORWARDS|AGAIN|DELIVERIES|LATE|RELAYS")];
    for JobStats { info, counters } in jobs {
        if info.parent.is_none() && info.branches.is_empty() {
            continue;
        }
        let parent = info.parent.map(|parent| parent.to_string());
        let role = if parent.is_some() { "branch" } else { "root" };
        // A branch does not know of those below it: they are the root's affair.
        let branches = if parent.is_some() { "-".into() } else { info.branches.len().to_string() };
        let JobCounters { forwards, forwards_again, deliveries, late, relays, .. } = counters;
        let counts = [forwards, forwards_again, deliveries, late, relays];
        let mut cells = vec![info.job.clone(), role.into()];
        cells.extend([parent.unwrap_or_else(|| "-".into()), branches]);
        cells.extend(counts.map(ToString::to_string));
        rows.push(cells);
    }
    if rows.len() == 1 { String::new() } else { columns(&rows) }
}

/// A table of the jobs' members.
fn members(jobs: &[JobStats]) -> String {
    let mut rows = vec![row("JOB|RANK|ADDRESS|CONNECTED|HEARTBEAT|CONTRIBUTION")];
    let ago = |time: Option<u64>| {
        time.map_or_else(|| "-".into(), |ms| format!("{:.1} s ago", ms as f64 / 1000.0))
    };
    for info in jobs.iter().map(|job| &job.info) {
        rows.extend(info.members.iter().map(|member| {
            vec![
                info.job.clone(),
                member.rank.to_string(),
                member.data.to_string(),
                if member.connected { "yes".into() } else { "not yet again".into() },
                ago(member.heartbeat_ms),
                ago(member.contributed_ms),
            ]
        }));
    }
    columns(&rows)
}

/// A line about control connections.
fn connections(control: &ControlCounters) -> String {
    let refusals = control.refusals().into_iter().filter(|(_, count)| *count > 0);
    let refusals: Vec<_> = refusals.map(|(name, count)| format!("{name} {count}")).collect();
    let refused = if refusals.is_empty() { "none".into() } else { refusals.join(", ") };
    format!("control connections: {} accepted; refused or ended: {refused}\n", control.accepted)
}

fn counters(
    name: &str,
    phase: &str,
    counters: &JobCounters,
    blocks_s: Option<f64>,
    megabytes_s: Option<f64>,
) -> Vec<String> {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
    let mut row = vec![name.to_owned(), phase.to_owned()];
    let JobCounters { blocks, contributions, duplicates, resends, pendings, stale, .. } = counters;
    let counts = [blocks, contributions, duplicates, resends, pendings, stale];
    row.extend(counts.map(ToString::to_string));
    row.push(counters.rejects.iter().sum::<u64>().to_string());
    row.extend([rate(blocks_s), rate(megabytes_s)]);
    row
}

/// Blocks and megabytes of sums a second since `old`.
fn rates(job: &JobStats, elapsed: Duration, old: &Stats) -> (Option<f64>, Option<f64>) {
    let same = |other: &&JobStats| other.info.job == job.info.job;
    let before = old.jobs.iter().find(same).map_or(0, |old| old.counters.blocks);
    // Fewer than before: a new job of the same name.
    let blocks = job.counters.blocks.checked_sub(before).unwrap_or(job.counters.blocks);
    let rate = blocks as f64 / elapsed.as_secs_f64().max(1e-9);
    (Some(rate), Some(rate * f64::from(job.info.block_bytes) / 1e6))
}

fn duration(seconds: u64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{h}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdp_agg_common::control::{BranchInfo, JobInfo, MemberInfo};

    fn stats(blocks: u64) -> Stats {
        let info = JobInfo {
            job: "train".into(),
            phase: "running".into(),
            world_size: 2,
            joined: vec![0, 1],
            epoch: 1,
            slots: 512,
            block_bytes: 1408,
            ..JobInfo::default()
        };
        let counters = JobCounters { blocks, contributions: 2 * blocks, ..JobCounters::default() };
        let mut unattributed = JobCounters::default();
        unattributed.rejects[Reject::Cookie as usize] = 3;
        Stats {
            engine: "userspace".into(),
            uptime_s: 3723,
            slots: 8192,
            slots_free: 7680,
            jobs: vec![JobStats { info, counters }],
            unattributed: Box::new(unattributed),
            control: ControlCounters { accepted: 9, garbled: 2, ..ControlCounters::default() },
        }
    }

    #[test]
    fn rates_are_per_second_since_the_last_look() {
        let text = text(&stats(3000), Some((Duration::from_secs(2), &stats(1000))));
        assert!(text.starts_with("engine userspace, up 1:02:03, slots 7680 of 8192 free\n"));
        let line = text.lines().nth(2).expect("the job's row");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells[2..4], ["3000", "6000"]);
        assert_eq!(cells[9..], ["1000.0", "1.4"]);
        assert!(text.contains("rejects of (no job): cookie 3\n"), "{text}");
        let last = "control connections: 9 accepted; refused or ended: garbled 2\n";
        assert!(text.ends_with(last), "{text}");
    }

    #[test]
    fn trees_are_shown_with_what_went_up_and_down() {
        let plain = stats(1);
        assert!(!text(&plain, None).contains("ROLE"));
        let mut stats = stats(1);
        let info = &mut stats.jobs[0].info;
        info.parent = Some("10.0.0.9:4001".parse().expect("an address"));
        let reason = "auto by measured costs".into();
        info.chosen = Some(Chosen { strategy: "rat".into(), reason });
        stats.jobs[0].counters.forwards = 70;
        stats.jobs[0].counters.relays = 3;
        let text = text(&stats, None);
        let line = text.lines().find(|line| line.contains("branch")).expect("a row");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells, ["train", "branch", "10.0.0.9:4001", "-", "70", "0", "0", "0", "3"]);
        assert!(text.contains("strategy of train: rat (auto by measured costs)\n"), "{text}");
        stats.jobs[0].info.parent = None;
        let branch = BranchInfo {
            daemon: "10.0.0.9:9870".parse().expect("an address"),
            parent: None,
            ranks: vec![1],
            linked: true,
        };
        stats.jobs[0].info.branches.push(branch);
        assert!(trees(&stats.jobs).contains("root"));
    }

    #[test]
    fn members_are_shown_with_what_is_known_of_them() {
        let mut stats = stats(1);
        let member = MemberInfo {
            rank: 1,
            data: "10.0.0.1:4001".parse().expect("an address"),
            connected: true,
            heartbeat_ms: Some(250),
            contributed_ms: None,
        };
        stats.jobs[0].info.members = vec![member];
        let text = members(&stats.jobs);
        let line = text.lines().nth(1).expect("a row below the head");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells, ["train", "1", "10.0.0.1:4001", "yes", "0.2", "s", "ago", "-"]);
    }

    #[test]
    fn a_job_that_started_again_counts_from_zero() {
        let text = text(&stats(500), Some((Duration::from_secs(1), &stats(1000))));
        assert!(text.contains(" 500.0 "), "{text}");
        assert!(super::text(&stats(500), None).lines().nth(2).expect("a row").ends_with('-'));
    }
}
