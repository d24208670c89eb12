//! The program as people run it: its output, its exit codes, its signals.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;
use xdp_agg_testbed::{USERSPACE, without_settings};
use xdp_agg_tls::testing::{Authority, Valid};

/// Signals that end a daemon.
const TERM: i32 = 15;
const INT: i32 = 2;

/// The program, with nothing of this machine's settings.
fn program() -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_xdp-agg")));
    command.stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    program().args(args).output().expect("the program runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts the exit code and that standard error holds all of `words`.
fn fails(output: &Output, code: i32, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

/// A daemon on free ports of loopback; ends with this.
struct Daemon(xdp_agg_testbed::Daemon);

impl Daemon {
    fn start(change: impl FnOnce(&mut Command)) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_xdp-agg"));
        Self(xdp_agg_testbed::Daemon::serve(program, change).expect("it gets ready"))
    }

    fn userspace() -> Self {
        Self::start(|command| _ = command.args(USERSPACE))
    }

    fn control(&self) -> &str {
        self.0.control()
    }

    fn ask(&self, args: &[&str]) -> Output {
        program().args(args).env("XDP_AGG_CONTROL", self.control()).output().expect("it runs")
    }

    fn stats(&self) -> Value {
        let output = self.ask(&["stats", "--json"]);
        serde_json::from_slice(&output.stdout).expect("stats are JSON")
    }

    /// Sends a signal and waits for the end: exit code and all of standard error.
    fn signal(self, signal: i32) -> (Option<i32>, String) {
        let end = self.0.signal(signal, Duration::from_secs(5)).expect("it ends");
        (end.status.code(), end.stderr)
    }
}

#[test]
fn the_daemon_says_when_it_is_ready_and_ends_on_signals() {
    for (name, signal) in [("TERM", TERM), ("INT", INT)] {
        let daemon = Daemon::userspace();
        let words: Vec<_> = daemon.0.ready().split_whitespace().collect();
        assert_eq!(words[0], "ready");
        assert!(words[1].starts_with("control=127.0.0.1:"), "{words:?}");
        let port = words[2].strip_prefix("data_port=").and_then(|port| port.parse::<u16>().ok());
        assert!(port.is_some_and(|port| port != 0), "{words:?}");
        // The default address may be another daemon's.
        assert!(matches!(words[3], "http=127.0.0.1:9871" | "http=off"), "{words:?}");
        assert_eq!(words[4..], ["engine=userspace"]);
        let (code, log) = daemon.signal(signal);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains(&format!("SIG{name}")), "{log}");
        assert!(!log.contains('\x1b'), "colours in a pipe: {log}");
    }
}

/// A daemon that serves HTTP on a free port, and where.
fn with_http() -> (Daemon, String) {
    let daemon =
        Daemon::start(|command| _ = command.args(USERSPACE).args(["--http", "127.0.0.1:0"]));
    let http = daemon.0.ready().split(' ').find_map(|word| word.strip_prefix("http="));
    let http = http.expect("it is named").to_owned();
    (daemon, http)
}

