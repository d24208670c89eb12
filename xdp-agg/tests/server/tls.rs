//! The daemon over TLS, with and without certificates of its clients.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use xdp_agg::config::Partial;
use xdp_agg_common::control::{
    AbortReason, Branch, ErrorCode, Join, Reply, Token, Tree, read_message, write_message,
};
use xdp_agg_tls::testing::{Authority, Identity, Valid};
use xdp_agg_tls::{ClientFiles, ClientTls, ControlStream, OpenError};

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::strangers::{last_words, still_sums};
use crate::worker::{Client, Door, Joining, Worker, connect_from, wish};

/// Settings of a daemon whose certificate is for 127.0.0.1.
fn over_tls(authority: &Authority, asking: bool) -> Partial {
    let Identity { certificate, key } = authority.issue("127.0.0.1", Valid::Now);
    let tls_client_ca = asking.then(|| authority.ca.clone());
    let (tls_cert, tls_key) = (Some(certificate), Some(key));
    Partial { tls_cert, tls_key, tls_client_ca, ..settings() }
}

fn daemon(authority: &Authority, asking: bool) -> Daemon {
    Daemon::with(over_tls(authority, asking)).expect("free ports are always free")
}

fn worker(authority: &Authority, valid: Valid) -> ClientFiles {
    authority.issue("worker", valid).client(&authority.ca)
}

fn load(files: &ClientFiles) -> ClientTls {
    files.load("127.0.0.1").expect("the files are right").expect("a CA is named")
}

fn door(daemon: &Daemon, files: &ClientFiles) -> Door {
    Door { tls: Some(load(files)), ..daemon.control.into() }
}

/// A handshake from 127.0.0.1.
fn open(control: SocketAddr, files: &ClientFiles) -> Result<ControlStream, OpenError> {
    let stream = connect_from(Ipv4Addr::LOCALHOST, control);
    let stream = ControlStream::open(stream, Some(&load(files)), PATIENCE)?;
    stream.set_timeout(Some(PATIENCE)).expect("a timeout is possible");
    Ok(stream)
}

/// What a client is told whose certificate is not accepted. With TLS 1.3 this comes behind the
/// handshake, in place of the answer to the first words.
fn refusal(mut stream: ControlStream, hello: &Door) -> String {
    let sent = write_message(&mut stream, &hello.hello());
    let answer = sent.and_then(|()| read_message::<Reply>(&mut stream));
    answer.expect_err("it is refused").to_string()
}

#[test]
fn a_whole_job_over_tls() {
    let certificates = Authority::new("ours");
    for asking in [false, true] {
        let daemon = daemon(&certificates, asking);
        let files = worker(&certificates, Valid::Now);
        let files = if asking { files } else { certificates.trusting() };
        let door = door(&daemon, &files);
        let mut workers = Worker::all(door.clone(), &wish("train", 0, 2));
        for block in 0..20 {
            still_sums(&workers, block);
        }
        // The end of a connection is the worker's end here, too.
        drop(workers.remove(0));
        let reason = workers[0].aborted().to_string();
        assert!(reason.contains("rank 0"), "{reason}");
        let counters = Client::connect(door).stats().control;
        assert_eq!((counters.accepted, counters.tls_failures), (3, 0));
    }
}

#[test]
fn the_token_is_asked_for_with_and_without_tls() {
    let certificates = Authority::new("ours");
    let file = certificates.directory().join("token");
    fs::write(&file, "s3cret\n").expect("it can be written");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it is ours");
    let token_file = Some(file);
    let plain = Partial { token_file: token_file.clone(), ..settings() };
    let plain = Daemon::with(plain).expect("free ports are always free");
    let Identity { certificate, key } = certificates.issue("127.0.0.1", Valid::Now);
    let (tls_cert, tls_key) = (Some(certificate), Some(key));
    let over_tls = Partial { token_file, tls_cert, tls_key, ..settings() };
    let over_tls = Daemon::with(over_tls).expect("free ports are always free");
    let doors = [plain.control.into(), door(&over_tls, &certificates.trusting())];
    for door in doors {
        let with = |token: &str| Door { token: Some(Token(token.into())), ..door.clone() };
        let workers = Worker::all(with("s3cret"), &wish("train", 0, 2));
        for (block, wrong) in (0..).zip([door.clone(), with("secret"), with("s3cret\n"), with("")])
        {
            let mut stream = wrong.open();
            write_message(&mut stream, &wrong.hello()).expect("the daemon reads");
            let (code, message) = last_words(&mut stream);
            assert_eq!(code, ErrorCode::Unauthorised);
            assert!(message.contains("XDP_AGG_TOKEN_FILE"), "{message}");
            assert!(!message.contains("s3cret"), "{message}");
            still_sums(&workers, block);
        }
        assert_eq!(Client::connect(with("s3cret")).stats().control.unauthorised, 4);
    }
}

#[test]
fn whoever_has_no_certificate_of_ours_stays_out() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let daemon = daemon(&ours, true);
    let workers = Worker::all(door(&daemon, &worker(&ours, Valid::Now)), &wish("train", 0, 2));
    let mut self_made = worker(&foreign, Valid::Now);
    self_made.ca = Some(ours.ca.clone());
    let cases = [
        (ours.trusting(), "asks for a certificate"),
        (self_made, "UnknownCA"),
        (worker(&ours, Valid::Past), "CertificateExpired"),
        (worker(&ours, Valid::Future), "does not accept our certificate"),
    ];
    for (block, (files, words)) in (0..).zip(&cases) {
        let stream = open(daemon.control, files).expect("the daemon is right");
        let text = refusal(stream, &daemon.control.into());
        assert!(text.contains(words), "{words}: {text}");
        still_sums(&workers, block);
    }
    let counters = Client::connect(door(&daemon, &worker(&ours, Valid::Now))).stats().control;
    assert_eq!(counters.tls_failures, cases.len() as u64);
}

