//! What was measured, beside the models; and the table that follows from it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use xdp_agg_client::collectives::{Kind, Rule, Tuning, Way};
use xdp_agg_mesh::model::{self, Network};

use super::measure::Measured;
use crate::bench::report::quantile;
use crate::table::columns;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    ranks: u16,
    engine: String,
    checked: bool,
    /// What it costs that all agree on a call, in microseconds.
    check_us: f64,
    /// `t_s` of the models in microseconds, fitted.
    startup_us: Option<f64>,
    /// `B` of the models in bytes a second, fitted.
    bytes_per_s: Option<f64>,
    rows: Vec<Row>,
}

/// One way of one size.
#[derive(Debug, Serialize)]
struct Row {
    collective: &'static str,
    bytes: usize,
    algorithm: &'static str,
    chunk: Option<u32>,
    k: Option<u32>,
    calls: usize,
    median_us: f64,
    p10_us: f64,
    p90_us: f64,
    /// The model's time, with the fitted network, and with the check where there is one.
    model_us: Option<f64>,
    /// The fastest of its size.
    best: bool,
    /// The table in force takes it.
    chosen: bool,
    wrong: u64,
    #[serde(skip)]
    kind: Kind,
    #[serde(skip)]
    way: Way,
}

impl Report {
    /// Of all measurements of a run.
    pub(super) fn new(
        ranks: u16,
        engine: &str,
        check_us: f64,
        checked: bool,
        all: Vec<Measured>,
    ) -> Self {
        let extra_us = if checked { check_us } else { 0.0 };
        let network = fit(ranks, extra_us, &all);
        let model_us = |one: &Measured| {
            let cost = cost(ranks, one)?;
            Some(cost.seconds(network?) * 1e6 + extra_us)
        };
        let least = |kind: Kind, bytes: usize| {
            let same = all.iter().filter(|one| (one.kind, one.bytes) == (kind, bytes));
            same.map(Measured::median_us).fold(f64::INFINITY, f64::min)
        };
        let rows = all
            .iter()
            .map(|one| {
                let (chunk, k) = match one.choice.way {
                    Way::Mesh(algorithm) => (algorithm.chunk(), algorithm.k()),
                    Way::Aggregator | Way::Ring => (None, None),
                };
                Row {
                    collective: one.kind.name(),
                    bytes: one.bytes,
                    algorithm: one.choice.way.name(),
                    chunk,
                    k,
                    calls: one.times_us.len(),
                    median_us: one.median_us(),
                    p10_us: quantile(&one.times_us, 0.1),
                    p90_us: quantile(&one.times_us, 0.9),
                    model_us: model_us(one),
                    best: one.median_us() <= least(one.kind, one.bytes),
                    chosen: one.chosen,
                    wrong: one.wrong,
                    kind: one.kind,
                    way: one.choice.way,
                }
            })
            .collect();
        Self {
            ranks,
            engine: engine.to_owned(),
            checked,
            check_us,
            startup_us: network.map(|network| network.startup_s * 1e6),
            bytes_per_s: network.map(|network| network.bytes_per_s),
            rows,
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { ranks, engine, check_us, .. } = self;
        let mut text = format!("# {ranks} ranks, aggregator: {engine}; agreeing on a call: ");
        // Writing to a string cannot fail.
        let _ = write!(text, "{check_us:.0} us{}", if self.checked { "" } else { " (left out)" });
        if let (Some(startup), Some(rate)) = (self.startup_us, self.bytes_per_s) {
            let _ = write!(text, "; fitted t_s = {startup:.1} us, B = {:.0} MB/s", rate / 1e6);
        }
        text.push_str(
            "\n# time: median of the calls, each the longest of all ranks'; model: equations (1) \
             to (5)\n# * fastest, < the table's choice\n",
        );
        let mut rows = vec![
            ["collective", "bytes", "algorithm", "C or k", "time us", "p10", "p90", "model us"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows[0].extend(["calls", "#wrong", ""].map(str::to_owned));
        for row in &self.rows {
            let parameter = row.chunk.or(row.k).map_or_else(|| "-".into(), |p| p.to_string());
            let model = row.model_us.map_or_else(|| "-".into(), |us| format!("{us:.0}"));
            let mark =
                format!("{}{}", if row.best { "*" } else { "" }, if row.chosen { "<" } else { "" });
            rows.push(vec![
                row.collective.into(),
                row.bytes.to_string(),
                row.algorithm.into(),
                parameter,
                format!("{:.0}", row.median_us),
                format!("{:.0}", row.p10_us),
                format!("{:.0}", row.p90_us),
                model,
                row.calls.to_string(),
                row.wrong.to_string(),
                mark,
            ]);
        }
        text + &columns(&rows)
    }

    /// For programs.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let json = serde_json::to_vec_pretty(self)?;
        std::fs::write(file, json).with_context(|| format!("writing {}", file.display()))
    }

    /// The table with the rules that follow for this number of ranks.
    pub(super) fn table(&self, mut table: Tuning) -> Result<String> {
        for kind in Kind::ALL {
            let rules = self.rules(kind);
            if !rules.is_empty() {
                let of_table = table.rules_mut(kind);
                of_table.retain(|rule| rule.ranks != Some(self.ranks));
                of_table.splice(0..0, rules);
            }
        }
        let text = table.to_toml().map_err(|problem| anyhow!(problem))?;
        let head = format!(
            "# By `xdp-agg tune` over {} ranks ({}). For XDP_AGG_TUNING; docs/broadcast.md.\n\n",
            self.ranks, self.engine
        );
        Ok(head + &text)
    }

    /// The fastest way of each size, up to the middle between it and the next one.
    fn rules(&self, kind: Kind) -> Vec<Rule> {
        let best = self.rows.iter().filter(|row| row.kind == kind && row.best);
        let mut best: Vec<&Row> = best.collect();
        // Of ways that are equally fast to the digit, the first.
        best.dedup_by_key(|row| row.bytes);
        let mut rules: Vec<Rule> = Vec::new();
        for (index, row) in best.iter().enumerate() {
            let middle = |next: &&Row| (row.bytes as f64 * next.bytes as f64).sqrt() as u64;
            let up_to = best.get(index + 1).map(middle);
            let mut rule = Rule::new(Some(self.ranks), up_to, row.way);
            rule.checked = self.checked;
            match rules.last_mut() {
                Some(last) if last.choice() == rule.choice() => last.up_to = rule.up_to,
                _ => rules.push(rule),
            }
        }
        rules
    }
}

fn cost(ranks: u16, one: &Measured) -> Option<model::Cost> {
    match (one.kind, one.choice.way) {
        // A reduce is a broadcast backwards.
        (Kind::Broadcast | Kind::Reduce, Way::Mesh(algorithm)) => {
            Some(model::of(algorithm, ranks.into(), one.bytes as f64))
        }
        _ => None,
    }
}

/// The network that explains the broadcasts.
fn fit(ranks: u16, extra_us: f64, all: &[Measured]) -> Option<Network> {
    let broadcasts = all.iter().filter(|one| one.kind == Kind::Broadcast);
    let measured: Vec<_> = broadcasts
        .filter_map(|one| Some((cost(ranks, one)?, (one.median_us() - extra_us) / 1e6)))
        .filter(|(_, seconds)| *seconds > 0.0)
        .collect();
    model::fit(&measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdp_agg_client::collectives::{Algorithm, Choice};

    fn measured(bytes: usize, way: Way, us: f64) -> Measured {
        let choice = Choice::new(way);
        let times_us = vec![us; 3];
        Measured { kind: Kind::Broadcast, bytes, choice, times_us, chosen: false, wrong: 0 }
    }

    #[test]
    fn the_table_takes_the_fastest() {
        let chain = Way::Mesh(Algorithm::PipelinedChain { chunk: 65_536 });
        let mut all = Vec::new();
        for (bytes, aggregator, other) in
            [(4096, 100.0, 300.0), (16_384, 150.0, 350.0), (1 << 20, 9000.0, 8000.0)]
        {
            all.push(measured(bytes, Way::Aggregator, aggregator));
            all.push(measured(bytes, chain, other));
        }
        let report = Report::new(8, "xdp", 50.0, true, all);
        let text = report.table(Tuning::default()).expect("it has one");
        let table = Tuning::parse(&text).expect("it can be read");
        let way = |ranks, bytes| table.choose(Kind::Broadcast, ranks, bytes).way;
        assert_eq!(way(8, 100), Way::Aggregator);
        // The middle between 16 KiB and 1 MiB is 128 KiB.
        assert_eq!(way(8, 131_072), Way::Aggregator);
        assert_eq!(way(8, 131_073), chain);
        assert_eq!(way(3, 1 << 30), chain);
        // More ranks than were measured: as usual.
        assert_eq!(way(9, 100), Way::Mesh(Algorithm::Knomial { k: 4 }));
        assert_eq!(table.broadcast.len(), 2 + Tuning::default().broadcast.len());
        // Measured again, the rules are replaced and not doubled.
        assert_eq!(report.table(table.clone()).expect("it has one"), text);
        assert!(report.text().contains("pipelined-chain"));
    }

    #[test]
    fn ways_that_are_equally_fast_make_one_rule() {
        let ways = [Way::Aggregator, Way::Mesh(Algorithm::Binomial), Way::Mesh(Algorithm::Chain)];
        let all = ways.map(|way| measured(4096, way, 100.0)).to_vec();
        let report = Report::new(8, "xdp", 50.0, true, all);
        let text = report.table(Tuning::aggregator()).expect("it has one");
        let table = Tuning::parse(&text).expect("it can be read");
        assert_eq!(table.broadcast.len(), 2, "{text}");
        assert_eq!(table.choose(Kind::Broadcast, 8, 4096).way, Way::Aggregator);
    }
}
