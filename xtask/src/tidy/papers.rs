//! What docs/papers.md says of the papers is held to the repository: each row has a place that is
//! there, a verdict of the list, and a test or command that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use clap::CommandFactory;

use crate::lab::SIMULATED;
use crate::shell::root;

const DOCUMENT: &str = "docs/papers.md";
/// The head of each table whose rows are checked.
const HEAD: [&str; 6] = ["no", "paper", "what it says", "in the code", "verdict", "shown by"];
const VERDICTS: [&str; 6] =
    ["there", "partly", "otherwise", "not reproduced", "not there", "outside"];
/// Verdicts of what no test or command need show.
const ABSENT: [&str; 2] = ["not there", "outside"];
/// The head of the table of counts begins so.
const COUNTS: &str = "rows";

/// The repository: what a page may name.
struct Known<'a> {
    paths: &'a [String],
    read: &'a dyn Fn(&str) -> String,
}

/// What is wrong with the page. `paths`: all files of the repository.
pub(super) fn findings(paths: &[String]) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    check(&read(DOCUMENT), &Known { paths, read: &read })
}

fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_start_matches('|').trim_end_matches('|').split('|').map(str::trim).collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Rows by verdict, for each letter of their numbers.
type Counts = BTreeMap<String, [usize; VERDICTS.len()]>;

fn check(text: &str, known: &Known<'_>) -> Vec<String> {
    let mut errors = Vec::new();
    let mut numbers = BTreeSet::new();
    let mut counts = Counts::new();
    let mut told = Vec::new();
    let mut head: Vec<&str> = Vec::new();
    for (line, row) in (1..).zip(text.lines()) {
        let cells = cells(row);
        if !row.starts_with('|') {
            head.clear();
        } else if head.is_empty() {
            head = cells;
        } else if cells[0].starts_with("---") {
        } else if head[0] == COUNTS {
            told.push((line, cells));
        } else if head == HEAD {
            let number = cells[0];
            let mut wrong = wrong_row(&cells, known, &mut counts);
            if !numbers.insert(number) {
                wrong.push("another row has that number".to_owned());
            }
            let place = format!("{DOCUMENT}:{line}: row {number}");
            errors.extend(wrong.into_iter().map(|what| format!("{place}: {what}")));
        }
    }
    if counts.is_empty() {
        errors.push(format!("{DOCUMENT}: no rows under | {} |", HEAD.join(" | ")));
    }
    errors.extend(wrong_counts(&counts, &told));
    errors
}

fn wrong_row(cells: &[&str], known: &Known<'_>, counts: &mut Counts) -> Vec<String> {
    let [number, paper, says, code, verdict, shown] = *cells else {
        return vec![format!("{} cells; a row has {}", cells.len(), HEAD.len())];
    };
    let mut wrong = Vec::new();
    let letter = number.trim_end_matches(|c: char| c.is_ascii_digit());
    if letter.is_empty() || letter == number {
        wrong.push("its number is a letter of the paper and digits".to_owned());
    }
    if paper.is_empty() || says.is_empty() {
        wrong.push("say where in the paper it stands, and what it says".to_owned());
    }
    let (word, why) = verdict.split_once(": ").unwrap_or((verdict, ""));
    match VERDICTS.iter().position(|known| *known == word) {
        Some(at) => counts.entry(letter.to_owned()).or_default()[at] += 1,
        None => wrong.push(format!("{word:?} is no verdict: {}", VERDICTS.join(", "))),
    }
    if word != VERDICTS[0] && why.is_empty() {
        wrong.push(format!("say why: \"{word}: …\""));
    }
    if quoted(code).is_empty() {
        wrong.push("name a place: `path` or `path::name`".to_owned());
    }
    if quoted(shown).is_empty() && !ABSENT.contains(&word) {
        wrong.push("name a test, `path::name`, or a command that shows it".to_owned());
    }
    wrong.extend(quoted(code).into_iter().filter_map(|place| wrong_place(place, known)));
    wrong.extend(quoted(shown).into_iter().filter_map(|item| wrong_show(item, known)));
    wrong
}

/// Where the table of counts does not say what the rows are.
fn wrong_counts(counts: &Counts, told: &[(usize, Vec<&str>)]) -> Vec<String> {
    let of = |cells: &[&str]| quoted(cells[0]).first().map_or("", |letter| letter).to_owned();
    let missing = counts.keys().filter(|letter| !told.iter().any(|(_, row)| of(row) == **letter));
    let missing = missing.map(|letter| format!("{DOCUMENT}: the rows `{letter}` are not counted"));
    let wrong = told.iter().filter_map(|(line, row)| {
        let right = counts.get(&of(row)).copied().unwrap_or_default().map(|n| n.to_string());
        let is_right = row.get(2..).is_some_and(|cells| cells == right);
        let right = right.join(" | ");
        (!is_right).then(|| format!("{DOCUMENT}:{line}: the counts should be | {right} |"))
    });
    missing.chain(wrong).collect()
}

