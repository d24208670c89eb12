//! The demo: data-parallel training on four hosts, every gradient summed by the aggregator.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xdp_agg_common::control::JobStats;
use xdp_agg_testbed::{Process, Sink, program};

use super::files::{make_directory, read_json, scratch};
use super::lab::{Daemon, Engine, Lab, Plan, Privilege, Program, ResultMode, wait_all};
use super::setting::{Loss, Rate, parse_bytes};
use super::torch_demo;
use super::workers::{self, Bench};

/// The program that trains one rank.
const TRAINER: &str = "xdp-agg-demo";
/// The job whose counters are shown.
const JOB: &str = "demo";
/// The longest that a training may take.
const LIMIT: Duration = Duration::from_secs(180);
/// The longest that one all-reduce may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Train a small network on handwritten digits: in one process, on four hosts whose gradients the
/// aggregator sums, and on the same hosts with a TCP ring.
///
/// The hosts are network namespaces on this machine. Shown are the loss curves and by how much they
/// differ (and whether quantization explains it), test accuracy, time in communication, and what
/// the kernel counted. Plots and records go to target/demo. Exits with 1 where anything is not as
/// it should be.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of workers, each on a host of its own; 64 divided by it is a worker's batch.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    workers: u16,
    /// Passes over the training images. Default: the training program's.
    #[arg(long)]
    epochs: Option<u32>,
    /// Rate of every link in each direction, such as 500mbit or 1gbit, or none.
    #[arg(long, default_value = "500mbit")]
    rate: Rate,
    /// Packets that every link loses in each direction, in percent.
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    loss: Loss,
    /// How results reach the workers, and so where the aggregator sits.
    #[arg(long, value_enum, default_value_t = ResultMode::Ports)]
    topology: ResultMode,
    /// What sums in the aggregator. Default: xdp where this is root.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Train with PyTorch instead: DDP over xdp-agg, and beside it over gloo.
    #[arg(long)]
    torch: bool,
    /// Write a trace of the training's calls through the aggregator, of all ranks on one clock.
    #[arg(long, value_name = "FILE", conflicts_with = "torch")]
    trace: Option<PathBuf>,
    /// Where plots and records go.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/demo")]
    out: PathBuf,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    let start = Instant::now();
    make_directory(&args.out)?;
    if args.torch {
        return torch_demo::main(plan(args, privilege), args.epochs, &args.out);
    }
    let demo = Demo { args, plan: plan(args, privilege) };
    println!("1. The reference: the same training in one process");
    demo.train_here("single", &[])?;
    demo.train_here("emulated", &["--workers".to_owned(), args.workers.to_string()])?;

    println!(
        "\n2. {} hosts and an aggregator, each in a network namespace; links: {}, {} % loss",
        args.workers,
        args.rate,
        args.loss.percent()
    );
    let traces = args.trace.as_deref().map(|file| scratch().map(|to| (to, file))).transpose()?;
    let traced = traces.as_ref().map(|(to, file)| (to.path(), *file));
    let lab = Lab::build(demo.plan)?.traced_into(traced);
    let daemon = lab.start_daemon()?;
    println!("   the aggregator is ready: {}", daemon.engine());
    daemon.reserve(JOB)?;
    demo.train_there(&lab, "xdp-agg")?;
    if let Some(file) = &args.trace {
        // Other workers will write over them.
        lab.merge_traces(file)?;
        println!("   trace of the training: {}; ui.perfetto.dev opens it", file.display());
    }
    let counted = counters(&daemon)?;
    let wrong = demo.verify(&lab)?;
    daemon.stop()?;
    drop(lab);

    println!("\n3. The same hosts and links, with a TCP ring");
    // A network of its own: no run inherits the other's queues or connections.
    demo.train_there(&Lab::build(demo.plan)?, "tcp-ring")?;

    println!("\n4. What came of it");
    demo.print_losses()?;
    let reported = demo.report();
    let checked = demo.check_counters(&counted, wrong);
    println!("\ndone in {:.0} s; records and plots: {}", start.elapsed().as_secs_f64(), {
        args.out.display()
    });
    reported.and(checked)
}

fn plan(args: &Args, privilege: Privilege) -> Plan {
    let (engine, mode) = (privilege.engine(args.engine), args.topology);
    Plan { loss: args.loss, mode, engine, ..Plan::new(args.workers, args.rate, privilege) }
}

struct Demo<'a> {
    args: &'a Args,
    plan: Plan,
}

/// The parts of a worker's record that are shown, or compared with what the kernel counted.
#[derive(Deserialize)]
struct Record {
    loss_by_epoch: Vec<f64>,
    counters: Option<Counters>,
}

#[derive(Deserialize)]
struct Counters {
    sent: u64,
    results: u64,
}

