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
