//! Systems side by side over one network: the scenarios `links` and `latency`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xdp_agg_testbed::{CpuMeter, CpuTime, LinkReport};

use super::bound;
use super::files::{scratch, write_json};
use super::lab::{Engine, Lab, Plan, Privilege, ResultMode};
use super::machine::Facts;
use super::openmpi::{Algorithm, DEFAULT, OpenMpi, RING, SEGMENTED_RING};
use super::row::{HEADING, Row};
use super::setting::{Loss, Rate, parse_bytes};
use super::workers::{self, Bench, Measured};
use xdp_agg_report::{ReportError, quantile};

/// From this size on OpenMPI is measured with the algorithms for long vectors.
const LONG_BYTES: u64 = 1 << 20;

/// A machine with nothing to do is busy by less than this share.
const BUSY_SHARE: f64 = 0.1;

/// A system to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// Summed by the aggregator.
    XdpAgg,
    /// The ring of this repository.
    TcpRing,
    /// OpenMPI, where it is installed.
    Openmpi,
    /// Ours, where each size learns which way is fastest.
    Auto,
}

/// Options of all scenarios that compare systems.
#[derive(clap::Args, Debug)]
pub(crate) struct Common {
    /// Number of hosts with workers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) workers: u16,
    /// Workers on each of these hosts: processes that sum inside it first.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    pub(crate) processes: u16,
    /// MTU of all links; XDP on veth takes at most 3506.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(256..=3506))]
    pub(crate) mtu: u32,
    /// Sizes of the vectors, separated by commas: bytes, or with K, M, G (1024-based).
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) bytes: Option<Vec<u64>>,
    /// Timed calls per size.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iters: Option<u32>,
    /// Packets that every link loses in each direction, in percent.
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    pub(crate) loss: Loss,
    /// Systems to measure, separated by commas. Default: all that are installed.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) system: Option<Vec<System>>,
    /// How results reach the workers, and so where the aggregator sits.
    #[arg(long, value_enum, default_value_t = ResultMode::Ports)]
    pub(crate) topology: ResultMode,
    /// What sums in the aggregator. Default: xdp where this is root.
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,
    /// Let every packet cross the links by itself, as on a cable. Otherwise TCP's super-packets of
    /// 64 KiB cross them in one piece, which no network does and which flatters TCP.
    #[arg(long)]
    pub(crate) no_offloads: bool,
    /// Let each link be one virtual cable. Otherwise a program in its middle counts and loses
    /// packets; there a frame that XDP has sent becomes a packet of the stack, which a card's
    /// driver would not make of it.
    #[arg(long, conflicts_with = "loss")]
    pub(crate) direct: bool,
    /// Sum on the workers' own hosts: a daemon on each has a share of the vector, and what is in
    /// the middle is a switch.
    #[arg(long, conflicts_with_all = ["topology", "direct"])]
    pub(crate) colocated: bool,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the plot here. Default: target/bench/SCENARIO.svg.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Write the plot, the rows and a report (Markdown and HTML) into this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "plot")]
    pub(crate) report: Option<PathBuf>,
    /// Write a trace of the calls that are summed by the aggregator, of all ranks on one clock. Of
    /// several sizes each has a file, with the bytes before the name's end.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

impl Common {
    /// The network of this setting.
    pub(crate) fn plan(&self, rate: Rate, privilege: Privilege) -> Plan {
        let Self { workers, processes, mtu, loss, topology: mode, direct, colocated, .. } = *self;
        let (engine, offloads) = (privilege.engine(self.engine), !self.no_offloads);
        let links =
            Plan { mtu, loss, mode, offloads, direct, ..Plan::new(workers, rate, privilege) };
        Plan { processes, engine, colocated, ..links }
    }

