//! The Debian package, as an administrator meets it: installed in a bare Debian 12 with systemd,
//! started, used, killed, upgraded, removed and purged.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::packages::{bare_debian, packages};
use support::watched::{all_said, check_none_failed, work};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_testbed::steady::{Line, Steady};
use xdp_agg_testbed::{Machine, Topology};

const WORKERS: u16 = 3;
const SERVICE: &str = "xdp-agg.service";
/// The most that `systemd-analyze security` may say: 0 is nothing at all, 10 is everything.
const EXPOSURE_MAX: f64 = 3.0;

/// A Debian with the package's file in it.
struct Debian(Machine);

impl Debian {
    fn boot(topology: &Topology, root: &Path, package: &Path) -> Self {
        let machine = Machine::boot(topology.aggregator(), root).expect("it boots");
        fs::copy(package, machine.path("/tmp/xdp-agg.deb")).expect("it is copied");
        Self(machine)
    }

    /// What a script prints that runs there, and must succeed.
    fn sh(&self, script: &str) -> String {
        let output = self.0.command("sh").args(["-ec", script]).output().expect("sh runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {}\n{said}\n{}", output.status, self.journal());
        String::from_utf8(output.stdout).expect("text") + &said
    }

    /// The last that the service said.
    fn journal(&self) -> String {
        let status = ["--no-pager", "--full", "--lines=30", "status", SERVICE];
        let output = self.0.command("systemctl").args(status).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn install(&self) {
        let said = self.sh("DEBIAN_FRONTEND=noninteractive dpkg --install /tmp/xdp-agg.deb");
        assert!(!said.contains("warning"), "{said}");
    }

    /// All files, without those that dpkg and the machine keep of themselves.
    fn files(&self) -> BTreeSet<String> {
        let beside = "-path /var/lib/dpkg -o -path /var/cache -o -path /var/log -o -path /tmp \
                      -o -path /proc -o -path /sys -o -path /dev -o -path /run";
        let list = self.sh(&format!("find / \\( {beside} \\) -prune -o -print"));
        list.lines().map(str::to_owned).collect()
    }

    fn main_pid(&self) -> u32 {
        let show = format!("systemctl show --property MainPID --value {SERVICE}");
        self.sh(&show).trim().parse().expect("a number")
    }

    /// Waits for another main process than this one.
    fn wait_other(&self, before: u32) -> u32 {
        let start = Instant::now();
        loop {
            match self.main_pid() {
                0 => {}
                pid if pid != before => return pid,
                _ => {}
            }
            assert!(start.elapsed() < LIMIT, "it is not started again: {}", self.journal());
            sleep(Duration::from_millis(20));
        }
    }
}

/// Each worker does some more calls.
fn go_on(workers: &[Steady]) {
    let since = Instant::now();
    for worker in workers {
        for _ in 0..3 {
            let call = |at: Instant, line: &Line| at > since && matches!(line, Line::Call { .. });
            worker.wait("a call", LIMIT, call).expect("the job goes on");
        }
    }
}

#[test]
fn the_package_is_installed_used_upgraded_and_purged() {
    need_root!();
    let Some(root) = bare_debian() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let (package, _) = packages(out.path());
    let topology = network(WORKERS, "ports");
    let debian = Debian::boot(&topology, &root, &package);
    let before = debian.files();

    debian.install();
    let config = "/etc/xdp-agg/config.toml";
    assert_eq!(debian.sh("stat -c '%U:%G %a' /etc/xdp-agg").trim(), "root:xdp-agg 750");
    assert_eq!(debian.sh(&format!("systemctl is-enabled {SERVICE} || true")).trim(), "disabled");
    assert_eq!(debian.sh(&format!("systemctl is-active {SERVICE} || true")).trim(), "inactive");
    let page = debian.sh("MANWIDTH=200 man --warnings xdp-agg-serve");
    assert!(page.contains("--data-addr <IP>") && !page.contains("warning:"), "{page}");
    debian.sh("bash -n /usr/share/bash-completion/completions/xdp-agg");
    debian.sh("systemd-analyze verify /lib/systemd/system/xdp-agg.service");
    let security =
        debian.sh("systemd-analyze security --no-pager --offline=true xdp-agg.service | tail -n 1");
    println!("{}", security.trim());
    let score: f64 = security
        .split_whitespace()
        .find_map(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("no score in {security}"));
    assert!(score <= EXPOSURE_MAX, "{security}");

    // Settings, as an administrator has them written; then it is started, and used.
    let mut lab = Lab { topology, daemon: None, engine: "xdp", extra: Vec::new() };
    let addr = lab.topology.aggregator_addr();
    let interfaces = lab.topology.aggregator_interfaces().join(",");
    debian.sh(&format!("xdp-agg init --yes --no-tls --interface {interfaces} --network {addr}/32"));
    let token = debian.sh("cat /etc/xdp-agg/token");
    let token = token.trim();
    debian.sh(&format!("systemctl enable --now {SERVICE}"));
    let settings = [("XDP_AGG_TOKEN", token), ("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];
    let workers = lab.steady_job("packaged", WORKERS, &settings, &work());
    go_on(&workers);
    let first = debian.main_pid();
    let user = debian.sh(&format!("stat -c %U /proc/{first}"));
    assert_eq!(user.trim(), "xdp-agg");

    // Killed under load, it comes back by itself, and no call fails.
    debian.sh(&format!("kill -9 {first}"));
    let second = debian.wait_other(first);
    go_on(&workers);
    // Upgraded under load, it is restarted; what was written stays.
    debian.install();
    debian.wait_other(second);
    go_on(&workers);
    assert!(debian.sh(&format!("cat {config}")).contains("\nkeep-on-exit = true"));
    check_none_failed(&all_said(&workers));
    drop(workers);

    // Removed, the settings stay; purged, nothing does.
    debian.sh("dpkg --remove xdp-agg");
    assert!(!debian.0.path("/usr/bin/xdp-agg").exists());
    assert!(debian.0.path(config).exists());
    let said = debian.sh("dpkg --purge xdp-agg");
    assert!(!said.contains("not empty"), "{said}");
    let after = debian.files();
    let left: Vec<_> = after.difference(&before).collect();
    let gone: Vec<_> = before.difference(&after).collect();
    assert!(left.is_empty() && gone.is_empty(), "left: {left:?}, gone: {gone:?}");
    let names = "getent passwd xdp-agg || true; getent group xdp-agg || true; ls /run /sys/fs/bpf";
    let users = debian.sh(names);
    assert!(!users.contains("xdp-agg"), "{users}");
    lab.daemon = None;
}
