//! The daemon as a service: what a service manager hears of it and hands to it, settings that are
//! read again, and settings that `xdp-agg init` writes.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, PipeReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use xdp_agg_client::{Builder, Communicator, Op};
use xdp_agg_testbed::{Process, USERSPACE, without_settings};

/// Longest time that anything here may take.
const LIMIT: Duration = Duration::from_secs(20);
/// What a watchdog waits for, and no sign of life for this long is none.
const WATCHDOG: Duration = Duration::from_millis(300);
const SILENCE: Duration = Duration::from_millis(1500);

fn program() -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_xdp-agg")));
    command.stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("it can be written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket option");
        Self { socket, dir }
    }

    fn supervise(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    }

    /// The next thing that it is told, if there is one soon.
    fn hear(&self) -> Option<String> {
        let mut buffer = [0; 1024];
        let len = self.socket.recv(&mut buffer).ok()?;
        Some(text(&buffer[..len]))
    }

    /// Waits for these words; what it was told before them.
    fn wait(&self, words: &str) -> Vec<String> {
        let mut before = Vec::new();
        until(words, || {
            let heard = self.hear()?;
            let is_it = heard.contains(words);
            before.push(heard);
            is_it.then_some(())
        });
        before
    }
}

#[test]
fn a_service_manager_hears_when_the_daemon_serves_and_what() {
    let manager = Manager::new();
    let mut command = program();
    command.args(["serve", "--control", "127.0.0.1:0"]).args(USERSPACE);
    manager.supervise(&mut command);
    let mut daemon = Process::serve("a daemon", command).expect("it gets ready");
    let before = manager.wait("READY=1");
    assert_eq!(before.len(), 1, "nothing comes before it: {before:?}");
    manager.wait("STATUS=0 jobs; userspace");
    let line = daemon.stdout();
    let control = line.split_whitespace().find_map(|word| word.strip_prefix("control="));
    let create = ["jobs", "create", "one", "--world-size", "2"];
    let mut created = program();
    created.args(create).env("XDP_AGG_CONTROL", control.expect("it says it"));
    assert!(created.output().expect("it runs").status.success());
    let between = manager.wait("STATUS=1 job; userspace");
    assert!(between.iter().any(|heard| heard == "WATCHDOG=1\n"), "{between:?}");
    daemon.signal(libc::SIGHUP).expect("it runs");
    let reloading = manager.wait("RELOADING=1").pop().expect("it was told");
    assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
    manager.wait("READY=1");
    daemon.signal(libc::SIGTERM).expect("it runs");
    manager.wait("STOPPING=1");
    assert!(daemon.wait(LIMIT).expect("it ends").status.success());
}

/// Reads a daemon's words until the end, so that it never waits.
fn read_on(mut words: PipeReader) {
    thread::spawn(move || {
        let mut all = Vec::new();
        drop(words.read_to_end(&mut all));
    });
}

