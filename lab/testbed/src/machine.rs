//! A host of the network with a service manager of its own: systemd, as in a container.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::process::Process;

/// Makes the machine's root, and becomes its first process.
const BOOT: &str = include_str!("machine/boot.sh");
/// Enters the control group $1, then the other namespaces, for $2 with the root $3.
const ENTER: &str = "echo $$ > \"$1\"/cgroup.procs && exec unshare --mount --pid --fork \
                     --kill-child --cgroup --uts --ipc sh -c \"$2\" boot \"$3\"";
/// Longest time to start.
const UP: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// A running machine. It is gone, with all that runs in it, when this is dropped.
#[derive(Debug)]
pub struct Machine {
    /// Kept for its end.
    process: Option<Process>,
    init: u32,
    group: PathBuf,
}

impl Machine {
    /// Starts systemd over a root of Debian or the like, in the network of a host. The root is seen
    /// and not changed. No unit runs but those that are started then.
    ///
    /// # Errors
    /// For root only. The root has no systemd (package `systemd`), or it does not start.
    pub fn boot(host: &Namespace, root: &Path) -> Result<Self, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        if !root.join("usr/lib/systemd/systemd").exists() {
            let text = format!("{} has no systemd: apt-get install systemd", root.display());
            return Err(Error::Config(text));
        }
        let group = groups()?.join(format!("xdp-agg-testbed-{}-{number}", std::process::id()));
        fs::create_dir(&group).map_err(Error::os("making a control group"))?;
        let mut command = host.command("sh");
        command.args(["-c", ENTER, "enter"]).arg(&group).arg(BOOT).arg(root);
        let mut machine = Self { process: None, init: 0, group };
        let process = machine.process.insert(Process::spawn("a machine", command)?);
        let (start, outside) = (Instant::now(), process.pid());
        loop {
            if let Some(status) = process.try_wait()? {
                let words = process.last_words();
                return Err(Error::Process(format!("the machine does not start: {status}{words}")));
            }
            machine.init = child(outside).unwrap_or(0);
            if machine.init != 0 && is_up(machine.init) {
                return Ok(machine);
            }
            if start.elapsed() > UP {
                let words = process.last_words();
                return Err(Error::Process(format!("the machine is not up in {UP:?}{words}")));
            }
            sleep(PAUSE);
        }
    }

    /// A program that runs in it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = enter(self.init);
        command.arg(program);
        command
    }

    /// A file of it, as it is seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.init)).join(inside.trim_start_matches('/'))
    }

    /// The number of a process of it, as it is seen from outside. None: it is not there.
    pub fn outside(&self, pid: u32) -> Option<u32> {
        let all = fs::read_dir("/proc").ok()?.flatten();
        let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let namespace = fs::read_link(format!("/proc/{}/ns/pid", self.init)).ok()?;
        numbers.find(|number| {
            let there = fs::read_link(format!("/proc/{number}/ns/pid"));
            let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let inside = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
            there.is_ok_and(|there| there == namespace) && inside == Some(pid)
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // With the first process all others go.
        drop(self.process.take());
        let start = Instant::now();
        while !remove(&self.group) && start.elapsed() < UP {
            sleep(PAUSE);
        }
    }
}

fn enter(init: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--all", "--target", &init.to_string(), "--"]);
    command
}

fn child(of: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (name.trim() == "systemd").then_some(child)
}

fn is_up(init: u32) -> bool {
    let asked = enter(init).args(["systemctl", "is-system-running"]).output();
    asked.is_ok_and(|output| output.stdout.starts_with(b"running"))
}

/// Where control groups are made.
fn groups() -> Result<PathBuf, Error> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::os("reading mounts"))?;
    let found = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| place.into())
    });
    found.ok_or_else(|| Error::Config("no cgroup2 is mounted: systemd needs one".into()))
}

/// Removes a control group and those below it. False: something still runs in one.
fn remove(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}
