//! Meshes over loopback.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test program uses a part of it"
)]

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use xdp_agg_mesh::{Builder, Mesh};

/// Longest time that anything here may take.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A mesh of `ranks` ranks, `group` to a group: by a rendezvous where `ranks` is odd, by a list of
/// addresses where it is even.
pub fn world(ranks: u16, group: u16) -> Vec<Mesh> {
    world_of(ranks, |builder| builder.group_size(group))
}

/// The same with further settings.
pub fn world_of(ranks: u16, tune: impl Fn(Builder) -> Builder + Sync) -> Vec<Mesh> {
    let start = |rank| Mesh::builder().rank(rank).world_size(ranks).deadline(LIMIT);
    let builders: Vec<Builder> = if ranks % 2 == 1 {
        rendezvous((0..ranks).map(start))
    } else {
        listed(ranks).into_iter().map(|builder| builder.cookie(7)).collect()
    };
    at_once(builders, |builder| tune(builder).open().expect("all come"))
}

/// The first of these listens, and the others meet it there.
pub fn rendezvous(builders: impl Iterator<Item = Builder>) -> Vec<Builder> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let mut listener = Some(listener);
    let meet = |builder: Builder| match listener.take() {
        Some(listener) => builder.listener(listener),
        None => builder.rendezvous(address),
    };
    builders.map(meet).collect()
}

/// Ranks that know each other's addresses, and no cookie yet.
pub fn listed(ranks: u16) -> Vec<Builder> {
    let listeners: Vec<_> =
        (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().expect("bound")).collect();
    let ranks = (0..ranks).zip(listeners).map(|(rank, listener)| {
        Mesh::builder()
            .rank(rank)
            .world_size(addresses.len() as u16)
            .deadline(LIMIT)
            .listener(listener)
            .addresses(addresses.clone())
    });
    ranks.collect()
}

/// Does the same for all of these at once, each on a thread of its own. (The test network has this,
/// too; with it the mutants' copy, which has this crate's tests, would take in the daemon.)
pub fn at_once<I: Send, T: Send>(
    all: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Does the same at all ranks at once.
pub fn on_all<T: Send>(meshes: &mut [Mesh], work: impl Fn(&mut Mesh) -> T + Sync) -> Vec<T> {
    at_once(meshes, work)
}

/// A rank's bytes.
pub fn bytes(rank: u16, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + usize::from(rank) * 101 + i / 251) as u8).collect()
}
