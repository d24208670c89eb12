//! Which crate depends on which: stated once, in ARCHITECTURE.md, and held to what cargo knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::{cargo, output, root};

/// The document with the table, and what stands before and after it there.
const DOCUMENT: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- crates -->";
const END: &str = "<!-- end of crates -->";
/// In the table, of a crate that depends on none.
const NONE: &str = "none";

/// By directory: the directories of the crates that it is built from.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// What is wrong with the graph, or with what is said of it.
pub(super) fn findings() -> Result<Vec<String>> {
    let mut tree = cargo();
    tree.args(["tree", "--quiet", "--workspace", "--edges", "normal,build", "--depth", "1"]);
    tree.args(["--prefix", "depth", "--no-dedupe", "--target", "all", "--all-features"]);
    let real = of_tree(&output(&mut tree)?, root());
    let text = fs::read_to_string(root().join(DOCUMENT)).context(DOCUMENT)?;
    Ok(wrong_ways(&real).into_iter().chain(differences(&real, &of_table(&text))).collect())
}

/// Reads what `cargo tree` prints, a crate and what it depends on in lines of depth 0 and 1.
fn of_tree(text: &str, root: &Path) -> Graph {
    let mut graph = Graph::new();
    let mut crate_of = String::new();
    for line in text.lines() {
        let Some(directory) = directory(line, root) else { continue };
        if line.starts_with('0') {
            graph.entry(directory.clone()).or_default();
            crate_of = directory;
        } else if let Some(needs) = graph.get_mut(&crate_of) {
            needs.insert(directory);
        }
    }
    graph
}

/// The directory in `1xdp-agg v0.1.0 (/repository/xdp-agg) (*)`, from the root of the repository.
fn directory(line: &str, root: &Path) -> Option<String> {
    let mut parts = line.split(['(', ')']).map(Path::new);
    let inside = parts.find_map(|path| path.strip_prefix(root).ok())?;
    Some(inside.to_string_lossy().into_owned())
}

/// Whether a crate ships, or is built into what ships.
fn is_product(directory: &str) -> bool {
    let beside = ["lab/", "verify/"].iter().any(|wing| directory.starts_with(wing));
    !beside && !["tests", "xtask"].contains(&directory)
}

/// Product crates that are built from crates that do not ship.
fn wrong_ways(graph: &Graph) -> Vec<String> {
    let product = graph.iter().filter(|(directory, _)| is_product(directory));
    let edges = product.flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let wrong = edges.filter(|(_, to)| !is_product(to));
    let told = wrong.map(|(from, to)| {
        format!("{from} depends on {to}: what ships is not built from lab/, verify/ or tests/")
    });
    told.collect()
}

/// Reads the table: rows of a directory, what it depends on, and what it is.
fn of_table(text: &str) -> Graph {
    let table = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let rows = table.map_or("", |(table, _)| table).lines();
    let rows = rows.filter_map(|row| {
        let mut cells = row.trim().trim_matches('|').split('|').map(names);
        let directory = cells.next()?.into_iter().next()?;
        Some((directory, cells.next()?))
    });
    rows.collect()
}

/// The names in a cell: what stands between backquotes.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Where the table does not say what is.
fn differences(real: &Graph, told: &Graph) -> Vec<String> {
    let gone = told.keys().filter(|directory| !real.contains_key(*directory));
    let gone = gone.map(|directory| format!("{DOCUMENT}: there is no crate {directory} any more"));
    let wrong = real.iter().filter(|(directory, needs)| told.get(*directory) != Some(needs));
    let wrong = wrong.map(|(directory, needs)| {
        let needs: Vec<String> = needs.iter().map(|name| format!("`{name}`")).collect();
        let needs = if needs.is_empty() { NONE.to_owned() } else { needs.join(", ") };
        format!("{DOCUMENT}: the row of the crate should be: | `{directory}` | {needs} | … |")
    });
    gone.chain(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0xdp-agg v0.1.0 (/r/xdp-agg)
1anyhow v1.0.0
1xdp-agg-common v0.1.0 (/r/crates/common)

0xdp-agg-common v0.1.0 (/r/crates/common)

0xdp-agg-lab v0.1.0 (/r/lab/all)
1xdp-agg v0.1.0 (/r/xdp-agg) (*)
";
    const TABLE: &str = "
before `x` | `y` |
<!-- crates -->
| directory | built from | what |
|---|---|---|
| `xdp-agg` | `crates/common` | the `daemon` |
| `crates/common` | none | both halves |
| `lab/all` | `xdp-agg` | benchmarks |
<!-- end of crates -->
";

    #[test]
    fn the_table_and_cargo_say_the_same() {
        let (real, told) = (of_tree(TREE, Path::new("/r")), of_table(TABLE));
        assert_eq!(real.len(), 3);
        assert_eq!(real, told);
        assert!(wrong_ways(&real).is_empty() && differences(&real, &told).is_empty());
    }

    #[test]
    fn each_difference_is_told() {
        let real = of_tree(TREE, Path::new("/r"));
        for (from, to, said) in [
            ("| none |", "| `xdp-agg` |", "| `crates/common` | none |"),
            ("`crates/common` | the", "none | the", "| `xdp-agg` | `crates/common` |"),
            ("`lab/all`", "`lab/other`", "no crate lab/other"),
            (BEGIN, "", "| `lab/all` | `xdp-agg` |"),
        ] {
            let told = differences(&real, &of_table(&TABLE.replace(from, to)));
            assert!(told.iter().any(|told| told.contains(said)), "{from}: {told:?}");
        }
    }

    #[test]
    fn what_ships_is_built_from_what_ships() {
        for (wing, is_wrong) in [("lab", true), ("verify", true), ("crates", false)] {
            let tree = TREE.replace("crates/common", &format!("{wing}/common"));
            assert_eq!(!wrong_ways(&of_tree(&tree, Path::new("/r"))).is_empty(), is_wrong);
        }
    }
}
