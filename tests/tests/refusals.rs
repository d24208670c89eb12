//! Bad input, end to end: every mistake has an error that says what was wrong, what was expected
//! and what to do. None hangs, and none disturbs another job.

mod support;

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use support::{LIMIT, Lab, check_sums, network, on_all};
use xdp_agg_client::{Error, JobError, Op};
use xdp_agg_common::control::ErrorCode;
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::{DATA_PORT, HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_testbed::{Process, program};

/// Where another daemon on the aggregator's host listens.
const ELSEWHERE: [&str; 4] = ["--control", "10.88.0.254:9999", "--data-port", "9998"];

/// Calls that differ in length, type, operation or order are told apart from straggling and loss.
#[test]
fn calls_that_differ_are_an_error_on_every_rank() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let neighbour = lab.connect("neighbour", 2, |settings| settings);
        for (len, op) in [(2000, Op::Sum), (999, Op::Sum), (1000, Op::Average)] {
            let workers = lab.connect("differ", 3, |settings| settings);
            let errors = on_all(&workers, |worker| {
                let odd = worker.rank() == 1;
                let mut data = vec![1.0_f32; if odd { len } else { 1000 }];
                worker.all_reduce(&mut data, if odd { op } else { Op::Sum }).expect_err("differs")
            });
            for error in errors {
                let Error::Job(JobError::CallMismatch { ours, theirs }) = &error else {
                    panic!("{error}")
                };
                assert!(ours.contains("call 0") && !theirs.is_empty(), "{error}");
            }
            check_sums(&neighbour, 5000);
        }
    }
}

/// A difference that 16 bits of FNV-1a did not tell: a sum and an average, of which the tags
/// collided in call 3.
#[test]
fn calls_that_differ_in_little_are_an_error_on_every_rank() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let workers = lab.connect("operations", 2, |settings| settings);
        for error in on_all(&workers, |worker| {
            let call = |op| worker.all_reduce(&mut vec![1.0_f32; 2509], op);
            for _ in 0..3 {
                call(Op::Sum).expect("all call it");
            }
            call(if worker.rank() == 0 { Op::Sum } else { Op::Average }).expect_err("it differs")
        }) {
            assert!(matches!(error, Error::Job(JobError::CallMismatch { .. })), "{error}");
        }
    }
}

/// Two threads of one worker call in another order than those of the other. The calls have one
/// shape and names: without names they would be summed with each other.
#[test]
fn named_calls_in_another_order_are_an_error_on_every_rank() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let workers = lab.connect("order", 2, |settings| settings);
        on_all(&workers, |worker| {
            let call = |name: &str| worker.all_reduce_named(name, &mut [1.0_f32; 100], Op::Sum);
            call("layer/0").expect("all call it");
            let names = ["layer/1", "layer/2"];
            let [first, second] = if worker.rank() == 0 { names } else { [names[1], names[0]] };
            let before = worker.next_sequence();
            std::thread::scope(|scope| {
                let one = scope.spawn(|| call(first).expect_err("the other worker's is another"));
                while worker.next_sequence() == before {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let other = scope.spawn(|| call(second).expect_err("the job is over"));
                for (name, error) in [(first, one), (second, other)] {
                    let error = error.join().expect("no panic");
                    let Error::Job(JobError::CallMismatch { ours, .. }) = &error else {
                        panic!("{error}");
                    };
                    assert!(name == second || ours.contains(name), "{error}");
                }
            });
        });
    }
}

#[test]
fn two_workers_cannot_have_one_rank() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| lab.connect_one(0, lab.worker("rank", 0, 2)));
        std::thread::sleep(Duration::from_millis(300));
        let error = lab.connect_one(1, lab.worker("rank", 0, 2)).expect_err("rank 0 is taken");
        assert!(
            matches!(error, Error::Job(JobError::Refused { code: ErrorCode::RankTaken, .. })),
            "{error}"
        );
        let error = lab.connect_one(1, lab.worker("rank", 1, 3)).expect_err("it is a job of 2");
        assert!(
            matches!(error, Error::Job(JobError::Refused { code: ErrorCode::WorldSize, .. })),
            "{error}"
        );
        assert!(error.to_string().contains('2') && error.to_string().contains('3'), "{error}");
        // The refused ones have not disturbed the forming of the job.
        let second = lab.connect_one(1, lab.worker("rank", 1, 2)).expect("it is welcome");
        let first = first.join().expect("no panic").expect("it is complete");
        check_sums(&[first, second], 1000);
    });
}

