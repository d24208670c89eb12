//! What `bench passing` prints and writes.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use xdp_agg_workloads::{Workload, claims};

use super::super::files::write_json;
use super::super::machine::Facts;
use super::row::{Kind, Row, SLOWEST};
use super::table::{self, Table, aligned};
use super::{Args, Bench, Failure};
use xdp_agg_report::Report;
use xdp_agg_report::plot::{Group, Labels, groups};

/// Collects rows, and says them as they come.
pub(crate) struct Output {
    directory: PathBuf,
    json: Option<PathBuf>,
    facts: Facts,
    /// The network, in words.
    title: String,
    /// What has been said of each workload.
    notes: Vec<String>,
    rows: Vec<Row>,
    failures: Vec<Failure>,
}

impl Output {
    pub(crate) fn new(args: &Args, bench: &Bench<'_>, facts: Facts) -> Self {
        let in_host = bench.settings.first().map_or(0.0, |setting| setting.in_host);
        let title = format!(
            "{} a link and direction, parameter servers: {}, one aggregator, MTU {}{}; equation \
             (1) with {:.1} GB/s, at which one process copies memory",
            args.rate,
            args.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            args.mtu,
            if args.no_offloads { ", no offloads" } else { "" },
            in_host / 1e9,
        );
        println!("# passing: {title}\n# {}", table::LEGEND);
        let (directory, json) = (args.report.clone(), args.json.clone());
        let (notes, rows, failures) = (Vec::new(), Vec::new(), Vec::new());
        Self { directory, json, facts, title, notes, rows, failures }
    }

    /// A workload begins.
    pub(crate) fn begin(&mut self, workload: &Workload, seconds: f64) {
        let Workload { network, fraction, buckets, .. } = workload;
        let note = format!(
            "{network}, fraction {fraction} of {} parameters: K = {} bytes in {} buckets; the \
             paper's computation of an iteration is {:.2} s, fitted to its figures 18 and 19; \
             about {seconds:.0} s by the models",
            network.parameters(),
            workload.bytes(),
            buckets.len(),
            claims::compute_seconds(*network),
        );
        println!("# {note}\n{}", aligned(table::HEADING));
        self.notes.push(note);
    }

    /// A system has been measured.
    pub(crate) fn rows(&mut self, rows: Vec<Row>) {
        for row in &rows {
            println!("{}", aligned(table::line(row)));
        }
        self.rows.extend(rows);
    }

    /// A system has failed.
    pub(crate) fn failure(&mut self, failure: Failure) {
        println!("{}", said(&failure));
        self.failures.push(failure);
    }

    /// Prints what follows from the rows, and writes the files.
    ///
    /// # Errors
    /// Files that cannot be written, rows that do not count as results, and systems that failed.
    pub(crate) fn finish(self, stolen_s: f64) -> Result<()> {
        let sections = [
            ("Time saved", table::savings(&self.rows)),
            ("Scaling efficiency", table::efficiencies(&self.rows)),
            ("Computation, communication and speed-up", table::speed_ups(&self.rows)),
            ("The paper's figures and ours", table::claims(&self.rows)),
        ];
        for (title, table) in &sections {
            print(title, table);
        }
        for counted in self.counted() {
            println!("# {counted}");
        }
        println!("# the hypervisor gave {stolen_s:.1} s of processor time to others meanwhile");
        if let Some(file) = &self.json {
            write_json(file, &self.rows)?;
        }
        if !self.rows.is_empty() {
            write_json(&self.directory.join("rows.json"), &self.rows)?;
            let plots = self.plots()?;
            self.report(&sections, &plots, stolen_s).write(&self.directory)?;
            println!("# report: {}", self.directory.join("report.html").display());
        }
        let complaints = self.complaints();
        if !complaints.is_empty() {
            bail!("not a result: {}", complaints.join("; "));
        }
        Ok(())
    }

    /// What ATP's servers and switches have counted.
    fn counted(&self) -> Vec<String> {
        let of = |row: &Row| {
            let Row { workload, hosts, processes, counted, .. } = row;
            let counted = counted.join("; ");
            format!("{}, {workload}, {hosts}x{processes}, all phases: {counted}", row.label())
        };
        distinct(self.rows.iter().filter(|row| !row.counted.is_empty()).map(of))
    }

    fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = Vec::new();
        for row in &self.rows {
            let Row { workload, hosts, processes, .. } = row;
            let system = row.label();
            let mut complain = |what: &str| {
                let text = format!("{system}, {workload}, {hosts}x{processes}: {what}");
                if !complaints.contains(&text) {
                    complaints.push(text);
                }
            };
            if row.wrong > 0 {
                complain("wrong sums");
            }
            if row.caps_kept == Some(false) {
                complain("a link carried more than its rate");
            }
            if let Some(times) = row.times_bound().filter(|times| *times > SLOWEST) {
                complain(&format!(
                    "{times:.2} times what its links allow, and {SLOWEST} is the most; take fewer \
                     processes, a lower --rate or a larger --fraction, on a machine that does \
                     nothing else"
                ));
            }
        }
        let failed = self.failures.iter().map(|failure| {
            let (system, network) = (failure.system, failure.network);
            format!(
                "{system}, {network}, {}x{}: failed",
                failure.size.hosts, failure.size.processes
            )
        });
        complaints.extend(failed);
        complaints
    }

    fn report(&self, sections: &[(&str, Table)], plots: &[Plot], stolen_s: f64) -> Report {
        let mut report = self.facts.report("PASSING and the systems it is compared with");
        report.text(format!("{}.", self.title));
        for note in &self.notes {
            report.text(format!("{note}."));
        }
        report.text(format!(
            "The hypervisor gave {stolen_s:.1} s of processor time to others during the run. \
             Computation is slept, not done: all processes share the processors of one machine."
        ));
        report.heading("Plots");
        report.text("Black lines: what the links allow at best.");
        for Plot { file, shows } in plots {
            report.plot(file, shows);
        }
        for (title, table) in sections.iter().filter(|(_, table)| !table.rows.is_empty()) {
            report.heading(*title);
            report.table(&table.heading, table.rows.clone());
        }
        report.heading("All rows");
        report.text(format!("{}.", table::LEGEND));
        let mut heading = vec!["workload"];
        heading.extend(table::HEADING);
        let cells = |row: &Row| [vec![row.workload.clone()], table::line(row)].concat();
        report.table(&heading, self.rows.iter().map(cells).collect());
        if !self.failures.is_empty() {
            report.heading("Failed");
            let lines: Vec<_> = self.failures.iter().map(said).collect();
            report.code(lines.join("\n"));
        }
        report
    }

    /// Draws a plot for each workload and kind of iterations, and of each workload's efficiency.
    fn plots(&self) -> Result<Vec<Plot>> {
        let mut plots = Vec::new();
        for workload in distinct(self.rows.iter().map(|row| row.workload.clone())) {
            let rows = || self.rows.iter().filter(|row| row.workload == workload);
            for kind in Kind::ALL {
                let mine: Vec<&Row> = rows().filter(|row| row.kind() == kind).collect();
                let shows = format!("{workload}: time of an iteration, {}", kind.name());
                let file = format!("{workload}-{}.svg", kind.short());
                let with_bound = kind == Kind::Communication;
                let bar = |row: &Row| {
                    let bound = row.bound_s.filter(|_| with_bound).map(|bound| bound * 1e3);
                    Some((row.time_s * 1e3, bound))
                };
                let y = "time of an iteration (ms)";
                plots.extend(draw(&self.directory, Plot { file, shows }, y, &mine, bar)?);
            }
            let computing: Vec<&Row> = rows().filter(|row| row.kind() == Kind::After).collect();
            let shows = format!("{workload}: scaling efficiency, {}", Kind::After.name());
            let file = format!("{workload}-efficiency.svg");
            let bar = |row: &Row| Some((row.efficiency? * 100.0, None));
            let y = "speed-up over number of processes (%)";
            plots.extend(draw(&self.directory, Plot { file, shows }, y, &computing, bar)?);
        }
        Ok(plots)
    }
}

/// A plot's file, and what it shows.
struct Plot {
    file: String,
    shows: String,
}

/// Draws rows in groups by setting, a colour a system; nothing where there are no rows.
fn draw(
    directory: &Path,
    plot: Plot,
    y: &str,
    rows: &[&Row],
    bar: impl Fn(&Row) -> Option<(f64, Option<f64>)>,
) -> Result<Option<Plot>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let systems: Vec<String> = distinct(rows.iter().map(|row| row.label()));
    let settings = distinct(rows.iter().map(|row| (row.hosts, row.processes)));
    let group = |&(hosts, processes): &(u16, u16)| {
        let of = |system: &String| {
            let here = |row: &&&Row| {
                row.label() == *system && (row.hosts, row.processes) == (hosts, processes)
            };
            rows.iter().find(here).and_then(|row| bar(row))
        };
        Group { name: format!("{hosts} x {processes}"), bars: systems.iter().map(of).collect() }
    };
    let x = "hosts x processes on each";
    let labels = Labels { title: &plot.shows, x, y };
    let all: Vec<Group> = settings.iter().map(group).collect();
    groups(&directory.join(&plot.file), &labels, &systems, &all)?;
    Ok(Some(plot))
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

fn said(failure: &Failure) -> String {
    let Failure { system, size, network, reason } = failure;
    format!("{system}, {network}, {}x{} failed: {reason}", size.hosts, size.processes)
}

/// Prints a table of columns as wide as they need.
fn print(title: &str, table: &Table) {
    if table.rows.is_empty() {
        return;
    }
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(table.heading[column].len())
    };
    let widths: Vec<usize> = (0..table.heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    println!("# {title}\n# {}", line(table.heading.clone()));
    for row in &table.rows {
        println!("  {}", line(row.iter().map(String::as_str).collect()));
    }
}
