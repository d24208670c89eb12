//! A daemon on loopback, for tests that need no network.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::process::{Finished, Process, READY};
use crate::programs::program;

/// The same command as a process group of its own, with nothing of this machine's settings.
pub fn without_settings(mut command: Command) -> Command {
    let all = env::vars_os().map(|(name, _)| name);
    for name in all.filter(|name| name.to_string_lossy().starts_with("XDP_AGG_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG").process_group(0);
    command
}

/// A daemon on free ports of loopback; ends with this.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    ready: String,
}

impl Daemon {
    /// A daemon that sums in user space.
    ///
    /// # Errors
    /// It does not get ready: what it said.
    pub fn userspace() -> Result<Self, Error> {
        Self::serve(Command::new(program("xdp-agg")?), |command| _ = command.args(USERSPACE))
    }

    /// The daemon that this command begins, with further arguments.
    ///
    /// # Errors
    /// As [`Self::userspace`].
    pub fn serve(command: Command, add: impl FnOnce(&mut Command)) -> Result<Self, Error> {
        let mut command = without_settings(command);
        command.args(["serve", "--control", "127.0.0.1:0"]);
        add(&mut command);
        let process = Process::spawn("xdp-agg serve", command)?;
        let is_ready = |line: &str| line.starts_with("ready ");
        let ready = process.wait_line("its readiness", READY, is_ready)?;
        Ok(Self { process, ready })
    }

    /// What it said when it was ready.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    /// Where it listens.
    ///
    /// # Panics
    /// It has not said so.
    pub fn control(&self) -> &str {
        let field = self.ready.split_whitespace().find_map(|word| word.strip_prefix("control="));
        field.unwrap_or_else(|| panic!("no address in {:?}", self.ready))
    }

    /// Sends it a signal; how it ended.
    ///
    /// # Errors
    /// It goes on.
    pub fn signal(mut self, signal: i32, limit: Duration) -> Result<Finished, Error> {
        self.process.signal(signal)?;
        self.process.wait(limit)
    }
}

/// The arguments of a daemon that sums in user space.
pub const USERSPACE: [&str; 4] = ["--engine", "userspace", "--data-port", "0"];
