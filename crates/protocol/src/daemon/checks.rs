//! What a request must fulfil, and the sentences for those that do not.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg_common::control::{
    AggregatorLoss, ErrorCode, Join, MAX_JOB_NAME, MAX_RUN_NAME, Meet, Origin, Progress, Resume,
};
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{MAX_JOBS, ResultMode};
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::MAX_WORKERS;

use super::effect::{Limits, Peer};
use super::job::{Job, Wish};
use super::phase::Phase;
use super::slots::SlotRanges;

/// Most stretches of results in a progress, for each slot of the job: half of them are gaps of a
/// window, and an earlier plan has up to two for each block in flight. Some are left over.
const HELD_PER_SLOT: usize = 4;
/// The same of the smallest pools.
const HELD_BESIDE: usize = 64;

/// A refusal: for programs and for people.
pub(super) type Refusal = (ErrorCode, String);

/// Checks what a new job is asked to be; returns its number of slots.
pub(super) fn wish(wish: &Wish, limits: &Limits) -> Result<u32, Refusal> {
    let Wish { name, world_size, slots, .. } = wish;
    self::name(name)?;
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
    match limits.job_slots_max {
        Some(most) if slots > most => Err((
            ErrorCode::NoRoom,
            format!(
                "job {name:?} asks for {slots} slots, and at most {most} are allowed here: ask for \
                 fewer, or start the daemon with more --job-slots-max"
            ),
        )),
        _ => Ok(slots),
    }
}

/// Checks what a process that comes to a meeting says.
pub(super) fn meet(meet: &Meet) -> Result<(), Refusal> {
    let Meet { job, run, rank, world_size, words } = meet;
    name(job)?;
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    if *rank >= *world_size || *world_size > Meet::MAX_PROCESSES {
        return invalid(format!(
            "rank {rank} of {world_size} processes: ranks below the world size are expected, and \
             {} processes at most; correct RANK or WORLD_SIZE",
            Meet::MAX_PROCESSES
        ));
    }
    if words.len() > Meet::MAX_WORDS {
        return invalid(format!(
            "{} bytes for the others, and {} at most",
            words.len(),
            Meet::MAX_WORDS
        ));
    }
    run.as_deref().map_or(Ok(()), self::run)
}

fn run(run: &str) -> Result<(), Refusal> {
    if run.len() <= MAX_RUN_NAME {
        return Ok(());
    }
    let message = format!(
        "a name of a run with {} bytes: {MAX_RUN_NAME} at most are expected; set XDP_AGG_RUN to a \
         shorter one",
        run.len()
    );
    Err((ErrorCode::Invalid, message))
}

