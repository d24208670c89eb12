//! The packages, as an administrator meets them: the .deb installed in a bare Debian 12 with
//! systemd, started, used, killed, upgraded, removed and purged, and after it the .rpm and the
//! tarball.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::packages::{all_packages, bare_debian, repository};
use support::watched::{all_said, check_none_failed, work};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_testbed::steady::{Line, Steady};
use xdp_agg_testbed::{Machine, Topology};

const WORKERS: u16 = 3;
const SERVICE: &str = "xdp-agg.service";
const CONFIG: &str = "/etc/xdp-agg/config.toml";
/// The most that `systemd-analyze security` may say: 0 is nothing at all, 10 is everything.
const EXPOSURE_MAX: f64 = 3.0;

/// A Debian with the packages' files in it.
struct Debian(Machine);

impl Debian {
    fn boot(topology: &Topology, root: &Path, packages: &[PathBuf; 3]) -> Self {
        let machine = Machine::boot(topology.aggregator(), root).expect("it boots");
        let [deb, tarball, rpm] = packages;
        let name = tarball.file_name().expect("a name");
        for (from, to) in
            [(deb, "xdp-agg.deb".as_ref()), (rpm, "xdp-agg.rpm".as_ref()), (tarball, name)]
        {
            fs::copy(from, machine.path("/tmp").join(to)).expect("it is copied");
        }
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
        assert!(!said.contains("warning") && !said.contains("failed"), "{said}");
    }

