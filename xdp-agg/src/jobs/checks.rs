//! What a request must fulfil, and the sentences for those that do not.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg_common::control::{ErrorCode, Join, MAX_JOB_NAME};
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{MAX_JOBS, ResultMode};
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::MAX_WORKERS;

use super::job::{Job, Phase, Wish};
use super::slots::SlotRanges;
use super::{Limits, Peer};

/// A refusal: for programs and for people.
pub(super) type Refusal = (ErrorCode, String);

/// Checks what a new job is asked to be; returns its number of slots.
pub(super) fn wish(wish: &Wish, limits: &Limits) -> Result<u32, Refusal> {
    let Wish { name, world_size, slots, .. } = wish;
    if name.is_empty() || name.len() > MAX_JOB_NAME || name.chars().any(char::is_control) {
        return Err((
            ErrorCode::Invalid,
            format!(
                "a job name of {} bytes: 1 to {MAX_JOB_NAME} are expected, without control \
                 characters; set XDP_AGG_JOB to such a name",
                name.len()
            ),
        ));
    }
    if *world_size == 0 || usize::from(*world_size) > MAX_WORKERS {
        return Err((
            ErrorCode::Invalid,
            format!(
                "a world size of {world_size}: 1 to {MAX_WORKERS} workers are possible in one job; \
                 correct WORLD_SIZE"
            ),
        ));
    }
    let slots = slots.unwrap_or(limits.job_slots);
    if Pool::new(slots).is_none() {
        return Err((
            ErrorCode::Invalid,
            format!("{slots} slots: a power of two, at least 2, is expected, for example 512"),
        ));
    }
    Ok(slots)
}

/// Checks a worker's own part of a `Join`; returns where it sends from.
pub(super) fn worker(join: &Join, peer: &Peer) -> Result<SocketAddrV4, Refusal> {
    let Join { rank, world_size, data_port, data_addr, max_chunks, .. } = join;
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    if rank >= world_size {
        return invalid(format!(
            "rank {rank} in a world of {world_size}: 0 to {} are expected; correct RANK or \
             WORLD_SIZE",
            world_size.saturating_sub(1)
        ));
    }
    if *max_chunks == 0 {
        return Err((
            ErrorCode::NoRoom,
            format!(
                "the MTU of rank {rank}'s interface has no room for a block: at least {} bytes \
                 are needed; raise the MTU",
                IP_OVERHEAD + CHUNK_LEN
            ),
        ));
    }
    if *data_port == 0 {
        return invalid(format!("rank {rank} gives 0 as its UDP port: 1 to 65535 are expected"));
    }
    let Some(addr) = data_addr.or(peer.remote) else {
        return invalid(format!(
            "rank {rank} is connected over IPv6 and names no IPv4 data address; the data path is \
             IPv4: connect to an IPv4 address, or name data_addr"
        ));
    };
    if addr.is_unspecified() || addr.is_multicast() || addr.is_broadcast() {
        return invalid(format!(
            "rank {rank} gives {addr} as its data address: the address of one host is expected"
        ));
    }
    Ok(SocketAddrV4::new(addr, *data_port))
}

/// Checks that a worker fits the job that it names; returns the address of this host that it is
/// to send to.
pub(super) fn fit(
    join: &Join,
    data: SocketAddrV4,
    peer: &Peer,
    limits: &Limits,
    job: &Job,
) -> Result<Ipv4Addr, Refusal> {
    let name = &job.name;
    if join.world_size != job.world_size {
        return Err((
            ErrorCode::WorldSize,
            format!(
                "job {name:?} has a world size of {}, rank {} says {}: all workers need the same \
                 WORLD_SIZE; another job needs another name (XDP_AGG_JOB)",
                job.world_size, join.rank, join.world_size
            ),
        ));
    }
    if let Some(other) = job.members.get(&join.rank) {
        return Err((
            ErrorCode::RankTaken,
            format!(
                "rank {} of job {name:?} is taken by the worker at {}: every worker needs a RANK \
                 of its own, 0 to {}",
                join.rank,
                other.data,
                job.world_size - 1
            ),
        ));
    }
    if !matches!(job.phase, Phase::Forming(_)) {
        return Err((
            ErrorCode::Busy,
            format!(
                "job {name:?} is running without rank {}: wait until it ends, or use another job \
                 name (XDP_AGG_JOB)",
                join.rank
            ),
        ));
    }
    if let Some((rank, _)) = job.members.iter().find(|(_, member)| member.data == data) {
        return Err((
            ErrorCode::Invalid,
            format!(
                "rank {} gives the data address {data}, which is rank {rank}'s: every worker needs \
                 a UDP port of its own",
                join.rank
            ),
        ));
    }
    agrees(join, job)?;
    local_addr(join.rank, peer, limits, job)
}

/// Slots and result mode, where a worker names them.
fn agrees(join: &Join, job: &Job) -> Result<(), Refusal> {
    let rank = join.rank;
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    match join.slots {
        Some(slots) if slots != job.slots => {
            return invalid(format!(
                "rank {rank} asks for {slots} slots, job {:?} has {}: ask for the same number, or \
                 for none",
                job.name, job.slots
            ));
        }
        _ => {}
    }
    match (join.result_mode, job.wanted) {
        (Some(mode), Some(wanted)) if mode != wanted => invalid(format!(
            "rank {rank} asks for results by {}, job {:?} has {}: ask for the same mode, or for \
             none",
            ResultMode::name(mode),
            job.name,
            wanted.name()
        )),
        _ => Ok(()),
    }
}

/// The address of this host that the member is to send to: one for all members.
fn local_addr(rank: u16, peer: &Peer, limits: &Limits, job: &Job) -> Result<Ipv4Addr, Refusal> {
    if let Some(addr) = limits.data_addr {
        return Ok(addr);
    }
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    let Some(local) = peer.local else {
        return invalid(format!(
            "rank {rank} is connected over IPv6, and the daemon was not told its IPv4 data \
             address: start it with --data-addr, or connect to an IPv4 address"
        ));
    };
    match job.members.iter().find(|(_, member)| member.local != local) {
        Some((other, member)) => invalid(format!(
            "rank {rank} is connected to {local}, rank {other} to {}: connect all workers to one \
             address of the aggregator, or start the daemon with --data-addr",
            member.local
        )),
        None => Ok(local),
    }
}

/// The refusal for a pool without room.
pub(super) fn no_slots(name: &str, slots: u32, pool: &SlotRanges) -> Refusal {
    (
        ErrorCode::NoRoom,
        format!(
            "job {name:?} needs {slots} slots in a row; {} of {} are free, {} in a row: end \
             another job (`xdp-agg jobs` lists them), ask for fewer slots, or start the daemon \
             with more --slots",
            pool.free(),
            pool.total(),
            pool.longest()
        ),
    )
}

/// The refusal where all job entries are used.
pub(super) fn no_entry(name: &str) -> Refusal {
    (
        ErrorCode::NoRoom,
        format!(
            "no room for job {name:?}: {MAX_JOBS} jobs exist, which is the most; end one \
             (`xdp-agg jobs` lists them)"
        ),
    )
}