fn name(name: &str) -> Result<(), Refusal> {
    if !name.is_empty() && name.len() <= MAX_JOB_NAME && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!(
        "a job name of {} bytes: 1 to {MAX_JOB_NAME} are expected, without control characters; set \
         XDP_AGG_JOB to such a name",
        name.len()
    );
    Err((ErrorCode::Invalid, message))
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
    let rings = join.policy.aggregator_loss == AggregatorLoss::Ring;
    if rings && join.ring_port.unwrap_or(0) == 0 {
        return invalid(format!(
            "rank {rank} asks for a ring when the aggregator is lost, and names no TCP port for it"
        ));
    }
    if let Err(error) = join.tree.check(*world_size) {
        return invalid(format!(
            "rank {rank} names a tree of aggregators that cannot be: {error}; check the topology \
             (`xdp-agg topology check`)"
        ));
    }
    if let Some(origin) = &join.origin {
        name(&origin.name)?;
        origin.run.as_deref().map_or(Ok(()), run)?;
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
    let (name, rank) = (&job.name, join.rank);
    same_run(join, job)?;
    same_world(join, job)?;
    let life = &job.life;
    // A rank whose process has not come back after the daemon's restart is free for another.
    let member = life.members.get(&rank).filter(|member| member.conn.is_some());
    if let Some(other) = member.or_else(|| life.waiting.get(&rank)) {
        return Err((
            ErrorCode::RankTaken,
            format!(
                "rank {rank} of job {name:?} is taken by the worker at {}: every worker needs a \
                 RANK of its own, 0 to {}",
                other.data,
                job.world_size - 1
            ),
        ));
    }
    let may_wait = job.shrinks() || matches!(job.phase(), Phase::Returning(_));
    if !may_wait && !matches!(job.phase(), Phase::Forming(_)) {
        return Err((
            ErrorCode::Busy,
            format!(
                "job {name:?} is running without rank {rank}: wait until it ends, or use another \
                 job name (XDP_AGG_JOB)"
            ),
        ));
    }
    if join.max_chunks < life.chunks {
        return Err((
            ErrorCode::NoRoom,
            format!(
                "rank {rank} cannot join job {name:?}, which is running with blocks of {} bytes: \
                 the MTU of its interface allows {}; raise the MTU to at least {}",
                usize::from(life.chunks) * CHUNK_LEN,
                usize::from(join.max_chunks) * CHUNK_LEN,
                IP_OVERHEAD + usize::from(life.chunks) * CHUNK_LEN
            ),
        ));
    }
    own_address(rank, data, job)?;
    same_policy(join, job)?;
    agrees(join, job)?;
    local_addr(rank, peer, limits, job)
}

/// Checks what a worker remembers of its epoch, by itself.
pub(super) fn resume(join: &Join, resume: &Resume, limits: &Limits) -> Result<(), Refusal> {
    let Join { rank, world_size, .. } = join;
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    if join.policy.aggregator_loss == AggregatorLoss::Fail {
        return invalid(format!(
            "rank {rank} wants to go on after the loss of its aggregator, but its policy is to \
             fail then: set XDP_AGG_ON_AGGREGATOR_LOSS=resume, or join anew"
        ));
    }
    let beyond = *world_size < 64 && resume.members >> world_size != 0;
    if beyond || resume.members >> rank & 1 == 0 || resume.epoch == 0 {
        return invalid(format!(
            "rank {rank} of {world_size} remembers epoch {} with the members {:#x}: an epoch above \
             0 that it is a member of, and no ranks beyond the world, are expected",
            resume.epoch, resume.members
        ));
    }
    if resume.chunks == 0 || resume.chunks > limits.max_chunks.min(join.max_chunks) {
        return Err((
            ErrorCode::NoRoom,
            format!(
                "rank {rank} wants to go on with blocks of {} bytes; here {} fit and at the worker \
                 {}: raise the smaller MTU",
                usize::from(resume.chunks) * CHUNK_LEN,
                usize::from(limits.max_chunks) * CHUNK_LEN,
                usize::from(join.max_chunks) * CHUNK_LEN
            ),
        ));
    }
    Ok(())
}

/// Checks what a worker that comes back says of the job itself.
pub(super) fn same_job(join: &Join, job: &Job) -> Result<(), Refusal> {
    same_run(join, job)?;
    same_world(join, job)?;
    same_policy(join, job)?;
    let chunks = join.resume.as_ref().map_or(0, |resume| resume.chunks);
    if job.life.ran && chunks != job.life.chunks {
        return Err((
            ErrorCode::Invalid,
            format!(
                "rank {} wants to go on with blocks of {chunks} chunks, job {:?} has {}: is it \
                 another job of that name? Use another one (XDP_AGG_JOB)",
                join.rank, job.name, job.life.chunks
            ),
        ));
    }
    agrees(join, job)
}

/// Checks that a worker that comes back is of the same start as those that have joined anew. All
/// processes of theirs have met, so the others of the one before will not come back.
pub(super) fn same_meeting(join: &Join, job: &Job) -> Result<(), Refusal> {
    let number = |origin: &Option<Box<Origin>>| origin.as_ref().map(|origin| origin.number);
    let anew = !job.life.members.is_empty();
    if !anew || number(&job.life.origin) == number(&join.origin) {
        return Ok(());
    }
    let message = format!(
        "rank {} wants to go on with what job {:?} was before all its processes were started \
         again: end this one, which is left over",
        join.rank, job.name
    );
    Err((ErrorCode::Busy, message))
}

/// Checks that a progress has no more to tell than its job's pool allows: results with a gap after
/// each come from a window, and a plan tells of no more than a pool's blocks and the gaps between.
/// So what the daemon keeps of a job is bounded by the slots that the job has.
pub(super) fn progress(rank: u16, progress: &Progress, job: &Job) -> Result<(), Refusal> {
    let most = HELD_PER_SLOT * job.slots as usize + HELD_BESIDE;
    if progress.held.len() <= most {
        return Ok(());
    }
    let message = format!(
        "rank {rank}'s progress is impossible: {} stretches of results, where the {} slots of job \
         {:?} allow {most} at most",
        progress.held.len(),
        job.slots,
        job.name
    );
    Err((ErrorCode::Invalid, message))
}

/// Checks that workers that come back remember the same.
pub(super) fn same_return(rank: u16, resume: &Resume, job: &Job) -> Result<(), Refusal> {
    let life = &job.life;
    let identity = (resume.epoch, resume.cookie);
    let named = life.identities.iter().map(|(epoch, cookie, _)| (*epoch, *cookie));
    let named = named.into_iter().find(|(epoch, _)| *epoch == resume.epoch);
    let members = resume.epoch != life.epoch || resume.members & !life.epoch_members == 0;
    if named.is_some_and(|named| named != identity) || !members {
        return Err((
            ErrorCode::Invalid,
            format!(
                "rank {rank} remembers another epoch {} of job {:?} than the members that came \
                 back before it: is it another job of that name? Use another one (XDP_AGG_JOB)",
                resume.epoch, job.name
            ),
        ));
    }
    if let Some(other) = life.members.get(&rank).filter(|_| named.is_none()) {
        return Err((
            ErrorCode::RankTaken,
            format!(
                "rank {rank} of job {:?} is taken by the worker at {}, which came back before",
                job.name, other.data
            ),
        ));
    }
    Ok(())
}

fn same_run(join: &Join, job: &Job) -> Result<(), Refusal> {
    match (&join.origin, &job.life.origin) {
        (Some(theirs), Some(ours)) if theirs.run != ours.run => {
            Err(other_run(&job.name, join.rank, &theirs.run, &ours.run))
        }
        _ => Ok(()),
    }
}

/// The refusal for a process of another run.
pub(super) fn other_run(
    name: &str,
    rank: u16,
    theirs: &Option<String>,
    ours: &Option<String>,
) -> Refusal {
    let of = |run: &Option<String>| match run {
        Some(run) => format!("run {run:?}"),
        None => "a run without a name".into(),
    };
    let message = format!(
        "job {name:?} is held by {}, and rank {rank} is of {}: give another run another job name \
         (XDP_AGG_JOB), or wait until the job ends (`xdp-agg jobs` lists them); where both are one \
         run, give all its ranks the same XDP_AGG_RUN",
        of(ours),
        of(theirs)
    );
    (ErrorCode::Busy, message)
}

fn same_world(join: &Join, job: &Job) -> Result<(), Refusal> {
    if join.world_size == job.world_size {
        return Ok(());
    }
    Err((
        ErrorCode::WorldSize,
        format!(
            "job {:?} has a world size of {}, rank {} says {}: all workers need the same \
             WORLD_SIZE; another job needs another name (XDP_AGG_JOB)",
            job.name, job.world_size, join.rank, join.world_size
        ),
    ))
}

fn same_policy(join: &Join, job: &Job) -> Result<(), Refusal> {
    match job.policy.or(job.life.policy) {
        Some(policy) if policy != join.policy => Err((
            ErrorCode::Invalid,
            format!(
                "rank {} asks for {}; job {:?} has {policy}: all workers need the same \
                 XDP_AGG_ON_WORKER_LOSS and XDP_AGG_ON_AGGREGATOR_LOSS",
                join.rank, join.policy, job.name
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks that no other rank of the job has this data address.
pub(super) fn own_address(rank: u16, data: SocketAddrV4, job: &Job) -> Result<(), Refusal> {
    let all = job.life.members.iter().chain(&job.life.waiting);
    match all.into_iter().find(|(other, member)| **other != rank && member.data == data) {
        Some((other, _)) => Err((
            ErrorCode::Invalid,
            format!(
                "rank {rank} gives the data address {data}, which is rank {other}'s: every worker \
                 needs a UDP port of its own"
            ),
        )),
        None => Ok(()),
    }
}

/// Tree, slots and result mode, where a worker names them.
fn agrees(join: &Join, job: &Job) -> Result<(), Refusal> {
    let rank = join.rank;
    let invalid = |message: String| Err((ErrorCode::Invalid, message));
    let first = job.life.members.is_empty() && job.life.waiting.is_empty();
    if !first && join.tree != job.life.trunk.asked {
        return invalid(format!(
            "rank {rank} names another tree of aggregators than the ranks of job {:?} that came \
             before it: all workers need the same topology (XDP_AGG_TOPOLOGY)",
            job.name
        ));
    }
    if join.result_mode == Some(ResultMode::Multicast) && !join.tree.is_single() {
        return invalid(format!(
            "rank {rank} asks for results by multicast from a tree of aggregators: a branch takes \
             its results alone; ask for ports, fanout or none"
        ));
    }
    match join.slots {
        Some(slots) if slots != job.slots => {
            return invalid(format!(
                "rank {rank} asks for {slots} slots, job {:?} has {}: ask for the same number, or \
                 for none (XDP_AGG_JOB_SLOTS)",
                job.name, job.slots
            ));
        }
        _ => {}
    }
    match (join.result_mode, job.wanted) {
        (Some(mode), Some(wanted)) if mode != wanted => invalid(format!(
            "rank {rank} asks for results by {}, job {:?} has {}: ask for the same mode, or for \
             none (XDP_AGG_RESULT_MODE)",
            ResultMode::name(mode),
            job.name,
            wanted.name()
        )),
        _ => Ok(()),
    }
}

/// The address of this host that the member is to send to: one for all members.
pub(super) fn local_addr(
    rank: u16,
    peer: &Peer,
    limits: &Limits,
    job: &Job,
) -> Result<Ipv4Addr, Refusal> {
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
    match job.life.members.iter().find(|(_, member)| member.local != local) {
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
