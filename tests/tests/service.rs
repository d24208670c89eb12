//! The units as they are shipped, under a real systemd: the daemon as a user of its own, watched,
//! reloaded, killed and restarted while a job runs.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::watched::{all_begin, all_said, calls_of, check_none_failed, work};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_testbed::steady::{Line, Steady};
use xdp_agg_testbed::{Machine, program};

/// `CAP_NET_ADMIN` and `CAP_BPF`.
const KEPT: u64 = 1 << 12 | 1 << 39;
/// The least exposure that is promised, by `systemd-analyze security`.
const EXPOSURE: f64 = 3.0;
/// What it says without a token.
const OPEN: &str = "CONTROL IS OPEN";
const LOG: &str = "/run/xdp-agg.log";

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A machine with the service installed, and its settings written, but not started.
struct Host {
    machine: Machine,
    lab: Lab,
    /// The service.
    unit: &'static str,
}

impl Host {
    fn new(workers: u16, unit: &'static str) -> Self {
        let topology = network(workers, "ports");
        let machine = Machine::boot(topology.aggregator(), Path::new("/"));
        let machine = machine.unwrap_or_else(|error| panic!("{error}"));
        let lab = Lab { daemon: None, engine: "xdp", extra: Vec::new(), topology };
        let host = Self { machine, lab, unit };
        let binary = program("xdp-agg").expect("the tests' programs are built");
        fs::copy(binary, host.machine.path("/usr/bin/xdp-agg")).expect("there is room");
        for unit in ["xdp-agg.service", "xdp-agg@.service", "xdp-agg.socket"] {
            let to = host.machine.path("/etc/systemd/system").join(unit);
            fs::copy(units().join(unit), to).expect("it is there");
        }
        for drop_in in ["xdp-agg.service.d", "xdp-agg@.service.d"] {
            let dir = host.machine.path("/etc/systemd/system").join(drop_in);
            fs::create_dir(&dir).expect("there is room");
            // There is no journal here.
            let log = format!("[Service]\nStandardError=append:{LOG}\nStandardOutput=null\n");
            fs::write(dir.join("log.conf"), log).expect("there is room");
        }
        host.does("useradd", &["--system", "--shell", "/usr/sbin/nologin", "xdp-agg"]);
        host.does("systemctl", &["daemon-reload"]);
        host
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.machine.command(program).args(arguments).output().expect("it starts")
    }

    /// Runs something that succeeds; what it said.
    fn does(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}{}", self.log());
        text(&output.stdout)
    }

    /// Writes the settings of the daemon by `xdp-agg init`.
    fn init(&self, options: &[&str]) {
        let addr = self.lab.topology.aggregator_addr();
        let interfaces = self.lab.topology.aggregator_interfaces().join(",");
        let network = format!("{addr}/24");
        let fixed = ["init", "--yes", "--interface", &interfaces, "--network", &network];
        self.does("xdp-agg", &[&fixed[..], options].concat());
    }

    fn systemctl(&self, verb: &str) -> Output {
        self.run("systemctl", &[verb, self.unit])
    }

    fn starts(&self) {
        let done = self.systemctl("start");
        assert!(done.status.success(), "{}{}", text(&done.stderr), self.log());
    }

    /// A property of the service.
    fn shows(&self, property: &str) -> String {
        let all = ["show", "--value", "--property", property, self.unit];
        self.does("systemctl", &all).trim().to_owned()
    }

    /// The daemon's number, as it is seen from outside.
    fn daemon(&self) -> u32 {
        let inside = self.shows("MainPID").parse().expect("a number");
        self.machine.outside(inside).unwrap_or_else(|| panic!("it runs: {}", self.log()))
    }

    fn signal(&self, signal: &str) {
        self.does("systemctl", &["kill", "--kill-whom=main", "--signal", signal, self.unit]);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.machine.path(LOG)).unwrap_or_default()
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            let status = || text(&self.systemctl("status").stdout);
            assert!(start.elapsed() < LIMIT, "{what}: {}{}", status(), self.log());
            sleep(Duration::from_millis(50));
        }
    }

    /// A job whose workers know the token and the authority, and go on with the next daemon.
    fn job(&self, name: &str, world_size: u16, dir: &Path) -> Vec<Steady> {
        for file in ["token", "ca.pem"] {
            let from = self.machine.path("/etc/xdp-agg").join(file);
            fs::copy(from, dir.join(file)).expect("it was written");
        }
        fs::set_permissions(dir.join("token"), PermissionsExt::from_mode(0o600)).expect("ours");
        let files = ["token", "ca.pem"].map(|file| dir.join(file).display().to_string());
        let settings = [
            ("XDP_AGG_TOKEN_FILE", &*files[0]),
            ("XDP_AGG_TLS_CA", &files[1]),
            ("XDP_AGG_ON_AGGREGATOR_LOSS", "resume"),
        ];
        let start = |rank| self.lab.steady(name, rank, world_size, &settings, &work());
        all_begin((0..world_size).map(start))
    }
}

