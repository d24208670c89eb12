//! `cargo xtask wheel`: the wheel that is published, checked. It also checks that users without a
//! wheel can build the package from a clone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::interpreter::{Interpreter, OLDEST};
use super::venv::Venv;
use super::{directory, sources};
use crate::shell::{output, root, run, say, step, target};
use crate::{setup, shell};

/// The oldest system that it shall run on: every Linux with glibc 2.17 (2012) or newer.
const PLATFORM: &str = "manylinux2014";
/// The same: the minor version of glibc 2.
const GLIBC_MINOR: u32 = 17;
/// The interpreters that import it: the oldest, which has to be there, and a newer one.
const IMPORTED_BY: [(u32, u32); 2] = [OLDEST, (3, 13)];
/// What an installed package must be able to do.
const TRY: &str = "import xdp_agg, importlib.metadata as m
assert m.version('xdp-agg') == xdp_agg.__version__
assert m.entry_points(group='torch.distributed.backends', name='xdp-agg')
print('imported: xdp-agg', xdp_agg.__version__)";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the check that `pip install .` works from a clone, which builds all again.
    #[arg(long)]
    no_clone: bool,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_base()?;
    let tools = Venv::tools()?;
    let wheel = step("building the wheel", || build(&tools))?;
    step("checking the wheel", || {
        whole_and_clean(&tools, &wheel)?;
        audit(&tools, &wheel)
    })?;
    for version in IMPORTED_BY {
        import(version, &wheel)?;
    }
    // Only now does it go where others look for it.
    let shelf = target().join("wheels");
    let finished = shelf.join(wheel.file_name().context("a wheel has a name")?);
    fs::create_dir_all(&shelf).with_context(|| format!("cannot make {}", shelf.display()))?;
    fs::rename(&wheel, &finished)
        .with_context(|| format!("cannot write {}", finished.display()))?;
    let size = finished.metadata()?.len();
    say(&format!("{}: {} kB", finished.display(), size / 1000));
    if !args.no_clone {
        step("pip install . in a clone, with Rust alone", install_from_clone)?;
    }
    Ok(())
}

/// The wheel, checked, without another build from a clone: CI's own checkout is one.
pub(crate) fn without_clone() -> Result<()> {
    main(&Args { no_clone: true })
}

/// Builds it with the libraries of the oldest system, which zig has.
fn build(tools: &Venv) -> Result<PathBuf> {
    let directory = directory().join("wheel");
    empty(&directory)?;
    let mut maturin = Command::new(tools.program("maturin"));
    tools.activate(&mut maturin);
    maturin.current_dir(sources()).args(["build", "--release", "--locked", "--zig"]);
    run(maturin.args(["--compatibility", PLATFORM, "--out"]).arg(&directory))?;
    let files: Vec<PathBuf> =
        fs::read_dir(&directory)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    match files.as_slice() {
        [wheel] => Ok(wheel.clone()),
        _ => bail!("maturin made {} files in {}, not one", files.len(), directory.display()),
    }
}

/// The sources lie where the tests import them: nothing of that may come along.
fn whole_and_clean(tools: &Venv, wheel: &Path) -> Result<()> {
    let list = output(tools.python().args(["-m", "zipfile", "-l"]).arg(wheel))?;
    let names = || list.lines().filter_map(|line| line.split(' ').next());
    let strays: Vec<&str> =
        names().filter(|name| name.contains("__pycache__") || name.contains(".new-")).collect();
    if !strays.is_empty() {
        bail!(
            "the wheel holds what is no source: {}. See `exclude` in pyproject.toml",
            strays.join(", ")
        );
    }
    let extensions = names().filter(|name| name.ends_with(".so")).count();
    if extensions != 1 || !names().any(|name| name == "xdp_agg/py.typed") {
        bail!("the wheel should hold one .so and xdp_agg/py.typed. It holds:\n{list}");
    }
    Ok(())
}

