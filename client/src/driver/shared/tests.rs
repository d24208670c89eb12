//! Closing while the progress thread is busy.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Instant;

use super::*;
use crate::trace::{Identity, Recorder, Tracing};
use xdp_agg_protocol::worker::Config;

use crate::driver::udp::DataSocket;

/// A worker of a daemon at an address; nothing is done for it yet.
fn worker(address: std::net::SocketAddr) -> Arc<Shared> {
    let socket = DataSocket::bind(Ipv4Addr::LOCALHOST).expect("a free port");
    let dial = Dial { address, name: None, dead_after: Duration::from_secs(8), tls: None };
    let config = Config { aggregator: address, ..Config::new("job", 0, 2) };
    let of = Identity {
        job: "test".into(),
        run: None,
        rank: 0,
        world_size: 1,
        local_rank: 0,
        local_size: 1,
    };
    let tracer = Tracer::new(&Tracing::default(), of).expect("nothing is opened");
    let engine = Engine::new(config, dial, socket, Recorder::new(&tracer, 0)).expect("memory");
    let roll = (Arc::new(Roll::new(1, 0)), 0);
    Arc::new(
        Shared::new(engine, None, (Duration::MAX, Duration::MAX), roll, tracer).expect("sockets"),
    )
}

fn nowhere() -> std::net::SocketAddr {
    (Ipv4Addr::LOCALHOST, 1).into()
}

/// From the moment on in which others get the engine.
#[test]
fn nobody_waits_for_a_thread_that_is_away() {
    let shared = worker(nowhere());
    let (engine, closer) = (shared.lock(), Arc::clone(&shared));
    // It has to wait for the engine, and gets it as soon as that is given away.
    let closing = thread::spawn(move || {
        let waits = closer.close();
        (waits, Instant::now())
    });
    while !shared.is_wanted() {
        thread::yield_now();
    }
    // The thread has not looked since. It does not begin the work that it was about to do.
    assert!(shared.away(engine, || panic!("it is closing")).is_none());
    closing.join().expect("no panic");

    let shared = worker(nowhere());
    let waits = shared.away(shared.lock(), || shared.close());
    assert_eq!(waits, Some(false), "the thread ends later");
    assert!(shared.close(), "the thread is back");
}

/// A daemon's host that takes no connection, and does not say so.
#[test]
fn nobody_waits_for_a_connection_that_does_not_come() {
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let silent = silent.expect("a socket");
    silent.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("free");
    silent.listen(0).expect("bound");
    let silent = TcpListener::from(silent);
    let address = silent.local_addr().expect("bound");
    // The queue is full when one more is not let in.
    let mut queue = Vec::new();
    while let Ok(stream) =
        std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200))
    {
        queue.push(stream);
    }
    let shared = worker(address);
    let progress = Arc::clone(&shared);
    let thread = thread::spawn(move || progress.progress());
    while !shared.busy.load(Ordering::Acquire) {
        thread::yield_now();
    }
    assert!(!shared.close(), "it would have to wait for the connection");
    thread.join().expect("no panic");
}

/// Whoever waits for a thread that is dead gets an error, and so does every later call.
#[test]
fn a_thread_that_panics_ends_the_membership() {
    let shared = worker(nowhere());
    let dying = Arc::clone(&shared);
    let dying = thread::spawn(move || dying.or_give_up(|| panic!("on purpose")));
    let error = shared.wait_until_joined().expect_err("nobody joins any more");
    assert!(matches!(&error, Error::Interrupted(why) if why.contains("panicked")), "{error}");
    dying.join().expect("it was caught");
    assert!(shared.lock().machine.failure().is_some());
}
