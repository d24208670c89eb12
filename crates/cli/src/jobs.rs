//! `xdp-agg jobs`: list, reserve and end jobs.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Subcommand, ValueEnum};
use xdp_agg_common::control::{
    AggregatorLoss, CreateJob, JobInfo, Policy, Reply, Request, WorkerLoss,
};
use xdp_agg_common::maps::ResultMode;

use crate::control::Target;
use crate::table::{columns, row};

/// List the daemon's jobs, reserve one before its workers come, or end one
///
/// JOINED are connected members, MISSING the ranks that are not, WAITING those that join with the
/// next epoch; REFORMS counts the epochs that began because a member was lost. ON LOSS tells what
/// happens when a worker and when the aggregator is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all jobs (what `xdp-agg jobs` alone does, too)
    List {
        /// Print an array of JSON objects
        #[arg(long)]
        json: bool,
    },
    /// Reserve a job: its slots stay its own, also while it has no workers
    Create {
        /// Name of the job, as in XDP_AGG_JOB of its workers
        name: String,
        /// Number of workers, 1 to 64
        #[arg(long, value_name = "N")]
        world_size: u16,
        /// Slots, a power of two; the window of a worker is half of them
        #[arg(long, value_name = "N")]
        slots: Option<u32>,
        /// How results reach the workers; without it the daemon chooses
        #[arg(long, value_name = "MODE")]
        result_mode: Option<Mode>,
        /// What happens when a worker is lost; without this and the next option its workers say
        #[arg(long, value_name = "POLICY")]
        worker_loss: Option<OnWorkerLoss>,
        /// What happens when this daemon is lost
        #[arg(long, value_name = "POLICY")]
        aggregator_loss: Option<OnAggregatorLoss>,
    },
    /// End a job; its workers get an error that says so
    Delete {
        /// Name of the job
        name: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// A port per worker: one copy on each
    Ports,
    /// One unicast copy per worker, several behind one port
    Fanout,
    /// One packet to a group address; the switch copies it
    Multicast,
}

impl From<Mode> for ResultMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Ports => Self::Ports,
            Mode::Fanout => Self::Fanout,
            Mode::Multicast => Self::Multicast,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnWorkerLoss {
    /// The others get an error that names it
    Fail,
    /// The others go on without it
    Shrink,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnAggregatorLoss {
    /// Calls return an error
    Fail,
    /// Workers connect again and go on
    Resume,
    /// As resume, and where no daemon comes back in time, over a TCP ring until one does
    Ring,
}

/// A policy where one is asked for: an option that is left out means to fail.
fn policy(worker: Option<OnWorkerLoss>, aggregator: Option<OnAggregatorLoss>) -> Option<Policy> {
    let worker_loss = worker.map(|loss| match loss {
        OnWorkerLoss::Fail => WorkerLoss::Fail,
        OnWorkerLoss::Shrink => WorkerLoss::Shrink,
    });
    let aggregator_loss = aggregator.map(|loss| match loss {
        OnAggregatorLoss::Fail => AggregatorLoss::Fail,
        OnAggregatorLoss::Resume => AggregatorLoss::Resume,
        OnAggregatorLoss::Ring => AggregatorLoss::Ring,
    });
    (worker_loss.is_some() || aggregator_loss.is_some()).then(|| Policy {
        worker_loss: worker_loss.unwrap_or_default(),
        aggregator_loss: aggregator_loss.unwrap_or_default(),
    })
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let Args { target, action } = args;
    let mut client = target.connect()?;
    match action.unwrap_or(Action::List { json: false }) {
        Action::List { json } => match client.ask(&Request::Jobs)? {
            Reply::Jobs(jobs) if json => {
                writeln!(io::stdout(), "{}", serde_json::to_string(&jobs)?)?;
            }
            Reply::Jobs(jobs) => write!(io::stdout(), "{}", table(&jobs))?,
            other => bail!("an unexpected answer of the daemon: {other:?}"),
        },
        Action::Create { name, world_size, slots, result_mode, worker_loss, aggregator_loss } => {
            let result_mode = result_mode.map(ResultMode::from);
            let policy = policy(worker_loss, aggregator_loss);
            let create = CreateJob { job: name, world_size, slots, result_mode, policy };
            client.ask(&Request::Create(create))?;
        }
        Action::Delete { name } => {
            client.ask(&Request::Delete { job: name })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(jobs: &[JobInfo]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".into();
    }
    let mut rows =
        vec![row("JOB|ID|PHASE|JOINED|EPOCH|SLOTS|BLOCK|RESULTS|MISSING|WAITING|REFORMS|ON LOSS")];
    for info in jobs {
        let missing = (0..info.world_size).filter(|rank| !info.joined.contains(rank));
        // A branch does not know of ranks that send elsewhere.
        let missing: Vec<_> = missing.filter(|_| info.parent.is_none()).collect();
        rows.push(vec![
            info.job.clone(),
            info.job_id.to_string(),
            info.phase.clone(),
            format!("{}/{}", info.joined.len(), info.world_size),
            info.epoch.to_string(),
            info.slots.to_string(),
            if info.block_bytes == 0 { "-".into() } else { format!("{} B", info.block_bytes) },
            info.mode.map_or("-", ResultMode::name).into(),
            ranks(&missing),
            ranks(&info.waiting),
            info.reforms.to_string(),
            info.policy.map_or_else(|| "-".into(), on_loss),
        ]);
    }
    columns(&rows) + &jobs.iter().map(tree).collect::<String>()
}

/// The aggregators that a job has besides this one.
fn tree(info: &JobInfo) -> String {
    let name = &info.job;
    let up = info.parent.map(|parent| format!("{name}: a branch; its sums go up to {parent}\n"));
    let branches = info.branches.iter().map(|branch| {
        let parent = branch.parent.map_or_else(|| "this daemon".into(), |to| to.to_string());
        let open = if branch.linked { "" } else { ", its way up is not open" };
        let (daemon, ranks) = (branch.daemon, ranks(&branch.ranks));
        format!("{name}: branch {daemon} with ranks {ranks}, up to {parent}{open}\n")
    });
    up.into_iter().chain(branches).collect()
}

fn ranks(ranks: &[u16]) -> String {
    if ranks.is_empty() {
        return "-".into();
    }
    let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    ranks.join(",")
}

/// What happens when a worker, and when the aggregator is lost.
fn on_loss(policy: Policy) -> String {
    format!("{}/{}", policy.worker_loss.name(), policy.aggregator_loss.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forming_job_names_who_is_missing() {
        let info = JobInfo {
            job: "train".into(),
            job_id: 2,
            phase: "forming".into(),
            world_size: 4,
            joined: vec![0, 2],
            slots: 512,
            policy: Some(Policy { worker_loss: WorkerLoss::Shrink, ..Policy::default() }),
            reforms: 3,
            waiting: vec![3],
            ..JobInfo::default()
        };
        let text = table(&[info]);
        let line = text.lines().nth(1).expect("a row below the head");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells[..9], ["train", "2", "forming", "2/4", "0", "512", "-", "-", "1,3"]);
        assert_eq!(cells[9..], ["3", "3", "shrink/fail"]);
    }
}
