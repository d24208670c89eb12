//! The interfaces of this host, the best one first.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use xdp_agg::doctor::{self, Status};
use xdp_agg::link;

/// An interface that workers may be behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) addrs: Vec<Ipv4Addr>,
    /// In Mbit/s, where the driver says it.
    speed: Option<u32>,
    /// What keeps XDP off it, and what slows it down.
    fails: usize,
    warns: usize,
    /// The same in words.
    pub(super) remarks: Vec<String>,
}

impl Candidate {
    /// One line for a choice.
    pub(super) fn line(&self) -> String {
        let addrs: Vec<_> = self.addrs.iter().map(ToString::to_string).collect();
        let addrs = if addrs.is_empty() { "no IPv4 address".into() } else { addrs.join(", ") };
        let speed = self.speed.map(|speed| format!(", {speed} Mbit/s")).unwrap_or_default();
        let verdict = match (self.fails, self.warns) {
            (0, 0) => "all checks pass".into(),
            _ => self.remarks.join("; "),
        };
        format!("{} ({addrs}{speed}): {verdict}", self.name)
    }
}

/// Those that are no loopback, the best one first: up and with an address, then what fits XDP, then
/// the fastest one.
pub(super) fn all() -> Result<Vec<Candidate>> {
    let mut found = BTreeMap::<String, Candidate>::new();
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        found.insert(name.clone(), Candidate { name, ..Candidate::default() });
    }
    for address in link::addresses().context("asking for the addresses of this host")? {
        if address.loopback {
            found.remove(&address.interface);
        } else if let Some(one) = found.get_mut(&address.interface) {
            one.addrs.push(address.addr);
        }
    }
    found.remove("lo");
    let mut all: Vec<_> = found.into_values().collect();
    let names: Vec<_> = all.iter().map(|one| one.name.clone()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime that asks the kernel")?;
    let checks = runtime.block_on(doctor::interfaces(&names));
    for one in &mut all {
        one.speed = speed(&one.name);
        let about = format!("{}: ", one.name);
        for check in checks.iter().filter(|check| check.subject.starts_with(&about)) {
            match check.status {
                Status::Ok => continue,
                Status::Warn => one.warns += 1,
                Status::Fail => one.fails += 1,
            }
            let what = check.subject.trim_start_matches(&about);
            one.remarks.push(format!("{what}: {}", check.finding));
        }
    }
    all.sort_by_key(|one| {
        let speed = std::cmp::Reverse(one.speed.unwrap_or(0));
        (one.addrs.is_empty(), one.fails, one.warns, speed, one.name.clone())
    });
    Ok(all)
}

fn speed(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    // Without a link it is -1.
    text.trim().parse().ok()
}

/// This host's name, where it has one.
pub(super) fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    (!name.is_empty() && name != "localhost" && name != "(none)").then_some(name)
}