#[test]
fn integers_that_could_overflow_are_refused_on_every_rank() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("range", 2, |settings| settings);
    let errors = on_all(&workers, |worker| {
        let mut data = vec![1_i32; 1000];
        if worker.rank() == 1 {
            data[77] = i32::MAX;
        }
        worker.all_reduce(&mut data, Op::Sum).expect_err("rank 1 has too large a value").to_string()
    });
    assert!(errors[1].contains("element 77"), "{}", errors[1]);
    assert!(errors[0].contains("rank 1") && errors[0].contains("element 77"), "{}", errors[0]);
}

/// Invariant 4: packets of strangers, of other versions, cut short or made up change nothing.
#[test]
fn hostile_packets_change_nothing() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let workers = lab.connect("hostile", 2, |settings| settings);
        check_sums(&workers, 1000);
        let before = lab.stats();
        let to = (lab.topology.aggregator_addr(), DATA_PORT);
        let honest = Header {
            kind: Kind::Contribution,
            flags: 0,
            reduction: Reduction::Add,
            job: before.jobs[0].info.job_id,
            cookie: 0,
            epoch: before.jobs[0].info.epoch,
            rank: 0,
            block: 6,
            tag: 0,
        };
        let send = |host: usize, packet: &[u8]| {
            let sent = lab.topology.worker(host).run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                socket.send_to(packet, to).expect("sent");
            });
            sent.expect("entering a namespace");
        };
        let mut expected = [0_u64; Reject::COUNT];
        let mut packet = vec![0; HEADER_LEN + 64];
        let write = |header: &Header, packet: &mut [u8]| {
            header.emit(packet.first_chunk_mut::<HEADER_LEN>().expect("long enough"));
        };
        // Wrong cookies, from a stranger and from a member's host.
        for host in [2, 0] {
            for guess in 0..50 {
                write(&Header { cookie: guess, ..honest }, &mut packet);
                send(host, &packet);
                expected[Reject::Cookie as usize] += 1;
            }
        }
        // Another version; nonsense; every length that is too short.
        write(&honest, &mut packet);
        packet[0] = 0x31;
        send(2, &packet);
        expected[Reject::Version as usize] += 1;
        packet[0] = 0x2f;
        send(2, &packet);
        expected[Reject::Malformed as usize] += 1;
        write(&honest, &mut packet);
        for len in 0..HEADER_LEN {
            send(2, &packet[..len]);
            expected[Reject::Truncated as usize] += 1;
        }
        write(&Header { job: 15, ..honest }, &mut packet);
        send(2, &packet);
        write(&Header { job: u16::MAX, ..honest }, &mut packet);
        send(2, &packet);
        expected[Reject::Job as usize] += 2;
        check_sums(&workers, 100_000);
        let after = lab.stats();
        let mut rejects = *after.unattributed;
        rejects.merge(&after.jobs[0].counters);
        assert_eq!(rejects.rejects, expected, "{engine}");
    }
}

/// The host of the aggregator stays usable: ping, TCP and UDP of others pass the XDP program.
#[test]
fn the_host_stays_usable() {
    need_root!();
    for place in ["ports", "one nic"] {
        let lab = Lab::start(network(2, place), "xdp");
        let agg = lab.topology.aggregator_addr();
        let (listener, udp) = lab
            .topology
            .aggregator()
            .run(|| {
                let listener = TcpListener::bind((agg, 22)).expect("a listener");
                (listener, UdpSocket::bind((agg, 53)).expect("a socket"))
            })
            .expect("entering a namespace");
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                std::io::copy(&mut stream.try_clone().expect("a clone"), &mut stream).expect("echo")
            });
            let talk = || {
                use std::io::{Read as _, Write as _};
                let mut stream = std::net::TcpStream::connect((agg, 22)).expect("connected");
                let words: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
                let mut back = Vec::new();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        (&stream).write_all(&words).expect("sent");
                        stream.shutdown(std::net::Shutdown::Write).expect("shut");
                    });
                    (&stream).read_to_end(&mut back).expect("read");
                });
                assert!(back == words);
                stream.flush().expect("flushed");
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                socket.send_to(b"a question", (agg, 53)).expect("sent");
            };
            lab.topology.worker(0).run(talk).expect("entering a namespace");
            assert_eq!(echo.join().expect("no panic"), 200_000);
        });
        udp.set_read_timeout(Some(LIMIT)).expect("a socket option");
        let mut question = [0; 64];
        assert_eq!(udp.recv(&mut question).expect("the question arrives"), 10);
        let ping = lab.topology.worker(1).run(|| support::ping(agg));
        assert!(ping.expect("entering a namespace"), "the aggregator's host answers a ping");
    }
}