    /// Measures the systems, each in a network of its own: none inherits another's queues or
    /// connections. Prints the rows, and writes what is asked for.
    ///
    /// # Errors
    /// A system fails, or a row does not count as a result.
    pub(crate) fn run(
        &self,
        (scenario, title): (&str, &str),
        plan: Plan,
        calls: &Calls<'_>,
        plot: impl FnOnce(&Path, &[Row]) -> Result<(), ReportError>,
    ) -> Result<()> {
        println!("# {scenario}: {title}\n{}", HEADING);
        let mut rows: Vec<Row> = Vec::new();
        let traces = self.trace.as_ref().map(|file| scratch().map(|to| (to, file))).transpose()?;
        for system in self.systems(plan.privilege) {
            let to = traces.as_ref().filter(|_| system == System::XdpAgg);
            let to = to.map(|(to, file)| (to.path(), file.as_path()));
            rows.extend(measure(&Lab::build(plan)?.traced_into(to), system, calls)?);
        }
        print_ratios(&rows);
        let file = self.plot_file(scenario);
        plot(&file, &rows)?;
        println!("# plot: {}", file.display());
        self.write_report(scenario, title, &rows)?;
        self.finish(&rows)
    }

    /// Writes the rows where that is asked for.
    ///
    /// # Errors
    /// One of them does not count as a result.
    pub(crate) fn finish(&self, rows: &[Row]) -> Result<()> {
        if let Some(file) = &self.json {
            write_json(file, rows)?;
        }
        match complaints(rows) {
            none if none.is_empty() => Ok(()),
            some => bail!("not a result: {}", some.join("; ")),
        }
    }

    /// Where the plot of a scenario goes.
    fn plot_file(&self, scenario: &str) -> PathBuf {
        let name = format!("{scenario}.svg");
        match (&self.report, &self.plot) {
            (Some(directory), _) => directory.join(name),
            (None, Some(file)) => file.clone(),
            (None, None) => PathBuf::from("target/bench").join(name),
        }
    }

    /// Writes the report of a scenario whose plot is drawn, where one is asked for.
    fn write_report(&self, scenario: &str, title: &str, rows: &[Row]) -> Result<()> {
        let Some(directory) = &self.report else { return Ok(()) };
        let mut report = Facts::gather().report(format!("{scenario}: {title}"));
        report.plot(format!("{scenario}.svg"), title);
        let lines: Vec<String> = rows.iter().map(Row::line).collect();
        report.code(format!("{}\n{}", HEADING, lines.join("\n")));
        let complaints = complaints(rows);
        if !complaints.is_empty() {
            report.text(format!("Not a result: {}.", complaints.join("; ")));
        }
        write_json(&directory.join("rows.json"), rows)?;
        report.write(directory)?;
        println!("# report: {}", directory.join("report.html").display());
        Ok(())
    }

    /// The systems to measure; says which one is left out, and why.
    pub(crate) fn systems(&self, privilege: Privilege) -> Vec<System> {
        let all = [System::TcpRing, System::XdpAgg, System::Openmpi];
        let wanted = self.system.as_deref().unwrap_or(&all);
        let mut systems = wanted.to_vec();
        if wanted.contains(&System::Openmpi) {
            let why = match privilege {
                Privilege::UserNamespace => Some("its launcher needs root here"),
                Privilege::Root if !OpenMpi::is_installed() => {
                    Some("it is not installed (`cargo xtask setup --openmpi` does that)")
                }
                Privilege::Root => None,
            };
            if let Some(why) = why {
                eprintln!("OpenMPI is left out: {why}");
                systems.retain(|system| *system != System::Openmpi);
            }
        }
        systems
    }
}

/// Warns where other programs use this machine: they make every figure worse, but not every
/// system's by the same amount.
pub(crate) fn warn_if_busy() -> Result<()> {
    let meter = CpuMeter::start()?;
    std::thread::sleep(Duration::from_millis(500));
    let CpuTime { wall, busy, .. } = meter.elapsed()?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = busy.as_secs_f64() / wall.as_secs_f64() / processors as f64;
    if share > BUSY_SHARE {
        eprintln!(
            "warning: this machine is {:.0} % busy before anything is measured; figures of this \
             run are no better than that",
            share * 100.0
        );
    }
    Ok(())
}

/// What to measure, apart from the network.
pub(crate) struct Calls<'a> {
    pub(crate) bytes: &'a [u64],
    pub(crate) iters: u32,
    pub(crate) warmup: u32,
}

