//! The papers' figures, from simulated runs, with the papers' claims beside them.

mod atp;
mod broadcast;
mod passing;
mod rat;
mod rina;
mod scale;

use std::fs;
use std::path::Path;

use crate::generate::Generated;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use xdp_agg_report::Report;
use xdp_agg_report::plot::{Axes, Group, Labels, Panel, Series, groups, lines};

use crate::engine::{Outcome, Progress};
use crate::predict::{Question, predict};

/// Bytes of ResNet-50's gradient in paper 2 (RAT), section 4.2.
const RESNET50_BYTES: f64 = 97e6;

/// How to make them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of everything that is drawn by lot.
    pub seed: u64,
    /// Fewer points, for a look at the whole in a minute.
    pub quick: bool,
    /// Names of the figures to make; all if empty.
    pub only: Vec<String>,
}

/// A figure of a paper, made anew.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Of its files, such as `rat-6`.
    name: &'static str,
    /// What it shows, and which figure it is.
    title: &'static str,
    /// What the paper leaves open, and what was taken.
    assumptions: Vec<String>,
    /// What the paper's text says, and what came out here.
    claims: Vec<Claim>,
    /// Names of the columns of `rows`.
    columns: Vec<&'static str>,
    /// The numbers.
    rows: Vec<Vec<Cell>>,
    #[serde(skip)]
    picture: Picture,
}

/// A statement of a paper beside what came out.
#[derive(Clone, Debug, Serialize)]
struct Claim {
    paper: String,
    ours: String,
    /// Whether it was reproduced.
    verdict: Verdict,
}

/// Whether a claim was reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Verdict {
    #[serde(rename = "yes")]
    Yes,
    /// A part of it.
    #[serde(rename = "partly")]
    Partly,
    #[serde(rename = "no")]
    No,
    /// The points that it is about were not run.
    #[serde(rename = "not judged")]
    NotJudged,
}

impl Verdict {
    /// Of a claim all of which holds, or at least what is left of it.
    const fn of(all: bool, some: bool) -> Self {
        match (all, some) {
            (true, _) => Self::Yes,
            (false, true) => Self::Partly,
            (false, false) => Self::No,
        }
    }

    const fn in_table(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
            Self::NotJudged => "not judged (--quick)",
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Yes => "reproduced",
            Self::Partly => "partly reproduced",
            Self::No => "NOT reproduced",
            Self::NotJudged => "not judged: --quick leaves points of it out",
        }
    }
}

/// Claims about points that --quick does not run are not judged with it.
fn judged(plan: &Plan, mut claims: Vec<Claim>) -> Vec<Claim> {
    for claim in claims.iter_mut().filter(|_| plan.quick) {
        claim.verdict = Verdict::NotJudged;
    }
    claims
}

/// A number or a name.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Cell {
    Text(String),
    Number(f64),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Number(value as f64)
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for Cell {
    fn from(value: &T) -> Self {
        Self::Text(value.as_ref().to_owned())
    }
}

impl Cell {
    /// Four digits that count.
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value) if value.fract() == 0.0 && value.abs() < 1e12 => value.to_string(),
            Self::Number(value) => {
                let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0);
                format!("{value:.*}", digits as usize)
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Picture {
    Lines { x: &'static str, y: &'static str, axes: Axes, series: Vec<(String, Vec<(f64, f64)>)> },
    Bars { y: &'static str, series: Vec<String>, groups: Vec<(String, Vec<f64>)> },
}

type Maker = fn(&Plan, &Bench) -> Result<Vec<Figure>>;

/// Names on the command line, and what makes them.
const FIGURES: [(&str, Maker); 9] = [
    ("rat-6", rat::over_subscription),
    ("rat-7", rat::paused),
    ("rina-5", rina::occupation_model),
    ("rina-10", rina::throughput),
    ("passing-4", passing::clusters),
    ("passing-14", passing::iterations),
    ("passing-18", passing::scaling),
    ("broadcast-11", broadcast::orders_of_chains),
    ("scale", scale::scale),
];

/// Names of everything that can be made.
pub fn names() -> Vec<&'static str> {
    FIGURES.iter().map(|(name, _)| *name).collect()
}

/// Where the runs of the figures are shown.
#[derive(Debug)]
pub struct Bench {
    bar: ProgressBar,
}

impl Bench {
    /// Shows progress on the bar.
    pub const fn new(bar: ProgressBar) -> Self {
        Self { bar }
    }

    fn say(&self, text: String) {
        self.bar.set_message(text);
    }

