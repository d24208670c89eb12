//! What was measured, as a person reads it: rows, savings, efficiency, and the paper's figures
//! beside them. The same tables are printed and go into the report.

use xdp_agg_workloads::Network;
use xdp_agg_workloads::claims::{self, Verdict};
use xdp_agg_workloads::model::System;

use super::super::row::said;
use super::row::{Kind, Row};

/// A table: names of columns, and rows of as many cells.
pub(crate) struct Table {
    pub(crate) heading: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Columns of [`line()`].
pub(crate) const HEADING: [&str; 19] = [
    "system",
    "s x n",
    "compute",
    "time",
    "min",
    "max",
    "exposed",
    "bound",
    "time/bound",
    "paper",
    "out/K",
    "out/copy",
    "link",
    "idle",
    "cpu",
    "limit",
    "drops",
    "wrong",
    "caps",
];

/// What the columns of [`HEADING`] mean.
pub(crate) const LEGEND: &str = "\
compute, time, min, max, exposed: ms of an iteration (median, spread), and its part that is not \
computation; a + says that buckets are summed during the backward pass. bound: ms that the \
busiest direction of a link needs at its rate; paper: ms by equations (1) to (4), one direction \
after the other; out/K: bytes on the wire out of a host over those of one gradient; out/copy: \
the same over one gradient and the headers of its blocks; link: share of its rate that the \
busiest direction carried while nothing but communication went on; idle: share of the \
processors' time; cpu: ms of processor time of the whole machine an iteration; limit: link (90 % \
of its rate), machine (idle below 10 %), compute (it hides communication) or neither; drops: \
packets that all links' queues dropped, in all rows of the system and setting together; caps: no \
link carried more than its rate";

/// One row's cells.
pub(crate) fn line(row: &Row) -> Vec<String> {
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let least = row.times_s.iter().copied().fold(f64::INFINITY, f64::min);
    let most = row.times_s.iter().copied().fold(0.0, f64::max);
    let compute = match row.kind() {
        Kind::Overlapped => format!("{}+", ms(row.compute_s)),
        Kind::Communication | Kind::After => ms(row.compute_s),
    };
    vec![
        row.label(),
        format!("{}x{}", row.hosts, row.processes),
        compute,
        ms(row.time_s),
        ms(least),
        ms(most),
        ms(row.exposed_s),
        optional(row.bound_s.map(ms)),
        optional(row.times_bound().map(|times| format!("{times:.2}"))),
        optional(row.paper_s.map(ms)),
        format!("{:.3}", row.host_out_bytes / row.bytes as f64),
        format!("{:.3}", row.host_out_bytes / row.one_copy_bytes),
        optional(row.link_share.map(percent)),
        percent(row.idle_share),
        ms(row.cpu_s),
        row.limit.to_owned(),
        optional(row.drops.map(|drops| drops.to_string())),
        row.wrong.to_string(),
        said(row.caps_kept).to_owned(),
    ]
}

/// A line of a table of fixed widths.
pub(crate) fn aligned(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const WIDTHS: [usize; 19] = [13, 6, 9, 9, 9, 9, 9, 9, 11, 9, 7, 9, 6, 6, 9, 9, 7, 6, 5];
    let mut text = String::new();
    for (cell, width) in cells.into_iter().zip(WIDTHS) {
        let cell = cell.as_ref();
        text +=
            &if text.is_empty() { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
    }
    text
}

/// What PASSING and PSRing save of each other system's time, a row a setting and kind.
pub(crate) fn savings(rows: &[Row]) -> Table {
    let mut table = Table {
        heading: vec![
            "workload",
            "s x n",
            "iterations",
            "system",
            "over",
            "saved",
            "by the bounds",
            "by equations (1) to (4)",
        ],
        rows: Vec::new(),
    };
    for fast in rows.iter().filter(|row| row.system.reduces_in_host()) {
        for slow in rows.iter().filter(|row| row.compares_with(fast)) {
            let worth = slow.system != fast.system
                && !(fast.system == System::Psring && slow.system != System::Ps);
            if worth {
                let bounds = fast.modelled_saving_over(slow, |row| row.bound_s);
                let equations = fast.modelled_saving_over(slow, |row| row.paper_s);
                table.rows.push(vec![
                    fast.workload.clone(),
                    format!("{}x{}", fast.hosts, fast.processes),
                    fast.kind().name().to_owned(),
                    fast.label(),
                    slow.label(),
                    percent_or_dash(Some(fast.saving_over(slow))),
                    percent_or_dash(bounds),
                    percent_or_dash(equations),
                ]);
            }
        }
    }
    table
}

/// Scaling efficiency: speed-up over one process, over the number of processes.
pub(crate) fn efficiencies(rows: &[Row]) -> Table {
    let mut heading = vec!["workload", "s x n", "iterations"];
    heading.extend(System::ALL.map(System::name));
    let mut table = Table { heading, rows: Vec::new() };
    let computing = |row: &&Row| row.efficiency.is_some();
    let mut done: Vec<&Row> = Vec::new();
    for row in rows.iter().filter(computing) {
        if done.iter().any(|other| other.compares_with(row)) {
            continue;
        }
        done.push(row);
        let mut cells = vec![
            row.workload.clone(),
            format!("{}x{}", row.hosts, row.processes),
            row.kind().name().to_owned(),
        ];
        cells.extend(System::ALL.map(|system| {
            let found = find(rows, row, system).and_then(|row| row.efficiency);
            percent_or_dash(found.map(|value| value * 100.0))
        }));
        table.rows.push(cells);
    }
    table
}

/// Figures 4 to 6: computation, what communication adds to it, and speed-up over one process. Of
/// clusters with iterations that communicate after the paper's computation.
pub(crate) fn speed_ups(rows: &[Row]) -> Table {
    let mut table = Table {
        heading: vec![
            "workload",
            "s x n",
            "system",
            "computation, ms",
            "communication, ms",
            "speed-up",
            "by equations (1) to (4)",
            "paper, all cases",
            "verdict",
        ],
        rows: Vec::new(),
    };
    let gbits = Some(claims::EFFICIENCY_GBITS);
    let of = |row: &&Row| row.kind() == Kind::After && row.paper_gbits == gbits;
    for row in rows.iter().filter(of) {
        let world = f64::from(row.world());
        let speed_up = |time_s: f64| world * row.compute_s / time_s;
        let (ours, modelled) = (speed_up(row.time_s), row.paper_s);
        let alone = row.world() == 1;
        let modelled =
            modelled.map(|sync| speed_up(row.compute_s + if alone { 0.0 } else { sync }));
        let claim = claims::speed_ups().iter().find(|claim| claim.accelerators == row.world());
        // The paper has it of PS and the ring.
        let claim = claim.filter(|_| matches!(row.system, System::Ps | System::Ring));
        let said = |claim: &claims::SpeedUp| format!("{} at most", claim.at_most);
        let holds = |claim: &claims::SpeedUp| if ours <= claim.at_most { "yes" } else { "no" };
        table.rows.push(vec![
            row.workload.clone(),
            format!("{}x{}", row.hosts, row.processes),
            row.label(),
            format!("{:.1}", row.compute_s * 1e3),
            format!("{:.1}", row.exposed_s * 1e3),
            format!("{ours:.2}"),
            modelled.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}")),
            claim.map_or_else(|| "-".to_owned(), said),
            claim.map_or("-", holds).to_owned(),
        ]);
    }
    table
}

fn percent_or_dash(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %"))
}

fn find<'a>(rows: &'a [Row], like: &Row, system: System) -> Option<&'a Row> {
    rows.iter().find(|row| row.system == system && row.is_papers() && row.compares_with(like))
}

