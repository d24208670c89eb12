//! Callers that are gone, of another ring, or no members at all.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use super::*;
use crate::mesh::Mesh;

const LIMIT: Duration = Duration::from_secs(10);
const COOKIE: u64 = 0xfeed_5eed;

/// Where a member should listen, somebody else does, and welcomes whoever comes.
#[test]
fn a_stranger_in_a_members_place_is_found_out() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let stranger = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let hello: Hello = read_message(&mut stream).unwrap();
        assert!(!format!("{hello:?}").contains(&COOKIE.to_string()), "the cookie is told");
        write_message(&mut stream, &Answer::Welcome { proof: hello.proof }).unwrap();
    });
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let member = Mesh::builder().rank(0).world_size(2).deadline(LIMIT).cookie(COOKIE);
    let error = member.addresses(vec![own, address]).open().unwrap_err();
    assert!(matches!(&error, Error::Unreachable { rank: 1, .. }), "{error}");
    stranger.join().unwrap();
}
