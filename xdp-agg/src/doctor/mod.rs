//! Whether this host can run the XDP engine: one [`Check`] a line, and how to mend what is wrong.
//!
//! Facts are gathered first (`host`, `interface`), then judged by pure functions, so that every
//! verdict can be tested without the machine that deserves it.

mod drivers;
mod host;
mod interface;

use std::net::SocketAddr;

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Nothing to do.
    Ok,
    /// It works, but slower, or could not be seen in full.
    Warn,
    /// The XDP engine cannot run like this.
    Fail,
}

impl Status {
    /// The word in front of a line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about: `kernel`, `eth0: MTU`.
    pub subject: String,
    /// How it came out.
    pub status: Status,
    /// What is, and what was expected.
    pub finding: String,
    /// What to do, where something is to be done.
    pub remedy: Option<String>,
}

impl Check {
    fn new(subject: impl Into<String>, status: Status, finding: impl Into<String>) -> Self {
        Self { subject: subject.into(), status, finding: finding.into(), remedy: None }
    }

    fn ok(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Ok, finding)
    }

    fn warn(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Warn, finding)
    }

    fn fail(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Fail, finding)
    }

    fn mend(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interfaces that the daemon is to serve.
    pub interfaces: Vec<String>,
    /// Control address that the daemon is to listen on.
    pub control: SocketAddr,
    /// UDP port of the data path.
    pub data_port: u16,
}

/// Looks at everything. Needs no privilege; what cannot be seen without one is said.
pub async fn run(options: &Options) -> Vec<Check> {
    let mut checks = host::judge(&host::gather());
    checks.extend(host::ports(options.control, options.data_port));
    checks.extend(interface::run(&options.interfaces).await);
    checks
}