/// A daemon whose loop is stuck, as nobody reads what it logs, gives no sign of life. So the signs
/// come from the loop that serves, and from nobody else.
#[test]
fn a_loop_that_is_stuck_gives_no_sign_of_life() {
    let manager = Manager::new();
    let (log, writer) = std::io::pipe().expect("a pipe");
    let mut command = program();
    command.args(["serve", "--control", "127.0.0.1:0", "--log", "debug"]).args(USERSPACE);
    let mut filler = writer.try_clone().expect("a descriptor");
    command.stdout(Stdio::piped()).stderr(writer);
    manager.supervise(&mut command);
    let mut daemon = Killed(command.spawn().expect("it starts"));
    // The command has the end of the pipe that is written to.
    drop(command);
    let mut line = String::new();
    let stdout = daemon.0.stdout.take().expect("it is captured");
    BufReader::new(stdout).read_line(&mut line).expect("it gets ready");
    let control = line.split_whitespace().find_map(|word| word.strip_prefix("control="));
    let control: SocketAddr = control.and_then(|text| text.parse().ok()).expect("it says it");
    manager.wait("WATCHDOG=1");
    // The pipe is full, and what is written to it waits for a reader.
    thread::spawn(move || filler.write_all(&[b' '; 1 << 18]));
    let mut connections = Vec::new();
    let mut heard = Instant::now();
    until("the loop is stuck", || {
        // Each of these is logged.
        if connections.len() < 100 {
            connections.extend((0..10).filter_map(|_| TcpStream::connect(control).ok()));
        }
        if manager.hear().is_some() {
            heard = Instant::now();
        }
        (heard.elapsed() > SILENCE).then_some(())
    });
    assert!(daemon.0.try_wait().expect("it was started").is_none(), "it runs");
    read_on(log);
    manager.wait("WATCHDOG=1");
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// `systemd-socket-activate` listens, and starts the daemon with the socket when somebody comes.
fn activate(listen: &[&str], daemon: &[&str]) -> Process {
    let mut command = without_settings(Command::new("systemd-socket-activate"));
    command.args(listen).arg(env!("CARGO_BIN_EXE_xdp-agg")).arg("serve");
    command.args(USERSPACE).args(daemon);
    Process::spawn("activated", command).expect("it starts; it is part of the package systemd")
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

#[test]
fn a_socket_that_is_handed_over_is_the_control_port() {
    for same in [true, false] {
        let addr = free_address();
        let settings = ["--control", &addr];
        let daemon = activate(&["--listen", &addr], if same { &settings } else { &[] });
        let asked = until("it listens", || {
            let mut jobs = program();
            let output = jobs.args(["jobs", "--control", &addr]).output().expect("it runs");
            output.status.success().then_some(output)
        });
        assert_eq!(text(&asked.stdout), "no jobs\n");
        assert!(daemon.stdout().contains(&format!("control={addr} ")), "{}", daemon.stdout());
    }
}

#[test]
fn a_socket_of_another_kind_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket").display().to_string();
    let addr = free_address();
    let two = free_address();
    let elsewhere = ["--control", "127.0.0.1:1"];
    let tcp = ["--listen", &addr];
    for (listen, settings, words) in [
        (&["--datagram", "--listen", &addr][..], &[][..], "not a valid tcp socket"),
        (&["--listen", &path], &[], "not a valid tcp socket"),
        (&["--listen", &addr, "--listen", &two], &[], "2 sockets were handed over"),
        (&tcp, &elsewhere, "control = 127.0.0.1:1 is set"),
    ] {
        let mut daemon = activate(listen, settings);
        let knock = || {
            // Whatever it listens for comes.
            drop(TcpStream::connect(&addr));
            drop(std::os::unix::net::UnixStream::connect(&path));
            let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            drop(udp.send_to(b"x", &addr));
            daemon.try_wait().expect("it was started")
        };
        let status = until(words, knock);
        let said = daemon.stderr();
        assert!(!status.success() && said.contains(words), "{words}: {said}");
        assert!(said.contains("LISTEN_FDS") && said.contains(".socket"), "{said}");
        drop(fs::remove_file(&path));
    }
}

/// A directory of settings, and a daemon with them.
struct Service {
    dir: TempDir,
    daemon: Option<Process>,
    control: String,
}

impl Service {
    /// Settings that `xdp-agg init` wrote.
    fn init(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let service = Self { dir, daemon: None, control: free_address() };
        let done = service.write_settings(options);
        assert!(done.status.success(), "{}", text(&done.stderr));
        // Loopback is no interface to serve, and the ports of a test are free ones.
        let settings = fs::read_to_string(service.file("config.toml")).expect("it was written");
        let own = |line: &str| {
            !["interface =", "control =", "data-addr ="].iter().any(|key| line.starts_with(key))
        };
        let mut lines: Vec<_> = settings.lines().filter(|line| own(line)).collect();
        let control = format!("control = '{}'", service.control);
        lines.extend([control.as_str(), "engine = 'userspace'"]);
        let lines = lines.join("\n").replace("#data-port = 48864", "data-port = 0");
        write(&service.file("config.toml"), &lines, 0o644);
        service
    }

    fn write_settings(&self, options: &[&str]) -> Output {
        let mut command = program();
        command.args(["init", "--yes", "--dir"]).arg(self.dir.path()).args(options);
        command.output().expect("it runs")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("it is there")
    }

    fn change(&self, from: &str, to: &str) {
        let settings = self.read("config.toml");
        assert!(settings.contains(from), "{from}: {settings}");
        write(&self.file("config.toml"), &settings.replace(from, to), 0o644);
    }

    fn serve(&mut self) {
        let mut command = program();
        command.arg("serve").arg("--config").arg(self.file("config.toml"));
        self.daemon = Some(Process::serve("a daemon", command).expect("it gets ready"));
    }

    fn log(&self) -> String {
        self.daemon.as_ref().expect("it runs").stderr()
    }

    fn reload(&self) -> Output {
        let mut command = program();
        command.arg("reload").arg("--config").arg(self.file("config.toml"));
        command.output().expect("it runs")
    }

    /// That it changes these settings.
    fn reloads(&self, changed: &str) {
        let done = self.reload();
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_eq!(text(&done.stdout), format!("changed: {changed}\n"));
    }

    /// That it refuses, with these words and without a change.
    fn stays(&self, words: &[&str]) {
        let done = self.reload();
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), done.stdout.is_empty()), (Some(1), true), "{said}");
        for words in ["all settings stay as they were"].iter().chain(words) {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(self.log().contains(words[0]), "the log says so, too: {}", self.log());
    }

    /// Settings of a worker.
    fn worker(&self, job: &str, rank: u16) -> Builder {
        Communicator::builder()
            .aggregator(self.control.parse::<SocketAddr>().expect("an address"))
            .job(job)
            .rank(rank)
            .world_size(2)
            .deadline(LIMIT)
            .join_deadline(LIMIT)
    }

    /// A job of two.
    fn job(&self, name: &str, tune: impl Fn(Builder) -> Builder + Sync) -> Vec<Communicator> {
        thread::scope(|scope| {
            let join = |rank| {
                let settings = tune(self.worker(name, rank));
                scope.spawn(move || settings.connect().expect("it joins"))
            };
            let joining = [0, 1].map(join);
            joining.map(|one| one.join().expect("it joins")).into()
        })
    }

    /// The same over TLS, with the token that is said.
    fn guarded(&self, name: &str, token: &str) -> Vec<Communicator> {
        let ca = self.file("ca.pem");
        self.job(name, |worker| worker.token(token).tls_ca(ca.clone()))
    }
}