#[test]
fn a_daemon_that_cannot_be_trusted_is_told_nothing() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let daemon = daemon(&foreign, false);
    let error = open(daemon.control, &ours.trusting()).expect_err("it is foreign").to_string();
    assert!(error.contains("authority in tls-ca"), "{error}");
    let renamed = ClientFiles { name: Some("aggregator".into()), ..foreign.trusting() };
    let error = open(daemon.control, &renamed).expect_err("it has another name").to_string();
    assert!(error.contains("tls-name"), "{error}");
    let stats = Client::connect(door(&daemon, &foreign.trusting())).stats();
    assert_eq!((stats.control.tls_failures, stats.control.accepted), (2, 3));
}

#[test]
fn a_mix_up_of_tls_and_plain_is_told_to_both() {
    let certificates = Authority::new("ours");
    let plain = Daemon::start();
    let error = open(plain.control, &certificates.trusting()).expect_err("no TLS").to_string();
    assert!(error.contains("does not speak TLS"), "{error}");
    // What the daemon answered, which TLS cannot read, is meant for people with other tools.
    let mut stream = connect_from(Ipv4Addr::LOCALHOST, plain.control);
    stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).expect("the daemon reads");
    let (code, message) = last_words(&mut stream);
    assert_eq!(code, ErrorCode::Protocol);
    assert!(message.contains("does not speak TLS"), "{message}");
    assert_eq!(Client::connect(plain.control).stats().control.garbled, 2);

    let daemon = daemon(&certificates, false);
    let mut stream = connect_from(Ipv4Addr::LOCALHOST, daemon.control);
    let hello = Door::from(daemon.control).hello();
    write_message(&mut stream, &hello).expect("the daemon reads");
    let (code, message) = last_words(&mut stream);
    assert_eq!(code, ErrorCode::Protocol);
    assert!(message.contains("TLS only") && message.contains("XDP_AGG_TLS_CA"), "{message}");
    let counters = Client::connect(door(&daemon, &certificates.trusting())).stats().control;
    assert_eq!(counters.garbled, 1);
}

#[test]
fn a_handshake_that_does_not_come_or_makes_no_sense_is_ended() {
    let certificates = Authority::new("ours");
    let daemon = daemon(&certificates, false);
    let door = door(&daemon, &certificates.trusting());
    let workers = Worker::all(door.clone(), &wish("train", 0, 2));
    let start = Instant::now();
    let silent = connect_from(Ipv4Addr::LOCALHOST, daemon.control);
    // A handshake that stops, one that is nonsense, and one without a Hello behind it.
    let mut half = connect_from(Ipv4Addr::LOCALHOST, daemon.control);
    half.write_all(&[0x16, 3, 1, 2]).expect("the daemon reads");
    let mut nonsense = connect_from(Ipv4Addr::LOCALHOST, daemon.control);
    nonsense.write_all(&[0x16, 3, 1, 0, 4, 9, 9, 9, 9]).expect("the daemon reads");
    let shy = open(daemon.control, &certificates.trusting()).expect("all is right");
    still_sums(&workers, 0);
    for mut stream in [nonsense, half, silent] {
        // An alert may come before the end.
        drop(stream.read_to_end(&mut Vec::new()));
    }
    let mut shy = shy;
    match read_message(&mut shy).expect("the daemon says why") {
        Reply::Error { code: ErrorCode::Limit, message } => {
            assert!(message.contains("in 5 s"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    still_sums(&workers, 1);
    let counters = Client::connect(door).stats().control;
    assert_eq!((counters.tls_failures, counters.slow), (3, 1), "{counters:?}");
}

/// A branch is told the token. A daemon that speaks TLS and cannot know its branches tells nobody.
#[test]
fn a_daemon_with_tls_says_its_token_to_no_branch_in_plain() {
    let certificates = Authority::new("ours");
    connects_to_no_branch(&daemon(&certificates, false), &certificates);
}

/// The same where it began to speak TLS while it ran.
#[test]
fn a_daemon_that_speaks_tls_now_says_its_token_to_no_branch_in_plain() {
    let certificates = Authority::new("ours");
    let daemon = Daemon::start();
    daemon.reread(over_tls(&certificates, false));
    let start = Instant::now();
    while open(daemon.control, &certificates.trusting()).is_err() {
        assert!(start.elapsed() < PATIENCE, "it does not speak TLS");
        std::thread::sleep(Duration::from_millis(10));
    }
    connects_to_no_branch(&daemon, &certificates);
}

fn connects_to_no_branch(daemon: &Daemon, certificates: &Authority) {
    let branch = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let Ok(SocketAddr::V4(address)) = branch.local_addr() else { panic!("it is IPv4") };
    let tree = Tree { branches: vec![Branch::new(address, None, vec![0])] };
    let door = door(daemon, &certificates.trusting());
    let mut worker = Joining::new(door, Join { tree, ..wish("train", 0, 1) });
    let reason = match worker.client.hear() {
        Reply::Aborted(reason) => reason,
        other => panic!("{other:?}"),
    };
    let text = reason.to_string();
    let AbortReason::Branch { daemon: named, .. } = reason else { panic!("{text}") };
    assert_eq!(named, address);
    assert!(text.contains("in plain") && text.contains("--tls-branch-ca"), "{text}");
    branch.set_nonblocking(true).expect("it is possible");
    let error = branch.accept().expect_err("nobody has connected");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}
