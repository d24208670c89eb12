//! Requests that wait at the door, until the ends of connections that came before are read.
//!
//! A worker that dies and is started again at once may say `Join` before the end of its old
//! connection was read: the kernel has that end already, and the task that reads it has not had its
//! turn. Without the wait the new process would be refused, as its rank is taken, or the job is
//! running without it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xdp_agg_common::control::Request;
use xdp_agg_protocol::daemon::ConnId;

/// Longest time at the door. A task that reads a connection to its end needs milliseconds, also
/// where it has messages to read before.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The requests that wait, at most one of each connection.
#[derive(Default)]
pub(super) struct Door {
    waiting: BTreeMap<ConnId, Waiting>,
}

struct Waiting {
    request: Request,
    /// The connections whose ends are awaited.
    ends: Vec<ConnId>,
    until: Instant,
}

impl Door {
    /// Lets a request wait for these ends.
    pub(super) fn hold(&mut self, conn: ConnId, request: Request, ends: Vec<ConnId>, now: Instant) {
        self.waiting.insert(conn, Waiting { request, ends, until: now + WAIT_MAX });
    }

    /// The requests whose wait is over; `is_there` tells which connections have not ended yet.
    pub(super) fn open(
        &mut self,
        is_there: impl Fn(ConnId) -> bool,
        now: Instant,
    ) -> Vec<(ConnId, Request)> {
        let over = |_: &ConnId, waiting: &mut Waiting| {
            waiting.ends.retain(|end| is_there(*end));
            waiting.ends.is_empty() || now >= waiting.until
        };
        let over = self.waiting.extract_if(.., over);
        over.map(|(conn, waiting)| (conn, waiting.request)).collect()
    }
}

/// Whether the other side has ended a connection, as the kernel knows it. It may have said
/// something before that is still to be read.
pub(super) fn is_ending(socket: &impl AsFd) -> bool {
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut ask = [PollFd::new(socket, ends)];
    // What cannot be told has not ended.
    poll(&mut ask, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && ask[0].revents().intersects(ends)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = TcpStream::connect(listener.local_addr().expect("it has one"));
        (listener.accept().expect("it came").0, peer.expect("it listens"))
    }

    #[test]
    fn an_end_is_seen_behind_what_is_not_read_yet() {
        let (ours, mut peer) = pair();
        assert!(!is_ending(&ours));
        peer.write_all(b"something").expect("it takes it");
        assert!(!is_ending(&ours));
        drop(peer);
        let end = Instant::now() + Duration::from_secs(5);
        while !is_ending(&ours) {
            assert!(Instant::now() < end, "the end does not come");
        }
    }

    #[test]
    fn a_request_waits_for_all_its_ends_and_not_for_ever() {
        let (mut door, now) = (Door::default(), Instant::now());
        let open = |door: &mut Door, there: &[u64], at: Instant| -> Vec<u64> {
            let open = door.open(|conn| there.contains(&conn.0), at);
            open.into_iter().map(|(conn, _)| conn.0).collect()
        };
        door.hold(ConnId(5), Request::Jobs, vec![ConnId(1), ConnId(2)], now);
        door.hold(ConnId(6), Request::Jobs, vec![ConnId(1)], now);
        assert!(open(&mut door, &[1, 2], now).is_empty());
        assert_eq!(open(&mut door, &[2], now), [6]);
        assert!(open(&mut door, &[1, 2], now).is_empty());
        assert_eq!(open(&mut door, &[2], now + WAIT_MAX), [5]);
        assert!(open(&mut door, &[], now + WAIT_MAX).is_empty());
    }
}