/// What is wrong with `path` or `path::name::name`.
fn wrong_place(place: &str, known: &Known<'_>) -> Option<String> {
    let mut parts = place.split("::");
    let path = parts.next().unwrap_or_default();
    let below = |name: &String| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    if !known.paths.iter().any(|name| name == path || below(name)) {
        return Some(format!("there is no {path} any more: where did it go?"));
    }
    let text = (known.read)(path);
    let gone = parts.find(|name| !defines(&text, name))?;
    Some(format!("{path} defines no `{gone}` any more: look for its new name or file"))
}

/// Whether a source defines a function, type, constant, module, variant or field of this name.
fn defines(text: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 11] = [
        "fn",
        "struct",
        "enum",
        "trait",
        "const",
        "static",
        "type",
        "mod",
        "macro_rules!",
        "def",
        "class",
    ];
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let is = |word: &str| word.strip_prefix(name).is_some_and(ends);
    text.lines().map(str::trim).filter(|line| !line.starts_with("//")).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let item = words.windows(2).any(|pair| KEYWORDS.contains(&pair[0]) && is(pair[1]));
        let of_type = |rest: &str| ends(rest) && rest.starts_with([',', '(', '{', ' ', ':']);
        let plain = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        item || plain.strip_prefix(name).is_some_and(of_type) && !plain.contains("::")
    })
}

/// What is wrong with a test or a command.
fn wrong_show(item: &str, known: &Known<'_>) -> Option<String> {
    let words: Vec<&str> = item.split_whitespace().collect();
    match words[..] {
        ["cargo", "xtask", ..] | ["xdp-agg", ..] => wrong_command(&words, known),
        ["cargo", ..] => wrong_target(&words, known),
        _ => wrong_place(item, known).or_else(|| wrong_test(item, known)),
    }
}

fn wrong_test(item: &str, known: &Known<'_>) -> Option<String> {
    let (path, name) = item.split_once("::").unwrap_or((item, ""));
    let text = (known.read)(path);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = lines.iter().enumerate().any(|(at, line)| {
        let python = line.starts_with(&format!("def {name}(")) && name.starts_with("test");
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/']));
        let rust = || above.into_iter().any(|line| *line == "#[test]");
        python || line.starts_with(&format!("fn {name}(")) && rust()
    });
    (!is_test).then(|| format!("{item} is no test: `path::name`, or a command, is expected"))
}

/// `cargo run`, `test` or `bench` of a target.
fn wrong_target(words: &[&str], known: &Known<'_>) -> Option<String> {
    let kinds = [("--example", "examples"), ("--bench", "benches"), ("--test", "tests")];
    let named = words.windows(2).find_map(|pair| {
        let (_, folder) = kinds.iter().find(|(option, _)| *option == pair[0])?;
        Some(format!("/{folder}/{}.rs", pair[1]))
    });
    let Some(file) = named else {
        return Some("name the --test, --bench or --example of cargo".to_owned());
    };
    let is_there = known.paths.iter().any(|path| path.ends_with(&file));
    (!is_there).then(|| format!("there is no {file} any more"))
}

/// How many words name a command, and the files that declare its options.
fn command(words: &[&str], known: &Known<'_>) -> Option<(usize, Vec<String>)> {
    let takes = |main: &str, name: &str| (known.read)(main).contains(&format!("{name}::Args"));
    match *words {
        ["cargo", "xtask", "bench", name, ..] if SIMULATED.contains(&name) => {
            let files = ["main.rs", "simulate.rs", "figures/mod.rs"];
            Some((4, files.map(|file| format!("lab/flowsim/src/{file}")).to_vec()))
        }
        ["cargo", "xtask", "bench", name, ..] => takes("lab/scenarios/src/main.rs", name)
            .then(|| (4, vec![format!("lab/scenarios/src/{name}.rs")])),
        ["cargo", "xtask", name, ..] => crate::Cli::command().find_subcommand(name).map(|_| {
            let files = ["xtask/src", "lab/scenarios/src"];
            (3, files.map(|folder| format!("{folder}/{name}.rs")).to_vec())
        }),
        ["xdp-agg", name, ..] => takes("crates/cli/src/main.rs", name)
            .then(|| (2, vec![format!("crates/cli/src/{name}.rs")])),
        _ => None,
    }
}