/// Measures one system; a row a size, and for OpenMPI an algorithm.
pub(crate) fn measure(lab: &Lab, system: System, calls: &Calls<'_>) -> Result<Vec<Row>> {
    match system {
        System::XdpAgg | System::Auto => {
            let daemon = lab.start_daemon()?;
            let name = if system == System::Auto { "auto" } else { "xdp-agg" };
            let rows = ours(lab, name, calls)?;
            daemon.stop()?;
            Ok(rows)
        }
        System::TcpRing => ours(lab, "tcp-ring", calls),
        System::Openmpi => openmpi(lab, calls),
    }
}

/// `xdp-agg-bench`, size by size: every size is metered by itself.
fn ours(lab: &Lab, system: &str, calls: &Calls<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &bytes in calls.bytes {
        let (deadline, limit) = patience(lab.plan(), calls, bytes);
        let Calls { iters, warmup, .. } = *calls;
        let bench = Bench { system, bytes: &[bytes], iters, warmup, deadline, limit };
        let meter = lab.meter()?;
        let reports =
            workers::run(lab, &bench).with_context(|| format!("{system}, {bytes} bytes"))?;
        let links = meter.map(xdp_agg_testbed::LinkMeter::finish).transpose()?;
        if let Some((_, file)) = lab.traces() {
            let file = of_size(file, bytes, calls);
            lab.merge_traces(&file)?;
            println!("# trace: {}", file.display());
        }
        let first = reports.first().context("no worker")?;
        let measured = first.rows.first().context("no row")?;
        let mut row = row(lab.plan(), system, &first.algorithm, measured, links.as_deref());
        let again: Option<Vec<u64>> =
            reports.iter().map(workers::Report::retransmissions).collect();
        row.retransmissions = again.map(|counts| counts.iter().sum());
        row.worker_peak_memory_bytes = reports.iter().map(|report| report.peak_memory_bytes).max();
        println!("{}", row.line());
        rows.push(row);
    }
    Ok(rows)
}

