//! The ring that takes a lost aggregator's place. It carries what a worker's
//! [`Machine`](xdp_agg_protocol::worker::Machine) cuts for it.
//!
//! Ring positions count the members of the last epoch, rack by rack where the racks are known;
//! errors name ranks.

use std::net::TcpListener;
use std::time::Duration;

use xdp_agg_common::control::Progress;
use xdp_agg_common::wire::Reduction;
use xdp_agg_mesh::{Mesh, Op};

use crate::error::Error;
use xdp_agg_protocol::worker::{Lanes, Seat};

/// Lanes that are summed in one piece, at most, when members tell each other what they have: more
/// than any pool can make of it.
const MAX_WORDS: i64 = 64 << 20;

/// A ring of the members.
#[derive(Debug)]
pub(crate) struct Fallback {
    ring: Mesh,
    seat: Seat,
}

impl Fallback {
    /// Meets the other members: the first one is the host. A member with another order is turned
    /// away.
    pub(crate) fn build(
        seat: Seat,
        listener: Option<TcpListener>,
        (meet, step): (Duration, Duration),
    ) -> Result<Self, Error> {
        let (epoch, cookie) = seat.epoch;
        let mut builder = Mesh::builder()
            .rank(seat.index)
            .world_size(seat.members.len() as u16)
            .deadline(step)
            .join_deadline(meet)
            .cookie(cookie)
            .occasion(format!("epoch {epoch}, ring {} of {:?}", seat.rings, seat.members));
        if let Some(host) = seat.addresses.first() {
            builder = builder.rendezvous((*host).into());
        }
        if seat.index == 0
            && let Some(listener) = listener
        {
            builder = builder.listener(listener);
        }
        match builder.open() {
            Ok(ring) => Ok(Self { ring, seat }),
            Err(error) => Err(explain(&error, &seat)),
        }
    }

    /// What all members have, as the ring visits them.
    pub(crate) fn gather(&mut self, own: &Progress) -> Result<Vec<(u16, Progress)>, Error> {
        let text = serde_json::to_vec(own).map_err(|error| self.nonsense(&error.to_string()))?;
        let (count, index) = (self.seat.members.len(), usize::from(self.seat.index));
        // Everybody adds to zeros in all places but its own.
        let mut lens = vec![0; count];
        lens[index] = text.len() as i32;
        self.sum(&mut lens)?;
        let total: i64 = lens.iter().map(|len| i64::from(*len)).sum();
        if lens.iter().any(|len| *len < 0) || total > MAX_WORDS {
            return Err(self.nonsense("lengths that cannot be"));
        }
        let mut bytes = vec![0; total as usize];
        let start: i32 = lens[..index].iter().sum();
        for (place, byte) in bytes[start as usize..].iter_mut().zip(&text) {
            *place = i32::from(*byte);
        }
        self.sum(&mut bytes)?;
        let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
        let mut rest = &bytes[..];
        let mut all = Vec::with_capacity(count);
        for (rank, len) in self.seat.members.iter().zip(&lens) {
            let (text, behind) = rest.split_at(*len as usize);
            rest = behind;
            let theirs = serde_json::from_slice(text).map_err(|e| self.nonsense(&e.to_string()))?;
            all.push((*rank, theirs));
        }
        Ok(all)
    }

    /// Makes one of all members' lanes.
    pub(crate) fn reduce(&mut self, lanes: &mut Lanes, reduction: Reduction) -> Result<(), Error> {
        let reduced = self.ring.all_reduce_words(&mut lanes.words, reduction);
        reduced.map_err(|error| explain(&error, &self.seat))?;
        self.sum(&mut lanes.marks)
    }

    /// Sums integers over all members, wrapping.
    fn sum(&mut self, lanes: &mut [i32]) -> Result<(), Error> {
        self.ring.all_reduce(lanes, Op::Sum).map_err(|error| explain(&error, &self.seat))
    }

    fn nonsense(&self, what: &str) -> Error {
        Error::Ring { ranks: self.seat.members.clone(), reason: format!("not understood: {what}") }
    }
}

/// A ring's error by the ranks that it concerns.
fn explain(error: &xdp_agg_mesh::Error, seat: &Seat) -> Error {
    let positions = error.ranks();
    let ranks =
        positions.iter().filter_map(|at| seat.members.get(usize::from(*at))).copied().collect();
    let mut reason = error.to_string();
    if seat.members.iter().enumerate().any(|(at, rank)| at != usize::from(*rank)) {
        reason += &format!(" (here ranks count the ring's members: they are {:?})", seat.members);
    }
    Error::Ring { ranks, reason }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use xdp_agg_common::control::Held;

    use super::*;

    #[test]
    fn members_learn_what_all_have() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let SocketAddr::V4(host) = listener.local_addr().expect("bound") else { panic!("IPv4") };
        let members = vec![1, 4, 6];
        let progress = |index: u16| Progress {
            base: 100 + u64::from(index),
            next_sequence: 3,
            held: (0..u64::from(index) * 40)
                .map(|i| Held { from: 200 + 2 * i, len: 1, members: 0b101_0010 })
                .collect(),
        };
        let mut listener = Some(listener);
        std::thread::scope(|scope| {
            for index in 0..3 {
                let listener = if index == 0 { listener.take() } else { None };
                let (members, addresses) = (members.clone(), vec![host; 3]);
                scope.spawn(move || {
                    let seat = Seat { members, addresses, index, epoch: (3, 99), rings: 1 };
                    let times = (Duration::from_secs(20), Duration::from_secs(20));
                    let mut ring = Fallback::build(seat, listener, times).expect("all come");
                    let all = ring.gather(&progress(index)).expect("all are well");
                    let ranks = [1, 4, 6].into_iter().zip((0..3).map(progress));
                    assert_eq!(all, ranks.collect::<Vec<_>>());
                });
            }
        });
    }

    #[test]
    fn who_does_not_come_is_named_by_rank() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let SocketAddr::V4(host) = listener.local_addr().expect("bound") else { panic!("IPv4") };
        let seat = Seat {
            members: vec![2, 5],
            addresses: vec![host; 2],
            index: 0,
            epoch: (1, 1),
            rings: 0,
        };
        let error =
            Fallback::build(seat, Some(listener), (Duration::from_millis(100), Duration::MAX));
        assert!(matches!(error, Err(Error::Ring { ranks, .. }) if ranks == [5]));
    }
}