/// What it asks of the system, and what it calls of Python.
fn audit(tools: &Venv, wheel: &Path) -> Result<()> {
    let mut show = Command::new(tools.program("auditwheel"));
    tools.activate(&mut show);
    let text = output(show.arg("show").arg(wheel))?;
    if !keeps_to_platform(&text) {
        bail!("the wheel does not keep to {PLATFORM}. auditwheel says:\n{text}");
    }
    say(&format!("auditwheel: it keeps to {PLATFORM}"));
    let mut audit = Command::new(tools.program("abi3audit"));
    tools.activate(&mut audit);
    run(audit.args(["--strict", "--summary"]).arg(wheel))
}

/// Whether auditwheel says that it runs where it shall, or on older systems even.
fn keeps_to_platform(text: &str) -> bool {
    // It breaks lines wherever it likes.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = text.split_once("the following platform tag: \"manylinux_2_");
    let minor = said.and_then(|(_, rest)| rest.split('_').next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor <= GLIBC_MINOR)
}

/// Imports it, in an environment where nothing else is.
fn import(version: (u32, u32), wheel: &Path) -> Result<()> {
    let name = format!("Python {}.{}", version.0, version.1);
    let interpreter = match Interpreter::find(version) {
        Some(interpreter) => interpreter,
        None if version == OLDEST => Interpreter::ensure()?,
        None => {
            say(&format!(
                "{name} is neither on the PATH nor pyenv's: the wheel is not tried there"
            ));
            return Ok(());
        }
    };
    step(&format!("importing the wheel, {name}"), || {
        let venv = Venv::fresh("try-wheel", interpreter)?;
        venv.pip(["--no-index".as_ref(), "--no-deps".as_ref(), wheel.as_os_str()])?;
        attempt(&venv)
    })
}

/// Builds and installs the package as a user without wheel does: pip fetches maturin, maturin runs
/// cargo.
fn install_from_clone() -> Result<()> {
    let clone = directory().join("clone");
    copy_sources(&clone)?;
    let venv = Venv::fresh("try-clone", Interpreter::ensure()?)?;
    let mut pip = venv.python();
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "."]);
    // What others wrote is the same there, and need not be built again the next time.
    let target = directory().join("clone-target");
    run(pip.current_dir(clone.join("bindings/python")).env("CARGO_TARGET_DIR", target))?;
    attempt(&venv)
}

fn attempt(venv: &Venv) -> Result<()> {
    // Not in the sources, which could be imported instead.
    say(output(venv.python().current_dir(venv.directory()).args(["-c", TRY]))?.trim());
    Ok(())
}

/// Copies what a commit of everything would hold.
fn copy_sources(to: &Path) -> Result<()> {
    empty(to)?;
    for name in shell::sources()? {
        let (from, to) = (root().join(&name), to.join(&name));
        let parent = to.parent().context("a file lies in a directory")?;
        fs::create_dir_all(parent)?;
        let copied = if from.is_symlink() {
            fs::read_link(&from).and_then(|place| symlink(place, &to))
        } else {
            fs::copy(&from, &to).map(drop)
        };
        copied.with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

/// Makes a directory, without what an earlier run left there.
fn empty(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_is_read_from_what_auditwheel_says() {
        let says = |tag: &str| {
            format!(
                "a-1-cp311-abi3-manylinux_2_17_x86_64.whl is consistent with the\nfollowing \
                 platform tag: \"{tag}\".\n\nThis constrains the platform tag to \"{tag}\"."
            )
        };
        assert!(keeps_to_platform(&says("manylinux_2_17_x86_64")));
        assert!(keeps_to_platform(&says("manylinux_2_5_x86_64")));
        assert!(!keeps_to_platform(&says("manylinux_2_34_x86_64")));
        assert!(!keeps_to_platform(&says("linux_x86_64")));
        assert!(!keeps_to_platform(""));
    }
}