#[test]
fn top_prints_one_look_where_there_is_no_terminal() {
    let (daemon, http) = with_http();
    assert!(daemon.ask(&["jobs", "create", "train", "--world-size", "2"]).status.success());
    // The observer looks five times a second.
    std::thread::sleep(Duration::from_millis(500));
    let none: [&str; 0] = [];
    for more in [&none[..], &["--once"][..]] {
        let text = stdout(&run(&[&["top", "--http", http.as_str()][..], more].concat()));
        assert!(text.starts_with("xdp-agg ") && text.contains(", 1 jobs\n"), "{text}");
        let row = text.lines().find(|line| line.starts_with("train")).expect("the job's row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[..5], ["train", "forming", "0", "0/2", "0"], "{text}");
        let missing = text.lines().filter(|line| line.contains(" missing ")).count();
        assert_eq!(missing, 2, "{text}");
    }
    let (code, log) = daemon.signal(TERM);
    assert_eq!(code, Some(0), "{log}");
    fails(&run(&["top", "--http", &http]), 3, &["no daemon serves HTTP at", &http, "--http"]);
}

#[test]
fn a_taken_http_address_is_an_error_and_the_default_one_a_warning() {
    let (_first, http) = with_http();
    let serve = ["serve", "--control", "127.0.0.1:0"];
    let taken = program().args(serve).args(USERSPACE).args(["--http", &http]).output();
    fails(&taken.expect("it runs"), 1, &["cannot listen on", &http, "for HTTP", "--http"]);
    // One of these two has the default address, or neither.
    let (second, third) = (Daemon::userspace(), Daemon::userspace());
    let off = [&second, &third].map(|daemon| daemon.0.ready().contains("http=off"));
    assert!(off.contains(&true));
    for (daemon, off) in [(second, off[0]), (third, off[1])] {
        let (code, log) = daemon.signal(TERM);
        assert_eq!(code, Some(0), "{log}");
        let warnings = log.lines().filter(|line| line.contains("no metrics and no page")).count();
        assert_eq!(warnings, usize::from(off), "{log}");
    }
    let off = Daemon::start(|command| _ = command.args(USERSPACE).args(["--http", "off"]));
    assert!(off.0.ready().contains("http=off"));
    let (_, log) = off.signal(TERM);
    assert!(!log.contains("no metrics and no page"), "{log}");
}

#[test]
fn jobs_are_reserved_listed_and_ended() {
    let daemon = Daemon::userspace();
    assert_eq!(stdout(&daemon.ask(&["jobs"])), "no jobs\n");
    let create = ["jobs", "create", "train", "--world-size", "4", "--slots", "64"];
    assert!(daemon.ask(&create).status.success());
    fails(&daemon.ask(&create), 1, &["\"train\" exists", "delete"]);
    let table = stdout(&daemon.ask(&["jobs", "list"]));
    let line = table.lines().nth(1).expect("a row below the head");
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells[..9], ["train", "0", "forming", "0/4", "0", "64", "-", "-", "0,1,2,3"]);
    assert_eq!(cells[9..], ["-", "0", "-"]);
    let json: Value = serde_json::from_slice(&daemon.ask(&["jobs", "list", "--json"]).stdout)
        .expect("the list is JSON");
    assert_eq!(json[0]["job"], "train");
    assert!(daemon.ask(&["jobs", "delete", "train"]).status.success());
    fails(&daemon.ask(&["jobs", "delete", "train"]), 1, &["no job named \"train\""]);
    let wrong = ["jobs", "create", "odd", "--world-size", "4", "--slots", "12"];
    fails(&daemon.ask(&wrong), 1, &["12 slots", "power of two"]);
}

#[test]
fn stats_are_a_table_or_json_once_or_live() {
    let daemon = Daemon::userspace();
    daemon.ask(&["jobs", "create", "train", "--world-size", "2"]);
    let text = stdout(&daemon.ask(&["stats"]));
    assert!(text.starts_with("engine userspace, up 0:00:0"), "{text}");
    assert!(text.contains("slots 7168 of 8192 free"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("train") && line.contains("forming")));
    let stats = daemon.stats();
    assert_eq!(stats["jobs"][0]["counters"]["blocks"], 0);
    assert_eq!(stats["slots_free"], 7168);
    let live = daemon.ask(&["stats", "--watch", "0.1", "--count", "3"]);
    let live = stdout(&live);
    assert_eq!(live.matches("engine userspace").count(), 3);
    assert!(!live.contains('\x1b'), "no screen is cleared in a pipe");
    assert!(live.contains(" 0.0"), "rates from the second look on: {live}");
    let lines = daemon.ask(&["stats", "--json", "--watch", "0.1", "--count", "2"]);
    assert_eq!(stdout(&lines).lines().count(), 2);
}

/// Each line of the log is an object, whose fields are those of the event.
#[test]
fn the_log_is_json_where_that_is_asked_for() {
    let daemon = Daemon::start(|command| {
        command.args(USERSPACE).args(["--log-format", "json", "--log", "debug"]);
    });
    let created = daemon.ask(&["jobs", "create", "logged", "--world-size", "2"]);
    assert_eq!(created.status.code(), Some(0), "{}", stderr(&created));
    let (code, log) = daemon.signal(TERM);
    assert_eq!(code, Some(0), "{log}");
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key} in {line}");
        }
    }
    let ready = lines.iter().find(|line| line["message"] == "ready").expect("it got ready");
    assert_eq!(ready["engine"], "userspace");
    assert!(ready["control"].as_str().is_some_and(|text| text.starts_with("127.0.0.1:")));
    assert!(lines.iter().any(|line| line["job"] == "logged"), "{log}");
}

