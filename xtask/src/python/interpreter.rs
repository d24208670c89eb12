//! The Pythons of this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::setup::{Need, install};
use crate::shell::output;

/// The oldest that the package serves, and PyTorch still does.
pub(super) const OLDEST: (u32, u32) = (3, 11);
/// Names to try beside `python3`, newest first.
const NAMES: [&str; 5] = ["python3.15", "python3.14", "python3.13", "python3.12", "python3.11"];
/// Prints its version and where it is, if it can make environments. One in an environment tells of
/// the one below, which will not vanish with it.
const ASK: &str = "import sys, venv, ensurepip
print(*sys.version_info[:2], getattr(sys, '_base_executable', sys.executable))";

/// An interpreter that can make environments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interpreter {
    pub(super) program: PathBuf,
    /// Major and minor.
    pub(super) version: (u32, u32),
}

impl Interpreter {
    /// Finds one that is new enough, or installs it.
    pub(super) fn ensure() -> Result<Self> {
        if let Some(found) = Self::first() {
            return Ok(found);
        }
        let packages = vec!["python3".to_owned(), "python3-venv".to_owned()];
        install(&[Need { what: "Python 3.11 or newer, with venv", packages }])?;
        match Self::first() {
            Some(found) => Ok(found),
            None => bail!(
                "the system's Python is older than 3.11: put a newer one, with its venv, on the \
                 PATH as python3 or python3.11 …, then run this again"
            ),
        }
    }

    /// One of this very version, on the `PATH` or one of pyenv's.
    pub(super) fn find(version: (u32, u32)) -> Option<Self> {
        let name = format!("python{}.{}", version.0, version.1);
        let on_path = Self::ask(Path::new(&name));
        on_path.into_iter().chain(pyenv(version)).find(|found| found.version == version)
    }

    fn first() -> Option<Self> {
        let names = ["python3"].into_iter().chain(NAMES);
        names.filter_map(|name| Self::ask(Path::new(name))).find(|found| found.version >= OLDEST)
    }

    /// What a program says of itself, if it is an interpreter and complete.
    fn ask(program: &Path) -> Option<Self> {
        parse(&output(Command::new(program).args(["-I", "-c", ASK])).ok()?)
    }
}

fn parse(text: &str) -> Option<Interpreter> {
    let mut words = text.trim_end().splitn(3, ' ');
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Interpreter { program: words.next()?.into(), version })
}

/// Those that pyenv installed: its names on the `PATH` serve only the version that is chosen.
fn pyenv((major, minor): (u32, u32)) -> impl Iterator<Item = Interpreter> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv"));
    let own = env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home);
    let versions = own.and_then(|own| fs::read_dir(own.join("versions")).ok());
    let entries = versions.into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!("{major}.{minor}.");
    entries
        .filter(move |path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .filter_map(|path| Interpreter::ask(&path.join("bin/python3")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_says_its_version_and_its_place() {
        let found = parse("3 11 /opt/my python/bin/python3\n").expect("it is complete");
        assert_eq!(found.version, (3, 11));
        assert_eq!(found.program, Path::new("/opt/my python/bin/python3"));
        assert_eq!(parse("3 11"), None);
        assert_eq!(parse("Python 2.7.18"), None);
    }
}