/// The paper's figures beside ours, for every setting and network that was measured. The verdict
/// is of iterations that communicate after the paper's computation, with links of the claim's rate.
pub(crate) fn claims(rows: &[Row]) -> Table {
    let mut table = Table {
        heading: vec![
            "workload",
            "s x n",
            "claim",
            "paper",
            "by equations (1) to (4)",
            "ours",
            "verdict",
            "ours, communication only",
        ],
        rows: Vec::new(),
    };
    let mut done: Vec<(&str, u16, u16)> = Vec::new();
    for row in rows {
        let key = (row.workload.as_str(), row.hosts, row.processes);
        let Ok(network) = row.workload.parse::<Network>() else { continue };
        if done.contains(&key) {
            continue;
        }
        done.push(key);
        let here = |row: &&Row| (row.workload.as_str(), row.hosts, row.processes) == key;
        let here: Vec<&Row> = rows.iter().filter(here).collect();
        let mut add = |claim: Claim<'_>| {
            let Claim { text, gbits, paper, model, fitted, saved } = claim;
            let after = |row: &Row| row.kind() == Kind::After && row.paper_gbits == Some(gbits);
            let ours = saved(&here, &after);
            let alone = saved(&here, &|row| row.kind() == Kind::Communication);
            let verdict = match ours {
                None => "-",
                Some(_) if fitted => "fitted to it",
                Some(ours) => Verdict::of(paper, ours).name(),
            };
            table.rows.push(vec![
                row.workload.clone(),
                format!("{}x{}", row.hosts, row.processes),
                text,
                format!("{paper} %"),
                percent_or_dash(Some(model)),
                percent_or_dash(ours),
                verdict.to_owned(),
                percent_or_dash(alone),
            ]);
        };
        for claim in claims::savings(network, row.hosts, row.processes) {
            add(Claim {
                text: format!(
                    "time that {} saves over {} (figure {}, {} Gbit/s)",
                    claim.system, claim.over, claim.figure, claim.gbits
                ),
                gbits: claim.gbits,
                paper: claim.percent,
                model: claims::modelled_saving(claim),
                fitted: claim.fitted,
                saved: &|rows, of| {
                    Some(
                        find_in(rows, of, claim.system)?
                            .saving_over(find_in(rows, of, claim.over)?),
                    )
                },
            });
        }
        for claim in claims::efficiencies(network, row.hosts, row.processes) {
            add(Claim {
                text: format!(
                    "passing's scaling efficiency over ps' (figure {}, {} Gbit/s)",
                    claim.figure,
                    claims::EFFICIENCY_GBITS
                ),
                gbits: claims::EFFICIENCY_GBITS,
                paper: claim.percent_over_ps,
                model: claims::modelled_efficiency(claim),
                fitted: true,
                saved: &|rows, of| {
                    let efficiency = |system| find_in(rows, of, system)?.efficiency;
                    Some(100.0 * (efficiency(System::Passing)? / efficiency(System::Ps)? - 1.0))
                },
            });
        }
    }
    table
}