/// Sums on both, and checks the sums.
fn sum(workers: &[Communicator]) {
    thread::scope(|scope| {
        for (rank, worker) in (1..).zip(workers) {
            scope.spawn(move || {
                let mut values: Vec<i32> = (0..3000).map(|i| rank * i).collect();
                worker.all_reduce(&mut values, Op::Sum).expect("a sum");
                assert!((0..3000).zip(&values).all(|(i, value)| *value == 3 * i));
            });
        }
    });
}

/// Settings as they are written are served; each file is secret that has to be, and none is
/// overwritten by mistake.
#[test]
fn what_init_writes_is_served_with_token_and_certificates() {
    let mut service = Service::init(&["--interface", some_interface()]);
    let mode = |name: &str| {
        let found = fs::metadata(service.file(name)).expect("it was written");
        found.permissions().mode() & 0o777
    };
    for (name, expected) in [
        ("token", 0o600),
        ("server.key", 0o600),
        ("ca.key", 0o600),
        ("server.pem", 0o644),
        ("ca.pem", 0o644),
        ("config.toml", 0o644),
    ] {
        assert_eq!(mode(name), expected, "{name}");
    }
    let (before, token) = (service.read("config.toml"), service.read("token"));
    let refused = service.write_settings(&["--interface", some_interface()]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--force"), "{said}");
    assert_eq!((service.read("config.toml"), service.read("token")), (before, token.clone()));
    assert_eq!(token.trim().len(), 64, "32 random bytes");

    service.serve();
    assert!(!service.log().contains("CONTROL IS OPEN"), "{}", service.log());
    let workers = service.guarded("guarded", token.trim());
    sum(&workers);
    let ca = service.file("ca.pem");
    let stranger = |tune: &dyn Fn(Builder) -> Builder| {
        tune(service.worker("guarded", 0).join_deadline(Duration::from_secs(1))).connect()
    };
    assert!(stranger(&|worker| worker.tls_ca(ca.clone())).is_err(), "it knows no token");
    assert!(stranger(&|worker| worker.token(token.trim())).is_err(), "it speaks no TLS");
    service.reloads("nothing");
    sum(&workers);
}

/// Some interface of this host that is no loopback; the settings are changed before they are used.
fn some_interface() -> &'static str {
    use std::sync::OnceLock;
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let all = fs::read_dir("/sys/class/net").expect("Linux").flatten();
        let mut names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name != "lo").expect("this host has an interface besides loopback")
    })
}

