//! `cargo xtask tidy`: rules of style that no compiler checks.
//!
//! Errors: lines over 100 columns (rows of tables in comments may be longer), tabs and blanks at a
//! line's end, leftovers (to-do notes). Lines of Markdown over 100 columns that are neither in a
//! table nor in a block of code. What ships built from what does not, and a table of the crates
//! that is not true ([`graph`]). Rows of docs/papers.md that name what is not there ([`papers`]).
//! Warnings: files over 500 lines, functions over 70 lines; a reader may have a reason to keep one.

mod graph;
mod papers;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::shell::{root, sources};

const WIDTH: usize = 100;
const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

pub(crate) fn main() -> Result<()> {
    let mut findings = Findings::default();
    let paths = sources()?;
    for path in &paths {
        let text = || fs::read_to_string(root().join(path)).with_context(|| path.clone());
        if path.ends_with(".md") {
            findings.errors.extend(wide_prose(path, &text()?));
        } else if path.ends_with(".rs") {
            check(path, &text()?, &mut findings);
        }
    }
    findings.errors.extend(graph::findings()?);
    findings.errors.extend(papers::findings(&paths));
    for warning in &findings.warnings {
        eprintln!("warning: {warning}");
    }
    for error in &findings.errors {
        eprintln!("error: {error}");
    }
    if !findings.errors.is_empty() {
        bail!("{} places are untidy", findings.errors.len());
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Findings {
    warnings: Vec<String>,
    errors: Vec<String>,
}

fn check(path: &str, text: &str, findings: &mut Findings) {
    // Put together here, so that this file is not its own first finding.
    let leftovers = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|[a, b]| format!("{a}{b}"));
    for (i, line) in text.lines().enumerate() {
        let mut report = |what: &str| findings.errors.push(format!("{path}:{}: {what}", i + 1));
        let columns = line.chars().count();
        let is_table_row = line.trim_start().trim_start_matches(['/', '!', ' ']).starts_with('|')
            && line.trim_start().starts_with("//");
        if columns > WIDTH && !is_table_row {
            report(&format!("{columns} columns; {WIDTH} are the limit"));
        }
        if line.contains('\t') {
            report("a tab");
        }
        if line.ends_with(' ') {
            report("blanks at the end");
        }
        if let Some(word) = leftovers.iter().find(|word| line.contains(word.as_str())) {
            report(&format!("{word}: finish it, or write it down where it will be found"));
        }
    }
    let lines = text.lines().count();
    if lines > FILE_LINES {
        findings.warnings.push(format!("{path}: {lines} lines; is there a second file inside?"));
    }
    for (line, name, length) in long_functions(text) {
        findings.warnings.push(format!("{path}:{line}: `{name}` has {length} lines"));
    }
}

/// Lines of prose over the limit.
fn wide_prose(path: &str, text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut errors = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let (start, columns) = (line.trim_start(), line.chars().count());
        is_code ^= start.starts_with("```");
        if columns > WIDTH && !is_code && !start.starts_with('|') {
            errors.push(format!("{path}:{}: {columns} columns; {WIDTH} are the limit", i + 1));
        }
    }
    errors
}

/// Functions over the limit: line, name, length. Relies on rustfmt's layout: a function ends at the
/// first closing brace that is indented like its first line.
fn long_functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let end = lines[i..].iter().position(|line| *line == closing || line.ends_with(';'));
        // A function without a body ends in a semicolon at once; a body's first statement may too.
        let end = match end {
            Some(at) if lines[i + at] == closing => at,
            Some(0) | None => continue,
            Some(_) => match lines[i..].iter().position(|line| *line == closing) {
                Some(at) => at,
                None => continue,
            },
        };
        if end + 1 > FUNCTION_LINES {
            found.push((i + 1, name.to_owned(), end + 1));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let code = line.trim_start();
    if code.starts_with("//") {
        return None;
    }
    let (before, after) = code.split_once("fn ")?;
    let modifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern"];
    let is_item = before.split_whitespace().all(|word| {
        modifiers.contains(&word) || word.starts_with('"') || word.starts_with("pub(in")
    });
    let name = after.split(['(', '<']).next()?;
    (is_item && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_breach() {
        let mut findings = Findings::default();
        let wide = "x".repeat(WIDTH + 1);
        let text = format!("{wide}\n\tfn a() {{}}\nlet b = 1; \n// TO{}: later\n", "DO");
        check("a.rs", &text, &mut findings);
        assert_eq!(findings.errors.len(), 4, "{findings:?}");
        assert!(findings.warnings.is_empty(), "{findings:?}");
        let fine = format!("{}\n", "x".repeat(WIDTH));
        let mut findings = Findings::default();
        check("b.rs", &fine, &mut findings);
        assert!(findings.errors.is_empty(), "{findings:?}");
    }

    #[test]
    fn prose_is_as_wide_as_code() {
        let wide = "x".repeat(WIDTH + 1);
        let fine = format!("{}\n| {wide} |\n```sh\n{wide}\n```\n", &wide[1..]);
        assert!(wide_prose("a.md", &fine).is_empty());
        let found = wide_prose("a.md", &format!("{fine}{wide}\n"));
        assert_eq!(found, ["a.md:6: 101 columns; 100 are the limit"]);
    }

    #[test]
    fn long_functions_are_measured_to_their_own_end() {
        let body = |lines| format!("    pub fn f() {{\n{}    }}\n", "        a();\n".repeat(lines));
        assert!(long_functions(&body(FUNCTION_LINES - 2)).is_empty());
        let found = long_functions(&body(FUNCTION_LINES - 1));
        assert_eq!(found, [(1, "f".to_owned(), FUNCTION_LINES + 1)]);
        assert!(long_functions("fn declared();\n").is_empty());
    }
}
