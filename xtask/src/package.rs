//! `cargo xtask package`: what administrators install: a .deb, an .rpm and a tarball, with a list
//! of what is inside (SBOM) and checksums.
//!
//! The .deb and the .rpm are described in `crates/cli/Cargo.toml`, for cargo-deb and
//! cargo-generate-rpm. What they need besides sources is made under `target/packaging`: manual
//! pages, completions, the changelog. The same sources and toolchain make the same files: every
//! date in them is that of the last commit, or SOURCE_DATE_EPOCH.

mod check;
mod publish;
mod root;
mod stage;
mod tarball;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Need, install};
use crate::shell::{cargo, output, root, run, say, step, target, which};
pub(crate) use check::main as check_sources;
use stage::Stage;
use tools::Tool;

/// The package whose program and manifest this is about.
const PACKAGE: &str = "xdp-agg-cli";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The version that the packages bear [default: that of the workspace]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Where the packages go [default: target/packages]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The .deb and the tarball alone, of the program in target/debug as it is: what tests install.
    #[arg(long)]
    debug: bool,
    /// With --debug: the .rpm, too.
    #[arg(long, requires = "debug")]
    rpm: bool,
    /// Of the program in target/dist as it is.
    #[arg(long, conflicts_with = "debug")]
    no_build: bool,
    /// Check the files under packaging, as CI does, and make nothing.
    #[arg(long, conflicts_with_all = ["debug", "publish"])]
    check: bool,
    /// Also try, without publishing, what crates.io would be given: it builds each crate alone.
    #[arg(long, conflicts_with = "debug")]
    publish: bool,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_base()?;
    if args.check {
        return check_sources();
    }
    let version = match &args.version {
        Some(version) => version.clone(),
        None => workspace_version()?,
    };
    check_version(&version)?;
    let out = args.out.clone().unwrap_or_else(|| target().join("packages"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    let epoch = epoch()?;
    if args.debug {
        let program = target().join("debug/xdp-agg");
        let stage = Stage::fill(&program, &version, epoch)?;
        let deb = deb(&stage, &out, &["--profile", "dev", "--fast"])?;
        let tarball = tarball::make(&stage, &out)?;
        println!("{}\n{}", deb.display(), tarball.display());
        if args.rpm {
            // The tool reads all of the program several times: without what debuggers want.
            let place = stage.directory.join("rpm");
            fs::create_dir_all(place.join("debug"))?;
            let stripped = place.join("debug/xdp-agg");
            run(Command::new("strip").arg("-o").arg(stripped).arg(&stage.program))?;
            let place = place.display().to_string();
            let more = ["--profile", "dev", "--payload-compress", "none", "--target-dir", &place];
            println!("{}", rpm(&stage, &out, &more)?.display());
        }
        return Ok(());
    }
    if !args.no_build {
        build_program()?;
    }
    let program = target().join(PROFILE).join("xdp-agg");
    let stage = Stage::fill(&program, &version, epoch)?;
    let deb = deb(&stage, &out, &["--profile", PROFILE])?;
    let rpm = rpm(&stage, &out, &["--profile", PROFILE, "--payload-compress", "zstd"])?;
    let tarball = tarball::make(&stage, &out)?;
    let sbom = sbom(&stage, &out)?;
    check::packages(&deb, &rpm, &tarball)?;
    sums(&out, &[&deb, &rpm, &tarball, &sbom])?;
    for file in [&deb, &rpm, &tarball, &sbom] {
        say(&format!("{}: {} kB", file.display(), file.metadata()?.len() / 1000));
    }
    say_what_is_open()?;
    if args.publish {
        publish::dry_run()?;
    }
    Ok(())
}

/// What the tests install packages with, and in: made here, so that no test waits for it. Where
/// that cannot be, these tests are left out, with a message; in CI that is a failure.
pub(crate) fn ensure_for_tests() -> Result<()> {
    let tools = Tool::DEB.ensure().and_then(|_| Tool::RPM.ensure());
    match tools.and_then(|_| root::ensure()).and_then(|_| image_tools()) {
        Ok(()) => Ok(()),
        Err(error) if std::env::var_os("CI").is_some() => {
            Err(error.context("the tests of packages (CI is set, so they must run)"))
        }
        Err(error) => {
            say(&format!("LEFT OUT: the tests that install the package: {error:#}"));
            Ok(())
        }
    }
}

/// What builds the image, and what runs it as Kubernetes has it run.
fn image_tools() -> Result<()> {
    let needs = ["buildah", "runc"].into_iter().filter(|tool| which(tool).is_none());
    let needs: Vec<_> = needs.map(|what| Need { what, packages: vec![what.to_owned()] }).collect();
    install(&needs)
}

/// The profile of what ships: all optimisations across crates, no debug information.
const PROFILE: &str = "dist";

fn build_program() -> Result<()> {
    step("building the program", || {
        run(cargo().args(["build", "--locked", "--package", PACKAGE, "--profile", PROFILE]))
    })
}

fn deb(stage: &Stage, out: &Path, more: &[&str]) -> Result<PathBuf> {
    let tool = Tool::DEB.ensure()?;
    step("cargo deb", || {
        let mut deb = cargo();
        // What cargo calls a subcommand is looked for on the PATH.
        tool.on_path(&mut deb)?;
        deb.args(["deb", "--no-build", "--locked", "--quiet", "--package", PACKAGE]).args(more);
        deb.args(["--deb-version", &format!("{}-1", debian(&stage.version))]);
        deb.arg("--output").arg(out).env("SOURCE_DATE_EPOCH", stage.epoch.to_string());
        // It prints where the package is.
        let printed = output(&mut deb)?;
        let path = printed.lines().last().map(|line| PathBuf::from(line.trim()));
        path.filter(|path| path.is_file()).with_context(|| format!("no .deb came: {printed}"))
    })
}

fn rpm(stage: &Stage, out: &Path, more: &[&str]) -> Result<PathBuf> {
    let tool = Tool::RPM.ensure()?;
    step("cargo generate-rpm", || {
        let arch = std::env::consts::ARCH;
        let path = out.join(format!("xdp-agg-{}-1.{arch}.rpm", debian(&stage.version)));
        let mut rpm = cargo();
        tool.on_path(&mut rpm)?;
        rpm.args(["generate-rpm", "--package", "crates/cli"]).args(more);
        rpm.args(["--source-date", &stage.epoch.to_string()]);
        let version = format!("version = \"{}\"", debian(&stage.version));
        rpm.args(["--set-metadata", &version]).arg("--output").arg(&path);
        run(&mut rpm)?;
        Ok(path)
    })
}

/// The list of all crates in the program, in the form of CycloneDX.
fn sbom(stage: &Stage, out: &Path) -> Result<PathBuf> {
    let tool = Tool::SBOM.ensure()?;
    step("cargo cyclonedx", || {
        let name = format!("xdp-agg-{}.cdx", stage.version);
        let manifest = root().join("crates/cli/Cargo.toml");
        let mut sbom = cargo();
        tool.on_path(&mut sbom)?;
        sbom.args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--quiet"]);
        sbom.arg("--manifest-path").arg(&manifest).args(["--override-filename", &name]);
        sbom.env("SOURCE_DATE_EPOCH", stage.epoch.to_string());
        run(&mut sbom)?;
        // It writes one for each member of the workspace, beside its manifest.
        let made = format!("{name}.json");
        let mut found = None;
        for manifest in member_manifests()? {
            let file = manifest.with_file_name(&made);
            if !file.is_file() {
                continue;
            }
            if manifest.ends_with("crates/cli/Cargo.toml") {
                let kept = out.join(&made);
                fs::copy(&file, &kept)?;
                found = Some(kept);
            }
            fs::remove_file(file)?;
        }
        let found = found.context("cargo cyclonedx wrote no list for the program")?;
        check::sbom(&found, &stage.version)?;
        Ok(found)
    })
}

/// Manifests of the workspace's members.
fn member_manifests() -> Result<Vec<PathBuf>> {
    let names = crate::shell::sources()?;
    let manifests = names.into_iter().filter(|name| name.ends_with("Cargo.toml"));
    Ok(manifests.map(|name| root().join(name)).collect())
}

fn sums(out: &Path, files: &[&PathBuf]) -> Result<()> {
    let names = files.iter().filter_map(|file| file.file_name());
    let text = output(Command::new("sha256sum").current_dir(out).args(names))?;
    fs::write(out.join("SHA256SUMS"), text).context("cannot write SHA256SUMS")
}

/// The seconds of all dates in packages.
fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().context("SOURCE_DATE_EPOCH: seconds since 1970 are expected");
    }
    let mut git = Command::new("git");
    let text = output(git.current_dir(root()).args(["log", "-1", "--format=%ct"]))?;
    text.trim().parse().context("git tells no time of the last commit; set SOURCE_DATE_EPOCH")
}