/// That each of two workers goes on from here.
fn go_on(workers: &[Steady]) {
    calls_of(workers, Instant::now(), 0b11, LIMIT);
}

fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("every process has this field").trim().to_owned()
}

/// One job through all of it: start, reload, restart, crash, a loop that is stuck, and no call of
/// it fails or begins anew.
#[test]
fn a_job_goes_on_through_all_that_systemd_does() {
    need_root!();
    let host = Host::new(2, "xdp-agg.service");
    host.init(&[]);
    let short = host.machine.path("/etc/systemd/system/xdp-agg.service.d/watchdog.conf");
    fs::write(short, "[Service]\nWatchdogSec=2\n").expect("there is room");
    host.does("systemctl", &["daemon-reload"]);
    host.starts();
    // Its user, what it may do, and what it has made.
    let daemon = host.daemon();
    let user = host.does("id", &["-u", "xdp-agg"]);
    assert_eq!(status(daemon, "Uid").split_whitespace().next(), Some(user.trim()));
    for set in ["CapEff", "CapPrm"] {
        let held = u64::from_str_radix(&status(daemon, set), 16).expect("a number");
        assert_eq!(held, KEPT, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status(daemon, set), 16), Ok(0), "{set}");
    }
    assert_eq!((&*status(daemon, "NoNewPrivs"), &*status(daemon, "Seccomp")), ("1", "2"));
    // The files of a process that leaves no core are root's.
    let owner = fs::metadata(format!("/proc/{daemon}/environ")).expect("it runs").uid();
    assert_eq!(owner, 0, "it can be dumped");
    let pins = fs::metadata(host.machine.path("/sys/fs/bpf/xdp-agg/stamp"));
    let pins = pins.or_else(|_| fs::metadata(host.machine.path("/sys/fs/bpf/xdp-agg")));
    assert_eq!(pins.expect("the data path is pinned").uid().to_string(), user.trim());
    assert!(!host.log().contains("more rights") && host.log().contains("landlock=true"));

    let dir = tempfile::tempdir().expect("a directory");
    let workers = host.job("train", 2, dir.path());
    host.until("it shows its job", || host.shows("StatusText").starts_with("1 job; xdp"));
    // Reload: the same, then something wrong, which changes nothing.
    assert!(host.systemctl("reload").status.success(), "{}", host.log());
    let token = host.machine.path("/etc/xdp-agg/token");
    let known = fs::read_to_string(&token).expect("it was written");
    fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).expect("it is there");
    let refused = host.systemctl("reload");
    assert!(!refused.status.success(), "a token that all may read");
    assert!(host.log().contains("chmod 600"), "{}", host.log());
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("it is there");
    assert_eq!(fs::read_to_string(&token).expect("it is there"), known);
    assert!(host.systemctl("reload").status.success(), "{}", host.log());
    assert_eq!(host.daemon(), daemon, "it is still the same");
    go_on(&workers);
    // A restart in order.
    assert!(host.systemctl("restart").status.success(), "{}", host.log());
    assert_ne!(host.daemon(), daemon);
    go_on(&workers);
    // A crash, three times.
    for restarts in 1..=3 {
        host.signal("KILL");
        host.until("it is started again", || host.shows("NRestarts") == restarts.to_string());
        host.until("it serves again", || host.shows("ActiveState") == "active");
        go_on(&workers);
    }
    // A daemon that does not come round: it is ended, and the next one goes on.
    host.signal("STOP");
    host.until("the watchdog notices", || host.shows("NRestarts") == "4");
    host.until("it serves again", || host.shows("ActiveState") == "active");
    go_on(&workers);
    // An epoch that goes on has lost nothing: no call began anew.
    let said = all_said(&workers);
    let anew = |line: &Line| matches!(line, Line::Call { reforms: 1.., .. });
    assert!(!said.iter().flatten().any(|(_, line)| anew(line)), "the epoch goes on");
    check_none_failed(&said);
    drop(workers);
    assert!(host.systemctl("stop").status.success());
    assert!(host.machine.path("/run/xdp-agg").exists(), "the state is for the next daemon");
}