/// A second daemon on the same control address, or on the same interface, is refused.
#[test]
fn a_second_daemon_is_refused() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let second = lab.spawn_daemon(&[]).wait(LIMIT).expect("it ends by itself");
    assert!(!second.status.success());
    assert!(second.stderr.contains("in use"), "{}", second.stderr);
    let second = lab.spawn_daemon(&ELSEWHERE).wait(LIMIT).expect("it ends by itself");
    assert!(!second.status.success());
    assert!(second.stderr.contains("XDP program already"), "{}", second.stderr);
    let workers = lab.connect("still there", 2, |settings| settings);
    check_sums(&workers, 1000);
}

/// What another daemon on that host says, and ends.
fn words_of_refused(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = support::serve(&lab.topology);
    command.args(ELSEWHERE).args(arguments);
    let end = Process::spawn("serve", command).expect("starts").wait(LIMIT).expect("ends");
    assert!(!end.status.success(), "{arguments:?}");
    end.stderr
}

/// Another daemon on that host, by the same user, who can read its own files, with these
/// capabilities alone.
fn serve_with(lab: &Lab, bounds: &str, engine: &str) -> Process {
    let mut command = lab.topology.aggregator().command("setpriv");
    command.args([&format!("--bounding-set={bounds}"), "--inh-caps=-all", "--no-new-privs"]);
    command.arg(program("xdp-agg").expect("the tests' programs are built")).arg("serve");
    command.args(ELSEWHERE).args(["--interface", "p0", "--engine", engine]);
    Process::spawn("serve", command).expect("starts")
}

#[test]
fn impossible_settings_of_the_daemon_are_refused() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let error = words_of_refused(&lab, &["--engine", "xdp", "--interface", "eth77"]);
    assert!(error.contains("eth77"), "{error}");
    let error = words_of_refused(&lab, &["--engine", "userspace", "--job-slots", "1000"]);
    assert!(error.contains("power of two"), "{error}");
}

/// Without privileges the XDP engine says what it needs, and the user-space engine runs.
#[test]
fn without_privileges_the_error_names_them() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let end = serve_with(&lab, "-all", "xdp").wait(LIMIT).expect("ends");
    assert!(!end.status.success());
    assert!(end.stderr.contains("CAP_BPF"), "{}", end.stderr);
    let auto = serve_with(&lab, "-all", "auto");
    let ready = auto.wait_line("readiness", LIMIT, |line| line.starts_with("ready "));
    assert!(ready.expect("it falls back").contains("userspace"));
    let warning = auto.wait_error_line("the reason", LIMIT, |line| line.contains("CAP_BPF"));
    warning.expect("the fallback is not silent");
}

/// The kernel program needs three capabilities, and no root. The one that is missing is named.
#[test]
fn three_capabilities_are_enough_and_each_is_needed() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    for lacking in ["perfmon", "bpf", "net_admin"] {
        let others = ["perfmon", "bpf", "net_admin"].into_iter().filter(|cap| *cap != lacking);
        let bounds = others.fold("-all".to_owned(), |all, cap| format!("{all},+{cap}"));
        let end = serve_with(&lab, &bounds, "xdp").wait(LIMIT).expect("ends");
        assert!(!end.status.success(), "{bounds}: {}", end.stdout);
        let name = format!("CAP_{}", lacking.to_uppercase());
        assert!(end.stderr.contains(&name), "{bounds}: {}", end.stderr);
    }
    let all = serve_with(&lab, "-all,+perfmon,+bpf,+net_admin", "xdp");
    let ready = all.wait_line("readiness", LIMIT, |line| line.starts_with("ready "));
    assert!(ready.expect("it starts").contains("xdp"));
}

/// No daemon listens: an error after the patience that was asked for, not a hang.
#[test]
fn no_daemon_is_an_error() {
    need_root!();
    let mut lab = Lab::start(network(1, "ports"), "userspace");
    drop(lab.daemon.take());
    let settings = lab.worker("nobody", 0, 1).join_deadline(Duration::from_millis(300));
    let error = lab.connect_one(0, settings).expect_err("nobody is there");
    assert!(matches!(error, Error::Job(JobError::Unreachable { .. })), "{error}");
    assert!(error.to_string().contains("xdp-agg serve"), "{error}");
}
