//! How rare events of a data path are told: one log line each, from either engine.

use std::net::{Ipv4Addr, SocketAddrV4};

use tracing::warn;
use xdp_agg_common::maps::{Event, Reject};
use xdp_agg_common::wire::VERSION;

/// What belongs to a reason, in words that say what was expected.
const fn expectation(reason: Reject) -> &'static str {
    match reason {
        Reject::Truncated => "shorter than its headers say, or not whole chunks of 64 bytes",
        Reject::Version => "another version of the wire format",
        Reject::Malformed => "header values that this version does not define",
        Reject::Job => "no such job here; was the daemon restarted?",
        Reject::Cookie => "not the job's cookie: an old member, or a foreign sender",
        Reject::Epoch => "not the job's epoch, or a contribution before all paths were open",
        Reject::Member => "no such rank, or another address or port than the rank joined with",
        Reject::Size => "no payload, or more than the job's blocks hold",
        Reject::Window => "a block beyond the window",
        Reject::Mismatch => "another call or length than the other ranks' of this block",
        Reject::Quota => "more packets than the job's quota allows",
    }
}

/// Logs an event of the data path.
pub(crate) fn report(event: &Event) {
    let Event { block, addr, count, port, job, rank, reason, version } = *event;
    let from = SocketAddrV4::new(Ipv4Addr::from(addr), port);
    let Some(reason) = Reject::ALL.get(usize::from(reason)).copied() else {
        warn!(%from, reason, "packet refused, for a reason that this daemon does not know");
        return;
    };
    let (name, meaning) = (reason.name(), expectation(reason));
    match reason {
        Reject::Version => {
            warn!(%from, count, version, expected = VERSION, "packet refused ({name}): {meaning}");
        }
        Reject::Truncated | Reject::Malformed => {
            warn!(%from, count, "packet refused ({name}): {meaning}");
        }
        _ => warn!(%from, count, job, rank, block, "packet refused ({name}): {meaning}"),
    }
}
