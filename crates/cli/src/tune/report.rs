//! What was measured, beside the models; and the table that follows from it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics};
use xdp_agg_client::collectives::{self, Algorithm, Kind, Rule, Tuning, Way};
use xdp_agg_mesh::model::{self, Cost, Network};

use super::measure::{Measured, chains};
use crate::table::{columns, row};

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
    /// How far the models' times are from the measured ones, as a share.
    fit_error: Option<f64>,
    /// Broadcasts among the workers that were fitted: those that are not mostly the check.
    fitted: usize,
    /// How far each model is from its broadcasts, with the network that is fitted to all.
    models: Vec<ModelError>,
    /// What pipelined chains alone cost, for chunks.
    chains: Option<Chains>,
    rows: Vec<Row>,
}

/// How far a model is from what it is of.
#[derive(Debug, Serialize)]
struct ModelError {
    /// Its number in the paper, 1 to 6.
    equation: u8,
    /// What is measured.
    of: String,
    /// How many broadcasts.
    count: usize,
    /// The root of the mean square of the relative errors, as a share.
    error: f64,
    /// The mean of measured over model, less one: above 0 they are slower than the model.
    slower: f64,
}

/// `t_s` and `B`.
#[derive(Clone, Copy, Debug, Serialize)]
struct Chains {
    startup_us: f64,
    bytes_per_s: f64,
}

