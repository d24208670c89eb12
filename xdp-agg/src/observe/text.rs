//! Metrics as text: Prometheus' format, and OpenMetrics.
//!
//! The crate `prometheus-client` writes OpenMetrics alone, and keeps metrics in memory that is
//! updated as things happen. Here all numbers come from one look, and `promtool` and others read
//! the older format.

use std::fmt::{Display, Write as _};

use xdp_agg_common::times::Times;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Goes up, and begins anew with what it counts. Its samples are named `…_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size, their number and their sum.
    Histogram,
}

/// The text, as it is written.
#[derive(Debug)]
pub(super) struct Text {
    out: String,
    open: bool,
    name: &'static str,
    kind: Kind,
}

impl Text {
    pub(super) fn new(open: bool) -> Self {
        Self { out: String::with_capacity(1 << 14), open, name: "", kind: Kind::Gauge }
    }

    /// Begins a family. The name of a counter is given without `_total`.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        (self.name, self.kind) = (name, kind);
        let total = if kind == Kind::Counter && !self.open { "_total" } else { "" };
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name}{total} {help}");
        let _ = writeln!(self.out, "# TYPE {name}{total} {word}");
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit));
        if let Some(unit) = unit.filter(|_| self.open) {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    /// A sample of the family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        self.line(suffix, labels, value);
    }

    /// The samples of a histogram of durations.
    pub(super) fn durations(&mut self, labels: &[(&str, &str)], times: &Times) {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let mut below = 0;
        for (index, count) in times.counts.into_iter().enumerate() {
            below += count;
            let bound = Times::bound(index);
            let bound = bound.map_or_else(|| "+Inf".into(), |bound| seconds(bound).to_string());
            let labels = [labels, &[("le", &bound)]].concat();
            self.line("_bucket", &labels, below);
        }
        self.line("_sum", labels, seconds(times.nanos));
        self.line("_count", labels, below);
    }

    /// A family of one sample.
    pub(super) fn one(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    /// A line of the family, with a suffix to its name.
    pub(super) fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let Self { out, name, .. } = self;
        let _ = write!(out, "{name}{suffix}");
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(out, "{}{label}=\"", if at == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '"' => out.push_str("\\\""),
                    '\n' => out.push_str("\\n"),
                    c => out.push(c),
                }
            }
            out.push('"');
        }
        let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// The whole.
    pub(super) fn finish(mut self) -> String {
        if self.open {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(open: bool) -> String {
        let mut text = Text::new(open);
        text.family("wait_seconds", Kind::Gauge, "How long.");
        text.sample(&[("job", "a\"b\\c\nd"), ("rank", "1")], 0.5);
        text.one("blocks", Kind::Counter, "How many.", 7);
        text.finish()
    }

    #[test]
    fn a_histogram_has_rising_counts_to_infinity() {
        let mut times = Times::default();
        [500, 1500, 1600, u64::MAX >> 20].into_iter().for_each(|nanos| times.note(nanos));
        let mut text = Text::new(true);
        text.family("took_seconds", Kind::Histogram, "How long.");
        text.durations(&[("job", "a")], &times);
        let text = text.finish();
        let lines: Vec<_> = text.lines().collect();
        let head = [
            "# TYPE took_seconds histogram",
            "# UNIT took_seconds seconds",
            "took_seconds_bucket{job=\"a\",le=\"0.000001024\"} 1",
            "took_seconds_bucket{job=\"a\",le=\"0.000002048\"} 3",
        ];
        assert_eq!(lines[1..5], head);
        assert_eq!(lines.len(), 3 + Times::COUNT + 3);
        let end = [
            "took_seconds_bucket{job=\"a\",le=\"4.294967296\"} 3",
            "took_seconds_bucket{job=\"a\",le=\"+Inf\"} 4",
            "took_seconds_sum{job=\"a\"} 17592.186048015",
            "took_seconds_count{job=\"a\"} 4",
            "# EOF",
        ];
        assert_eq!(lines[lines.len() - 5..], end);
    }

    #[test]
    fn both_formats_are_written_as_their_readers_want_them() {
        let plain = "# HELP wait_seconds How long.\n# TYPE wait_seconds gauge\n\
                     wait_seconds{job=\"a\\\"b\\\\c\\nd\",rank=\"1\"} 0.5\n\
                     # HELP blocks_total How many.\n# TYPE blocks_total counter\nblocks_total 7\n";
        assert_eq!(text(false), plain);
        let open = "# HELP wait_seconds How long.\n# TYPE wait_seconds gauge\n\
                    # UNIT wait_seconds seconds\n\
                    wait_seconds{job=\"a\\\"b\\\\c\\nd\",rank=\"1\"} 0.5\n\
                    # HELP blocks How many.\n# TYPE blocks counter\nblocks_total 7\n# EOF\n";
        assert_eq!(text(true), open);
    }
}
