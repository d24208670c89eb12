//! Dead ranks, strangers, calls that differ: typed errors that name a rank, and no hang.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use support::{LIMIT, at_once, bytes, listed, on_all, rendezvous, world, world_of};
use xdp_agg_mesh::{Algorithm, Error, Mesh, Op};

const CHUNKED: Algorithm = Algorithm::PipelinedChain { chunk: 4096 };

/// A rank that is gone is named by all that needed it, long before the deadline.
#[test]
fn a_dead_rank_is_named() {
    for algorithm in Algorithm::ALL.into_iter().chain([CHUNKED]) {
        let mut meshes = world(4, 2);
        let victim = 2;
        drop(meshes.remove(victim));
        let start = Instant::now();
        let errors = on_all(&mut meshes, |mesh| {
            let mut data = bytes(mesh.rank(), 1 << 20);
            let first = mesh.broadcast(&mut data, 0, algorithm);
            // A rank that was done before it could know hears of it in the next call.
            first.and_then(|()| mesh.barrier()).expect_err("rank 2 is gone")
        });
        assert!(start.elapsed() < Duration::from_secs(5), "{algorithm}");
        for error in errors {
            assert_eq!(error.ranks(), [victim as u16], "{algorithm}: {error}");
        }
    }
}

/// In the middle of a long call.
#[test]
fn a_rank_that_dies_in_a_call_is_named() {
    let mut meshes = world(4, 1);
    let victim = meshes.remove(1);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(victim);
    });
    let errors = on_all(&mut meshes, |mesh| {
        let mut data = vec![1.0_f32; 1 << 22];
        mesh.hierarchical_all_reduce(&mut data, Op::Sum).expect_err("rank 1 does not take part")
    });
    for error in errors {
        assert_eq!(error.ranks(), [1], "{error}");
    }
    killer.join().expect("no panic");
    // A mesh that failed stays so, and says why.
    let again = meshes[0].barrier().expect_err("it is broken");
    assert!(matches!(&again, Error::Broken { reason } if reason.contains("rank 1")), "{again}");
}

/// A rank that is alive and does not call.
#[test]
fn a_deadline_names_who_is_waited_for() {
    let deadline = Duration::from_millis(300);
    let mut meshes = world_of(3, |builder| builder.deadline(deadline.max(builder_patience())));
    let sleeper = meshes.remove(0);
    let start = Instant::now();
    let errors = on_all(&mut meshes, |mesh| {
        mesh.broadcast(&mut bytes(0, 100), 0, Algorithm::Direct).expect_err("the root sleeps")
    });
    assert!(start.elapsed() < builder_patience() + Duration::from_secs(2));
    for error in errors {
        assert_eq!(error.ranks(), [0], "{error}");
    }
    drop(sleeper);
}

/// Long enough to open a mesh on a busy machine.
const fn builder_patience() -> Duration {
    Duration::from_secs(2)
}

/// A rank's call.
type Odd = dyn Fn(&mut Mesh) -> Result<(), Error> + Sync;

/// What a rank does otherwise than all others, in a binomial tree of four from root 0.
fn differing(odd: impl Fn(&mut Mesh) -> Result<(), Error> + Sync) -> Vec<Result<(), Error>> {
    let mut meshes = world(4, 1);
    on_all(&mut meshes, |mesh| {
        let first = if mesh.rank() == 2 {
            odd(mesh)
        } else {
            mesh.broadcast(&mut [0_u32; 100], 0, Algorithm::Binomial)
        };
        first.and_then(|()| mesh.barrier())
    })
}

