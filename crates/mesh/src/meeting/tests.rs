//! Callers that are gone, of another job or run, or no members at all; and holders that are none.

use std::io::Write;

use xdp_agg_quantize::Op;

use super::*;
use crate::mesh::Mesh;
use crate::open::Builder;

const LIMIT: Duration = Duration::from_secs(10);
const COOKIE: u64 = 0xfeed_5eed;

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn member(rank: u16, world_size: u16, address: SocketAddr) -> Builder {
    let builder = Mesh::builder().rank(rank).world_size(world_size).rendezvous(address);
    builder.deadline(LIMIT).cookie(COOKIE).occasion("epoch 7, ring 2".into())
}

/// The first words of a rank of three that listens at a port where nobody does.
fn visit(rank: u16) -> Visit {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    Visit {
        version: VERSION,
        rank,
        world_size: 3,
        occasion: "epoch 7, ring 2".into(),
        run: None,
        ends: Some((here, here)),
        port: 1,
        words: String::new(),
        nonce: 5,
        proof: Vec::new(),
    }
}

/// Reads the greeting, says this with a proof by `secret`, and no more.
fn say(address: SocketAddr, visit: Visit, secret: &Secret) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let greeting: Greeting = read_message(&mut stream).unwrap();
    let proof = secret.proof(&visit.vouched(greeting.nonce));
    write_message(&mut stream, &Visit { proof, ..visit }).unwrap();
    stream
}

/// Three members meet, and sum.
fn meet_and_sum(listener: TcpListener, address: SocketAddr, meanwhile: impl FnOnce()) {
    thread::scope(|scope| {
        let sum = |member: Builder| {
            scope.spawn(move || {
                let mut data = [1_i32];
                let summed = member.open()?.all_reduce(&mut data, Op::Sum);
                summed.map(|()| data[0])
            })
        };
        let host = sum(member(0, 3, address).listener(listener));
        meanwhile();
        let others = [member(1, 3, address), member(2, 3, address)].map(sum);
        for sum in others.into_iter().chain([host]) {
            assert_eq!(sum.join().unwrap().unwrap(), 3);
        }
    });
}

