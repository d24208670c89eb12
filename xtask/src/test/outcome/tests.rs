use super::*;

/// Two programs with three failures between them, as cargo and libtest print them.
const SINGLE_TESTS: &str = include_str!("failures.txt");

const CRASH: &str = include_str!("crash.txt");

const EXAMPLE: &str = include_str!("doctest.txt");

fn read(parts: &[&str], closing: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in parts.concat().lines().chain([closing]) {
        outcome.read(line);
    }
    outcome
}

const LIB: (&str, &str) = ("-p a --lib", "target/debug/deps/a-3110576fc3c3c96d");
const TEST: (&str, &str) = ("-p a --test t", "target/debug/deps/t-8ec9a6392d3cf4e9");

fn failure((program, executable): (&str, &str), name: &str) -> Failure {
    Failure { program: program.into(), executable: executable.into(), name: name.into() }
}

#[test]
fn closing_lines_are_added_up() {
    let mut outcome = Outcome::default();
    outcome.read("test slot::tests::a_late_duplicate_changes_nothing ... ok");
    outcome.read("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out");
    outcome.read("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured");
    assert_eq!(outcome.tally(0), Tally { passed: 14, failed: 3, skipped: 1 });
    assert_eq!(outcome.tally(2), Tally { passed: 16, failed: 1, skipped: 1 });
}

#[test]
fn each_failed_test_is_known_with_its_program() {
    let outcome = read(&[SINGLE_TESTS], "error: 2 targets failed:");
    let all = [failure(LIB, "tests::bad"), failure(LIB, "tests::sp"), failure(TEST, "it")];
    assert_eq!(outcome.repeatable(), Some(all.as_slice()));
    assert_eq!(all.each_ref().map(Failure::package), ["a"; 3]);
    assert_eq!(outcome.tally(0), Tally { passed: 2, failed: 3, skipped: 1 });
}

#[test]
fn colours_change_nothing() {
    let coloured = SINGLE_TESTS.replace("error:", "\u{1b}[1m\u{1b}[91merror\u{1b}[0m:");
    let coloured = coloured.replace("Running", "\u{1b}[1m\u{1b}[92mRunning\u{1b}[0m");
    let outcome = read(&[&coloured], "\u{1b}[1m\u{1b}[91merror\u{1b}[0m: 2 targets failed:");
    assert_eq!(outcome.repeatable().map(<[_]>::len), Some(3));
}

#[test]
fn what_is_no_single_test_is_not_repeated() {
    let cases = [
        (vec![], "error: could not compile `b` (bin \"b\" test) due to 1 previous error"),
        (vec![CRASH], "error: 1 target failed:"),
        (vec![SINGLE_TESTS, CRASH], "error: 3 targets failed:"),
        (vec![SINGLE_TESTS, EXAMPLE], "error: 3 targets failed:"),
        // Cargo knows of a program that we have not seen, or did not come to its end.
        (vec![SINGLE_TESTS], "error: 3 targets failed:"),
        (vec![SINGLE_TESTS], ""),
    ];
    for (parts, closing) in cases {
        assert_eq!(read(&parts, closing).repeatable(), None, "{parts:?} {closing}");
    }
}

#[test]
fn a_list_of_other_length_than_its_count_is_not_believed() {
    let damaged = SINGLE_TESTS.replace("    tests::sp\n", "a line of another process\n");
    assert_eq!(read(&[&damaged], "error: 2 targets failed:").repeatable(), None);
}

#[test]
fn what_passed_alone_is_named() {
    assert_eq!(told(&[]), "");
    let (bad, it) = (failure(LIB, "tests::bad"), failure(TEST, "it"));
    let text = told(&[bad.to_string(), it.to_string()]);
    assert!(text.contains("2 tests failed beside the others and passed alone"), "{text}");
    assert!(text.contains("    tests::bad (-p a --lib)\n    it (-p a --test t)\n"), "{text}");
    assert!(told(&[bad.to_string()]).contains("1 test failed"));
}
