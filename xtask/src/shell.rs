//! Running other programs: announcing them, and saying what failed.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    // It takes a relative one from where it runs, which is the root.
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Announces a step.
pub(crate) fn say(text: &str) {
    eprintln!("==> {text}");
}

/// Announces a step, does it, and says how long it took where that was long.
pub(crate) fn step<T>(text: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(text);
    let start = Instant::now();
    let result = work().with_context(|| text.to_owned())?;
    let seconds = start.elapsed().as_secs();
    if seconds >= 5 {
        say(&format!("{text}: done in {seconds} s"));
    }
    Ok(result)
}

/// Cargo, of the toolchain that runs this program, in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a program to its end with our terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", describe(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", describe(command));
    }
    Ok(())
}

/// What a program prints on its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", describe(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", describe(command), output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The files that a commit of everything would hold, as paths from the root.
pub(crate) fn sources() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = output(&mut git)?;
    let names = names.split_terminator('\0').map(str::to_owned);
    // Without one that has been removed, but not in a commit yet.
    Ok(names.filter(|name| root().join(name).symlink_metadata().is_ok()).collect())
}

/// Where a program lies on the `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|meta| meta.uid() == 0)
}