/// A process that came and died has had its rank; another one has it then.
#[test]
fn who_is_gone_again_keeps_no_seat() {
    let (listener, address) = listener();
    let secret = Secret::cookie(COOKIE);
    meet_and_sum(listener, address, || {
        for rank in [1, 2, 1] {
            drop(say(address, visit(rank), &secret));
            thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn who_does_not_belong_to_this_ring_is_turned_away() {
    let (listener, address) = listener();
    let secret = Secret::cookie(COOKIE);
    let cases = [
        ("epoch 6", Visit { occasion: "epoch 6, ring 2".into(), ..visit(1) }, &secret),
        ("of run \"x\"", Visit { run: Some("x".into()), ..visit(1) }, &secret),
        ("does not know the job's cookie", visit(1), &Secret::cookie(1)),
        ("does not know the job's cookie", visit(1), &Secret::NONE),
        ("speaks version 1", Visit { version: 1, ..visit(1) }, &secret),
        ("does not say where it is", Visit { ends: None, ..visit(1) }, &secret),
        ("rank 3 and its WORLD_SIZE is 3", visit(3), &secret),
    ];
    let mut callers = Vec::new();
    meet_and_sum(listener, address, || {
        for (expected, visit, secret) in cases {
            callers.push((expected, say(address, visit, secret)));
        }
        let earlier = r#"{"version":1,"rank":1,"world_size":3,"cookie":9}"#;
        let earlier: serde_json::Value = serde_json::from_str(earlier).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let _: Greeting = read_message(&mut stream).unwrap();
        write_message(&mut stream, &earlier).unwrap();
        callers.push(("speaks version 1", stream));
        for (expected, stream) in &mut callers {
            let reply = read_message(stream).unwrap();
            let Outcome::Refused { reason, .. } = reply else { panic!("{expected}: {reply:?}") };
            assert!(reason.contains(*expected), "{reason}");
        }
    });
}

/// A proof is of one rank at one address, of these words, and of one greeting.
#[test]
fn proofs_hold_for_what_was_said() {
    let secret = Secret::token("swordfish");
    let said = visit(1);
    let proof = secret.proof(&said.vouched(9));
    assert!(secret.is_proved(&said.vouched(9), &proof));
    let elsewhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 2));
    for other in [
        Visit { rank: 2, ..visit(1) },
        Visit { words: "x".into(), ..visit(1) },
        Visit { port: 2, ..visit(1) },
        Visit { nonce: 6, ..visit(1) },
        Visit { ends: Some((elsewhere, elsewhere)), ..visit(1) },
    ] {
        assert!(!secret.is_proved(&other.vouched(9), &proof), "{other:?}");
    }
    assert!(!secret.is_proved(&said.vouched(8), &proof));
    assert!(!Secret::NONE.is_proved(&said.vouched(9), &proof));
    assert!(!format!("{secret:?} {proof:?}").contains("swordfish"));
}

/// Somebody else listens at the place, and has what it is told said again. It learns no secret and
/// is believed nothing.
#[test]
fn who_holds_the_meeting_proves_that_it_may() {
    for secret in [Secret::token("swordfish"), Secret::cookie(COOKIE)] {
        let (listener, address) = listener();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let greeting = Greeting { version: VERSION, nonce: 1 };
                write_message(&mut stream, &greeting).unwrap();
                let visit: Visit = read_message(&mut stream).unwrap();
                let told = serde_json::to_string(&visit).unwrap();
                assert!(!told.contains("swordfish") && !told.contains(&COOKIE.to_string()));
                let seat = Seat { at: address, words: "me".into() };
                let seats = vec![seat.clone(), seat];
                let held = Outcome::Held { seats, number: 1, proof: visit.proof };
                write_message(&mut stream, &held).unwrap();
            });
            let meeting = Meeting {
                rank: 1,
                world_size: 2,
                place: MeetingPoint::At(address),
                occasion: String::new(),
                run: None,
                secret,
                within: Duration::from_millis(300),
                warn_after: LIMIT,
            };
            let error = meeting.attend("words").unwrap_err();
            assert!(matches!(&error, Error::Unreachable { rank: 0, .. }), "{error}");
        });
    }
}

/// Ranks that know a host's name and a port, held by whichever of them is there first.
fn named(port: u16, (rank, world_size): (u16, u16), job: &str, run: &str) -> Meeting {
    Meeting {
        rank,
        world_size,
        place: MeetingPoint::Named { host: "127.0.0.1".into(), port, name: "MASTER_ADDR" },
        occasion: job.into(),
        run: Some(run.into()),
        secret: Secret::token("swordfish"),
        within: LIMIT,
        warn_after: LIMIT,
    }
}

/// Two jobs of one run, and two runs of one job, meet at one port: none meets another one's ranks.
#[test]
fn meetings_at_one_port_are_kept_apart() {
    let port = listener().1.port();
    thread::scope(|scope| {
        let jobs = [("a", "one"), ("b", "one"), ("a", "two")];
        let ranks = jobs.into_iter().flat_map(|job| (0..3).map(move |rank| (job, rank)));
        let threads: Vec<_> = ranks
            .map(|((job, run), rank)| {
                scope.spawn(move || {
                    let meeting = named(port, (rank, 3), job, run);
                    let minutes = meeting.attend(&format!("{job} {run} {rank}")).unwrap();
                    let all = (0..3).map(|rank| format!("{job} {run} {rank}"));
                    assert_eq!(minutes.words, Vec::from_iter(all));
                    minutes.number
                })
            })
            .collect();
        let numbers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for (job, numbers) in numbers.chunks(3).enumerate() {
            assert!(numbers.iter().all(|number| *number == numbers[0]), "job {job}: {numbers:?}");
        }
        assert!(numbers[0] != numbers[3] && numbers[0] != numbers[6] && numbers[3] != numbers[6]);
    });
}

