//! A worker that errs or dies is named to all.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use xdp_agg_ps::{Error, MAX_PIECE, Op, Options, PsClient, ServeOptions, Server};

use crate::common::Servers;

#[test]
fn a_dead_worker_is_named_to_all_others() {
    let servers = Servers::start(2);
    let results = servers.run("dead", 4, |mut client| {
        let mut data = vec![1.0_f32; 500_000];
        client.all_reduce(&mut data, Op::Sum).expect("all are there");
        if client.rank() == 2 {
            // Ends its connections in the middle of a call, as a killed process does.
            client.start(10).expect("it is begun");
            client.push(0, &data[..100]).expect("it is pushed");
            return None;
        }
        let begun = Instant::now();
        let error = client.all_reduce(&mut data, Op::Sum).expect_err("one is missing");
        assert!(begun.elapsed() < Duration::from_secs(5), "noticed at once");
        let again = client.all_reduce(&mut data, Op::Sum).expect_err("out of step");
        assert!(matches!(again, Error::Broken { .. }), "{again}");
        Some(error)
    });
    for error in results.into_iter().flatten() {
        match error {
            Error::WorkerLost { rank: 2, .. } => {}
            // Its last piece may be compared before its end is seen.
            Error::Mismatch { .. } => {}
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_worker_that_leaves_too_early_is_named() {
    let servers = Servers::start(1);
    let results = servers.run("leaves", 3, |mut client| {
        if client.rank() == 1 {
            return None;
        }
        Some(client.all_reduce(&mut [1.0_f32; 50_000], Op::Sum).expect_err("one has left"))
    });
    for error in results.into_iter().flatten() {
        assert!(matches!(error, Error::WorkerLost { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("rank 1 has left before call 1"), "{error}");
    }
}

#[test]
fn different_calls_are_told_to_all() {
    let servers = Servers::start(2);
    type Different = fn(&mut PsClient) -> Result<(), Error>;
    let rows: [(&str, Different, &str); 4] = [
        ("length", |c| c.all_reduce(&mut [1.0_f32; 101], Op::Sum), "sum of 101 f32"),
        ("operation", |c| c.all_reduce(&mut [1.0_f32; 100], Op::Average), "average of 100 f32"),
        ("type", |c| c.all_reduce(&mut [1_i32; 100], Op::Sum), "sum of 100 i32"),
        (
            "sequence",
            |c| {
                c.start(1)?;
                c.all_reduce(&mut [1.0_f32; 100], Op::Sum)
            },
            "call 2",
        ),
    ];
    for (what, different, words) in rows {
        let results = servers.run(what, 3, |mut client| match client.rank() {
            1 => different(&mut client),
            _ => client.all_reduce(&mut [1.0_f32; 100], Op::Sum),
        });
        for result in results {
            let error = result.expect_err(what);
            assert!(matches!(error, Error::Mismatch { .. }), "{what}: {error}");
            let text = error.to_string();
            assert!(text.contains(words) && text.contains("sum of 100 f32"), "{what}: {text}");
        }
    }
}

#[test]
fn a_deadline_names_who_is_missing() {
    let servers = Servers::start(1);
    let short = |options: &mut Options| options.deadline = Duration::from_millis(700);
    let results = servers.run_with("late", 3, short, |mut client| {
        if client.rank() == 2 {
            std::thread::sleep(Duration::from_millis(1500));
        }
        client.all_reduce(&mut [1.0_f32; 100], Op::Sum).expect_err("rank 2 is late")
    });
    for error in results {
        match error {
            Error::Missing { ranks, .. } => assert_eq!(ranks, [2]),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_sum_that_does_not_fit_is_no_sum() {
    let servers = Servers::start(1);
    let results = servers.run("overflow", 2, |mut client| {
        client.all_reduce(&mut [i32::MAX / 2 + 1; 100], Op::Sum).expect_err("2^31")
    });
    assert!(results.iter().all(|error| matches!(error, Error::Overflow { .. })), "{results:?}");
}

#[test]
fn a_stopped_server_says_so() {
    let mut servers = Servers::start(1);
    let addresses = servers.addresses.clone();
    let worker = std::thread::spawn(move || {
        let mut client =
            PsClient::connect(&addresses, "stop", 0, 1, Duration::from_secs(10)).expect("it joins");
        loop {
            if let Err(error) = client.all_reduce(&mut [1.0_f32; 1000], Op::Sum) {
                return error;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    servers.stop();
    let error = worker.join().expect("no panic");
    assert!(matches!(error, Error::Stopped { .. }), "{error}");
}

#[test]
fn who_does_not_fit_a_job_is_refused() {
    let servers = Servers::start(1);
    let first =
        |world| PsClient::connect(&servers.addresses, "refusals", 0, world, Duration::from_secs(3));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first(2));
        std::thread::sleep(Duration::from_millis(200));
        let error = first(3).expect_err("another world");
        assert!(error.to_string().contains("has 2 workers, not 3"), "{error}");
        let error = first(2).expect_err("the rank is taken");
        assert!(error.to_string().contains("rank 0 of job refusals is connected"), "{error}");
        let error = waiting.join().expect("no panic").expect_err("rank 1 does not come");
        assert!(matches!(error, Error::Missing { .. }), "{error}");
    });
    let error = first(0).expect_err("no world");
    assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
}

#[test]
fn ranks_that_do_not_join_are_named() {
    let servers = Servers::with(1, |o| o.join_within = Duration::from_millis(300));
    let error = PsClient::connect(&servers.addresses, "few", 1, 4, Duration::from_secs(10))
        .expect_err("three are missing");
    match error {
        Error::Missing { ranks, .. } => assert_eq!(ranks, [0, 2, 3]),
        other => panic!("{other}"),
    }
}

#[test]
fn a_port_in_use_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let options = ServeOptions::new(taken.local_addr().expect("it is bound"));
    let error = Server::bind(options).expect_err("it is taken");
    assert!(matches!(error, Error::PortInUse { .. }), "{error}");
}

#[test]
fn no_server_is_an_error_that_names_it() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("it is bound");
    drop(free);
    let error = PsClient::connect(&[address], "nobody", 0, 1, Duration::from_millis(200))
        .expect_err("nobody listens");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// Bytes that are not a frame, or too large, or do not begin a connection: an answer, and the end.
#[test]
fn strangers_are_refused_and_change_nothing() {
    let servers = Servers::start(1);
    let hello = |len: u32| {
        let mut bytes = vec![b'P', 1, 1, 0];
        bytes.extend(len.to_le_bytes());
        bytes.resize(32, 0);
        bytes
    };
    let mut push = hello(64);
    (push[2], push[3]) = (3, 1);
    let mut future = hello(16);
    future[1] = 9;
    let rows: [(&str, Vec<u8>); 5] = [
        ("not a frame", b"GET / HTTP/1.1\r\nHost: parameter.server\r\n\r\n".to_vec()),
        ("version is 9", future),
        ("bytes in a frame", hello(MAX_PIECE as u32 + 1)),
        ("begins with a Hello", hello(MAX_PIECE as u32)),
        ("begins with a Hello", push),
    ];
    for (words, bytes) in rows {
        let mut stranger = TcpStream::connect(servers.addresses[0]).expect("it listens");
        stranger.write_all(&bytes).expect("it reads");
        stranger.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
        let mut answer = Vec::new();
        // The end may be a reset: not all that was sent was read.
        drop(stranger.read_to_end(&mut answer));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(words), "{words}: {answer}");
    }
    servers.run("afterwards", 2, |mut client| {
        client.all_reduce(&mut [1.0_f32; 10], Op::Sum).expect("a sum");
    });
}

#[test]
fn pieces_and_settings_out_of_range_are_refused() {
    let servers = Servers::start(1);
    servers.run("sizes", 1, |mut client| {
        client.start(1).expect("it is begun");
        let error = client.push(0, &vec![0.0_f32; MAX_PIECE / 4 + 1]).expect_err("too large");
        assert!(matches!(error, Error::InvalidSetting { name: "the piece", .. }), "{error}");
        assert!(client.push(0, &vec![1.0_f32; MAX_PIECE / 4]).expect("the largest"));
        let error = client.all_reduce(&mut [1.0_f32], Op::Sum).expect_err("a piece is out");
        assert!(matches!(error, Error::OutOfTurn { .. }), "{error}");
    });
    let small = ServeOptions { window: 1000, ..ServeOptions::new(servers.addresses[0]) };
    Server::bind(small).expect_err("a window without room for a piece");
    for change in [
        |o: &mut Options| o.block = 0,
        |o: &mut Options| o.job.clear(),
        |o: &mut Options| o.rank = 7,
        |o: &mut Options| o.deadline = Duration::ZERO,
    ] {
        let mut options = Options::new("x", 0, 1);
        change(&mut options);
        let error = PsClient::connect_with(&servers.addresses, options).expect_err("refused");
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
}
