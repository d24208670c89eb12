//! What is kept of a run, and its tables for documents.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::setting::short_bytes;

/// A run.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Kept {
    pub(super) hosts: u16,
    pub(super) processes: u16,
    /// The links and the aggregator, in words.
    pub(super) links: String,
    pub(super) report: Report,
    pub(super) openmpi: Vec<MpiRow>,
}

/// What rank 0 of `xdp-agg tune` reports, as far as it is used here.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Report {
    /// What the models (1) to (6) are fitted to: `t_s` and `B`.
    pub(super) startup_us: Option<f64>,
    pub(super) bytes_per_s: Option<f64>,
    pub(super) models: Vec<ModelError>,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ModelError {
    pub(super) equation: u8,
    pub(super) of: String,
    pub(super) count: usize,
    pub(super) error: f64,
    pub(super) slower: f64,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) algorithm: String,
    pub(super) chunk: Option<u32>,
    pub(super) k: Option<u32>,
    pub(super) by_model: bool,
    pub(super) copied: bool,
    pub(super) model_us: Option<f64>,
    pub(super) median_us: f64,
    pub(super) p10_us: f64,
    pub(super) p90_us: f64,
    pub(super) best: bool,
    pub(super) chosen: bool,
    pub(super) wrong: u64,
}

impl Row {
    pub(super) fn name(&self) -> String {
        let chunk = self.chunk.map(|chunk| match chunk % 1024 {
            0 => format!(" {}K", chunk >> 10),
            _ => format!(" {chunk}"),
        });
        let parameter = chunk.or_else(|| self.k.map(|k| format!(" {k}"))).unwrap_or_default();
        let by_model = if self.by_model { " (model)" } else { "" };
        let copied = if self.copied { ", copied" } else { "" };
        format!("{}{parameter}{by_model}{copied}", self.algorithm)
    }
}

/// A size by one of MPI_Bcast's ways.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct MpiRow {
    pub(super) algorithm: String,
    pub(super) bytes: u64,
    pub(super) median_us: f64,
}

impl Kept {
    /// Times in microseconds: a row a way, a column a size. The best of a size is bold.
    pub(super) fn times(&self) -> String {
        let rows = || self.report.rows.iter();
        let mut sizes: Vec<u64> = rows().map(|row| row.bytes).collect();
        sizes.dedup();
        let mut ways: Vec<String> = Vec::new();
        // A chunk that the model makes best is another one for each size.
        let way = |row: &Row| match row.by_model {
            true => format!("{}, model's chunk", row.algorithm),
            false => row.name(),
        };
        for name in rows().map(way) {
            if !ways.contains(&name) {
                ways.push(name);
            }
        }
        let mut lines = Vec::new();
        let cells = |cells: Vec<String>| cells.join(" | ");
        let size = |bytes: &u64| short_bytes(*bytes);
        lines.push(format!("way | {}", cells(sizes.iter().map(size).collect())));
        lines.push(vec!["---"; sizes.len() + 1].join("|"));
        for name in &ways {
            let of_size = |bytes: &u64| {
                let row = rows().find(|row| row.bytes == *bytes && way(row) == *name);
                row.map_or_else(
                    || "–".into(),
                    |row| match row.best {
                        true => format!("**{:.0}**", row.median_us),
                        false => format!("{:.0}", row.median_us),
                    },
                )
            };
            lines.push(format!("{name} | {}", cells(sizes.iter().map(of_size).collect())));
        }
        let mut programs: Vec<&str> = Vec::new();
        for row in &self.openmpi {
            if !programs.contains(&&*row.algorithm) {
                programs.push(&row.algorithm);
            }
        }
        for name in programs {
            let of_size = |bytes: &u64| {
                let of_way = |row: &&MpiRow| row.bytes == *bytes && row.algorithm == name;
                let row = self.openmpi.iter().find(of_way);
                row.map_or_else(|| "–".into(), |row| format!("{:.0}", row.median_us))
            };
            lines.push(format!(
                "MPI_Bcast, {name} | {}",
                cells(sizes.iter().map(of_size).collect())
            ));
        }
        table(&lines)
    }

    /// How far the models are off.
    pub(super) fn models(&self) -> String {
        let mut lines = vec!["model | off by | measured over model".into(), "---|---|---".into()];
        for ModelError { equation, of, error, slower, .. } in &self.report.models {
            let (error, slower) = (error * 100.0, slower * 100.0);
            lines.push(format!("({equation}) {of} | {error:.0} % | {slower:+.0} %"));
        }
        table(&lines)
    }
}

fn table(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        let line =
            if line.starts_with("---") { format!("|{line}|") } else { format!("| {line} |") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Each run that is kept has its tables in the document, cell by cell.
    #[test]
    fn the_documentation_has_what_the_command_prints() {
        let measurements = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
        let text = fs::read_to_string(measurements.join("broadcast.md")).expect("the document");
        let files = fs::read_dir(measurements.join("broadcast")).expect("the runs");
        let mut runs = 0;
        for file in files.map(|file| file.expect("a file").path()) {
            let json = fs::read_to_string(&file).expect("a run");
            let kept: Kept = serde_json::from_str(&json).expect("as the command writes it");
            assert!(kept.report.rows.iter().all(|row| row.wrong == 0), "{}", file.display());
            for table in [kept.times(), kept.models()] {
                assert!(text.contains(&table), "{} has\n{table}", file.display());
            }
            let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(text.contains(&format!("(broadcast/{name})")), "{name} is not linked");
            runs += 1;
        }
        assert!(runs > 0);
    }

    #[test]
    fn a_table_has_a_row_a_way_and_a_column_a_size() {
        let row = |bytes, algorithm: &str, chunk, median_us, best| Row {
            bytes,
            algorithm: algorithm.into(),
            chunk,
            k: None,
            by_model: chunk == Some(5000),
            copied: false,
            model_us: None,
            median_us,
            p10_us: 0.0,
            p90_us: 0.0,
            best,
            chosen: false,
            wrong: 0,
        };
        let models = vec![ModelError {
            equation: 3,
            of: "binomial".into(),
            count: 2,
            error: 0.123,
            slower: -0.1,
        }];
        let rows = vec![
            row(4, "binomial", None, 7.4, true),
            row(4096, "binomial", None, 90.0, false),
            row(4096, "pipelined-chain", Some(5000), 80.6, true),
        ];
        let openmpi = vec![MpiRow { algorithm: "default".into(), bytes: 4, median_us: 9.0 }];
        let report = Report { startup_us: None, bytes_per_s: None, models, rows };
        let kept = Kept { hosts: 2, processes: 1, links: String::new(), report, openmpi };
        let expected = "| way | 4 | 4K |\n|---|---|---|\n| binomial | **7** | 90 |\n\
                        | pipelined-chain, model's chunk | – | **81** |\n\
                        | MPI_Bcast, default | 9 | – |\n";
        assert_eq!(kept.times(), expected);
        let expected = "| model | off by | measured over model |\n|---|---|---|\n\
                        | (3) binomial | 12 % | -10 % |\n";
        assert_eq!(kept.models(), expected);
    }
}