fn wrong_command(words: &[&str], known: &Known<'_>) -> Option<String> {
    let Some((length, files)) = command(words, known) else {
        return Some(format!("there is no command `{}`: look at its --help", words.join(" ")));
    };
    let text: String = files.iter().map(|file| (known.read)(file)).collect();
    let mut only = "";
    for (at, word) in words.iter().enumerate().skip(length) {
        let Some(option) = word.strip_prefix("--") else { continue };
        let option = option.split('=').next().unwrap_or(option);
        if !text.contains(&format!("{}:", option.replace('-', "_"))) {
            return Some(format!("`{}` has no --{option} any more", words[..length].join(" ")));
        }
        if option == "only" {
            only = words.get(at + 1).unwrap_or(&"");
        }
    }
    let mut figures = only.split(',').filter(|figure| !figure.is_empty());
    let gone = figures.find(|figure| !text.contains(&format!("\"{figure}\"")))?;
    Some(format!("there is no figure {gone} any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| rows | paper | there | partly | otherwise | not reproduced | not there | outside |
|---|---|---|---|---|---|---|---|
| `P` | PASSING | 3 | 1 | 0 | 0 | 1 | 0 |

| no | paper | what it says | in the code | verdict | shown by |
|---|---|---|---|---|---|
| P1 | 4.1 | eq | `a/b.rs::Pool::slot_of`, `a` | there | `a/b.rs::a_pool_is_kept` |
| P2 | 4.2 | eq | `a/b.rs::Ring` | partly: half | `cargo xtask bench figures --only rat-6` |
| P3 | 4.3 | eq | `a/b.rs` | not there: why | – |
| P4 | 4.4 | eq | `a/b.rs::rate` | there: so | `xdp-agg tune --write x`, `a/t.py::test_x` |
| P5 | 4.5 | eq | `a/b.rs` | there | `cargo test --test seeds` |
";
    const CODE: &str = "
/// Not fn in_words() {
pub(crate) struct Pool {
    rate: u32,
}
    pub const fn slot_of(self) {}
enum Way {
    Ring,
}
    #[test]
    fn a_pool_is_kept() {
    fn helper() {}
";

    fn found(page: &str) -> Vec<String> {
        let paths = ["a/b.rs", "a/t.py", "v/tests/seeds.rs"].map(str::to_owned);
        let read = |path: &str| match path {
            "a/b.rs" => CODE.to_owned(),
            "a/t.py" => "def test_x(daemon):\ndef aid():\n".to_owned(),
            "crates/cli/src/main.rs" => "    Tune(tune::Args),\n".to_owned(),
            "crates/cli/src/tune.rs" => "    write: Option<PathBuf>,\n".to_owned(),
            "lab/flowsim/src/main.rs" => "    only: Vec<String>,\n(\"rat-6\", …)".to_owned(),
            _ => String::new(),
        };
        check(page, &Known { paths: &paths, read: &read })
    }

    #[test]
    fn a_page_that_is_true_is_left_alone() {
        assert_eq!(found(PAGE), [""; 0]);
        assert_eq!(found("").len(), 1);
    }

    #[test]
    fn each_breach_is_told_with_its_row() {
        for (from, to, said) in [
            ("| P2 |", "| P1 |", "row P1: another row"),
            ("| P2 |", "| 2 |", "row 2: its number"),
            ("| P2 |", "| P |", "row P: its number"),
            ("| 4.2 |", "| |", "row P2: say where"),
            ("| 4.2 | eq |", "| 4.2 | |", "row P2: say where"),
            ("| 4.2 | eq |", "| 4.2 |", "row P2: 5 cells"),
            ("partly: half", "half", "row P2: \"half\" is no verdict"),
            ("partly: half", "partly", "row P2: say why"),
            ("| `a/b.rs` | not", "| b.rs | not", "row P3: name a place"),
            ("not there: why", "otherwise: why", "row P3: name a test"),
            ("`a/b.rs` | not", "`b.rs` | not", "row P3: there is no b.rs"),
            ("Pool::slot_of", "Pool::slot", "row P1: a/b.rs defines no `slot`"),
            ("Pool::slot_of", "Pond::slot_of", "row P1: a/b.rs defines no `Pond`"),
            ("`a/b.rs::Ring`", "`a/b.rs::in_words`", "row P2: a/b.rs defines no `in_words`"),
            ("a_pool_is_kept", "helper", "row P1: a/b.rs::helper is no test"),
            ("t.py::test_x", "t.py::test_y", "row P4: a/t.py defines no `test_y`"),
            ("t.py::test_x", "t.py::aid", "row P4: a/t.py::aid is no test"),
            ("bench figures", "bench plots", "row P2: there is no command"),
            ("bench figures", "dance", "row P2: there is no command"),
            ("--write", "--draw", "row P4: `xdp-agg tune` has no --draw"),
            ("xdp-agg tune", "xdp-agg sing", "row P4: there is no command"),
            ("rat-6", "rat-8", "row P2: there is no figure rat-8"),
            ("--test seeds", "--test grains", "row P5: there is no /tests/grains.rs"),
            ("cargo test --test seeds", "cargo test seeds", "row P5: name the --test"),
            ("| 3 | 1 |", "| 1 | 3 |", ":3: the counts should be | 3 | 1 | 0 "),
            ("| `P` | PASSING", "| `Q` | PASSING", "the rows `P` are not counted"),
        ] {
            let told = found(&PAGE.replacen(from, to, 1));
            assert!(told.iter().any(|told| told.contains(said)), "{from} → {to}: {told:?}");
        }
    }
}
