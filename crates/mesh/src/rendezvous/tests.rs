//! Callers that are gone, of another ring, or no members at all.

use std::io::Write;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use xdp_agg_quantize::Op;

use super::*;
use crate::mesh::Mesh;

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
fn hello(rank: u16, address: SocketAddr) -> Hello {
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    member(rank, 3, address).hello(COOKIE, 0, Some(listener))
}

fn say(address: SocketAddr, message: &impl Serialize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write_message(&mut stream, message).unwrap();
    stream
}

/// Three members meet, and sum.
fn meet_and_sum(listener: TcpListener, address: SocketAddr) {
    thread::scope(|scope| {
        let host = member(0, 3, address).listener(listener);
        let members = [host, member(1, 3, address), member(2, 3, address)];
        let sums = members.map(|member| {
            scope.spawn(move || {
                let mut data = [1_i32];
                let summed = member.open()?.all_reduce(&mut data, Op::Sum);
                summed.map(|()| data[0])
            })
        });
        assert_eq!(sums.map(|sum| sum.join().unwrap().unwrap()), [3; 3]);
    });
}

/// A process that came and died before the ring was built waits in the listener's queue; another
/// one has its rank.
#[test]
fn who_is_gone_again_keeps_no_seat() {
    let (listener, address) = listener();
    for rank in [1, 2, 1] {
        drop(say(address, &hello(rank, address)));
    }
    meet_and_sum(listener, address);
}

#[test]
fn who_does_not_belong_to_this_ring_is_turned_away() {
    let (listener, address) = listener();
    let good = || hello(1, address);
    let elsewhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 2));
    let cases = [
        (
            "epoch 6",
            member(1, 3, address).occasion("epoch 6, ring 2".into()).hello(COOKIE, 0, None),
        ),
        ("ring 1", Hello { occasion: "epoch 7, ring 1".into(), ..good() }),
        ("does not know the job's cookie", Hello { proof: 0, ..good() }),
        // A proof is of one rank at one address.
        ("does not know the job's cookie", Hello { listener: Some(elsewhere), ..good() }),
        ("does not know the job's cookie", Hello { rank: 2, ..good() }),
        ("speaks version 1", Hello { version: 1, ..good() }),
    ];
    let callers = cases.map(|(expected, hello)| (expected, say(address, &hello)));
    let earlier = r#"{"version":1,"rank":1,"world_size":3,"cookie":9,"listener":"127.0.0.1:1"}"#;
    let earlier: serde_json::Value = serde_json::from_str(earlier).unwrap();
    let earlier = ("speaks version 1", say(address, &earlier));
    meet_and_sum(listener, address);
    for (expected, mut stream) in callers.into_iter().chain([earlier]) {
        let reply = read_message(&mut stream).unwrap();
        let Answer::Refused { reason } = reply else { panic!("{expected}: {reply:?}") };
        assert!(reason.contains(expected), "{reason}");
    }
}

/// Where a member should listen, somebody else does, and welcomes whoever comes.
#[test]
fn a_stranger_in_a_members_place_is_found_out() {
    let (listener, address) = listener();
    let stranger = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let hello: Hello = read_message(&mut stream).unwrap();
        assert!(!format!("{hello:?}").contains(&COOKIE.to_string()), "the cookie is told");
        write_message(&mut stream, &Answer::Welcome { proof: hello.proof }).unwrap();
    });
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let error = member(0, 2, own).addresses(vec![own, address]).open().unwrap_err();
    assert!(matches!(&error, Error::Unreachable { rank: 1, .. }), "{error}");
    stranger.join().unwrap();
}

/// A ring that no daemon knows of has no cookie, and takes none.
#[test]
fn a_member_of_a_job_is_a_stranger_elsewhere() {
    let (listener, address) = listener();
    let mut stray = say(address, &hello(1, address));
    thread::scope(|scope| {
        let plain = |rank| Mesh::builder().rank(rank).world_size(2).rendezvous(address);
        let host = scope.spawn(move || plain(0).listener(listener).open());
        let guest = scope.spawn(move || plain(1).open());
        for rank in [host, guest] {
            drop(rank.join().unwrap().unwrap());
        }
    });
    let reply = read_message(&mut stray).unwrap();
    assert!(
        matches!(&reply, Answer::Refused { reason } if reason.contains("epoch 7")),
        "{reply:?}"
    );
}

/// Callers that say nothing, or a byte now and then, hold up neither the ring nor its deadline.
#[test]
fn callers_that_take_their_time_hold_up_nobody() {
    let (listener, address) = listener();
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let start = Instant::now();
    meet_and_sum(listener, address);
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
