//! SIGHUP: the daemon reads token, certificates and limits again, and its jobs go on.

mod support;

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_sums, need_root, network};
use xdp_agg_common::control::{
    CONTROL_VERSION, CreateJob, ErrorCode, Reply, Request, Token, read_message, write_message,
};
use xdp_agg_testbed::Process;
use xdp_agg_tls::testing::{Authority, Identity, Valid};
use xdp_agg_tls::{ClientFiles, ControlStream};

const READ: &str = "were read again";
const STAY: &str = "all settings stay as they were";

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("it can be written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// Has the daemon read its settings again; returns the line that says what came of it.
fn hang_up(daemon: &mut Process, expected: &str) -> String {
    let lines = |daemon: &Process| {
        let said = daemon.stderr();
        said.lines().filter(|line| line.contains(expected)).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = lines(daemon).len();
    daemon.signal(libc::SIGHUP).expect("it runs");
    let start = Instant::now();
    loop {
        match lines(daemon).pop() {
            Some(line) if lines(daemon).len() > before => return line,
            _ => assert!(start.elapsed() < LIMIT, "{expected}: {}", daemon.last_words()),
        }
        sleep(Duration::from_millis(10));
    }
}

fn open(lab: &Lab) -> TcpStream {
    lab.dial_from(lab.topology.worker(0))
}

/// What the daemon says to a connection with this token.
fn greet(stream: &mut (impl std::io::Read + std::io::Write), token: Option<&str>) -> Reply {
    let token = token.map(|token| Token(token.into()));
    let hello = Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token };
    ask(stream, &hello)
}

fn ask(stream: &mut (impl std::io::Read + std::io::Write), request: &Request) -> Reply {
    write_message(stream, request).expect("sent");
    read_message(stream).expect("an answer")
}

fn is_welcome(lab: &Lab, token: &str) -> bool {
    match greet(&mut open(lab), Some(token)) {
        Reply::Welcome { .. } => true,
        Reply::Error { code: ErrorCode::Unauthorised, .. } => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_token_and_other_limits_hold_from_then_on() {
    need_root!();
    let dir = tempfile::tempdir().expect("a directory");
    let (token, config) = (dir.path().join("token"), dir.path().join("config.toml"));
    write(&token, "old", 0o600);
    let settings = format!("token-file = '{}'\njob-slots = 64\n", token.display());
    write(&config, &settings, 0o644);
    let extra = ["--config", &config.display().to_string()];
    let mut lab = Lab::start_with(network(2, "ports"), "userspace", &extra);
    let workers = lab.connect("running", 2, |settings| settings.token("old"));
    check_sums(&workers, 3000);
    let mut before = open(&lab);
    assert!(matches!(greet(&mut before, Some("old")), Reply::Welcome { .. }));

    write(&token, "new", 0o600);
    assert!(is_welcome(&lab, "old") && !is_welcome(&lab, "new"), "nobody has told it yet");
    write(&config, &format!("{settings}job-slots-max = 128\n"), 0o644);
    let mut daemon = lab.daemon.take().expect("it runs");
    hang_up(&mut daemon, READ);
    assert!(is_welcome(&lab, "new") && !is_welcome(&lab, "old"));
    // What is there goes on, and is bound by the new limits.
    check_sums(&workers, 3000);
    let job = |slots| CreateJob {
        job: "large".into(),
        world_size: 2,
        slots: Some(slots),
        result_mode: None,
        policy: None,
    };
    let refused = ask(&mut before, &Request::Create(job(256)));
    assert!(matches!(refused, Reply::Error { .. }), "{refused:?}");
    let done = ask(&mut before, &Request::Create(job(128)));
    assert!(matches!(done, Reply::Done), "{done:?}");
    let newcomers = lab.connect("newcomers", 2, |settings| settings.token("new"));
    check_sums(&newcomers, 3000);

    // What cannot be used changes nothing, and is told.
    write(&token, "newest", 0o644);
    let told = hang_up(&mut daemon, STAY);
    assert!(told.contains("chmod 600"), "{told}");
    write(&token, "newest", 0o600);
    write(&config, &format!("{settings}job-slots-max = 1\n"), 0o644);
    let told = hang_up(&mut daemon, STAY);
    assert!(told.contains("job-slots-max"), "{told}");
    assert!(is_welcome(&lab, "new") && !is_welcome(&lab, "newest"));
    // Slots that only another pool has: this one stays until a restart.
    let larger = settings.replace("job-slots = 64", "slots = 16384\njob-slots = 16384");
    write(&config, &larger, 0o644);
    let told = hang_up(&mut daemon, STAY);
    assert!(told.contains("job-slots"), "{told}");
    // What a running daemon cannot change is told as well.
    write(&config, &format!("{settings}dead-after = 7\n"), 0o644);
    hang_up(&mut daemon, READ);
    assert!(daemon.stderr().contains("a restart takes these over"), "{}", daemon.last_words());
    assert!(is_welcome(&lab, "newest"));
    check_sums(&workers, 3000);
    // Another host may not have it read them, whatever it knows.
    let mut other = open(&lab);
    assert!(matches!(greet(&mut other, Some("newest")), Reply::Welcome { .. }));
    let Reply::Error { message, .. } = ask(&mut other, &Request::Reload) else { panic!("done") };
    assert!(message.contains("own host"), "{message}");
}

/// Whether a client with these files gets in over TLS.
fn is_trusted(lab: &Lab, files: &ClientFiles) -> bool {
    let name = lab.topology.aggregator_addr().to_string();
    let tls = files.load(&name).expect("the files are right");
    match ControlStream::open(open(lab), tls.as_ref(), LIMIT) {
        Ok(mut stream) => {
            stream.set_timeout(Some(LIMIT)).expect("a socket option");
            let hello = Request::Hello { version: CONTROL_VERSION, agent: "t".into(), token: None };
            // With TLS 1.3 a client hears in place of the answer that its certificate is refused.
            let sent = write_message(&mut stream, &hello);
            let answer = sent.and_then(|()| read_message::<Reply>(&mut stream));
            matches!(answer, Ok(Reply::Welcome { .. }))
        }
        Err(_) => false,
    }
}

#[test]
fn other_certificates_hold_from_then_on_and_broken_ones_never() {
    need_root!();
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name);
    let topology = network(2, "ports");
    let name = topology.aggregator_addr().to_string();
    let install = |authority: &Authority| {
        let Identity { certificate, key } = authority.issue(&name, Valid::Now);
        for (from, to) in [(&certificate, "cert"), (&key, "key"), (&authority.ca, "ca")] {
            fs::copy(from, file(to)).expect("it can be written");
        }
    };
    install(&first);
    let client =
        |authority: &Authority| authority.issue("client", Valid::Now).client(&authority.ca);
    let (ours, theirs) = (client(&first), client(&second));
    let paths = ["cert", "key", "ca"].map(|name| file(name).display().to_string());
    let [cert, key, ca] = &paths;
    let extra = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca];
    let mut lab = Lab::start_with(topology, "userspace", &extra);
    let workers = lab.connect("running", 2, |settings| {
        let settings = settings.tls_ca(first.ca.clone());
        let (certificate, key) = (ours.certificate.clone(), ours.key.clone());
        settings.tls_identity(certificate.expect("it has one"), key.expect("it has one"))
    });
    check_sums(&workers, 3000);
    let mut daemon = lab.daemon.take().expect("it runs");
    // Half of a new pair, and garbage.
    let fresh = second.issue(&name, Valid::Now);
    fs::copy(&fresh.certificate, file("cert")).expect("it can be written");
    let told = hang_up(&mut daemon, STAY);
    assert!(told.contains("does not fit"), "{told}");
    assert!(is_trusted(&lab, &ours) && !is_trusted(&lab, &theirs));
    fs::write(file("cert"), "no certificate").expect("it can be written");
    let told = hang_up(&mut daemon, STAY);
    assert!(told.contains(cert.as_str()), "{told}");
    assert!(is_trusted(&lab, &ours) && !is_trusted(&lab, &theirs));
    install(&second);
    hang_up(&mut daemon, READ);
    assert!(is_trusted(&lab, &theirs) && !is_trusted(&lab, &ours));
    check_sums(&workers, 3000);
}