/// What the paper says, and how ours is taken from rows.
struct Claim<'a> {
    text: String,
    /// Rate of the paper's links.
    gbits: u16,
    /// Percent.
    paper: f64,
    /// By equations (1) to (4), with the fitted computation.
    model: f64,
    /// The computation was fitted to it, so it is no evidence.
    fitted: bool,
    /// Ours, of the rows that the second one takes.
    saved: &'a Saved,
}

/// What rows say, of those that a condition takes.
type Saved = dyn Fn(&[&Row], &dyn Fn(&Row) -> bool) -> Option<f64>;

fn find_in<'a>(rows: &[&'a Row], of: &dyn Fn(&Row) -> bool, system: System) -> Option<&'a Row> {
    rows.iter().copied().find(|row| row.system == system && row.is_papers() && of(row))
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::example;
    use super::*;

    fn rows() -> Vec<Row> {
        System::ALL
            .into_iter()
            .zip([2.0, 1.4, 1.25, 1.2, 1.0, 0.8])
            .map(|(system, time_s)| {
                let mut row = example(system);
                (row.hosts, row.processes, row.compute_s, row.time_s) = (4, 4, 0.4, time_s);
                row.paper_gbits = Some(10);
                row.efficiency = Some(row.compute_s / time_s);
                row
            })
            .collect()
    }

    #[test]
    fn a_row_fits_its_heading() {
        assert_eq!(line(&rows()[0]).len(), HEADING.len());
        let text = aligned(HEADING);
        assert!(text.starts_with("system") && text.ends_with("caps") && text.len() > 100);
    }

    #[test]
    fn savings_compare_what_the_paper_compares() {
        let table = savings(&rows());
        // PASSING over the five others, PSRing over the parameter server alone.
        assert_eq!(table.rows.len(), 6);
        let find = |system: &str, over: &str| {
            table.rows.iter().find(|row| row[3] == system && row[4] == over).expect("a row")[5]
                .clone()
        };
        assert_eq!(find("passing", "ps"), "60.0 %");
        assert_eq!(find("psring", "ps"), "30.0 %");
        assert_eq!(find("passing", "switchml"), "36.0 %");
    }

    #[test]
    fn efficiency_is_of_one_process() {
        let table = efficiencies(&rows());
        assert_eq!(table.rows.len(), 1);
        assert_eq!(
            table.rows[0][3..],
            ["20.0 %", "28.6 %", "32.0 %", "33.3 %", "40.0 %", "50.0 %"]
        );
    }

    #[test]
    fn speed_up_is_of_one_process_and_16_make_at_most_10() {
        let table = speed_ups(&rows());
        assert_eq!(table.rows.len(), 6);
        // 16 processes that compute 0.4 s of an iteration of 2 s; the ring's takes 1 s.
        let cells = |system: &str| {
            let row = table.rows.iter().find(|row| row[2] == system).expect("a row");
            [&row[4], &row[5], &row[7], &row[8]].map(String::as_str)
        };
        // What is exposed was not changed with the time.
        assert_eq!(cells("ps")[1..], ["3.20", "10 at most", "yes"]);
        assert_eq!(cells("ring")[1..], ["6.40", "10 at most", "yes"]);
        assert_eq!(cells("passing")[1..], ["8.00", "-", "-"]);
        let mut fast = rows();
        fast[0].time_s = 0.5;
        assert_eq!(speed_ups(&fast).rows[0][5..], ["12.80", "15.35", "10 at most", "no"]);
    }

    #[test]
    fn claims_stand_beside_our_figures() {
        let table = claims(&rows());
        let row = |text: &str| {
            table.rows.iter().find(|row| row[2].contains(text)).expect("it is claimed").clone()
        };
        let psring = row("psring saves over ps (figure 14");
        assert_eq!((&*psring[3], &*psring[5], &*psring[6]), ("36.52 %", "30.0 %", "reproduced"));
        assert_eq!(psring[7], "-", "no row without computation");
        let switchml = row("passing saves over switchml (figure 14");
        assert_eq!(
            (&*switchml[3], &*switchml[5], &*switchml[6]),
            ("9.09 %", "36.0 %", "direction")
        );
        let efficiency = row("scaling efficiency");
        assert_eq!((&*efficiency[5], &*efficiency[6]), ("150.0 %", "fitted to it"));
        // The computation was the one for links of 10 Gbit/s.
        let slow = row("(figure 16, 1 Gbit/s)");
        assert_eq!((&*slow[5], &*slow[6]), ("-", "-"));
        assert!(!table.rows.iter().any(|row| row[3] == "65.25 %"), "that is of 2 x 4");
    }
}
