//! Python environments under `target/python`: made once, and again when their recipe changes.
//!
//! An environment cannot be moved, so it is made where it stays; a stamp that is written last says
//! that it is whole. One without the right stamp is thrown away.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::directory;
use super::interpreter::Interpreter;
use super::recipe::Recipe;
use crate::setup::{Need, install};
use crate::shell::{output, root, run, say, step, which};

/// Holds the recipe's hash.
const STAMP: &str = ".made";
/// There where there is an NVIDIA GPU.
const GPU: &str = "/dev/nvidiactl";

/// An environment.
pub(super) struct Venv {
    directory: PathBuf,
    version: (u32, u32),
}

impl Venv {
    /// The environment of the tests, with this version of PyTorch; made if it is not there.
    pub(super) fn with_torch(version: &str) -> Result<Self> {
        if version.is_empty() || !version.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') {
            bail!("{version:?} is no version of PyTorch: expected one such as 2.15.0");
        }
        Self::ensure(&Recipe::torch(version, Interpreter::ensure()?, Path::new(GPU).exists()))
    }

    /// The environment with what makes wheels.
    pub(super) fn tools() -> Result<Self> {
        Self::ensure(&Recipe::tools(Interpreter::ensure()?))
    }

    /// The environment with what checks the files under `packaging`.
    pub(super) fn packaging(interpreter: Interpreter) -> Result<Self> {
        Self::ensure(&Recipe::packaging(interpreter))
    }

    /// A new environment with pip alone, of that interpreter.
    pub(super) fn fresh(name: &str, interpreter: Interpreter) -> Result<Self> {
        let recipe = Recipe::bare(name, interpreter);
        let venv = Self::of(&recipe);
        venv.remove()?;
        venv.make(&recipe)?;
        Ok(venv)
    }

    /// The name of its directory.
    pub(super) fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where packages are.
    pub(super) fn site_packages(&self) -> PathBuf {
        let (major, minor) = self.version;
        self.directory.join(format!("lib/python{major}.{minor}/site-packages"))
    }

    /// Its Python, with its programs first on the `PATH` and nothing of other environments.
    pub(super) fn python(&self) -> Command {
        let mut command = Command::new(self.program("python"));
        self.activate(&mut command);
        command
    }

    /// One of its programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// What its `activate` would do for a shell.
    pub(super) fn activate(&self, command: &mut Command) {
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.directory.join("bin")).chain(env::split_paths(&path));
        // A path with a colon cannot be on the PATH anyway.
        let path = env::join_paths(paths).unwrap_or(path);
        command.env("PATH", path).env("VIRTUAL_ENV", &self.directory);
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    }

    /// Installs packages.
    pub(super) fn pip(
        &self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<()> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut pip = self.python();
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        // `compile` does it with all processors; packages that are installed later are small.
        let status = pip.arg("--no-compile").args(&arguments).status().context("cannot run pip")?;
        if !status.success() {
            let what = arguments.join(" ".as_ref());
            bail!(
                "pip could not install {} ({status}; what it said is above). It needs PyPI, or a \
                 mirror that PIP_INDEX_URL names",
                what.display()
            );
        }
        Ok(())
    }

    fn of(recipe: &Recipe) -> Self {
        let version = recipe.interpreter.version;
        Self { directory: directory().join(&recipe.name), version }
    }

    fn ensure(recipe: &Recipe) -> Result<Self> {
        let parent = directory();
        fs::create_dir_all(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
        let lock = File::create(parent.join(format!(".{}.lock", recipe.name)))?;
        // Another command may be making it.
        lock.lock().context("cannot lock the environment")?;
        let venv = Self::of(recipe);
        let hash = recipe.hash();
        if venv.is_whole(&hash) {
            return Ok(venv);
        }
        let text = format!("making the Python environment {}", venv.directory.display());
        step(&text, || venv.fill(recipe))?;
        venv.compile();
        fs::write(venv.directory.join(STAMP), hash).context("cannot write the stamp")?;
        Ok(venv)
    }

    fn is_whole(&self, hash: &str) -> bool {
        // Its interpreter is a link, and may lead nowhere by now.
        self.program("python").is_file()
            && fs::read_to_string(self.directory.join(STAMP)).is_ok_and(|stamp| stamp == hash)
    }

    fn remove(&self) -> Result<()> {
        if self.directory.exists() {
            let place = || format!("cannot remove {}", self.directory.display());
            fs::remove_dir_all(&self.directory).with_context(place)?;
        }
        Ok(())
    }

    /// Makes it, with its packages.
    fn fill(&self, recipe: &Recipe) -> Result<()> {
        self.remove()?;
        self.make(recipe)?;
        let Recipe { packages, alone, .. } = recipe;
        if packages.iter().any(|package| package.starts_with("torch==")) {
            say("PyTorch with its GPU packages: about 3 GB to load, 5.5 GB here");
        }
        self.pip(packages)?;
        if alone.is_empty() {
            return Ok(());
        }
        say(&format!("{} alone: about 540 MB to load, 1.4 GB here", alone[0]));
        self.pip(["--no-deps"].into_iter().chain(alone.iter().map(String::as_str)))?;
        if let Err(error) = self.stand_in() {
            say(&format!("PyTorch does not work without its GPU packages: {error:#}"));
            return self.fill(&recipe.clone().complete());
        }
        Ok(())
    }

    /// Compiles all modules now, on all processors: Python may have been told to keep nothing that
    /// it compiles, and then every rank of every job would compile PyTorch for ten seconds.
    fn compile(&self) {
        let arguments = ["-m", "compileall", "-q", "-q", "-j", "0"];
        // Some packages have files for other versions of Python: those fail, and are not imported.
        let _ = self.python().args(arguments).arg(self.site_packages()).status();
    }

    fn make(&self, recipe: &Recipe) -> Result<()> {
        let mut command = Command::new(&recipe.interpreter.program);
        run(command.args(["-m", "venv"]).arg(&self.directory))
    }

    /// Makes the stand-ins for libraries of the GPU packages, and tries them.
    fn stand_in(&self) -> Result<()> {
        let tools = [("cc", "gcc"), ("readelf", "binutils")];
        let missing = tools.into_iter().filter(|(program, _)| which(program).is_none());
        let needs: Vec<Need<'_>> = missing
            .map(|(what, package)| Need { what, packages: vec![package.to_owned()] })
            .collect();
        install(&needs)?;
        let script = root().join("bindings/python/tools/stand_ins.py");
        let made = output(self.python().arg(script).arg(self.site_packages()))?;
        say(made.trim());
        let works = "import torch.distributed as d; assert d.is_gloo_available()";
        output(self.python().args(["-c", works])).map(drop)
    }
}
