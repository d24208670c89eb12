//! `xdp-agg-ps` as people run it: its output, its exit codes, its signals.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use xdp_agg_ps::{Error, Op, PsClient};

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-ps"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("XDP_AGG_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Starts a server and waits for its line; its address.
fn start() -> (Child, std::net::SocketAddr) {
    let mut command = program(&["--listen", "127.0.0.1:0"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("ready ps=").expect("the line of a server");
    let address = address.parse().expect("an address");
    (child, address)
}

#[test]
fn a_server_adds_and_ends_on_sigterm() {
    let (mut child, address) = start();
    let join = || PsClient::connect(&[address], "job", 0, 1, Duration::from_secs(10));
    let mut client = join().expect("it joins");
    let mut data = [1.5_f32, -2.0];
    client.all_reduce(&mut data, Op::Sum).expect("a sum");
    assert_eq!(data, [1.5, -2.0]);
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("it runs").success());
    let error = client.all_reduce(&mut data, Op::Sum).err().or_else(|| {
        std::thread::sleep(Duration::from_millis(500));
        client.all_reduce(&mut data, Op::Sum).err()
    });
    assert!(matches!(error, Some(Error::Stopped { .. })), "{error:?}");
    drop(client);
    let end = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match child.try_wait().expect("it is ours") {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().expect("it is ours");
                panic!("it goes on after SIGTERM");
            }
        }
    };
    let mut log = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut log).expect("text");
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("a job begins"), "{log}");
}

#[test]
fn a_port_in_use_and_wrong_flags_are_told() {
    let (mut child, address) = start();
    let second = program(&["--listen", &address.to_string()]).output().expect("it runs");
    child.kill().and_then(|()| child.wait()).expect("it is ours");
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second).contains("the port is in use"), "{}", text(&second));
    let wrong = program(&["--window", "0"]).output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    let help = program(&["--help"]).output().expect("it runs");
    for words in ["parameter server", "--listen", "Exit codes"] {
        assert!(text(&help).contains(words), "{}", text(&help));
    }
}