/// As the unit has it, the log goes to the journal: with the fields of each entry, and with a
/// priority that `journalctl --priority` knows.
#[test]
fn the_journal_has_fields_and_priorities() {
    need_root!();
    let host = Host::new(1, "xdp-agg.service");
    let aside = host.machine.path("/etc/systemd/system/xdp-agg.service.d/log.conf");
    fs::remove_file(aside).expect("it was written");
    host.does("systemctl", &["daemon-reload"]);
    host.does("systemctl", &["start", "systemd-journald.service"]);
    host.init(&["--no-tls", "--no-token"]);
    host.starts();
    let worker = host.lab.connect_one(0, host.lab.worker("journalled", 0, 1));
    let worker = worker.unwrap_or_else(|error| panic!("{error}"));
    let read = |options: &[&str]| {
        let fixed = ["--output=json", "--unit", host.unit];
        let lines = host.does("journalctl", &[&fixed[..], options].concat());
        let entries = lines.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        // The manager's own lines about the unit are no entries of the daemon.
        let own = |entry: &Value| entry["SYSLOG_IDENTIFIER"] == "xdp-agg";
        entries.filter(own).collect::<Vec<Value>>()
    };
    let entry = |what: &str| -> Value {
        let start = Instant::now();
        loop {
            let all = read(&[]);
            let is_it = |entry: &&Value| entry["MESSAGE"].as_str() == Some(what);
            match all.iter().find(is_it) {
                Some(entry) => return entry.clone(),
                None => assert!(start.elapsed() < LIMIT, "no {what:?} in {all:#?}"),
            }
            sleep(Duration::from_millis(50));
        }
    };
    let ready = entry("ready");
    assert_eq!((&ready["PRIORITY"], &ready["TARGET"]), (&"5".into(), &"xdp_agg::serve".into()));
    assert!(ready["F_ENGINE"].as_str().is_some_and(|said| said.starts_with("xdp")), "{ready}");
    assert_eq!(ready["F_CONTROL"], host.lab.control().to_string(), "{ready}");
    // By the journal's own protocol, not as lines of standard error.
    assert_eq!(ready["_TRANSPORT"], "journal", "{ready}");
    let job = read(&["F_JOB=journalled"]);
    assert!(!job.is_empty(), "the job's entries are found by its name");
    let warnings = read(&["--priority=warning"]);
    assert!(warnings.iter().all(|entry| entry["PRIORITY"] == "4"), "{warnings:#?}");
    let open = |entry: &Value| entry["MESSAGE"].as_str().is_some_and(|said| said.contains(OPEN));
    assert!(warnings.iter().any(open), "a warning of the open port: {warnings:#?}");
    drop(worker);
}