/// The journal that is asked for has to be there; one that is taken by default has not.
#[test]
fn a_journal_is_asked_for_or_found() {
    if std::path::Path::new("/run/systemd/journal/socket").exists() {
        return; // where there is one, there is nothing to refuse
    }
    let mut serve = program();
    let asked = serve.arg("serve").args(USERSPACE).args(["--log-format", "journald"]);
    let refused = asked.output().expect("the program runs");
    fails(&refused, 2, &["log-format", "no journal of systemd is here", "text or json"]);
}

#[test]
fn nobody_at_the_address_has_an_exit_code_of_its_own() {
    let words = ["no daemon at 127.0.0.1:1", "xdp-agg serve", "--control"];
    for args in [&["jobs", "--control", "127.0.0.1:1"][..], &["stats", "--control", "127.0.0.1:1"]]
    {
        fails(&run(args), 3, &words);
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = silent.local_addr().expect("it is bound").to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = silent.accept().expect("the tool connects");
        let mut bytes = [0; 16];
        stream.read_exact(&mut bytes).expect("it says hello");
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    });
    fails(&run(&["jobs", "--control", &addr]), 1, &["does not answer as an xdp-agg daemon"]);
    assert!(other.join().is_ok());
}

/// The daemon is there for its command, goes with it, and says nothing on its standard output.
#[test]
fn a_command_is_served_for_as_long_as_it_runs() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let control = free.local_addr().expect("it is bound").to_string();
    drop(free);
    let serve = |command: &[&str]| {
        let mut serve = program();
        serve.args(["serve", "--engine", "userspace", "--control", &control, "--data-port", "0"]);
        serve.arg("--").args(command);
        serve
    };
    let run = |command: &[&str]| serve(command).output().expect("it runs");
    let own = env!("CARGO_BIN_EXE_xdp-agg");
    let output = run(&[own, "stats", "--json", "--control", &control]);
    let stats: Value = serde_json::from_slice(&output.stdout).expect("the daemon's stats alone");
    assert_eq!(stats["slots"], stats["slots_free"]);
    let output = run(&["sh", "-c", "exit 7"]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(7), ""), "{}", stderr(&output));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(128 + 9));
    fails(&run(&["/no/such/program"]), 1, &["running /no/such/program"]);
    // A signal is the command's.
    let waits = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut waiting = serve(&["sh", "-c", waits]);
    let mut waiting = waiting.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut out = waiting.stdout.take().expect("a pipe");
    let mut ready = [0; 6];
    out.read_exact(&mut ready).expect("the command runs");
    let pid = waiting.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it ends");
    assert_eq!((&ready[..], &*rest), (&b"ready\n"[..], "told\n"));
    assert_eq!(waiting.wait().expect("it has ended").code(), Some(3));
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::userspace();
    let args = ["serve", "--engine", "userspace", "--data-port", "0", "--control"];
    let output = program().args(args).arg(daemon.control()).output().expect("it runs");
    fails(&output, 1, &["in use", daemon.control(), "--control"]);
    let port = daemon.0.ready().split_whitespace().find_map(|w| w.strip_prefix("data_port="));
    let args = ["serve", "--engine", "userspace", "--control", "127.0.0.1:0", "--data-port"];
    let output = program().args(args).args(port).output().expect("it runs");
    fails(&output, 1, &["UDP address", "in use", "--data-port"]);
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let file = NamedTempFile::new().expect("there is a place for temporary files");
    let text = "engine = 'userspace'\ndata-port = 0\nslots = 64\njob-slots = 8\nmtu = 1500\n";
    std::fs::write(file.path(), text).expect("it can be written");
    let daemon = Daemon::start(|command| {
        command.env("XDP_AGG_CONFIG", file.path());
        command.env("XDP_AGG_SLOTS", "128").env("XDP_AGG_JOB_SLOTS", "32");
        command.args(["--job-slots", "16"]);
    });
    daemon.ask(&["jobs", "create", "train", "--world-size", "2"]);
    let stats = daemon.stats();
    assert_eq!((&stats["slots"], &stats["slots_free"]), (&Value::from(128), &Value::from(112)));
}

