//! What pytest says at its end.

use crate::test::Tally;

/// The counts of pytest's closing line, `=== 3 passed, 1 skipped in 0.12s ===` with or without the
/// frame and colours; nothing if it is another line.
pub(super) fn closing_line(line: &str) -> Option<Tally> {
    let plain = without_colours(line);
    let text = plain.trim_matches(['=', ' ']);
    let (counts, time) = text.rsplit_once(" in ")?;
    // `61.20s (0:01:01)`, where it took long.
    let seconds = time.split(' ').next()?.strip_suffix('s')?;
    seconds.parse::<f64>().ok()?;
    let mut tally = Tally::default();
    if counts == "no tests ran" {
        return Some(tally);
    }
    for part in counts.split(", ") {
        let (number, what) = part.split_once(' ')?;
        let number = number.parse::<u64>().ok()?;
        match what {
            "passed" | "xpassed" => tally.passed += number,
            // An error is a failure before or after the test itself.
            "failed" | "error" | "errors" => tally.failed += number,
            // What is expected to fail shows nothing either way.
            "skipped" | "xfailed" => tally.skipped += number,
            "deselected" | "warning" | "warnings" | "rerun" => {}
            _ => return None,
        }
    }
    Some(tally)
}

/// The test that a line of pytest's summary names as failed: `FAILED tests/a.py::test - why`.
pub(super) fn failed_test(line: &str) -> Option<String> {
    let plain = without_colours(line);
    let rest = plain.strip_prefix("FAILED ").or(plain.strip_prefix("ERROR "))?;
    let name = rest.split_once(" - ").map_or(rest, |(name, _)| name).trim();
    name.contains(".py").then(|| name.to_owned())
}

/// Leaves out the terminal's control sequences: escape, bracket, anything, letter.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut parts = line.split("\u{1b}[");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(line: &str) -> Option<(u64, u64, u64)> {
        closing_line(line).map(|tally| (tally.passed, tally.failed, tally.skipped))
    }

    #[test]
    fn closing_lines_are_counted() {
        let framed =
            "=========== 1 failed, 12 passed, 3 skipped, 1 warning in 61.20s (0:01:01) ====";
        assert_eq!(counts(framed), Some((12, 1, 3)));
        assert_eq!(counts("3 passed in 0.01s"), Some((3, 0, 0)));
        assert_eq!(counts("1 passed, 1 xfailed, 2 errors in 0.50s"), Some((1, 2, 1)));
        assert_eq!(counts("===== 2 deselected in 0.02s ====="), Some((0, 0, 0)));
        assert_eq!(counts("======= no tests ran in 0.00s ======="), Some((0, 0, 0)));
    }

    #[test]
    fn closing_lines_are_counted_in_colour() {
        let line = "\u{1b}[31m===== \u{1b}[31m\u{1b}[1m1 failed\u{1b}[0m, \u{1b}[32m2 passed\
                    \u{1b}[0m\u{1b}[31m in 0.03s\u{1b}[0m\u{1b}[31m =====\u{1b}[0m";
        assert_eq!(counts(line), Some((2, 1, 0)));
    }

    #[test]
    fn failed_tests_are_named() {
        let name = |line| failed_test(line);
        let told = "FAILED tests/test_a.py::test_b[stopped-1] - AssertionError: a - b";
        assert_eq!(name(told).as_deref(), Some("tests/test_a.py::test_b[stopped-1]"));
        let told = "ERROR tests/test_a.py";
        assert_eq!(name(told).as_deref(), Some("tests/test_a.py"));
        let told = "\u{1b}[31mFAILED\u{1b}[0m tests/test_a.py::\u{1b}[1mtest_b\u{1b}[0m - x";
        assert_eq!(name(told).as_deref(), Some("tests/test_a.py::test_b"));
        for line in ["FAILED to connect", "E   FAILED tests/a.py::b", "SKIPPED [1] tests/a.py:9"] {
            assert_eq!(name(line), None, "{line}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "collected 3 items",
            "tests/test_import.py ...                      [100%]",
            "=== short test summary info ===",
            "FAILED tests/test_a.py::test_b - assert 1 passed in 2s",
            "the daemon was there in 0.5s",
            "3 passed in time",
            "3 passed in",
        ] {
            assert_eq!(counts(line), None, "{line}");
        }
    }
}