/// One way of one size.
#[derive(Debug, Serialize)]
struct Row {
    collective: &'static str,
    bytes: usize,
    algorithm: &'static str,
    chunk: Option<u32>,
    k: Option<u32>,
    /// The chunk is the one that model (5) makes best.
    by_model: bool,
    /// The root copied the data from other memory first; the model is (6).
    copied: bool,
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
        let points = points(ranks, extra_us, &all);
        let network = model::fit(&points);
        let model_us = |one: &Measured| Some(model_us(ranks, one, network?)? + extra_us);
        let least = |kind: Kind, bytes: usize| {
            let same = all.iter().filter(|one| (one.kind, one.bytes) == (kind, bytes));
            let same = same.filter(|one| !one.copied);
            same.map(Measured::median_us).fold(f64::INFINITY, f64::min)
        };
        let rows = all
            .iter()
            .map(|one| {
                let by = one.choice.way.algorithm();
                let (chunk, k) = (by.and_then(Algorithm::chunk), by.and_then(Algorithm::k));
                let mut tenths = Data::new(one.times_us.clone());
                Row {
                    collective: one.kind.name(),
                    bytes: one.bytes,
                    algorithm: one.choice.way.name(),
                    chunk,
                    k,
                    by_model: one.by_model,
                    copied: one.copied,
                    calls: one.times_us.len(),
                    median_us: one.median_us(),
                    p10_us: tenths.percentile(10),
                    p90_us: tenths.percentile(90),
                    model_us: model_us(one),
                    best: !one.copied && one.median_us() <= least(one.kind, one.bytes),
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
            fit_error: network.map(|network| model::residual(&points, network)),
            fitted: points.len(),
            models: network.map_or_else(Vec::new, |on| errors(ranks, extra_us, &all, on)),
            chains: chains(ranks, extra_us, all.iter()).map(|chains| Chains {
                startup_us: chains.startup_s * 1e6,
                bytes_per_s: chains.bytes_per_s,
            }),
            rows,
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { ranks, engine, check_us, .. } = self;
        let mut text = format!("# {ranks} ranks, aggregator: {engine}; agreeing on a call: ");
        // Writing to a string cannot fail.
        let _ = write!(text, "{check_us:.0} us{}", if self.checked { "" } else { " (left out)" });
        text += "\n# ";
        let fit = (self.startup_us, self.bytes_per_s, self.fit_error);
        let _ = match fit {
            (Some(startup), Some(rate), Some(error)) => write!(
                text,
                "fitted to {} broadcasts: t_s = {startup:.1} us, B = {:.1} MB/s, off by {:.0} %",
                self.fitted,
                rate / 1e6,
                error * 100.0
            ),
            _ => write!(
                text,
                "no model: {} broadcasts do not tell t_s from B; give larger --bytes",
                self.fitted
            ),
        };
        if self.checked {
            text += " (not to those that are half agreeing on the call, or more)";
        }
        for ModelError { equation, of, count, error, slower } in &self.models {
            let (error, slower) = (error * 100.0, slower * 100.0);
            let _ = write!(
                text,
                "\n# model ({equation}), {of}: off by {error:.0} % over {count}; measured is \
                 {slower:+.0} % of it on average"
            );
        }
        if let Some(Chains { startup_us, bytes_per_s }) = self.chains {
            let rate = bytes_per_s / 1e6;
            let _ = write!(
                text,
                "\n# chunks: pipelined chains alone have t_s = {startup_us:.1} us, B = {rate:.1} \
                 MB/s"
            );
        }
        text += "\n# time: median of the calls, each the longest of all ranks'\n\
                 # model: equations (1) to (5), of a tree whose root copies the data first (6), \
                 the copy timed by itself\n# * fastest, < the table's choice, m: the chunk that \
                 model (5) makes best\n";
        let mut rows =
            vec![row("collective|bytes|algorithm|C or k|time us|p10|p90|model us|calls|#wrong|")];
        for one in &self.rows {
            let parameter = one.chunk.or(one.k).map_or_else(|| "-".into(), |p| p.to_string());
            let us = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.0}"));
            let marks = [(one.best, "*"), (one.chosen, "<"), (one.by_model, "m")];
            let mark: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
            let copied = if one.copied { ", copied" } else { "" };
            rows.push(vec![
                one.collective.into(),
                one.bytes.to_string(),
                format!("{}{copied}", one.algorithm),
                parameter,
                format!("{:.0}", one.median_us),
                format!("{:.0}", one.p10_us),
                format!("{:.0}", one.p90_us),
                us(one.model_us),
                one.calls.to_string(),
                one.wrong.to_string(),
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
        if let Some(Chains { startup_us, bytes_per_s }) = self.chains {
            let startup_s = startup_us / 1e6;
            table.network = Some(collectives::Network::of(Network { startup_s, bytes_per_s }));
        }
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
            let rule = Rule::new(Some(self.ranks), up_to, row.way);
            let mut rule = if row.by_model { rule.by_model() } else { rule };
            rule.checked = self.checked;
            match rules.last_mut() {
                Some(last) if last.chooses_like(&rule) => last.up_to = rule.up_to,
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

/// What the model says of this in microseconds, without agreeing on the call.
fn model_us(ranks: u16, one: &Measured, network: Network) -> Option<f64> {
    if !one.copied {
        return Some(cost(ranks, one)?.seconds(network) * 1e6);
    }
    let bytes = one.bytes as f64;
    let copied = bytes / (one.copy_us / 1e6);
    Some(model::staged_knomial(ranks.into(), 2, bytes, copied, network) * 1e6)
}

/// How far each model is from its broadcasts.
fn errors(ranks: u16, extra_us: f64, all: &[Measured], network: Network) -> Vec<ModelError> {
    let mut errors: Vec<(ModelError, f64, f64)> = Vec::new();
    for one in all.iter().filter(|one| tells(one, extra_us)) {
        let Way::Mesh(algorithm) = one.choice.way else { continue };
        let Some(model_us) = model_us(ranks, one, network) else { continue };
        let equation = match algorithm {
            _ if one.copied => 6,
            Algorithm::Direct => 1,
            Algorithm::Chain => 2,
            Algorithm::Binomial | Algorithm::Knomial { .. } => 3,
            Algorithm::ScatterAllGather => 4,
            Algorithm::PipelinedChain { .. } | Algorithm::TopologyChain { .. } => 5,
        };
        let k = algorithm.k().map_or_else(String::new, |k| format!(" {k}"));
        let of = format!("{algorithm}{k}{}", if one.copied { ", copied" } else { "" });
        let us = one.median_us() - extra_us;
        let (square, ratio) = ((model_us / us - 1.0).powi(2), us / model_us);
        match errors.iter_mut().find(|(error, ..)| error.of == of) {
            Some((error, squares, ratios)) => {
                error.count += 1;
                *squares += square;
                *ratios += ratio;
            }
            None => {
                let error = ModelError { equation, of, count: 1, error: 0.0, slower: 0.0 };
                errors.push((error, square, ratio));
            }
        }
    }
    errors.sort_by(|(a, ..), (b, ..)| (a.equation, &a.of).cmp(&(b.equation, &b.of)));
    let mean = |(error, squares, ratios): (ModelError, f64, f64)| {
        let count = error.count as f64;
        ModelError { error: (squares / count).sqrt(), slower: ratios / count - 1.0, ..error }
    };
    errors.into_iter().map(mean).collect()
}

/// Whether this is a broadcast among the workers that tells something of the network. Where
/// agreeing on the call takes as long as the transfer or longer, the difference of the two tells of
/// nothing but noise.
fn tells(one: &Measured, extra_us: f64) -> bool {
    let us = one.median_us() - extra_us;
    one.kind == Kind::Broadcast && us > 0.0 && us >= extra_us
}

/// What the network is fitted to: the broadcasts among the workers without a copy.
fn points(ranks: u16, extra_us: f64, all: &[Measured]) -> Vec<(Cost, f64)> {
    all.iter()
        .filter(|one| tells(one, extra_us) && !one.copied)
        .filter_map(|one| Some((cost(ranks, one)?, (one.median_us() - extra_us) / 1e6)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdp_agg_client::collectives::Choice;

    fn measured(bytes: usize, way: Way, us: f64) -> Measured {
        let choice = Choice::new(way);
        let (kind, times_us, copy_us) = (Kind::Broadcast, vec![us; 3], bytes as f64 / 1e4);
        let (chosen, by_model, copied, wrong) = (false, false, false, 0);
        Measured { kind, bytes, choice, copy_us, times_us, chosen, by_model, copied, wrong }
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

    /// Two ranks at 24 MB/s, 10 us a start. Agreeing takes 87 us; bursts let short messages
    /// through at once.
    #[test]
    fn what_is_mostly_the_check_is_not_fitted() {
        let mesh = [
            Algorithm::Binomial,
            Algorithm::Direct,
            Algorithm::ScatterAllGather,
            Algorithm::PipelinedChain { chunk: 16 << 10 },
            Algorithm::PipelinedChain { chunk: 64 << 10 },
        ];
        let link = Network { startup_s: 1e-5, bytes_per_s: 24e6 };
        let long = |algorithm| model::of(algorithm, 2, 262_144.0).seconds(link) * 1e6 + 87.0;
        let mut all: Vec<_> =
            (0..3).map(|i| measured(4096, Way::Mesh(mesh[i]), [98.0, 101.0, 88.0][i])).collect();
        all.extend(mesh.map(|algorithm| measured(262_144, Way::Mesh(algorithm), long(algorithm))));
        let copied = Measured {
            copied: true,
            ..measured(262_144, Way::Mesh(Algorithm::Binomial), long(Algorithm::Binomial) + 26.2)
        };
        all.push(copied);
        let report = Report::new(2, "xdp", 87.0, true, all);
        assert_eq!(report.fitted, 5);
        let (startup, rate) = (report.startup_us.expect("a fit"), report.bytes_per_s);
        assert!((startup - 10.0).abs() < 0.1 && report.fit_error < Some(0.01), "{startup}");
        assert!((rate.expect("a fit") / 24e6 - 1.0).abs() < 0.01, "{rate:?}");
        let row =
            report.rows.iter().find(|row| (row.bytes, row.algorithm) == (262_144, "binomial"));
        let row = row.expect("it was measured");
        let model = row.model_us.expect("model (3)");
        assert!((model / row.median_us - 1.0).abs() < 0.01, "{model} {}", row.median_us);
        // 10 GB/s in memory: 26 us more.
        let copied = report.rows.iter().find(|row| row.copied).expect("it was measured");
        let more = copied.model_us.expect("model (6)") - model;
        assert!((more - 26.2).abs() < 0.1 && !copied.best, "{more}");
        let equations: Vec<u8> = report.models.iter().map(|error| error.equation).collect();
        assert_eq!(equations, [1, 3, 4, 5, 6], "{:?}", report.models);
        assert!(report.models.iter().all(|m| m.error < 0.01 && m.slower.abs() < 0.01));
        let text = report.text();
        assert!(text.contains("fitted to 5 broadcasts: t_s = 10.0 us, B = 24.0 MB/s, off by 0 %"));
        assert!(text.contains("model (6), binomial, copied: off by 0 % over 1"), "{text}");
        let none = Report::new(2, "xdp", 87.0, true, vec![measured(4096, Way::Ring, 98.0)]);
        assert!(none.text().contains("no model: 0 broadcasts do not tell"));
    }

    /// Where chunks by the model are the fastest, the table names no chunk, and what they follow
    /// from.
    #[test]
    fn the_table_has_the_models_network() {
        let link = Network { startup_s: 5e-5, bytes_per_s: 6e7 };
        let chain = |chunk| Algorithm::PipelinedChain { chunk };
        let sizes = [1 << 20, 4 << 20];
        let us = |bytes: usize, chunk| model::of(chain(chunk), 8, bytes as f64).seconds(link) * 1e6;
        let mut all = Vec::new();
        for bytes in sizes {
            let best = model::best_chunk(8, bytes as f64, link).expect("the model tells");
            let fixed = [16 << 10, 256 << 10].map(|chunk| (chunk, false));
            for (chunk, by_model) in fixed.into_iter().chain([(best, true)]) {
                let one = measured(bytes, Way::Mesh(chain(chunk)), us(bytes, chunk));
                all.push(Measured { by_model, ..one });
            }
        }
        let report = Report::new(8, "xdp", 0.0, false, all);
        let text = report.table(Tuning::default()).expect("it has one");
        let table = Tuning::parse(&text).expect("it can be read");
        let network = table.network.expect("it was fitted");
        assert!(network.startup_ns.abs_diff(50_000) < 50, "{network:?}");
        assert_eq!(table.rules(Kind::Broadcast)[0].chunk, None, "{text}");
        for bytes in sizes {
            let best = model::best_chunk(8, bytes as f64, link);
            let Way::Mesh(way) = table.choose(Kind::Broadcast, 8, bytes as u64).way else {
                panic!("{text}")
            };
            assert_eq!(way.chunk(), best);
        }
        assert!(report.text().contains("chains alone have t_s = 50.0 us, B = 60.0 MB/s"));
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
