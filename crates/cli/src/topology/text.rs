//! A plan for people.

use std::fmt::{self, Write};

use xdp_agg_topology::analysis::{Cable, End};
use xdp_agg_topology::incremental::Upgrade;
use xdp_agg_topology::{Site, Topology, Tree};

use crate::table::{columns, row};

use super::{Job, Report, Upgrades};

pub(super) fn report(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut text);
    text
}

fn write(report: &Report, to: &mut String) -> fmt::Result {
    let Report { topology, strategy, bytes, traffic, .. } = report;
    writeln!(
        to,
        "{}: {} hosts, {} regions; {strategy}, {} a worker",
        plain(&topology.name),
        topology.world(),
        topology.regions.len(),
        size(*bytes as f64)
    )?;
    if let Some(choice) = &report.choice {
        writeln!(
            to,
            "auto chose {strategy} {}: {}",
            report.topology.costs.origin(),
            choice.reason
        )?;
    }
    match &report.job {
        Some(Job { strategy: Some(strategy), reason }) => {
            writeln!(to, "a job would take {strategy}: {reason}")?;
        }
        Some(Job { strategy: None, reason }) => writeln!(to, "a job would be refused: {reason}")?,
        None => {}
    }
    trees(report, to)?;
    for (index, bare) in report.bare.iter().enumerate() {
        to.push_str(if index == 0 { "\n" } else { "" });
        writeln!(to, "{bare}")?;
    }
    writeln!(to, "\nbytes on the links")?;
    to.push_str(&cables(&traffic.cables));
    writeln!(to, "\ndependency chain: {} messages", traffic.chain)?;
    if let Some(steps) = report.steps {
        writeln!(to, "steps between groups: {steps} = 2(G-1)")?;
    }
    let least = report.least_crossing;
    match least > 0.0 {
        true => writeln!(
            to,
            "out of over-subscribed regions: {} ({:.2} x the least possible)",
            size(traffic.crossing),
            traffic.crossing / least
        )?,
        false => writeln!(to, "no region is over-subscribed")?,
    }
    let by = match traffic.phases.len() {
        0 | 1 => "the fullest link".to_owned(),
        phases => format!("the fullest links of {phases} phases"),
    };
    writeln!(to, "least time, by {by}: {}", seconds(traffic.seconds))?;
    slots(report, to)?;
    writeln!(to, "\ncompared (paper 2, table 1, for this network)")?;
    to.push_str(&comparison(report));
    report.incremental.as_ref().map_or(Ok(()), |upgrades| incremental(upgrades, to))
}

/// Text without what a terminal would obey.
fn plain(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
}

fn trees(report: &Report, to: &mut String) -> fmt::Result {
    for ring in &report.rings {
        let ranks: Vec<_> = ring.iter().map(ToString::to_string).collect();
        writeln!(to, "ring of ranks {}", ranks.join(" "))?;
    }
    let Some(forest) = &report.forest else { return Ok(()) };
    let share = size(report.bytes as f64 / forest.trees.len() as f64);
    writeln!(to, "\n{} trees, each with {share}", forest.trees.len())?;
    for (index, tree) in forest.trees.iter().enumerate() {
        writeln!(to, "tree {index}")?;
        branch(&report.topology, tree, 0, 1, to)?;
    }
    Ok(())
}

fn branch(
    topology: &Topology,
    tree: &Tree,
    node: usize,
    depth: usize,
    to: &mut String,
) -> fmt::Result {
    let site = tree.nodes[node].site;
    let (what, name) = (kind(site), topology.name_of(site));
    let ranks = spans(&tree.nodes[node].ranks);
    writeln!(to, "{:depth$}{what} {name}: ranks {ranks}", "", depth = 2 * depth)?;
    for child in tree.children(node) {
        branch(topology, tree, child, depth + 1, to)?;
    }
    Ok(())
}

const fn kind(site: Site) -> &'static str {
    match site {
        Site::Host(_) => "host",
        Site::Region(_) => "aggregator of",
    }
}

