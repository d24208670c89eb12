//! Instructions of a kernel program as text, so that two builds can be compared.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::output;

/// Lines of a difference that are shown.
const SHOWN: usize = 40;

/// The instructions and relocations of an object.
pub(crate) fn disassemble(objdump: &Path, object: &Path) -> Result<Vec<String>> {
    if !object.is_file() {
        bail!("{} is not there; `cargo xtask build-ebpf` makes it", object.display());
    }
    let text = output(Command::new(objdump).args(["-d", "-r", "--no-show-raw-insn"]).arg(object))?;
    Ok(text.lines().filter(|line| !line.contains("file format")).map(without_hash).collect())
}

/// A line without the hashes in mangled names, which depend on where the repository lies.
fn without_hash(line: &str) -> String {
    const HASH: usize = 16;
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("17h") {
        let (before, after) = rest.split_at(at + 3);
        clean.push_str(before);
        let is_hash = after.len() >= HASH
            && after.as_bytes()[..HASH].iter().all(u8::is_ascii_hexdigit)
            && after[HASH..].starts_with('E');
        rest = if is_hash { &after[HASH..] } else { after };
    }
    clean.push_str(rest);
    clean
}

/// The head of the difference between two disassemblies; None where they are the same.
pub(crate) fn difference(old: &[String], new: &[String]) -> Option<String> {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    if same == old.len() && same == new.len() {
        return None;
    }
    let context = same.saturating_sub(3);
    let mut text = format!("from line {} ({} lines, now {}):", same + 1, old.len(), new.len());
    for line in &old[context..same] {
        text.push_str(&format!("\n  {line}"));
    }
    for (sign, lines) in [('-', old), ('+', new)] {
        for line in lines.iter().skip(same).take(SHOWN / 2) {
            text.push_str(&format!("\n{sign} {line}"));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_changed_instruction_is_shown_and_no_change_is_none() {
        let old = lines("a\nb\nr0 = 1\nexit");
        assert_eq!(difference(&old, &old), None);
        let shown = difference(&old, &lines("a\nb\nr0 = 2\nexit")).expect("they differ");
        assert!(shown.contains("- r0 = 1") && shown.contains("+ r0 = 2"), "{shown}");
        let shown = difference(&old, &lines("a\nb\nr0 = 1")).expect("the end is missing");
        assert!(shown.contains("- exit"), "{shown}");
    }

    #[test]
    fn hashes_of_names_do_not_count() {
        assert_eq!(
            without_hash("call _ZN4core5panic17h0123456789abcdefE"),
            without_hash("call _ZN4core5panic17hfedcba9876543210E"),
        );
        assert_eq!(without_hash("r17h = 5"), "r17h = 5");
    }
}
