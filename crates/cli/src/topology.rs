//! `xdp-agg topology`: check a description of a network, and plan on it.

mod input;
mod measure;
mod text;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde::Serialize;
use xdp_agg_topology::analysis::{
    Comparison, Demand, Traffic, demands, least_crossing, shortfall, table1,
};
use xdp_agg_topology::choose::{Choice, Costs, JobChoice, choose, for_job};
use xdp_agg_topology::file::interfaces;
use xdp_agg_topology::flows::Scheme;
use xdp_agg_topology::incremental::{self, Upgrade};
use xdp_agg_topology::occupation::StepCosts;
use xdp_agg_topology::plan::{racks, ring_order};
use xdp_agg_topology::{BareRack, Forest, Strategy, Topology, TopologyFile, size};

use input::{open, read};

/// Check a description of a network, print it, plan the sums on it, or measure a network
///
/// A topology file (TOML) names regions (racks, pods) with their uplinks, and hosts with their
/// ranks; docs/topology.md describes it.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether the file is right; if not, which line is wrong and why (exit code 2)
    Check {
        /// The topology file
        file: PathBuf,
        /// This host's name in the file: its interface must exist here (a job's workers look for
        /// theirs when they join)
        #[arg(long, value_name = "HOST")]
        here: Option<String>,
    },
    /// Print the file in canonical form: parents first, hosts by rank, all values said, regions
    /// that were found in measured rates
    Print {
        /// The topology file
        file: PathBuf,
        /// Print a JSON object instead
        #[arg(long)]
        json: bool,
    },
    /// Print the aggregation trees, the bytes on every link, and how other schemes compare
    Plan(PlanArgs),
    Measure(measure::Args),
}

/// Print the aggregation trees, the bytes on every link, and how other schemes compare
///
/// Bytes are those of the data, without headers. With auto it plans what is the fastest for
/// --bytes, over aggregators or TCP. It also says what a job would take, for 25 MiB and by
/// aggregators alone. A plan that takes more slots or jobs than an aggregator has is printed, and
/// ends with exit code 1.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// The topology file
    file: PathBuf,
    /// Strategy instead of the file's: auto, colocated, rat, rina, passing or atp; or a baseline,
    /// which no job has: h-ar, ring or ps
    #[arg(long, value_name = "S")]
    strategy: Option<Strategy>,
    /// Size of the vector that each worker has, for example 64K, 97MiB or 97e6
    #[arg(long, value_name = "SIZE", value_parser = size::bytes, default_value = "97MiB")]
    bytes: u64,
    /// Slots of each tree at each of its aggregators
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// Say which rack to equip with an aggregator next, and what that gains
    #[arg(long)]
    incremental: bool,
    /// For --incremental: microseconds that each step of a ring costs beside the transfer
    #[arg(long, value_name = "US", default_value_t = 50, requires = "incremental")]
    step_us: u32,
    /// For --incremental: standard deviation of a worker's time for a step, in microseconds
    #[arg(long, value_name = "US", default_value_t = 15, requires = "incremental")]
    sigma_us: u32,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Everything that `plan` finds out.
#[derive(Debug, Serialize)]
struct Report {
    topology: Topology,
    strategy: Strategy,
    /// Why `auto` chose it; None if it was asked for.
    choice: Option<Choice>,
    /// What a job would do, if that is something else.
    job: Option<Job>,
    bytes: u64,
    /// The trees, if the strategy has any.
    forest: Option<Forest>,
    /// The ring over all, of `ring`; the racks' rings, of `h-ar`.
    rings: Vec<Vec<u16>>,
    /// Racks in which nothing aggregates, of `rat` and `rina`.
    bare: Vec<BareRack>,
    /// Steps between groups, of `rina`.
    steps: Option<usize>,
    traffic: Traffic,
    least_crossing: f64,
    demands: Vec<Demand>,
    table1: Vec<Comparison>,
    incremental: Option<Upgrades>,
}

/// What a job would do with the same file and strategy.
#[derive(Debug, Serialize)]
struct Job {
    /// The strategy that it would take; None: it would be refused.
    strategy: Option<Strategy>,
    /// Why.
    reason: String,
}

impl Job {
    /// None: a job takes what was asked for.
    fn of(topology: &Topology, asked: Strategy, slots: u32) -> Option<Self> {
        if asked == Strategy::Auto {
            let (strategy, reason) = match for_job(topology, slots) {
                Ok(JobChoice { strategy, reason, ring }) => {
                    let sizes = match ring {
                        Ok(crossing) => crossing.to_string(),
                        Err(why) => format!("all sizes: {why}"),
                    };
                    (Some(strategy), format!("{reason}; {sizes}"))
                }
                Err(nothing) => (None, nothing.to_string()),
            };
            return Some(Self { strategy, reason });
        }
        let baseline = asked.of_job().err()?;
        Some(Self { strategy: None, reason: baseline.to_string() })
    }
}