    /// One all-reduce.
    fn run(&self, generated: &Generated, question: &Question) -> Result<Outcome> {
        let name = &generated.topology.name;
        self.say(format!("{name}: {}", question.way));
        let mut observe = |progress: Progress| {
            self.bar.set_length(progress.of_chunks);
            self.bar.set_position(progress.chunks);
        };
        predict(&generated.network, &generated.topology, question, &mut observe)
            .with_context(|| format!("{} on {name}", question.way))
    }
}

/// Makes the figures of a plan, and writes `report.md`, `report.html`, an SVG each and
/// `figures.json` into a directory.
///
/// # Errors
///
/// If a figure cannot be made or written.
pub fn make(plan: &Plan, command: &str, directory: &Path, bench: &Bench) -> Result<Vec<Figure>> {
    for name in &plan.only {
        anyhow::ensure!(
            names().contains(&name.as_str()),
            "{name:?} is no figure; expected one of {}",
            names().join(", ")
        );
    }
    let wanted = |name: &str| plan.only.is_empty() || plan.only.iter().any(|only| only == name);
    let mut figures = Vec::new();
    for (_, maker) in FIGURES.iter().filter(|(name, _)| wanted(name)) {
        figures.extend(maker(plan, bench)?);
    }
    let facts = [
        ["seed".to_owned(), plan.seed.to_string()],
        ["points".to_owned(), if plan.quick { "few (--quick)" } else { "all" }.to_owned()],
        ["xdp-agg".to_owned(), env!("CARGO_PKG_VERSION").to_owned()],
    ];
    let mut report = Report::new("The papers' figures, simulated", command, facts.to_vec());
    report.text(ASSUMPTIONS);
    fs::create_dir_all(directory)
        .with_context(|| format!("making the directory {}", directory.display()))?;
    for figure in &figures {
        figure.draw(directory)?;
        figure.describe(&mut report);
    }
    report.write(directory)?;
    let file = directory.join("figures.json");
    let json = serde_json::to_string_pretty(&figures)?;
    fs::write(&file, json).with_context(|| format!("writing {}", file.display()))?;
    Ok(figures)
}

/// What holds for all figures.
const ASSUMPTIONS: &str = "Every number comes from the flow-level simulator (docs/flowsim.md): \
    links are shared max-min fairly, computation and communication do not overlap, vectors are \
    counted without headers as the papers count them, and latencies are 1 microsecond a link.";

impl Figure {
    fn draw(&self, directory: &Path) -> Result<()> {
        let file = directory.join(format!("{}.svg", self.name));
        match &self.picture {
            Picture::Lines { x, y, axes, series } => {
                let labels = Labels { title: self.title, x, y };
                let line = |(name, points): &(String, Vec<(f64, f64)>)| Series {
                    name: name.clone(),
                    points: points.clone(),
                };
                let series: Vec<_> = series.iter().map(line).collect();
                lines(&file, &[Panel { labels, axes: *axes, series: &series }])?;
            }
            Picture::Bars { y, series, groups: bars } => {
                let labels = Labels { title: self.title, x: "", y };
                let group = |(name, values): &(String, Vec<f64>)| Group {
                    name: name.clone(),
                    bars: values.iter().map(|&value| Some((value, None))).collect(),
                };
                let bars: Vec<_> = bars.iter().map(group).collect();
                groups(&file, &labels, series, &bars)?;
            }
        }
        Ok(())
    }

    fn describe(&self, report: &mut Report) {
        report.heading(self.title);
        report.plot(format!("{}.svg", self.name), self.title);
        if !self.claims.is_empty() {
            let row = |claim: &Claim| {
                let verdict = claim.verdict.in_table().to_owned();
                vec![claim.paper.clone(), claim.ours.clone(), verdict]
            };
            let rows = self.claims.iter().map(row).collect();
            report.table(&["the paper says", "simulated here", "reproduced"], rows);
        }
        for assumption in &self.assumptions {
            report.text(format!("Assumed: {assumption}"));
        }
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        report.table(&self.columns, rows);
    }

    /// Its title and claims, as lines for a terminal.
    pub fn summary(&self) -> String {
        let line = |claim: &Claim| {
            let Claim { paper, ours, verdict } = claim;
            format!("\n  paper: {paper}\n  ours:  {ours} ({})", verdict.in_words())
        };
        format!("{}: {}{}", self.name, self.title, self.claims.iter().map(line).collect::<String>())
    }
}

/// The least and the greatest, as `1.3 to 2.5`; one number if they are the same.
fn spread(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [least, most] = [least, most].map(|value| format!("{value:.digits$}"));
    if least == most { least } else { format!("{least} to {most}") }
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
