//! How much of the server one address, one connection and the log get: arithmetic without sockets
//! or clocks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use xdp_agg_protocol::bucket::{Allowance, Bucket, Lines};

/// Connections that one address may open, a second and at once. All workers of a few jobs may run
/// on one host and start together; those that are refused try again.
const CONNECTIONS: Allowance = Allowance { rate: 100, burst: 256 };
/// Requests of one connection: a worker sends a handful, a tool one.
const REQUESTS: Allowance = Allowance { rate: 200, burst: 400 };
/// Requests of one address's connections that are not members', all together: `Hello` and `Join` of
/// all of its workers.
const STRANGERS_REQUESTS: Allowance = Allowance { rate: 400, burst: 2048 };
/// Connections to branches for jobs that form on requests of one address.
const DIALS: Allowance = Allowance { rate: 100, burst: 1024 };
/// Refusals that are logged, each in words; the others are counted.
const LINES: Allowance = Allowance { rate: 2, burst: 20 };
/// Addresses that have an allowance each. All further addresses share one.
const SOURCES_MAX: usize = 4096;

/// The requests of a new connection.
pub(super) const fn requests(now: Instant) -> Bucket {
    Bucket::new(REQUESTS, now)
}

/// Refusals for the log.
pub(super) const fn refusals(now: Instant) -> Lines {
    Lines::new(LINES, now)
}

/// Where connections come from. An IPv6 host has a whole /64 of addresses to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn new(addr: IpAddr) -> Self {
        Self(match addr.to_canonical() {
            IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64).into(),
            addr => addr,
        })
    }

    /// All addresses that come when the table is full.
    const fn others() -> Self {
        Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// What each address has used up.
#[derive(Debug, Default)]
pub(super) struct Sources {
    all: BTreeMap<Source, Used>,
}

#[derive(Debug)]
struct Used {
    connections: Bucket,
    requests: Bucket,
    dials: Bucket,
}

impl Sources {
    /// Whether this address may open another connection now.
    pub(super) fn may_connect(&mut self, source: Source, now: Instant) -> bool {
        self.of(source, now).connections.take(now)
    }

    /// Whether a stranger of this address may ask for something now.
    pub(super) fn may_ask(&mut self, source: Source, now: Instant) -> bool {
        self.of(source, now).requests.take(now)
    }

    /// Whether this address may have a connection to a branch opened now.
    pub(super) fn may_dial(&mut self, source: Source, now: Instant) -> bool {
        self.of(source, now).dials.take(now)
    }

    fn of(&mut self, source: Source, now: Instant) -> &mut Used {
        if self.all.len() >= SOURCES_MAX && !self.all.contains_key(&source) {
            self.forget(now);
        }
        let room = self.all.len() < SOURCES_MAX || self.all.contains_key(&source);
        let source = if room { source } else { Source::others() };
        self.all.entry(source).or_insert_with(|| Used {
            connections: Bucket::new(CONNECTIONS, now),
            requests: Bucket::new(STRANGERS_REQUESTS, now),
            dials: Bucket::new(DIALS, now),
        })
    }

    /// Forgets addresses that have their whole allowance again.
    pub(super) fn forget(&mut self, now: Instant) {
        self.all.retain(|_, used| {
            let all = [used.connections, used.requests, used.dials];
            !all.iter().all(|bucket| bucket.is_full(now))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_address_does_not_use_up_what_another_has() {
        let now = Instant::now();
        let mut sources = Sources::default();
        let [flood, worker] = [1, 2].map(|last| Source::new([10, 0, 0, last].into()));
        while sources.may_connect(flood, now) {}
        while sources.may_ask(flood, now) {}
        while sources.may_dial(flood, now) {}
        assert!(sources.may_connect(worker, now) && sources.may_ask(worker, now));
        assert!(sources.may_dial(worker, now));
        assert!(sources.may_connect(flood, now + Duration::from_secs(1)));
    }

    #[test]
    fn addresses_of_one_ipv6_host_are_one_source() {
        let source = |text: &str| Source::new(text.parse().expect("an address"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:ffff:ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
    }

    #[test]
    fn the_table_of_addresses_is_bounded_and_forgets() {
        let now = Instant::now();
        let mut sources = Sources::default();
        for address in 0..2 * SOURCES_MAX as u32 {
            sources.may_connect(Source::new(Ipv4Addr::from(0x0a00_0000 | address).into()), now);
        }
        assert_eq!(sources.all.len(), SOURCES_MAX + 1);
        // The flood has used up what latecomers share, and nothing of the addresses before it.
        assert!(!sources.may_connect(Source::new([99, 0, 0, 1].into()), now));
        assert!(sources.may_connect(Source::new([10, 0, 0, 7].into()), now));
        let later = now + Duration::from_secs(60);
        assert!(sources.may_connect(Source::new([99, 0, 0, 1].into()), later));
        assert!(sources.all.len() <= 2, "{}", sources.all.len());
    }
}
