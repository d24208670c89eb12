//! Reads a table from its text. An error names the line that is wrong, and shows it.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use xdp_agg_mesh::{Algorithm, MAX_WORLD};

use super::{Kind, Network, Rule, Tuning, Way};

/// Fewest bytes of a chunk: below, a call is nothing but messages.
const MIN_CHUNK: u32 = 1 << 10;
/// Of longer lines nothing is shown.
const SHOWN: usize = 120;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    broadcast: Option<Spanned<Vec<RawRule>>>,
    reduce: Option<Spanned<Vec<RawRule>>>,
    reduce_scatter: Option<Spanned<Vec<RawRule>>>,
    all_gather: Option<Spanned<Vec<RawRule>>>,
    all_reduce: Option<Spanned<Vec<RawRule>>>,
    network: Option<RawNetwork>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawNetwork {
    startup_ns: u64,
    bytes_per_s: Spanned<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawRule {
    ranks: Option<Spanned<u16>>,
    up_to: Option<Spanned<u64>>,
    algorithm: Spanned<String>,
    chunk: Option<Spanned<u32>>,
    k: Option<Spanned<u32>>,
    checked: Option<bool>,
}

pub(super) fn table(text: &str) -> Result<Tuning, String> {
    let reader = Reader { text };
    let file: File = toml::from_str(text).map_err(|error| {
        let problem = error.message().trim().replace('\n', ", ");
        reader.fault(&error.span().unwrap_or_default(), problem)
    })?;
    let File { broadcast, reduce, reduce_scatter, all_gather, all_reduce, network } = file;
    let mut table = Tuning::default();
    for (kind, rules) in [
        (Kind::Broadcast, broadcast),
        (Kind::Reduce, reduce),
        (Kind::ReduceScatter, reduce_scatter),
        (Kind::AllGather, all_gather),
        (Kind::AllReduce, all_reduce),
    ] {
        if let Some(rules) = rules {
            *table.rules_mut(kind) = reader.rules(kind, &rules)?;
        }
    }
    if let Some(RawNetwork { startup_ns, bytes_per_s }) = network {
        let (rate, span) = (*bytes_per_s.get_ref(), bytes_per_s.span());
        if rate == 0 {
            return Err(reader.fault(&span, "bytes-per-s = 0: expected more than 0"));
        }
        table.network = Some(Network { startup_ns, bytes_per_s: rate });
    }
    Ok(table)
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn rules(&self, kind: Kind, raw: &Spanned<Vec<RawRule>>) -> Result<Vec<Rule>, String> {
        if raw.get_ref().is_empty() && kind != Kind::AllReduce {
            let problem = format!("{kind} has no rules: give one, or leave it out");
            return Err(self.fault(&raw.span(), problem));
        }
        let mut rules = Vec::new();
        let mut lines = HashMap::new();
        for raw in raw.get_ref() {
            let rule = self.rule(kind, raw)?;
            let span = raw.up_to.as_ref().map(Spanned::span);
            let span = span.or_else(|| raw.ranks.as_ref().map(Spanned::span));
            let span = span.unwrap_or_else(|| raw.algorithm.span());
            if let Some(first) = lines.insert((rule.ranks, rule.up_to), self.line(&span)) {
                let problem = format!(
                    "a second rule of {kind} for the same `ranks` and `up-to`, the first is in \
                     line {first}: change one, or leave it out"
                );
                return Err(self.fault(&span, problem));
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn rule(&self, kind: Kind, raw: &RawRule) -> Result<Rule, String> {
        let RawRule { ranks, up_to, algorithm, chunk, k, checked } = raw;
        let way: Way = algorithm
            .get_ref()
            .parse()
            .map_err(|problem| self.fault(&algorithm.span(), problem))?;
        if let Some(problem) = way.problem(kind) {
            return Err(self.fault(&algorithm.span(), problem));
        }
        if let Some(none) = ranks.as_ref().filter(|ranks| *ranks.get_ref() == 0) {
            let problem = "ranks = 0: expected 1 or more; without it a rule is for any number";
            return Err(self.fault(&none.span(), problem));
        }
        let by = way.algorithm();
        let has_chunk = by.and_then(Algorithm::chunk).is_some();
        let has_k = by.and_then(Algorithm::k).is_some();
        self.parameter("chunk", chunk.as_ref(), has_chunk.then_some(MIN_CHUNK..=u32::MAX), way)?;
        self.parameter("k", k.as_ref(), has_k.then_some(2..=u32::from(MAX_WORLD)), way)?;
        let (chunk, k) = (chunk.as_ref().map(value), k.as_ref().map(value));
        Ok(Rule {
            ranks: ranks.as_ref().map(value),
            up_to: up_to.as_ref().map(value),
            algorithm: way.with(chunk, k),
            chunk,
            k,
            checked: checked.unwrap_or(true),
        })
    }

    /// Whether the way has this parameter, and it is in its range.
    fn parameter(
        &self,
        name: &str,
        given: Option<&Spanned<u32>>,
        range: Option<std::ops::RangeInclusive<u32>>,
        way: Way,
    ) -> Result<(), String> {
        let Some(given) = given else { return Ok(()) };
        let (value, span) = (given.get_ref(), given.span());
        let Some(range) = range else {
            let of = Algorithm::ALL.into_iter().filter(|algorithm| match name {
                "chunk" => algorithm.chunk().is_some(),
                _ => algorithm.k().is_some(),
            });
            let of: Vec<_> = of.map(Algorithm::name).collect();
            let problem = format!(
                "{way} has no `{name}`, only {} has: leave it out, or choose that",
                of.join(" or ")
            );
            return Err(self.fault(&span, problem));
        };
        if range.contains(value) {
            return Ok(());
        }
        let expected = match name {
            "chunk" => format!("{MIN_CHUNK} bytes or more"),
            _ => format!("2 to {MAX_WORLD}, the most ranks that there can be"),
        };
        Err(self.fault(&span, format!("{name} = {value}: expected {expected}")))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(span.start);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    /// The problem with its line, and the line with what is wrong in it underlined.
    fn fault(&self, span: &Range<usize>, problem: impl Display) -> String {
        let number = self.line(span);
        let fault = format!("line {number}: {problem}");
        // Text missing at the end is shown on an empty line of its own.
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        let at = before.len() - start;
        let marked = span.len().clamp(1, (line.len().saturating_sub(at)).max(1));
        let (Some(before), true) = (line.get(..at), line.len() <= SHOWN) else { return fault };
        let width = line.get(at..at + marked).map_or(1, |marked| marked.chars().count().max(1));
        let shown: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let margin = " ".repeat(number.to_string().len());
        let (blank, carets) = (" ".repeat(before.chars().count()), "^".repeat(width));
        format!("{fault}\n{margin} |\n{number} | {shown}\n{margin} | {blank}{carets}")
    }
}

fn value<T: Copy>(given: &Spanned<T>) -> T {
    *given.get_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        let chain = "[[broadcast]]\nalgorithm = \"pipelined-chain\"\n";
        let tree = "[[broadcast]]\nalgorithm = \"knomial\"\n";
        for (text, line, said) in [
            ("[[broadcast]]\nalgorithm = \"tree\"".into(), 2, "binomial, knomial"),
            ("[[broadcast]]\nalgorithm = \"ring\"".into(), 2, "broadcast does not go by ring"),
            ("[[reduce]]\nranks = 2\nalgorithm = \"ring\"".into(), 3, "reduce does not go by ring"),
            ("[[all-gather]]\nalgorithm = \"chain\"".into(), 2, "choose aggregator or ring"),
            ("[[all-reduce]]\nalgorithm = \"binomial\"".into(), 2, "choose aggregator or ring"),
            ("[[reduce]]\nalgorithm = \"scatter-all-gather\"".into(), 2, "a tree"),
            ("[[broadcast]]\nalgorithm = \"chain\"\nsize = 4".into(), 3, "unknown field `size`"),
            ("[[broadcast]]\nranks = 2".into(), 1, "missing field `algorithm`"),
            (format!("{chain}chunk = 0"), 3, "chunk = 0: expected 1024 bytes or more"),
            (format!("{chain}chunk = 1023"), 3, "chunk = 1023: expected 1024"),
            (format!("{tree}k = 1"), 3, "k = 1: expected 2 to 512"),
            (format!("{tree}k = 513"), 3, "k = 513: expected 2 to 512, the most ranks"),
            (format!("{tree}k = 4294967295"), 3, "k = 4294967295: expected 2 to 512"),
            (format!("{tree}chunk = 4096"), 3, "only pipelined-chain or topology-chain has"),
            (format!("{chain}k = 4"), 3, "pipelined-chain has no `k`, only knomial has"),
            ("[[all-reduce]]\nalgorithm=\"ring\"\nchunk=4096".into(), 3, "ring has no `chunk`"),
            (format!("{tree}ranks = 0"), 3, "ranks = 0: expected 1 or more"),
            (format!("{tree}ranks = 70000"), 3, "invalid value"),
            (format!("{tree}ranks = 2\n{chain}ranks = 2"), 6, "`up-to`, the first is in line 3"),
            (format!("{tree}up-to = 2\n{chain}up-to = 2"), 6, "a second rule of broadcast for the"),
            (format!("{tree}{chain}"), 4, "the first is in line 2: change one, or leave it out"),
            ("broadcast = []".into(), 1, "broadcast has no rules: give one"),
            ("[[bcast]]\nalgorithm = \"chain\"".into(), 1, "unknown field `bcast`"),
            ("[[broadcast]".into(), 1, "line 1"),
            ("algorithm = \"\"\"\n".into(), 2, "invalid multi-line basic string"),
        ] {
            let error = table(&text).expect_err(&text);
            assert!(error.starts_with(&format!("line {line}: ")), "{text}: {error}");
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn the_line_is_shown() {
        let error = table("# k\n[[broadcast]]\nalgorithm = \"knomial\"\nk =  1 # é\n");
        let shown = "line 4: k = 1: expected 2 to 512, the most ranks that there can be\n  \
                     |\n4 | k =  1 # é\n  |      ^";
        assert_eq!(error, Err(shown.into()));
        let error = table("[[broadcast]]\nalgorithm\t= \"ring\"").expect_err("no ring");
        assert!(
            error.ends_with("\n  |\n2 | algorithm = \"ring\"\n  |             ^^^^^^"),
            "{error}"
        );
        let long = format!("[[broadcast]]\nalgorithm = \"{}\"", "x".repeat(200));
        assert_eq!(table(&long).expect_err("no way").lines().count(), 1);
        // Text that ends in the middle of it, or has odd characters, must not cause a panic.
        let text = "[[broadcast]]\nalgorithm = \"é\"\nk = 9\r\n\u{0}[[reduce]]\nalgorithm = 'ring'";
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            drop(table(&text[..end]));
        }
    }

    #[test]
    fn limits_belong_to_the_range() {
        let text = "[[broadcast]]\nranks = 1\nalgorithm = \"knomial\"\nk = 512\n\
                    [[broadcast]]\nalgorithm = \"topology-chain\"\nchunk = 1024\nchecked = false\n";
        let table = table(text).expect("it is one");
        assert_eq!(table.broadcast[0].k, Some(512));
        assert_eq!(table.broadcast[1].chunk, Some(1024));
        assert!(table.broadcast[0].checked && !table.broadcast[1].checked);
    }
}