#[test]
fn calls_that_differ_fail_at_all_ranks() {
    let odd: [&Odd; 5] = [
        &|mesh| mesh.broadcast(&mut [0_u32; 101], 0, Algorithm::Binomial),
        &|mesh| mesh.broadcast(&mut [0_f32; 100], 0, Algorithm::Binomial),
        &|mesh| mesh.broadcast(&mut [0_u32; 100], 1, Algorithm::Binomial),
        &|mesh| mesh.broadcast(&mut [0_u32; 100], 0, Algorithm::Direct),
        &|mesh| mesh.reduce(&mut [0_i32; 100], Op::Sum, 0, Algorithm::Binomial),
    ];
    for (case, odd) in odd.into_iter().enumerate() {
        let start = Instant::now();
        let results = differing(odd);
        assert!(start.elapsed() < LIMIT / 2, "case {case}");
        let mut named = false;
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.expect_err("the calls differ");
            named |= matches!(error, Error::Mismatch { .. });
            let known = matches!(
                error,
                Error::Mismatch { .. } | Error::Stopped { .. } | Error::PeerLost { .. }
            );
            assert!(known, "case {case}, rank {rank}: {error}");
        }
        assert!(named, "case {case}: nobody said how they differ");
    }
}

#[test]
fn arguments_that_cannot_be_are_refused_at_once() {
    let mut meshes = world(2, 1);
    let mesh = &mut meshes[0];
    for (root, algorithm) in [
        (2, Algorithm::Binomial),
        (0, Algorithm::Knomial { k: 1 }),
        (0, Algorithm::PipelinedChain { chunk: 0 }),
    ] {
        let error = mesh.broadcast(&mut [1_u8], root, algorithm).expect_err("it cannot be");
        assert!(matches!(error, Error::Argument(_)), "{error}");
    }
    // Nothing was sent: the mesh is as it was.
    on_all(&mut meshes, |mesh| mesh.barrier().expect("all are well"));
}

/// A rank with another cookie is turned away, and told why; the others name the missing rank.
#[test]
fn a_wrong_cookie_is_refused() {
    let errors: Vec<Error> = at_once(listed(3).into_iter().zip([9, 8, 9]), |(builder, cookie)| {
        let opened = builder.cookie(cookie).deadline(Duration::from_secs(1)).open();
        opened.map(drop).expect_err("one differs")
    });
    assert!(matches!(&errors[0], Error::Refused { by: 1, reason } if reason.contains("cookie")));
    assert!(matches!(&errors[1], Error::MissingRanks { missing, .. } if missing == &[0]));
    let said = errors[2].to_string();
    assert!(matches!(&errors[2], Error::MissingRanks { missing, .. } if missing == &[1]), "{said}");
    assert!(said.contains("cookie"), "{said}");
}

/// Strangers that connect, say nonsense, or nothing, change nothing.
#[test]
fn strangers_are_ignored() {
    let builders = listed(2);
    let address = builders[1].listening_at().expect("it has a listener");
    let _silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    let start = Instant::now();
    let mut loud = TcpStream::connect(address).expect("it listens");
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut meshes = at_once(builders, |builder| builder.cookie(5).open().expect("both come"));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    on_all(&mut meshes, |mesh| mesh.barrier().expect("all are well"));
}

#[test]
fn a_deadline_may_be_as_long_as_can_be() {
    let mut meshes = world_of(2, |builder| builder.deadline(Duration::MAX));
    on_all(&mut meshes, |mesh| mesh.barrier().expect("all are well"));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let error = Mesh::builder().rank(3).world_size(2).open().expect_err("no such rank");
    assert!(error.to_string().contains("rank 3 in a world of 2"), "{error}");
    let error = Mesh::builder().rank(1).world_size(2).open().expect_err("nowhere to go");
    assert!(error.to_string().contains("rendezvous: not set"), "{error}");
    let list = vec!["127.0.0.1:1".parse().expect("an address"); 2];
    let error = Mesh::builder().rank(1).world_size(2).addresses(list).open();
    assert!(error.expect_err("no cookie").to_string().contains("cookie: not set"));
}

#[test]
fn missing_ranks_are_named_at_the_rendezvous() {
    let start =
        |rank| Mesh::builder().rank(rank).world_size(4).deadline(Duration::from_millis(700));
    let both = rendezvous([0, 2].into_iter().map(start));
    for ended in at_once(both, |builder| builder.open().map(drop)) {
        let error = ended.expect_err("two are missing");
        assert!(
            matches!(&error, Error::MissingRanks { missing, .. } if missing == &[1, 3]),
            "{error}"
        );
    }
}