#[test]
fn wrong_settings_are_named() {
    let file = NamedTempFile::new().expect("there is a place for temporary files");
    std::fs::write(file.path(), "slots = 64\ncolour = 'blue'\n").expect("it can be written");
    let path = file.path().to_str().expect("it is text");
    fails(&run(&["serve", "--config", path]), 2, &["colour", "line 2", path, "data-port"]);
    fails(&run(&["serve", "--config", "/no/such/file"]), 2, &["/no/such/file", "cannot read"]);
    fails(&run(&["serve", "--job-slots", "12"]), 2, &["job-slots = 12", "power of two"]);
    fails(&run(&["serve", "--mtu", "100"]), 2, &["mtu = 100", "114"]);
    fails(&run(&["serve", "--log", "a=b=c"]), 2, &["log = a=b=c"]);
    fails(&run(&["serve", "--engine", "magic"]), 2, &["magic", "userspace"]);
    for address in ["::1", "[::1]", "fe80::1%eth0"] {
        let words = [address, "this is an IPv6 address; expected an IPv4 address"];
        for option in ["--data-addr", "--local-addr"] {
            fails(&run(&["serve", option, address]), 2, &words);
        }
    }
    fails(&run(&["fly"]), 2, &["fly", "--help"]);
}

#[test]
fn an_engine_that_cannot_run_is_refused_or_replaced_aloud() {
    let xdp = ["serve", "--engine", "xdp", "--control", "127.0.0.1:0"];
    fails(&run(&xdp), 1, &["--interface", "--engine userspace"]);
    let nowhere = [&xdp[..], &["--interface", "no-such-if0"]].concat();
    fails(&run(&nowhere), 1, &["no-such-if0", "ip link"]);
    let daemon = Daemon::start(|command| {
        command.args(["--data-port", &free_udp_port().to_string()]).env("NO_COLOR", "1");
    });
    assert!(daemon.0.ready().trim_end().ends_with("engine=userspace"), "{}", daemon.0.ready());
    let (code, log) = daemon.signal(TERM);
    assert_eq!(code, Some(0));
    let words = ["WARN", "taking the user-space engine"];
    assert!(words.iter().all(|word| log.contains(word)), "{log}");
}

fn free_udp_port() -> u16 {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a port is free");
    socket.local_addr().expect("it is bound").port()
}