/// Old and new token are good at once, then the new one alone; certificates are renewed by the
/// authority that workers know. A job runs all the while.
#[test]
fn token_and_certificates_are_replaced_under_a_running_job() {
    let mut service = Service::init(&["--interface", some_interface(), "--client-certificates"]);
    let old = service.read("token").trim().to_owned();
    service.serve();
    let (ca, cert, key) =
        (service.file("ca.pem"), service.file("worker.pem"), service.file("worker.key"));
    let known = |worker: Builder, token: &str| {
        worker.token(token).tls_ca(ca.clone()).tls_identity(cert.clone(), key.clone())
    };
    let workers = service.job("running", |worker| known(worker, &old));
    sum(&workers);
    let welcome = |token: &str| {
        let secret = service.file(&format!("said-{token}"));
        write(&secret, token, 0o600);
        let mut jobs = program();
        jobs.args(["jobs", "--control", &service.control]).arg("--token-file").arg(secret);
        jobs.arg("--tls-ca").arg(&ca).arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        jobs.output().expect("it runs").status.success()
    };
    // Step 1: both are good, and the old one is still said.
    write(&service.file("token"), &format!("{old}\nfresh\n"), 0o600);
    service.reloads("token-file");
    assert!(welcome(&old) && welcome("fresh") && !welcome("other"));
    sum(&workers);
    // Step 2: the new one comes first, for whoever says the first one.
    write(&service.file("token"), &format!("fresh\n{old}\n"), 0o600);
    service.reloads("token-file");
    assert!(welcome(&old) && welcome("fresh"));
    sum(&service.job("between", |worker| known(worker, "fresh")));
    // Step 3: the old one is gone.
    write(&service.file("token"), "fresh\n", 0o600);
    service.reloads("token-file");
    assert!(!welcome(&old) && welcome("fresh"));
    sum(&workers);

    // The daemon's certificate, by the same authority.
    let (settings, authority) = (service.read("config.toml"), service.read("ca.pem"));
    let before = service.read("server.pem");
    let renewed = service.write_settings(&[
        "--interface",
        some_interface(),
        "--client-certificates",
        "--force",
    ]);
    assert!(renewed.status.success(), "{}", text(&renewed.stderr));
    write(&service.file("config.toml"), &settings, 0o644);
    assert_eq!((service.read("ca.pem"), service.read("token")), (authority, "fresh\n".into()));
    assert_ne!(service.read("server.pem"), before);
    service.reloads("tls-cert");
    assert!(welcome("fresh"));
    sum(&workers);
    sum(&service.job("after", |worker| known(worker, "fresh")));
    let log = service.log();
    assert_eq!(log.matches("were read again").count(), 4, "{log}");
}

/// A file that cannot be used leaves all as it was, whatever else has changed; what needs a restart
/// is named.
#[test]
fn what_cannot_be_taken_over_is_refused_and_named() {
    let mut service = Service::init(&["--interface", some_interface()]);
    let token = service.read("token").trim().to_owned();
    service.serve();
    let workers = service.guarded("running", &token);
    // Another limit is good, and the certificate is not.
    let certificate = service.read("server.pem");
    service.change("#job-slots-max = 1024", "job-slots-max = 2048");
    write(&service.file("server.pem"), "no certificate", 0o644);
    service.stays(&["tls-cert", "server.pem"]);
    write(&service.file("server.pem"), &certificate, 0o644);
    write(&service.file("config.toml"), &(service.read("config.toml") + "\nslot = 3\n"), 0o644);
    // It cannot even find out where the daemon is.
    let done = service.reload();
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    service.change("\nslot = 3\n", "\n");
    service.reloads("job-slots-max");
    service.change("job-slots-max = 2048", "job-slots-max = 1024\ndead-after = 7\nslots = 4096");
    let done = service.reload();
    let said = text(&done.stderr);
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(1), "changed: job-slots-max\n"));
    assert!(said.contains("need a restart: slots, dead-after"), "{said}");
    assert!(service.log().contains("a restart takes these over: slots, dead-after"));
    sum(&workers);
    // Nobody who knows the token not may ask for it.
    let mut stranger = program();
    stranger.args(["reload", "--control", &service.control]);
    stranger.arg("--tls-ca").arg(service.file("ca.pem"));
    let refused = stranger.output().expect("it runs");
    assert!(text(&refused.stderr).contains("wants a token"), "{}", text(&refused.stderr));
}

/// One line says it, whatever else is logged, and what to do.
#[test]
fn an_open_control_port_is_said_in_one_line() {
    for (address, options, expected) in
        [("0.0.0.0:0", &[][..], 1), ("127.0.0.1:0", &[], 0), ("0.0.0.0:0", &["--token-file"], 0)]
    {
        let dir = tempfile::tempdir().expect("a directory");
        let token = dir.path().join("token");
        write(&token, "s3cret", 0o600);
        let mut command = program();
        command.args(["serve", "--control", address]).args(USERSPACE).args(options);
        if !options.is_empty() {
            command.arg(&token);
        }
        let daemon = Process::serve("a daemon", command).expect("it gets ready");
        let log = daemon.terminate().expect("it ends").stderr;
        let lines: Vec<_> = log.lines().filter(|line| line.contains("CONTROL IS OPEN")).collect();
        assert_eq!(lines.len(), expected, "{address} {options:?}: {log}");
        for line in lines {
            for words in ["WARN", "xdp-agg init", "--token-file"] {
                assert!(line.contains(words), "{words}: {line}");
            }
        }
    }
}

