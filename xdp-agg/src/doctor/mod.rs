//! Whether this host can run the XDP engine: one [`Check`] a line, and how to mend what is wrong.
//!
//! Facts are gathered first (`host`, `interface`), then judged by pure functions, so that every
//! verdict can be tested without the machine that deserves it.

mod check;
mod host;
mod interface;

use std::net::SocketAddr;

pub use check::{Check, Status};

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

/// What may go wrong with these interfaces although XDP can be attached to them, in words. Without
/// them a daemon would start that no worker hears, or hears badly.
pub async fn doubts(interfaces: &[String]) -> Vec<String> {
    let checks = interface::run(interfaces).await.into_iter();
    let open = checks.filter(|check| check.status != Status::Ok && !interface::is_tried(check));
    open.map(|check| match check.remedy {
        Some(remedy) => format!("{}: {}; {remedy}", check.subject, check.finding),
        None => format!("{}: {}", check.subject, check.finding),
    })
    .collect()
}

/// Looks at these interfaces. Each check's subject begins with the interface's name and a colon.
pub async fn interfaces(names: &[String]) -> Vec<Check> {
    interface::run(names).await
}

/// Looks at everything. Needs no privilege; what cannot be seen without one is said.
pub async fn run(options: &Options) -> Vec<Check> {
    let mut checks = host::judge(&host::gather());
    checks.extend(host::ports(options.control, options.data_port));
    checks.extend(interface::run(&options.interfaces).await);
    checks
}