#[test]
fn the_doctor_speaks_in_lines_or_json() {
    let ports = ["--control", "127.0.0.1:0", "--data-port", "0"];
    let text = run(&[&["doctor"], &ports[..]].concat());
    let lines: Vec<_> = stdout(&text).lines().map(str::to_owned).collect();
    for line in &lines {
        let status = line.split_whitespace().next();
        assert!(matches!(status, Some("ok" | "warn" | "fail")), "{line}");
    }
    for subject in ["kernel", "BTF", "capabilities", "net.core.rmem_max", "control port"] {
        assert!(lines.iter().any(|line| line.contains(subject)), "{subject}: {lines:?}");
    }
    let failed = lines.iter().any(|line| line.starts_with("fail"));
    assert_eq!(text.status.code(), Some(i32::from(failed)));

    let output = run(&[&["doctor", "--json", "--interface", "no-such-if0"], &ports[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["ok"], false);
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["subject"] == "no-such-if0");
    assert_eq!(check.map(|check| &check["status"]), Some(&Value::from("fail")));
}

#[test]
fn help_tells_the_exit_codes() {
    for args in [&["--help"][..], &["serve", "--help"], &["stats", "--help"], &["doctor", "--help"]]
    {
        let output = run(args);
        assert!(output.status.success());
        assert!(stdout(&output).contains("no daemon answers"), "{args:?}");
    }
}

/// A daemon that wants a token and certificates, and the files of a client that has both.
struct Guarded {
    daemon: Daemon,
    /// CA, certificate, key, token.
    files: [String; 4],
    _authority: Authority,
}

impl Guarded {
    fn start() -> Self {
        let authority = Authority::new("test");
        let ca = authority.ca.clone();
        let daemon_files = authority.issue("127.0.0.1", Valid::Now);
        let tool = authority.issue("tool", Valid::Now);
        let token = authority.directory().join("token");
        std::fs::write(&token, "s3cret\n").expect("it can be written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, mode).expect("it is ours");
        let daemon = Daemon::start(|command| {
            command.args(["--engine", "userspace", "--data-port", "0"]);
            command.arg("--tls-client-ca").arg(&ca).arg("--token-file").arg(&token);
            command.arg("--tls-cert").arg(&daemon_files.certificate);
            command.arg("--tls-key").arg(&daemon_files.key);
        });
        let files = [ca, tool.certificate, tool.key, token];
        let files = files.map(|path| path.to_str().expect("a path of ours").to_owned());
        Self { daemon, files, _authority: authority }
    }

    /// A worker that is given the first `files` files.
    fn worker(&self, rank: u16, files: usize) -> Command {
        let mut command = program();
        command.args(["tune", "--collective", "reduce", "--bytes", "4K", "--iters", "2"]);
        command.env("XDP_AGG_ADDR", self.daemon.control());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        let names = ["XDP_AGG_TLS_CA", "XDP_AGG_TLS_CERT", "XDP_AGG_TLS_KEY", "XDP_AGG_TOKEN_FILE"];
        command.envs(names.into_iter().zip(&self.files).take(files));
        command
    }
}

#[test]
fn tools_use_tls_and_the_token() {
    let Guarded { daemon, files, .. } = &Guarded::start();
    let [ca, certificate, key, token] = files.each_ref().map(String::as_str);
    let all = ["--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key, "--token-file", token];
    for command in ["jobs", "stats"] {
        let output = daemon.ask(&[&[command], &all[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        fails(&daemon.ask(&[command]), 1, &["speaks TLS only", "tls-ca"]);
        fails(&daemon.ask(&[&[command], &all[..2]].concat()), 1, &["asks for a certificate"]);
        fails(&daemon.ask(&[&[command], &all[..6]].concat()), 1, &["wants a token"]);
        fails(&daemon.ask(&[&[command], &all[..4]].concat()), 2, &["tls-cert", "tls-key is not"]);
        let named = [&[command], &all[..], &["--tls-name", "other"]].concat();
        fails(&daemon.ask(&named), 1, &["for another name", "tls-name"]);
    }
    let plain = Daemon::userspace();
    fails(&plain.ask(&[&["jobs"], &all[..2]].concat()), 1, &["does not speak TLS"]);
    let wrong = run(&["serve", "--tls-cert", "/nowhere.pem", "--tls-key", key]);
    fails(&wrong, 2, &["tls-cert", "/nowhere.pem", "check the path"]);
}

#[test]
fn workers_use_tls_and_the_token() {
    let guarded = Guarded::start();
    let start = Instant::now();
    let run = |mut command: Command| command.output().expect("it runs");
    fails(&run(guarded.worker(0, 0)), 1, &["speaks TLS only", "XDP_AGG_TLS_CA"]);
    fails(&run(guarded.worker(0, 1)), 1, &["TLS", "asks for a certificate"]);
    fails(&run(guarded.worker(0, 2)), 2, &["tls-cert", "tls-key is not"]);
    fails(&run(guarded.worker(0, 3)), 1, &["wants a token"]);
    let mut renamed = guarded.worker(0, 4);
    renamed.env("XDP_AGG_TLS_NAME", "other");
    fails(&run(renamed), 1, &["TLS", "for another name"]);
    // A setting that cannot become right is not tried for a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let mut first = guarded.worker(0, 4);
    first.stdout(Stdio::piped()).stderr(Stdio::piped());
    let first = first.spawn().expect("the program runs");
    let second = run(guarded.worker(1, 4));
    assert!(second.status.success(), "{}", stderr(&second));
    let first = first.wait_with_output().expect("it ends");
    assert!(first.status.success() && stdout(&first).contains("4096"), "{}", stderr(&first));
}

/// A token that passed for a variable that is not set would be left out, and a deadline be another.
#[test]
fn a_variable_that_is_no_text_is_refused_by_tools_and_not_shown() {
    let broken = OsString::from_vec(b"secret\xff".into());
    let cases: [(&str, &[&str]); 3] = [
        ("XDP_AGG_TOKEN", &["jobs"]),
        ("RANK", &["topology", "measure"]),
        ("XDP_AGG_DEADLINE", &["tune", "--bytes", "4K"]),
    ];
    let daemon = Daemon::userspace();
    for (name, arguments) in cases {
        let mut command = program();
        command.args(arguments).env(name, &broken).env("XDP_AGG_CONTROL", daemon.control());
        if name != "RANK" {
            command.env("RANK", "0").env("WORLD_SIZE", "1");
        }
        let output = command.output().expect("it runs");
        fails(&output, 2, &[name, "UTF-8"]);
        assert!(!stderr(&output).contains("secret"), "{}", stderr(&output));
    }
}
