//! What the engine, the members and people are told about a job.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use xdp_agg_common::control::{Admitted, AggregatorLoss, JobInfo, MemberInfo};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::JobConf;

use super::effect::{ConnId, Limits};
use super::job::{Job, bits_of};
use super::phase::Phase;
use crate::engine::JobSetup;

/// Least time of a job's packets at its quota that may come at once, in nanoseconds.
const BURST_NS: u64 = 50_000_000;

impl Job {
    /// Data address of the members: of this host, the same for all.
    pub(super) fn data_addr(&self) -> Ipv4Addr {
        self.life.members.values().next().map_or(Ipv4Addr::UNSPECIFIED, |member| member.local)
    }

    /// What the engine needs for the epoch that the job begins.
    pub(super) fn setup(&self, limits: &Limits) -> JobSetup {
        let life = &self.life;
        let (packet_interval, packet_burst) =
            quota(limits.job_packet_rate, self.slots, self.world_size);
        let (members, forwarders) = self.root_members();
        let conf = JobConf {
            members: bits_of(members.keys()),
            slot_base: self.slot_base,
            slots: self.slots,
            workers: self.world_size,
            max_chunks: life.chunks,
            packet_interval,
            packet_burst,
            ..identity((life.epoch, life.cookie), (self.data_addr(), limits.data_port))
        };
        JobSetup { forwarders, ..JobSetup::new(self.job_id, conf, members) }
    }

    /// What a member needs to know.
    pub(super) fn admitted(&self, rank: u16, limits: &Limits) -> Admitted {
        let life = &self.life;
        let branch = life.trunk.tree.branch_of(rank).and_then(|index| life.trunk.data(index));
        let own = (SocketAddrV4::new(self.data_addr(), limits.data_port), self.job_id);
        let (data, job_id) = branch.unwrap_or(own);
        let data = life.trunk.local_data(rank).unwrap_or(data);
        let rings = self.policy().aggregator_loss == AggregatorLoss::Ring;
        let ring = life.members.values().filter(|_| rings).filter_map(|member| {
            member.ring_port.map(|port| SocketAddrV4::new(*member.data.ip(), port))
        });
        Admitted {
            job_id,
            cookie: life.cookie,
            epoch: life.epoch,
            members: self.member_bits(),
            chunks: life.chunks,
            slots: self.slots,
            data,
            single_packets: life.trunk.single_packets(rank, limits.single_packets),
            plan: life.ran.then(|| life.plan.clone()),
            ring: ring.collect(),
        }
    }

    /// For people and tools. `answered` tells when a connection last answered a heartbeat.
    pub(super) fn info(
        &self,
        now: Instant,
        answered: impl Fn(ConnId) -> Option<Instant>,
    ) -> JobInfo {
        let life = &self.life;
        let since = |then: Instant| now.saturating_duration_since(then).as_millis() as u64;
        let members = life.members.iter().map(|(rank, member)| MemberInfo {
            rank: *rank,
            data: member.data,
            connected: member.conn.is_some(),
            heartbeat_ms: member.conn.and_then(&answered).map(since),
            contributed_ms: member.contributed.map(since),
        });
        let joined = life.members.iter().filter(|(_, member)| member.conn.is_some());
        let phase = match self.phase() {
            Phase::Forming(_) => "forming",
            Phase::Returning(_) => "resuming",
            Phase::Branching(_) => "connecting",
            Phase::Preparing(_) | Phase::Probing(_) | Phase::Starting(_) => "probing",
            Phase::Running => "running",
            Phase::Pausing(_) | Phase::RunningTo(..) => "pausing",
            Phase::Collecting(_) => "reforming",
        };
        JobInfo {
            job: self.name.clone(),
            job_id: self.job_id,
            phase: phase.into(),
            world_size: self.world_size,
            joined: joined.map(|(rank, _)| *rank).collect(),
            epoch: life.epoch,
            slots: self.slots,
            block_bytes: u32::from(life.chunks) * CHUNK_LEN as u32,
            mode: life.mode,
            policy: self.policy.or(life.policy),
            members: members.collect(),
            reforms: life.reforms,
            lost: life.lost.iter().copied().collect(),
            waiting: life.waiting.keys().copied().collect(),
            branches: life.trunk.infos(),
            parent: None,
            chosen: life.chosen.clone(),
        }
    }
}

/// Interval and burst of a quota of packets a second, in nanoseconds. All members may send a whole
/// window at once, whatever the rate: it is what they do at the start of a call.
pub(super) fn quota(rate: Option<u64>, slots: u32, workers: u16) -> (u32, u32) {
    let Some(rate) = rate.filter(|rate| *rate > 0) else {
        return (0, 0);
    };
    let interval = (1_000_000_000 / rate).clamp(1, u32::MAX.into());
    let windows = u64::from(slots / 2) * u64::from(workers);
    let burst = windows.saturating_mul(interval).max(BURST_NS).min(u32::MAX.into());
    (interval as u32, burst as u32)
}

/// What a job's packets are known by: number and cookie of the epoch, our data address and port,
/// and the group that results may go to.
pub(super) fn identity((epoch, cookie): (u16, u64), (addr, port): (Ipv4Addr, u16)) -> JobConf {
    JobConf {
        epoch,
        cookie,
        addr: addr.into(),
        port,
        group: group_of(cookie).into(),
        group_port: if port == u16::MAX { port - 1 } else { port + 1 },
        ..JobConf::default()
    }
}

/// A multicast group for a job's results, in 239.192.0.0/14, which RFC 2365 leaves to an
/// organisation's own use. The cookie picks it, so that two aggregators on one network rarely share
/// one.
pub(super) fn group_of(cookie: u64) -> Ipv4Addr {
    Ipv4Addr::from(0xefc0_0000 | cookie as u32 & 0x0003_ffff)
}