fn openmpi(lab: &Lab, calls: &Calls<'_>) -> Result<Vec<Row>> {
    let mpi = OpenMpi::prepare()?;
    let mut rows = Vec::new();
    for &bytes in calls.bytes {
        let algorithms: &[&Algorithm] =
            if bytes < LONG_BYTES { &[&DEFAULT] } else { &[&RING, &SEGMENTED_RING] };
        for algorithm in algorithms {
            let (_, limit) = patience(lab.plan(), calls, bytes);
            let meter = lab.meter()?;
            let measured = mpi
                .run(lab, algorithm, &[bytes], (calls.iters, calls.warmup), limit)
                .with_context(|| format!("OpenMPI, {}, {bytes} bytes", algorithm.name))?;
            let links = meter.map(xdp_agg_testbed::LinkMeter::finish).transpose()?;
            for measured in &measured {
                let row = row(lab.plan(), "openmpi", algorithm.name, measured, links.as_deref());
                println!("{}", row.line());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn row(
    plan: &Plan,
    system: &str,
    algorithm: &str,
    measured: &Measured,
    links: Option<&[LinkReport]>,
) -> Row {
    let median = quantile(&measured.mean_us, 0.5);
    let (algbw_gbs, busbw_gbs) = Row::bandwidths(measured.bytes, plan.ranks(), median);
    for broken in links.into_iter().flatten().filter(|link| !link.kept) {
        eprintln!("{broken}");
    }
    let peak = |links: &[LinkReport]| links.iter().map(|link| link.peak_bps).fold(0.0, f64::max);
    Row {
        system: system.to_owned(),
        algorithm: algorithm.to_owned(),
        workers: plan.ranks(),
        bytes: measured.bytes,
        rate: plan.rate.to_string(),
        mtu: plan.mtu,
        time_us_median: median,
        time_us_p99: quantile(&measured.mean_us, 0.99),
        algbw_gbs,
        busbw_gbs,
        cpu_s: measured.cpu_s,
        wrong: measured.wrong,
        bound_us: bound_us(plan, system, measured.bytes),
        loss_percent: plan.loss.percent(),
        iters: measured.iters,
        offloads: plan.offloads,
        caps_kept: links.map(|links| links.iter().all(|link| link.kept)),
        link_peak_bits: links.map(peak),
        retransmissions: None,
        worker_peak_memory_bytes: None,
    }
}

/// What the busiest direction of a link needs at its rate, without any loss.
fn bound_us(plan: &Plan, system: &str, bytes: u64) -> Option<f64> {
    let rate = plan.rate.bits?;
    if system == "auto" {
        let ways = ["xdp-agg", "tcp-ring"].map(|way| bound_us(plan, way, bytes));
        return ways.into_iter().flatten().reduce(f64::min);
    }
    let wire_bytes = if system == "xdp-agg" {
        let one = bound::aggregated_wire_bytes(bytes, plan.mtu);
        match plan.mode {
            // Each link carries all shares but its own host's, to their daemons and as a daemon.
            _ if plan.colocated => {
                let workers = f64::from(plan.workers);
                one * 2.0 * (workers - 1.0) / workers
            }
            ResultMode::Ports => one,
            // All contributions come in through the aggregator's one link.
            ResultMode::Fanout | ResultMode::Multicast => one * f64::from(plan.workers),
        }
    } else {
        bound::ring_wire_bytes(bytes, plan.mtu, plan.ranks())
    };
    Some(bound::time_us(wire_bytes, rate))
}

/// How long one call and a whole run may take before they count as broken: generous, but bounded.
fn patience(plan: &Plan, calls: &Calls<'_>, bytes: u64) -> (Duration, Duration) {
    // Where the rate is not limited these machines still move 100 Mbit/s.
    let rate = plan.rate.bits.unwrap_or(100_000_000);
    let ring = bound::time_us(bound::ring_wire_bytes(bytes, plan.mtu, plan.ranks()), rate);
    let call = Duration::from_secs(30) + Duration::from_micros((ring * 10.0) as u64);
    // Two calls verify; connecting takes a minute at most.
    let all = (ring * 4.0) as u64 * u64::from(calls.iters + calls.warmup + 2);
    (call, call + Duration::from_secs(60) + Duration::from_micros(all))
}

/// Says how ours compares with the fastest row of each other system, size by size.
fn print_ratios(rows: &[Row]) {
    for ours in rows.iter().filter(|row| row.system == "xdp-agg") {
        let same_size = |row: &&Row| row.bytes == ours.bytes && row.system != ours.system;
        let mut others: Vec<&Row> = rows.iter().filter(same_size).collect();
        others.sort_by(|a, b| a.time_us_median.total_cmp(&b.time_us_median));
        let mut named: Vec<&str> = Vec::new();
        for other in others {
            if named.contains(&other.system.as_str()) {
                continue;
            }
            named.push(&other.system);
            println!(
                "# {} bytes: {} ({}) takes {:.2} times as long as xdp-agg ({})",
                ours.bytes,
                other.system,
                other.algorithm,
                other.time_us_median / ours.time_us_median,
                ours.algorithm
            );
        }
    }
}

/// What makes rows unfit as results, if anything does.
fn complaints(rows: &[Row]) -> Vec<String> {
    let mut complaints = Vec::new();
    for row in rows {
        let Row { system, algorithm, bytes, .. } = row;
        if row.wrong > 0 {
            complaints.push(format!("{system} ({algorithm}), {bytes} bytes: wrong sums"));
        }
        if row.caps_kept == Some(false) {
            complaints.push(format!(
                "{system} ({algorithm}), {bytes} bytes: a link carried more than its rate"
            ));
        }
    }
    complaints
}
/// The file for a size: where several are measured, each has its own, `trace-4096.json`.
fn of_size(file: &Path, bytes: u64, calls: &Calls<'_>) -> PathBuf {
    if calls.bytes.len() == 1 {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{bytes}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 4 workers each link carries the vector once where the switch sums, three quarters of it
    /// twice where their hosts do, and all four where one link leads to the aggregator.
    #[test]
    fn links_carry_what_their_place_makes_them_carry() {
        let plan = Plan::new(4, Rate { bits: Some(8_000_000) }, Privilege::Root);
        let bound = |plan: Plan| bound_us(&plan, "xdp-agg", 1408).expect("a rate");
        let one = bound(plan);
        assert_eq!(one, 1472.0);
        assert_eq!(bound(Plan { colocated: true, ..plan }), 1.5 * one);
        assert_eq!(bound(Plan { mode: ResultMode::Fanout, ..plan }), 4.0 * one);
    }
}
