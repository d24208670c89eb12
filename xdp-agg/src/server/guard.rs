//! Which connections are kept out or ended, and what is logged and counted of that.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::TcpStream;
use tracing::{error, info, warn};
use xdp_agg_common::control::{ControlCounters, ErrorCode, Reply, encode};

use super::limits::{Source, Sources, refusals};
use crate::state::StateError;
use xdp_agg_protocol::bucket::Lines;
use xdp_agg_protocol::daemon::ConnId;

/// Most connections that are not members': tools, workers about to join, strangers.
const STRANGERS_MAX: usize = 512;
/// Most of these from one address: two large jobs whose workers all start there at once.
const SOURCE_STRANGERS_MAX: usize = 128;

/// The server's limits, and what came of them.
pub(super) struct Guard {
    sources: Sources,
    lines: Lines,
    pub(super) counters: ControlCounters,
}

impl Guard {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sources: Sources::default(),
            lines: refusals(now),
            counters: ControlCounters::default(),
        }
    }

    /// Whether an accepted connection is taken in. A refused peer is told, where that needs no
    /// waiting.
    pub(super) fn may_connect(
        &mut self,
        stream: &TcpStream,
        from: SocketAddr,
        source: Source,
        tls: bool,
        now: Instant,
    ) -> bool {
        if self.sources.may_connect(source, now) {
            self.counters.accepted += 1;
            return true;
        }
        self.counters.rate += 1;
        let message = "too many connections from your address in a short time; slow down";
        self.line(now, |left_out| info!(%from, left_out, "refused: {message}"));
        // Over TLS nothing can be said before a handshake, and that is work.
        if !tls {
            let reply = Reply::Error { code: ErrorCode::Limit, message: message.into() };
            // A fresh socket takes a short frame at once; a peer that has gone needs none.
            drop(encode(&reply).map(|frame| stream.try_write(&frame)));
        }
        false
    }

    /// Whether a connection that is not a member's may ask for something.
    pub(super) fn may_ask(&mut self, source: Source, now: Instant) -> bool {
        self.sources.may_ask(source, now)
    }

    /// Whether a job that forms on a request from `source` may have one more branch connected now.
    pub(super) fn may_dial(&mut self, source: Source, now: Instant) -> bool {
        self.sources.may_dial(source, now)
    }

    /// A connection is told that something was refused.
    pub(super) fn refused(
        &mut self,
        conn: ConnId,
        from: SocketAddr,
        code: ErrorCode,
        message: &str,
        now: Instant,
    ) {
        match code {
            ErrorCode::Unauthorised => self.counters.unauthorised += 1,
            ErrorCode::Protocol | ErrorCode::Version => self.counters.garbled += 1,
            // Valid requests that cannot be met, or errors that were counted where they were found.
            _ => {}
        }
        self.line(
            now,
            |left_out| info!(conn = conn.0, %from, ?code, left_out, "refused: {message}"),
        );
    }

    /// A connection's TLS failed.
    pub(super) fn untrusted(&mut self, conn: ConnId, from: SocketAddr, why: &str, now: Instant) {
        self.counters.tls_failures += 1;
        self.line(now, |left_out| info!(conn = conn.0, %from, left_out, "TLS failed: {why}"));
    }

    /// A connection ends without a word, because none would arrive.
    pub(super) fn cut_off(&mut self, conn: ConnId, from: SocketAddr, why: &str, now: Instant) {
        self.counters.deaf += 1;
        self.line(now, |left_out| warn!(conn = conn.0, %from, left_out, "cut off: {why}"));
    }

    /// A connection could not be accepted.
    pub(super) fn accept_failed(&mut self, error: &io::Error, now: Instant) {
        // A peer that changed its mind is not worth a line.
        if error.kind() != ErrorKind::ConnectionAborted {
            self.line(now, |left_out| warn!(left_out, "cannot accept a connection: {error}"));
        }
    }

    /// The running jobs could not be left to the next daemon.
    pub(super) fn unsaved(&mut self, error: &StateError, now: Instant) {
        self.line(now, |left_out| {
            error!(left_out, "the next daemon will not know what has changed: {error}");
        });
    }

    /// To be called every second or so.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.sources.forget(now);
        if let Some(count) = self.lines.rest(now) {
            info!("{count} more refusals like those above; `xdp-agg stats` counts them");
        }
    }

    /// Writes a line, unless a flood of them is running.
    fn line(&mut self, now: Instant, write: impl FnOnce(u64)) {
        if let Some(left_out) = self.lines.write(now) {
            write(left_out);
        }
    }
}

/// A connection that is not a member's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    pub(super) conn: ConnId,
    pub(super) source: Source,
    pub(super) heard: Instant,
}

/// The stranger that must go to make room for another one of `source`. If `source` has too many, it
/// is one of these; if there are too many in all, it is one of the address that has most. Among
/// them, it is the one that was silent longest.
pub(super) fn who_must_go(
    strangers: impl Iterator<Item = Stranger>,
    source: Source,
) -> Option<ConnId> {
    let mut sources: BTreeMap<Source, (usize, Stranger)> = BTreeMap::new();
    let mut all = 0;
    for stranger in strangers {
        all += 1;
        let (count, silent) = sources.entry(stranger.source).or_insert((0, stranger));
        *count += 1;
        if stranger.heard < silent.heard {
            *silent = stranger;
        }
    }
    match sources.get(&source) {
        Some((count, silent)) if *count >= SOURCE_STRANGERS_MAX => return Some(silent.conn),
        _ if all < STRANGERS_MAX => return None,
        _ => {}
    }
    // Where several have most, the longest silence decides again.
    let most = sources.values().max_by_key(|(count, silent)| (*count, Reverse(silent.heard)));
    most.map(|(_, silent)| silent.conn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Strangers of addresses 10.0.0.x: how many of each. The first of each was silent longest.
    fn strangers(counts: &[(u8, usize)]) -> Vec<Stranger> {
        let start = Instant::now();
        let mut all = Vec::new();
        for (address, count) in counts {
            for index in 0..*count {
                let heard = start + Duration::from_millis(all.len() as u64);
                let conn = ConnId(u64::from(*address) * 1000 + index as u64);
                all.push(Stranger { conn, source: source(*address), heard });
            }
        }
        all
    }

    fn source(last: u8) -> Source {
        Source::new([10, 0, 0, last].into())
    }

    #[test]
    fn one_address_has_its_own_bound() {
        let all = strangers(&[(1, SOURCE_STRANGERS_MAX), (2, 3)]);
        let goes = |from| who_must_go(all.iter().rev().copied(), source(from));
        assert_eq!(goes(1), Some(ConnId(1000)));
        assert_eq!((goes(2), goes(3)), (None, None));
    }

    #[test]
    fn of_too_many_in_all_the_address_with_most_gives_one_up() {
        let half = SOURCE_STRANGERS_MAX / 2;
        let all: Vec<_> = (1..=8).map(|address| (address, half)).collect();
        let goes =
            |all: &[(u8, usize)], from| who_must_go(strangers(all).into_iter(), source(from));
        assert_eq!(goes(&all[..7], 9), None);
        assert_eq!(goes(&all, 9), Some(ConnId(1000)));
        let mut uneven = all;
        uneven[4].1 += 1;
        // A worker of an address that has few keeps its place, however long it was silent.
        assert_eq!(goes(&uneven, 9), Some(ConnId(5000)));
        assert_eq!(goes(&uneven, 1), Some(ConnId(5000)));
    }
}