/// systemd listens, and the daemon comes when somebody does. A second daemon of other interfaces
/// stands beside it, and one that wants the same is told what is taken.
#[test]
fn sockets_and_instances() {
    need_root!();
    let host = Host::new(4, "xdp-agg@blue.service");
    let addr = host.lab.topology.aggregator_addr();
    let network = format!("{addr}/24");
    let interfaces = host.lab.topology.aggregator_interfaces();
    let write = |interface: &str, options: &[&str]| {
        let fixed = ["init", "--yes", "--no-tls", "--interface", interface, "--network", &network];
        host.does("xdp-agg", &[&fixed[..], options].concat());
    };
    let fresh = host.machine.path("/etc/systemd/system/xdp-agg.socket.d");
    fs::create_dir(&fresh).expect("there is room");
    let listen = format!("[Socket]\nListenStream=\nListenStream={addr}:9870\n");
    fs::write(fresh.join("address.conf"), listen).expect("there is room");
    host.does("systemctl", &["daemon-reload"]);
    write(&interfaces[..2].join(","), &[]);
    host.does("systemctl", &["start", "xdp-agg.socket"]);
    let active = |unit: &str| host.run("systemctl", &["is-active", unit]).status.success();
    assert!(!active("xdp-agg.service"), "nobody has come yet");
    let ask = |control: &str, token: &str| {
        let all = ["jobs", "--control", control, "--token-file", token];
        host.run("xdp-agg", &all)
    };
    let control = format!("{addr}:9870");
    let jobs = ask(&control, "/etc/xdp-agg/token");
    assert_eq!(text(&jobs.stdout), "no jobs\n", "{}{}", text(&jobs.stderr), host.log());
    assert!(active("xdp-agg.service"));

    write(&interfaces[2..].join(","), &["--instance", "blue"]);
    host.starts();
    let blue = format!("{addr}:9880");
    let jobs = ask(&blue, "/etc/xdp-agg/blue-token");
    assert_eq!(text(&jobs.stdout), "no jobs\n", "{}{}", text(&jobs.stderr), host.log());
    for place in ["/run/xdp-agg-blue", "/sys/fs/bpf/xdp-agg-blue", "/sys/fs/bpf/xdp-agg"] {
        assert!(host.machine.path(place).exists(), "{place}");
    }

    // What is taken is named: an interface, and a port.
    write(&interfaces[..2].join(","), &["--instance", "red"]);
    let red = |what: &str| {
        let done = host.run("systemctl", &["start", "xdp-agg@red.service"]);
        assert!(!done.status.success());
        let log = host.log();
        assert!(log.contains(what), "{what}: {log}");
        host.run("systemctl", &["stop", "xdp-agg@red.service"]);
        host.run("systemctl", &["reset-failed", "xdp-agg@red.service"]);
    };
    red(&format!("{} ", interfaces[0]));
    let settings = host.machine.path("/etc/xdp-agg/red.toml");
    let moved = fs::read_to_string(&settings).expect("it was written").replace(":9890", ":9880");
    fs::write(&settings, moved).expect("there is room");
    red(":9880 is in use");
}

/// What `systemd-analyze security` says of the units, and that both say the same.
#[test]
fn the_units_expose_little_and_the_template_is_the_same() {
    let read = |name: &str| fs::read_to_string(units().join(name)).expect("it is there");
    let strip = |text: &str| text.replace("-%i", "").replace("%i.toml", "config.toml");
    let settings = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with(['#', 'D']));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (service, template) = (read("xdp-agg.service"), read("xdp-agg@.service"));
    assert_eq!(settings(&service), settings(&strip(&template)));
    for unit in ["xdp-agg.service", "xdp-agg@.service"] {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager"]).arg(units().join(unit));
        let output = command.output().expect("it starts; it is part of the package systemd");
        let said = text(&output.stdout);
        let line = said.lines().find(|line| line.contains("Overall exposure level"));
        let line = line.unwrap_or_else(|| panic!("{said}{}", text(&output.stderr)));
        let words = line.rsplit_once(": ").expect("a figure").1;
        let figure: f64 =
            words.split_whitespace().next().and_then(|word| word.parse().ok()).expect(line);
        println!("{unit}: exposure {figure}");
        assert!(figure <= EXPOSURE, "{line}");
    }
}