#[test]
fn who_is_missing_at_a_named_place_is_told() {
    let port = listener().1.port();
    let short =
        |rank| Meeting { within: Duration::from_millis(400), ..named(port, (rank, 3), "a", "one") };
    let stray = Meeting { within: Duration::from_millis(600), ..named(port, (1, 3), "b", "one") };
    thread::scope(|scope| {
        let came = [0, 2].map(|rank| scope.spawn(move || short(rank).attend("").unwrap_err()));
        thread::sleep(Duration::from_millis(100));
        let stray = scope.spawn(move || stray.attend("").unwrap_err().to_string());
        for error in came.map(|thread| thread.join().unwrap()) {
            assert!(
                matches!(&error, Error::MissingRanks { missing, .. } if missing == &[1]),
                "{error}"
            );
            assert!(error.to_string().contains("it comes for \"b\""), "{error}");
            assert!(error.to_string().contains("MASTER_ADDR is 127.0.0.1"), "{error}");
        }
        stray.join().unwrap();
    });
    // What listens there is no meeting, and nobody of this run is there.
    let (taken, address) = listener();
    let rank =
        Meeting { within: Duration::from_millis(400), ..named(address.port(), (1, 2), "a", "one") };
    let error = rank.attend("").unwrap_err().to_string();
    assert!(error.contains("MASTER_ADDR") && error.contains("XDP_AGG_PORT"), "{error}");
    drop(taken);
}

/// Whoever waits says so as often as its setting wants, and a year is not too long for that.
#[test]
fn what_a_wait_is_for_is_told_now_and_then() {
    let since = std::time::Instant::now();
    let after = |tenths: u32| since + Duration::from_millis(100) * tenths;
    let mut tell = Tell::new(since, Duration::from_secs(1));
    let said: Vec<_> = (0..35).filter_map(|at| tell.is_long(after(at))).collect();
    assert_eq!(said, [1, 2, 3]);
    assert_eq!(Tell::new(since, Duration::MAX).is_long(after(600)), None);
    // A wait that is to be told of all the time is told of ten times a second.
    let mut tell = Tell::new(since, Duration::ZERO);
    let told = |at: u64| tell.is_long(since + Duration::from_millis(at)).is_some();
    assert_eq!([0, 50, 99, 100, 150, 200].map(told), [false, false, false, true, false, true]);
}

/// A ring that no daemon knows of has no cookie, and takes none.
#[test]
fn a_member_of_a_job_is_a_stranger_elsewhere() {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let plain = |rank| Mesh::builder().rank(rank).world_size(2).rendezvous(address);
        let host = scope.spawn(move || plain(0).listener(listener).open());
        let mut stray = say(address, visit(1), &Secret::cookie(COOKIE));
        let reply = read_message(&mut stray).unwrap();
        assert!(
            matches!(&reply, Outcome::Refused { reason, .. } if reason.contains("epoch 7")),
            "{reply:?}"
        );
        let guest = scope.spawn(move || plain(1).open());
        for rank in [host, guest] {
            drop(rank.join().unwrap().unwrap());
        }
    });
}

/// Callers that say nothing, or a byte now and then, hold up neither the ring nor its deadline.
#[test]
fn callers_that_take_their_time_hold_up_nobody() {
    let (listener, address) = listener();
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let start = Instant::now();
    meet_and_sum(listener, address, || ());
    assert!(start.elapsed() < FIRST_WORDS, "{:?}", start.elapsed());

    let (listener, address) = self::listener();
    let mut trickle = TcpStream::connect(address).unwrap();
    trickle.write_all(&[0, 0, 2, 0]).unwrap();
    let trickle = thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < LIMIT && trickle.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let deadline = Duration::from_millis(700);
    let start = Instant::now();
    let host = member(0, 2, address).listener(listener).deadline(deadline);
    let error = host.open().unwrap_err();
    assert!(matches!(&error, Error::MissingRanks { missing, .. } if missing == &[1]), "{error}");
    assert!(start.elapsed() < FIRST_WORDS, "{:?}", start.elapsed());
    trickle.join().unwrap();
}