/// What each upgrade gains, for two systems beside each other.
#[derive(Debug, Serialize)]
struct Upgrades {
    rina: Vec<Upgrade>,
    server: Vec<Upgrade>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.action {
        Action::Check { file, here } => {
            let path = file;
            let file = open(path)?;
            if let Some(here) = here {
                check_here(path, &file, here)?;
            }
            let topology = file.topology().clone().inferred();
            file.check_agents(topology.strategy).with_context(|| path.display().to_string())?;
            let (hosts, regions) = (topology.world(), topology.regions.len());
            let narrow = topology.oversubscribed().into_iter().filter(|narrow| *narrow).count();
            writeln!(
                io::stdout(),
                "{}: {:?} is right: {hosts} hosts, {regions} regions, {narrow} over-subscribed, \
                 strategy {}",
                path.display(),
                topology.name,
                topology.strategy
            )?;
            for bare in topology.bare_racks(topology.strategy) {
                writeln!(io::stdout(), "{bare}")?;
            }
            if let Err(baseline) = topology.strategy.of_job() {
                writeln!(io::stdout(), "a job would be refused: {baseline}")?;
            }
        }
        Action::Print { file, json } => {
            let topology = read(file)?.inferred();
            if *json {
                writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&topology)?)?;
            } else {
                write!(io::stdout(), "{}", topology.to_toml())?;
            }
        }
        Action::Plan(args) => plan(args)?,
        Action::Measure(args) => measure::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the interface that the file gives this host exists in this network namespace.
fn check_here(path: &Path, file: &TopologyFile, here: &str) -> Result<()> {
    let wrong =
        |problem: String| crate::exit::WrongConfig(format!("{}: {problem}", path.display()));
    let Some(host) = file.topology().hosts.iter().find(|host| host.name == here) else {
        let expected = "--here wants the name of one of its [[host]]s";
        return Err(wrong(format!("there is no host {here:?}; {expected}")).into());
    };
    if host.interface.is_none() {
        let problem = "has no `interface`; give it one, or leave --here out";
        return Err(wrong(format!("host {here:?} {problem}")).into());
    }
    // /sys/class/net may be of another namespace: that of the process that mounted it.
    let list = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(list)
        .with_context(|| format!("cannot list the interfaces in {list}"))?;
    file.check_interface(host.rank, &interfaces(&text)).with_context(|| path.display().to_string())
}

fn plan(args: &PlanArgs) -> Result<()> {
    let report = report(args)?;
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write!(io::stdout(), "{}", text::report(&report))?;
    }
    io::stdout().flush()?;
    fits(&report.demands, args.slots)
}

fn report(args: &PlanArgs) -> Result<Report> {
    let file = open(&args.file)?;
    let topology = file.topology().clone().inferred();
    let bytes = args.bytes as f64;
    let asked = args.strategy.unwrap_or(topology.strategy);
    let choice = (asked == Strategy::Auto)
        .then(|| choose(&topology, bytes, &Costs::of(&topology), args.slots));
    let strategy = choice.as_ref().map_or(asked, |choice| choice.strategy);
    file.check_agents(strategy).with_context(|| args.file.display().to_string())?;
    let scheme = Scheme::of(&topology, strategy)
        .with_context(|| format!("no plan for {}", args.file.display()))?;
    let rings = match strategy {
        Strategy::Ring => vec![ring_order(&topology)],
        Strategy::HAr => racks(&topology),
        _ => Vec::new(),
    };
    let forest = match &scheme {
        Scheme::Forest(forest) if strategy.is_forest() => Some(forest.clone()),
        _ => None,
    };
    let groups = forest.as_ref().map(|forest| forest.trees.len());
    let costs = StepCosts {
        overhead: f64::from(args.step_us) / 1e6,
        sigma: f64::from(args.sigma_us) / 1e6,
    };
    let incremental = args.incremental.then(|| Upgrades {
        rina: incremental::rina(&topology, bytes, costs),
        server: incremental::server(&topology, bytes, costs),
    });
    let needed = forest.as_ref().map(|forest| demands(&topology, forest, args.slots));
    Ok(Report {
        strategy,
        choice,
        job: Job::of(&topology, asked, args.slots),
        bytes: args.bytes,
        rings,
        bare: topology.bare_racks(strategy),
        steps: groups.filter(|_| strategy == Strategy::Rina).map(|groups| 2 * (groups - 1)),
        traffic: Traffic::of(&topology, &scheme, bytes),
        least_crossing: least_crossing(&topology, bytes),
        demands: needed.unwrap_or_default(),
        table1: table1(&topology, bytes),
        forest,
        incremental,
        topology,
    })
}

/// Refuses a plan that an aggregator cannot hold.
fn fits(demands: &[Demand], slots: u32) -> Result<()> {
    match shortfall(demands, slots, "--slots of this command, XDP_AGG_JOB_SLOTS of a job") {
        Some(missing) => bail!(missing),
        None => Ok(()),
    }
}