fn workspace_version() -> Result<String> {
    workspace("version")
}

/// A text of `[workspace.package]`; of a list, its first one.
fn workspace(key: &str) -> Result<String> {
    let text = fs::read_to_string(root().join("Cargo.toml"))?;
    let section = text.split_once("[workspace.package]").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n[").map_or(section, |(section, _)| section);
    let mut lines = section.lines().filter_map(|line| line.split_once(" = "));
    let value = lines.find_map(|(name, value)| (name == key).then_some(value));
    let text = value.and_then(|value| value.split('"').nth(1));
    Ok(text.with_context(|| format!("Cargo.toml: [workspace.package] has no {key}"))?.to_owned())
}

/// Says what the publisher has not filled in yet.
fn say_what_is_open() -> Result<()> {
    let (author, repository) = (workspace("authors")?, workspace("repository")?);
    for (key, open) in
        [("authors", author.contains("@localhost>")), ("repository", repository.is_empty())]
    {
        if open {
            say(&format!(
                "Cargo.toml, [workspace.package]: `{key}` is open; the publisher fills it in \
                 before a release (CONTRIBUTING.md)"
            ));
        }
    }
    Ok(())
}

/// A version that all three forms can have: numbers, and perhaps what comes before a release.
fn check_version(version: &str) -> Result<()> {
    let (numbers, before) = version.split_once('-').unwrap_or((version, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'.';
    let good = numbers.split('.').count() == 3 && numbers.split('.').all(is_number);
    if !good || before.is_empty() || !before.bytes().all(fits) {
        bail!("{version:?} is no version: one such as 1.2.3 or 1.2.3-rc.1 is expected");
    }
    Ok(())
}

/// The same version for dpkg and rpm: what comes before a release sorts before it.
fn debian(version: &str) -> String {
    version.replacen('-', "~", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_fit_dpkg_and_rpm() {
        for good in ["0.1.0", "1.22.333", "1.2.3-rc.1"] {
            check_version(good).expect("a version");
        }
        for bad in ["", "1.2", "v1.2.3", "1.2.3-", "1.2.3-a_b", "1.2.x", "1.2.3+build"] {
            assert!(check_version(bad).is_err(), "{bad}");
        }
        assert_eq!(debian("1.2.3-rc.1"), "1.2.3~rc.1");
    }

    #[test]
    fn the_workspace_has_a_version() {
        check_version(&workspace_version().expect("it is read")).expect("a version");
    }

    #[test]
    fn the_packages_have_a_maintainer() {
        let author = workspace("authors").expect("it is read");
        assert!(author.contains(" <") && author.ends_with('>'), "{author}: NAME <ADDRESS>");
        assert!(workspace("repository").is_ok() && workspace("no-such-key").is_err());
    }
}