impl Demo<'_> {
    fn record(&self, system: &str, rank: u16) -> PathBuf {
        self.args.out.join(format!("{system}-{rank}.json"))
    }

    fn records(&self, system: &str) -> Vec<PathBuf> {
        (0..self.args.workers).map(|rank| self.record(system, rank)).collect()
    }

    fn trainer_arguments(&self, system: &str, rank: u16) -> Vec<String> {
        let out = self.record(system, rank);
        let mut arguments = vec!["worker".to_owned(), "--system".to_owned(), system.to_owned()];
        arguments.extend(["--out".to_owned(), out.to_string_lossy().into_owned()]);
        if let Some(epochs) = self.args.epochs {
            arguments.extend(["--epochs".to_owned(), epochs.to_string()]);
        }
        arguments
    }

    /// Trains in one process of this host.
    fn train_here(&self, system: &str, more: &[String]) -> Result<()> {
        let mut command = Command::new(program(TRAINER)?);
        command.process_group(0).args(self.trainer_arguments(system, 0)).args(more);
        let process = Process::spawn_with(system, command, Sink::Capture, Sink::Inherit)?;
        process.wait(LIMIT)?.success()?;
        Ok(())
    }

    /// Trains on all hosts of the network.
    fn train_there(&self, lab: &Lab, system: &str) -> Result<()> {
        let program = Program { name: TRAINER, job: JOB, deadline: DEADLINE, shows_rank_0: true };
        let arguments = |rank| self.trainer_arguments(system, rank);
        wait_all(lab.start_workers(&program, arguments)?, LIMIT)
    }

    /// Sums vectors whose sums are known, through the same aggregator: the number of wrong
    /// elements.
    fn verify(&self, lab: &Lab) -> Result<u64> {
        let bytes = [parse_bytes("1M").map_err(anyhow::Error::msg)?];
        let (system, bytes, deadline, limit) = ("xdp-agg", &bytes, DEADLINE, LIMIT);
        let bench = Bench { system, bytes, iters: 3, warmup: 0, deadline, limit };
        let reports = workers::run(lab, &bench)?;
        let rows = reports.first().map(|report| report.rows.as_slice()).unwrap_or_default();
        Ok(rows.iter().map(|row| row.wrong).sum())
    }

    /// The loss curves, epoch by epoch, beside each other.
    fn print_losses(&self) -> Result<()> {
        let systems = ["single", "xdp-agg", "tcp-ring"];
        let losses: Vec<Vec<f64>> = systems
            .iter()
            .map(|system| Ok(read_json::<Record>(&self.record(system, 0))?.loss_by_epoch))
            .collect::<Result<_>>()?;
        println!("loss     {:>12} {:>12} {:>12}", systems[0], systems[1], systems[2]);
        let epochs = losses[0].len();
        let shown =
            |epoch: &usize| *epoch == 0 || epoch + 1 == epochs || (epoch + 1).is_multiple_of(4);
        for epoch in (0..epochs).filter(shown) {
            print!("epoch {:>2}", epoch + 1);
            for curve in &losses {
                print!(" {:>12.8}", curve.get(epoch).copied().unwrap_or(f64::NAN));
            }
            println!();
        }
        println!();
        Ok(())
    }

    /// Compares the runs: table and verdict are the training program's.
    fn report(&self) -> Result<()> {
        let join = |system: &str| {
            let names = self.records(system);
            names.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(",")
        };
        let file = |name: &str| self.args.out.join(name);
        let output = Command::new(program(TRAINER)?)
            .arg("report")
            .arg("--single")
            .arg(self.record("single", 0))
            .arg("--run")
            .arg(self.record("emulated", 0))
            .args(["--run", &join("xdp-agg"), "--run", &join("tcp-ring")])
            .arg("--plot")
            .arg(file("training.svg"))
            .arg("--json")
            .arg(file("report.json"))
            .status()
            .context("running the report")?;
        if !output.success() {
            bail!("the aggregated training is not what it should be (see above)");
        }
        Ok(())
    }

    /// Shows what the aggregator counted, and checks it against what the workers know.
    fn check_counters(&self, counted: &JobStats, wrong: u64) -> Result<()> {
        let counters = &counted.counters;
        let workers = self.counters_of_workers()?;
        // A broadcast's blocks are their root's alone, so not all workers send the same number.
        let sent: u64 = workers.iter().map(|worker| worker.sent).sum();
        let rejects: u64 = counters.rejects.iter().sum();
        println!(
            "\nthe aggregator counted: {} contributions of {} workers to {} blocks; \
             {} repeated, {} results sent again, {} refused; wrong = {wrong}",
            counters.contributions,
            workers.len(),
            counters.blocks,
            counters.duplicates,
            counters.resends,
            rejects
        );
        if counters.contributions != sent {
            bail!("the workers sent {sent} blocks, and not each of them counted once");
        }
        let lacks = |worker: &Counters| worker.results != counters.blocks;
        if let Some(rank) = workers.iter().position(lacks) {
            bail!(
                "rank {rank} has {} results, of {} blocks that the aggregator completed",
                workers[rank].results,
                counters.blocks
            );
        }
        if wrong > 0 {
            bail!("{wrong} elements of a known pattern came back wrong");
        }
        Ok(())
    }

    /// What each worker did, by its own account.
    fn counters_of_workers(&self) -> Result<Vec<Counters>> {
        self.records("xdp-agg")
            .iter()
            .map(|path| {
                let counters = read_json::<Record>(path)?.counters;
                counters.with_context(|| {
                    format!("{} has no counters of the communicator", path.display())
                })
            })
            .collect()
    }
}

/// The demo's job as the aggregator counted it.
fn counters(daemon: &Daemon<'_>) -> Result<JobStats> {
    let stats = daemon.stats()?;
    let job = stats.jobs.into_iter().find(|job| job.info.job == JOB);
    job.context("the aggregator does not know the demo's job any more")
}
