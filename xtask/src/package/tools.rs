//! Programs that make packages, built once and kept outside of the repository.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, run, step};

/// One of them, in the one version that is used.
pub(super) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// A tool that is there.
pub(super) struct Installed {
    directory: PathBuf,
}

impl Tool {
    pub(super) const DEB: Self = Self { name: "cargo-deb", version: "3.8.0" };
    pub(super) const RPM: Self = Self { name: "cargo-generate-rpm", version: "0.21.1" };
    pub(super) const SBOM: Self = Self { name: "cargo-cyclonedx", version: "0.5.9" };

    /// Finds it, or builds it.
    pub(super) fn ensure(&self) -> Result<Installed> {
        let Self { name, version } = self;
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
            .with_context(|| format!("neither XDG_CACHE_HOME nor HOME is set: where to {name}?"))?;
        let root = cache.join(format!("xdp-agg/{name}-{version}"));
        let directory = root.join("bin");
        // Cargo puts it there when it is whole.
        if !directory.join(name).is_file() {
            step(&format!("building {name} (about a minute, once)"), || {
                run(cargo()
                    // It runs for a second: optimised, it would take longer to build than it saves.
                    .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
                    .env("CARGO_PROFILE_RELEASE_LTO", "off")
                    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                    .args(["install", name, "--version", version, "--locked", "--quiet"])
                    .arg("--root")
                    .arg(&root))
            })?;
        }
        Ok(Installed { directory })
    }
}

impl Installed {
    /// Lets a command find it first.
    pub(super) fn on_path(&self, command: &mut Command) -> Result<()> {
        let mut path = vec![self.directory.clone()];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        command.env("PATH", env::join_paths(path).context("PATH")?);
        Ok(())
    }
}