/// So it is with the page and the metrics, which know no login.
#[test]
fn an_open_http_address_is_said_in_one_line() {
    for (address, expected) in [("0.0.0.0:0", 1), ("127.0.0.1:0", 0), ("off", 0)] {
        let mut command = program();
        command.args(["serve", "--control", "127.0.0.1:0", "--engine", "userspace"]);
        command.args(["--data-port", "0", "--http", address]);
        let daemon = Process::serve("a daemon", command).expect("it gets ready");
        let log = daemon.terminate().expect("it ends").stderr;
        let lines: Vec<_> = log.lines().filter(|line| line.contains("HTTP IS OPEN")).collect();
        assert_eq!(lines.len(), expected, "{address}: {log}");
        for line in lines {
            assert!(line.contains("WARN") && line.contains("--http"), "{line}");
        }
    }
}

#[test]
fn init_asks_at_a_terminal_and_says_elsewhere_what_to_give() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = program();
    command.args(["init", "--dir"]).arg(dir.path());
    let refused = command.output().expect("it runs");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for flag in ["--yes", "--interface", "--network", "--no-token", "--no-tls"] {
        assert!(said.contains(flag), "{flag}: {said}");
    }
    for (options, words) in [
        (&["--interface", "absent0"][..], "absent0"),
        (&["--network", "203.0.113.0/24"], "203.0.113.0/24"),
        (&["--interface", some_interface(), "--network", "203.0.113.0/24"], "no address in it"),
        (&["--instance", "Über"], "lower-case letters"),
    ] {
        let mut command = program();
        command.args(["init", "--yes", "--dir"]).arg(dir.path()).args(options);
        let refused = command.output().expect("it runs");
        let said = text(&refused.stderr);
        assert!(refused.status.code() == Some(2) && said.contains(words), "{options:?}: {said}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing was written");

    // A terminal, and somebody who agrees to all but the last proposal.
    let target = dir.path().join("settings");
    let line = format!(
        "{} init --dir {} --interface {} --no-tls",
        env!("CARGO_BIN_EXE_xdp-agg"),
        target.display(),
        some_interface()
    );
    let mut terminal = without_settings(Command::new("script"));
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).env("TERM", "xterm");
    let mut terminal = Killed(terminal.spawn().expect("it starts; it is part of bsdutils"));
    let mut input = terminal.0.stdin.take().expect("it is ours");
    for answer in ["0.0.0.0\r", "n"] {
        // Each question is asked before it is answered.
        thread::sleep(Duration::from_millis(700));
        input.write_all(answer.as_bytes()).expect("it is read");
    }
    let status = until("it ends", || terminal.0.try_wait().expect("it was started"));
    let mut said = String::new();
    let mut output = terminal.0.stdout.take().expect("it is ours");
    output.read_to_string(&mut said).expect("text");
    assert!(status.success() && said.contains("wrote "), "{said}");
    let settings = fs::read_to_string(target.join("config.toml")).expect("it was written");
    assert!(settings.contains("control = \"0.0.0.0:9870\""), "{settings}");
    assert!(settings.contains("\n#token-file"), "no token was wanted: {settings}");
}

/// One more daemon of a host has ports and files of its own, and the same authority.
#[test]
fn an_instance_has_ports_and_files_of_its_own() {
    let service = Service::init(&["--interface", some_interface()]);
    let interface = ["--interface", some_interface()];
    service.change(&format!("control = '{}'", service.control), "control = '0.0.0.0:9870'");
    service.change("data-port = 0", "data-port = 48864");
    let authority = service.read("ca.pem");
    for (name, control, data) in [("blue", ":9880\"", "48865"), ("green", ":9890\"", "48866")] {
        let done = service.write_settings(&[&["--instance", name], &interface[..]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains(&format!("systemctl enable --now xdp-agg@{name}")));
        let settings = service.read(&format!("{name}.toml"));
        assert!(settings.contains(control), "{settings}");
        assert!(settings.contains(&format!("\ndata-port = {data}\n")), "{settings}");
        assert!(settings.contains(&format!("{name}-token\"")), "{settings}");
    }
    assert_eq!(service.read("ca.pem"), authority);
    assert_ne!(service.read("blue-token"), service.read("green-token"));
}
