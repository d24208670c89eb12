//! The package made importable from its sources, with the extension module that cargo has built.
//!
//! `maturin develop` does the same in five seconds, even where nothing has changed. It uses other
//! settings than cargo's, so that PyO3 is built again after it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::sources;
use super::venv::Venv;
use crate::shell::target;

/// Lets the environment import the package, after `build::with_extension`.
pub(super) fn install(venv: &Venv, release: bool) -> Result<()> {
    let package = sources().join("python");
    let profile = if release { "release" } else { "debug" };
    let built = target().join(profile).join("lib_xdp_agg.so");
    let built = fs::read(built).context("what cargo has built")?;
    replace(&package.join("xdp_agg/_xdp_agg.abi3.so"), &built)?;
    let site_packages = venv.site_packages();
    replace(&site_packages.join("xdp_agg.pth"), format!("{}\n", package.display()).as_bytes())?;
    describe(&site_packages)
}

/// Writes down what packages say of themselves: without that PyTorch would not find the backend.
fn describe(site_packages: &Path) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let directory = site_packages.join(format!("xdp_agg-{version}.dist-info"));
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let metadata = format!("Metadata-Version: 2.4\nName: xdp-agg\nVersion: {version}\n");
    replace(&directory.join("METADATA"), metadata.as_bytes())?;
    let project = sources().join("pyproject.toml");
    let project = fs::read_to_string(&project)
        .with_context(|| format!("cannot read {}", project.display()))?;
    replace(&directory.join("entry_points.txt"), entry_points(&project).as_bytes())
}

/// The entry points of a project, as an installed package has them.
fn entry_points(project: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in project.lines().map(str::trim) {
        if line.starts_with('[') {
            let group = line
                .strip_prefix("[project.entry-points.\"")
                .and_then(|rest| rest.strip_suffix("\"]"));
            inside = group.is_some();
            if let Some(group) = group {
                text.push_str(&format!("[{group}]\n"));
            }
        } else if let Some((name, place)) = line.split_once('=').filter(|_| inside) {
            text.push_str(&format!("{} = {}\n", name.trim(), place.trim().trim_matches('"')));
        }
    }
    text
}

/// Writes a file anew, unless it says that already: a process that has loaded the old one keeps it.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let place = || format!("cannot write {}", path.display());
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, content).with_context(place)?;
    fs::rename(&new, path).with_context(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_points_are_those_of_the_project() {
        let project = "[project]\nname = \"a\"\n\n# one\n[project.entry-points.\"x.y\"]\n\
                       b-c = \"d.e:f\"\n\n[tool.maturin]\nstrip = true\n";
        assert_eq!(entry_points(project), "[x.y]\nb-c = d.e:f\n");
        assert_eq!(entry_points("[project]\nname = \"a\"\n"), "");
    }
}