    /// Whether a unit is active.
    fn is_active(&self, unit: &str) -> bool {
        self.sh(&format!("systemctl is-active {unit} || true")).trim() == "active"
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

/// Installed, and nothing runs yet.
fn brings_what_it_should(debian: &Debian) {
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
}

/// The same where systemd listens: what connects meanwhile waits, and the socket stays.
fn upgrade_with_the_socket(debian: &Debian, addr: Ipv4Addr, workers: &[Steady]) {
    let socket = "xdp-agg.socket";
    let listen = format!("[Socket]\\nListenStream=\\nListenStream={addr}:9870\\n");
    debian.sh(&format!(
        "mkdir /etc/systemd/system/{socket}.d
         printf '{listen}' > /etc/systemd/system/{socket}.d/address.conf
         systemctl daemon-reload
         systemctl stop {SERVICE}
         systemctl enable --now {socket}"
    ));
    // The workers come back, and the daemon with them.
    let before = debian.wait_other(0);
    go_on(workers);
    debian.install();
    debian.wait_other(before);
    assert!(debian.is_active(socket), "it listens on: {}", debian.journal());
    go_on(workers);
    // And it still is what the daemon listens on.
    debian.sh(&format!("systemctl stop {SERVICE}"));
    debian.wait_other(0);
    go_on(workers);
    debian.sh(&format!("rm -r /etc/systemd/system/{socket}.d"));
}

/// Removed, the settings stay; purged, nothing does.
fn is_removed_and_purged(debian: &Debian, before: &BTreeSet<String>) {
    debian.sh("dpkg --remove xdp-agg");
    assert!(!debian.0.path("/usr/bin/xdp-agg").exists());
    assert!(debian.0.path(CONFIG).exists());
    let said = debian.sh("dpkg --purge xdp-agg");
    assert!(!said.contains("not empty"), "{said}");
    let after = debian.files();
    let left: Vec<_> = after.difference(before).collect();
    let gone: Vec<_> = before.difference(&after).collect();
    assert!(left.is_empty() && gone.is_empty(), "left: {left:?}, gone: {gone:?}");
    let names = "getent passwd xdp-agg || true; getent group xdp-agg || true; ls /run /sys/fs/bpf";
    let users = debian.sh(names);
    assert!(!users.contains("xdp-agg"), "{users}");
    assert!(!debian.is_active("xdp-agg.socket"));
}

/// The package for other distributions, with their own tool, in the same system.
fn rpm_is_installed_and_erased(
    debian: &Debian,
    before: &BTreeSet<String>,
    (init, ask): (&str, &str),
) {
    // What it needs is there, under other names. Debian's rpm asks whether one means it.
    let said = debian.sh("rpm --initdb && rpm --force-debian --install --nodeps /tmp/xdp-agg.rpm");
    assert_eq!(said, "", "its scripts have nothing to say");
    let modes = "/usr/bin/xdp-agg:root:root 755
/etc/xdp-agg:root:xdp-agg 750
/etc/xdp-agg/config.toml:root:root 644
/usr/lib/systemd/system/xdp-agg.service:root:root 644
/usr/lib/sysusers.d/xdp-agg.conf:root:root 644
/usr/share/xdp-agg/slurm/prolog.sh:root:root 755";
    let names: Vec<&str> = modes.lines().filter_map(|line| line.split(':').next()).collect();
    let found = debian.sh(&format!("stat -c '%n:%U:%G %a' {}", names.join(" ")));
    assert_eq!(found.trim(), modes);
    // All that it wrote is as it was packed, but for the directory that the service reads.
    let differs = debian.sh("rpm --verify --nodeps xdp-agg || true");
    assert_eq!(differs, "");
    assert_eq!(debian.sh("rpm --query --configfiles xdp-agg").trim(), "/etc/xdp-agg/config.toml");
    debian.sh(&format!("{init} && systemctl start {SERVICE}"));
    assert_eq!(debian.sh(ask), "no jobs\n");
    // Installed again, it is restarted; settings stay.
    let first = debian.main_pid();
    debian
        .sh("rpm --force-debian --upgrade --nodeps --replacepkgs --replacefiles /tmp/xdp-agg.rpm");
    debian.wait_other(first);
    assert_eq!(debian.sh(ask), "no jobs\n");
    debian.sh("rpm --force-debian --erase xdp-agg");
    assert!(!debian.is_active(SERVICE));
    // Settings that were changed stay, and so does the user, as with rpm they do. So do rpm's own
    // list, and directories of the shells, which other packages share.
    let after = debian.files();
    let beside = ["/etc/", "/root/.rpmdb", "/usr/share/fish", "/usr/share/zsh"];
    let is_beside = |file: &&String| {
        *file == "/usr/share/licenses" || beside.iter().any(|place| file.starts_with(place))
    };
    let left = after.difference(before).filter(|file| !is_beside(file)).collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
    assert!(debian.0.path("/etc/xdp-agg/config.toml.rpmsave").exists());
}

/// The tarball, by the commands that docs/install.md prints.
fn tarball_is_installed_as_documented(debian: &Debian, (init, ask): (&str, &str)) {
    let text = fs::read_to_string(repository().join("docs/install.md")).expect("it is there");
    let (_, section) = text.split_once("## Tarball").expect("a section");
    let commands = section.split("```").nth(1).and_then(|block| block.strip_prefix("sh\n"));
    debian.sh("rm -r /etc/xdp-agg && userdel xdp-agg");
    debian.sh(&format!("cd /tmp && {}", commands.expect("commands")));
    debian.sh(&format!("{init} && systemctl start {SERVICE}"));
    assert_eq!(debian.sh(ask), "no jobs\n");
}

#[test]
fn the_package_is_installed_used_upgraded_and_purged() {
    need_root!();
    let Some(root) = bare_debian() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let packages = all_packages(out.path());
    let topology = network(WORKERS, "ports");
    let debian = Debian::boot(&topology, &root, &packages);
    let before = debian.files();

    debian.install();
    brings_what_it_should(&debian);
    // Settings, as an administrator has them written; then it is started, and used.
    let mut lab = Lab { topology, daemon: None, engine: "xdp", extra: Vec::new() };
    let addr = lab.topology.aggregator_addr();
    let interfaces = lab.topology.aggregator_interfaces().join(",");
    let init = format!("xdp-agg init --yes --no-tls --interface {interfaces} --network {addr}/32");
    debian.sh(&init);
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
    assert!(debian.sh(&format!("cat {CONFIG}")).contains("\nkeep-on-exit = true"));
    upgrade_with_the_socket(&debian, addr, &workers);
    check_none_failed(&all_said(&workers));
    drop(workers);

    is_removed_and_purged(&debian, &before);
    let ask = format!("xdp-agg jobs --control {addr}:9870 --token-file /etc/xdp-agg/token");
    rpm_is_installed_and_erased(&debian, &before, (&init, &ask));
    tarball_is_installed_as_documented(&debian, (&init, &ask));
    lab.daemon = None;
}
