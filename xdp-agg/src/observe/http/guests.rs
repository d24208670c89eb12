//! Whose connections are kept: each address has a share of the places, and the oldest connection
//! makes room for a new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Notify;

/// Connections at a time.
const GUESTS_MAX: usize = 64;
/// Of these, of one address.
const OF_ONE_MAX: usize = 16;

/// The open connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Guests {
    next: u64,
    all: BTreeMap<u64, (IpAddr, std::sync::Weak<Notify>)>,
}

/// A connection's place: given back when this is dropped.
#[derive(Debug)]
pub(super) struct Guest(Arc<Notify>);

impl Guest {
    /// Its place is another one's now.
    pub(super) async fn evicted(&self) {
        self.0.notified().await;
    }
}

impl Guests {
    /// Takes one in. Where there are too many of its address, or in all, an older one must go: of
    /// its address, or of the one that has most.
    pub(super) fn admit(&mut self, from: IpAddr) -> Guest {
        self.all.retain(|_, (_, place)| place.strong_count() > 0);
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (of, _) in self.all.values() {
            *counts.entry(*of).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(of, _)| *of);
        let crowded = (counts.get(&from).is_some_and(|count| *count >= OF_ONE_MAX)).then_some(from);
        let full = most.filter(|_| self.all.len() >= GUESTS_MAX);
        if let Some(of) = crowded.or(full)
            && let Some(number) = self.all.iter().find(|(_, (is, _))| *is == of).map(|(n, _)| *n)
            && let Some((_, place)) = self.all.remove(&number)
            && let Some(place) = place.upgrade()
        {
            place.notify_one();
        }
        let guest = Guest(Arc::new(Notify::new()));
        self.all.insert(self.next, (from, Arc::downgrade(&guest.0)));
        self.next += 1;
        guest
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::net::Ipv4Addr;
    use std::task::{Context, Waker};

    use super::*;

    fn of(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn is_out(guest: &Guest) -> bool {
        let mut evicted = std::pin::pin!(guest.evicted());
        evicted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_address_has_its_share_and_the_oldest_goes() {
        let mut guests = Guests::default();
        let other = guests.admit(of(2));
        let all: Vec<_> = (0..=OF_ONE_MAX).map(|_| guests.admit(of(1))).collect();
        let out: Vec<_> = all.iter().map(is_out).collect();
        assert!(out[0] && !out[1..].contains(&true) && !is_out(&other), "{out:?}");
    }

    #[test]
    fn of_too_many_in_all_the_address_with_most_gives_one_up() {
        let mut guests = Guests::default();
        let single = guests.admit(of(9));
        let mut all = Vec::new();
        for last in 1..=4 {
            all.extend((0..15).map(|_| (last, guests.admit(of(last)))));
        }
        all.push((4, guests.admit(of(4))));
        all.extend((20..22).map(|last| (last, guests.admit(of(last)))));
        assert_eq!(guests.all.len(), GUESTS_MAX);
        let late = guests.admit(of(30));
        let out: Vec<_> =
            all.iter().filter(|(_, guest)| is_out(guest)).map(|(of, _)| *of).collect();
        assert_eq!(out, [4]);
        assert!(!is_out(&single) && !is_out(&late));
    }

    #[test]
    fn who_has_gone_has_no_place() {
        let mut guests = Guests::default();
        for _ in 0..1000 {
            drop(guests.admit(of(1)));
        }
        assert!(guests.all.len() <= 1);
    }
}