/// `0-3 7` for 0, 1, 2, 3 and 7.
fn spans(ranks: &[u16]) -> String {
    let mut spans: Vec<(u16, u16)> = Vec::new();
    for &rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let text = |(first, last): (u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    if spans.is_empty() {
        return "none of its own".into();
    }
    spans.into_iter().map(text).collect::<Vec<_>>().join(" ")
}

fn cables(cables: &[Cable]) -> String {
    let mut rows = vec![row("LINK|RATE|UP|DOWN|TIME")];
    for cable in cables {
        let what = match cable.end {
            End::Region => "uplink of",
            End::Host => "host",
            End::Aggregator => "aggregator of",
        };
        rows.push(vec![
            format!("{what} {}", cable.name),
            cable.rate.to_string(),
            size(cable.up),
            size(cable.down),
            seconds(cable.seconds()),
        ]);
    }
    columns(&rows)
}

fn slots(report: &Report, to: &mut String) -> fmt::Result {
    if report.demands.is_empty() {
        return Ok(());
    }
    let mut rows = vec![row("AGGREGATOR|TREES|SLOTS|HAS|MISSING")];
    for demand in &report.demands {
        rows.push(vec![
            format!("{} {}", kind(demand.site), demand.name),
            demand.trees.to_string(),
            demand.slots.to_string(),
            demand.has.map_or("?".into(), |has| has.to_string()),
            demand.has.map_or("?".into(), |_| demand.missing().to_string()),
        ]);
    }
    writeln!(to, "\nslots")?;
    to.push_str(&columns(&rows));
    Ok(())
}

fn comparison(report: &Report) -> String {
    let mut rows = vec![row("SCHEME|CROSS-REGION|x LEAST|LEAST|PAPER|CHAIN|=|LINK TIME")];
    for other in &report.table1 {
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        rows.push(vec![
            other.scheme.into(),
            size(other.crossing),
            format!("{:.2}", other.times_least),
            yes(other.is_least()),
            other.paper_says.map_or("-".into(), yes),
            other.formula.into(),
            format!("{:.1}", other.chain).trim_end_matches(".0").into(),
            seconds(other.seconds),
        ]);
    }
    columns(&rows)
}

fn incremental(upgrades: &Upgrades, to: &mut String) -> fmt::Result {
    writeln!(to, "\nwhich region to equip next (paper 3, section III-B); times are estimates")?;
    let mut rows = vec![row("EQUIP|RINA|GROUPS|TIME|GAIN|PS WITH INA|COPIES|TIME|GAIN")];
    let Upgrades { rina, server } = upgrades;
    for step in 0..rina.len().max(server.len()) {
        let mut cells = vec![if step == 0 { "today".into() } else { step.to_string() }];
        for upgrades in [rina, server] {
            cells.extend(upgrade(upgrades.get(step)));
        }
        rows.push(cells);
    }
    to.push_str(&columns(&rows));
    Ok(())
}

fn upgrade(upgrade: Option<&Upgrade>) -> [String; 4] {
    let Some(Upgrade { name, seconds: time, gain, count, .. }) = upgrade else {
        return Default::default();
    };
    [name.clone(), count.to_string(), seconds(*time), format!("{gain:.2}x")]
}

fn size(bytes: f64) -> String {
    match bytes {
        0.0 => "0".into(),
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.2} KiB", b / 1024.0),
        b => format!("{:.2} MiB", b / 1024.0 / 1024.0),
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 1e-3 {
        format!("{:.1} us", seconds * 1e6)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_as_spans() {
        assert_eq!(spans(&[0, 1, 2, 3, 7]), "0-3 7");
        assert_eq!(spans(&[5]), "5");
        assert_eq!(spans(&[]), "none of its own");
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(size(97.0 * 1048576.0), "97.00 MiB");
        assert_eq!(size(1536.0), "1.50 KiB");
        assert_eq!(size(12.0), "12 B");
        assert_eq!(seconds(0.0815), "81.50 ms");
        assert_eq!(seconds(12e-6), "12.0 us");
    }
}
