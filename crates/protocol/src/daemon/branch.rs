//! Jobs that another daemon leads: this one is a branch of their trees.
//!
//! The connection that asked for it is the root's; its end is the end of the branch.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use xdp_agg_common::control::{
    BranchReply, BranchRequest, BranchSetup, ErrorCode, LocalMembers, Reply,
};
use xdp_agg_common::maps::{JobConf, JobCounters, MAX_JOBS, ResultMode};

use super::checks::{self, Refusal};
use super::job::{Wish, bits_of};
use super::numbers::is_later;
use super::served::{Served, Step};
use super::setup::{identity, quota};
use super::{ConnId, Effect, Formation, Happened, Heard, Jobs, Look, Prepare, Purpose, Session};
use crate::engine::{JobSetup, Started, Uplink};

/// Pause between two probes of the way up.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// What the engine has done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Prepared(Option<LocalMembers>),
    Started(Started),
}

impl Jobs {
    /// The root of a tree says something.
    pub(super) fn branch_request(
        &mut self,
        conn: ConnId,
        session: &Session,
        request: BranchRequest,
    ) {
        if session.member.is_some() {
            let why = "this connection is a worker's: a branch's root needs its own";
            return self.protocol_error(conn, why);
        }
        let done = match (request, session.branch) {
            (BranchRequest::Serve { job, world_size, slots }, None) => {
                self.serve(conn, session, job, world_size, slots)
            }
            (BranchRequest::Serve { .. }, Some(_)) => {
                return self.protocol_error(conn, "this connection serves a job already");
            }
            (_, None) => return self.protocol_error(conn, "a branch's request before Serve"),
            (BranchRequest::Prepare(setup), Some(job_id)) => {
                self.prepare_served(conn, job_id, setup)
            }
            (BranchRequest::Start { epoch, mode }, Some(job_id)) => {
                self.start_served(job_id, epoch, mode);
                Ok(())
            }
            (BranchRequest::Stop, Some(job_id)) => {
                self.silence_served(job_id);
                Ok(())
            }
            (BranchRequest::Missing { block }, Some(job_id)) => {
                let of = u64::MAX;
                self.effects.push_back(Effect::Missing { conn, job_id, block, of });
                Ok(())
            }
            (BranchRequest::Heard { number }, Some(job_id)) => {
                let runs = |served: &Served| served.step == Step::Running;
                // Of an epoch that is over, or not begun, the engine knows nothing.
                let jobs = self.served.get(&job_id).filter(|s| runs(s)).map(|_| job_id);
                let look = Look::Root { conn, number };
                self.effects.push_back(Effect::Heard { look, jobs: jobs.into_iter().collect() });
                Ok(())
            }
        };
        if let Err(refusal) = done {
            self.refuse(conn, refusal);
        }
    }

    fn serve(
        &mut self,
        conn: ConnId,
        session: &Session,
        name: String,
        world_size: u16,
        slots: u32,
    ) -> Result<(), Refusal> {
        let wish = Wish {
            name,
            world_size,
            slots: Some(slots),
            mode: None,
            policy: None,
            reserved: false,
        };
        let slots = checks::wish(&wish, &self.limits)?;
        let Some(addr) = self.limits.data_addr.or(session.peer.local) else {
            let message = "the root of the tree is connected over IPv6, and this daemon was not \
                           told its IPv4 data address: start it with --data-addr"
                .to_owned();
            return Err((ErrorCode::Invalid, message));
        };
        let name = wish.name;
        let job_id = self.free_entry().ok_or_else(|| checks::no_entry(&name))?;
        let slot_base =
            self.pool.take(slots).ok_or_else(|| checks::no_slots(&name, slots, &self.pool))?;
        note!(self, info, job = name, job_id, world_size, slots, "serves as a branch");
        let served = Served {
            conn,
            name,
            world_size,
            slot_base,
            slots,
            step: Step::Idle,
            unsent: None,
            ran: false,
            setup: None,
            mode: None,
            base: JobCounters::default(),
        };
        self.served.insert(job_id, served);
        self.effects.push_back(Effect::Counters(Purpose::Base { job_id }));
        self.enrol_branch(conn, job_id);
        self.branch_reply(
            conn,
            BranchReply::Serving {
                job_id,
                data: SocketAddrV4::new(addr, self.limits.data_port),
                max_chunks: self.limits.max_chunks,
                last_epoch: self.last_epoch,
                daemon: self.daemon,
                single_packets: self.limits.single_packets,
            },
        );
        Ok(())
    }

    /// The lowest index that no job has.
    pub(super) fn free_entry(&self) -> Option<u16> {
        let taken = |id: &u16| self.jobs.contains_key(id) || self.served.contains_key(id);
        (0..MAX_JOBS as u16).find(|id| !taken(id))
    }

    fn prepare_served(
        &mut self,
        conn: ConnId,
        job_id: u16,
        setup: BranchSetup,
    ) -> Result<(), Refusal> {
        self.silence_served(job_id);
        // Numbers of this job alone: its slots are its own, and empty when it gets them. Otherwise
        // whoever may be a root could use up the numbers of all others.
        let last_epoch = self.served.get(&job_id).map_or(0, Served::epoch);
        let is_used = last_epoch != 0 && !is_later(setup.epoch, last_epoch);
        if setup.epoch == 0 || is_used {
            self.branch_reply(conn, BranchReply::Used { epoch: setup.epoch, last_epoch });
            return Ok(());
        }
        let addr = self.limits.data_addr.or(self.sessions.get(&conn).and_then(|s| s.peer.local));
        let Some(served) = self.served.get_mut(&job_id) else {
            return Ok(());
        };
        let members: BTreeMap<_, _> = setup.members.iter().copied().collect();
        let addr = addr.unwrap_or(Ipv4Addr::UNSPECIFIED);
        // This host's own quota: any daemon may say that it is a root.
        let (packet_interval, packet_burst) =
            quota(self.limits.job_packet_rate, served.slots, served.world_size);
        let conf = JobConf {
            members: bits_of(members.keys()),
            slot_base: served.slot_base,
            slots: served.slots,
            workers: served.world_size,
            max_chunks: setup.chunks,
            packet_interval,
            packet_burst,
            ..identity((setup.epoch, setup.cookie), (addr, self.limits.data_port))
        };
        let up = setup.uplink;
        let uplink = Some(Uplink { addr: up.data, job: up.job_id, rank: up.rank });
        let forwarders = setup.forwarders;
        let job = JobSetup { uplink, forwarders, ..JobSetup::new(job_id, conf, members) };
        if !job.is_consistent() || setup.chunks == 0 || setup.chunks > self.limits.max_chunks {
            let message = format!(
                "an epoch that cannot be: {} members of a world of {}, blocks of {} chunks (at \
                 most {} here), up to {} as rank {}",
                setup.members.len(),
                served.world_size,
                setup.chunks,
                self.limits.max_chunks,
                up.data,
                up.rank
            );
            return Err((ErrorCode::Invalid, message));
        }
        let formation = Formation { job_id, epoch: setup.epoch };
        served.step = Step::Preparing;
        served.setup = Some(setup);
        self.effects.push_back(Effect::Prepare(Prepare { formation, setup: job }));
        Ok(())
    }

    fn start_served(&mut self, job_id: u16, epoch: u16, mode: Option<ResultMode>) {
        let Some(served) = self.served.get_mut(&job_id) else {
            return;
        };
        if served.step == Step::Linked && served.epoch() == epoch {
            served.step = Step::Starting;
            self.effects.push_back(Effect::Start(Formation { job_id, epoch }, mode));
        }
    }

    /// The engine takes no more packets of the job.
    fn silence_served(&mut self, job_id: u16) {
        if let Some(served) = self.served.get_mut(&job_id)
            && served.step != Step::Idle
        {
            served.step = Step::Idle;
            served.mode = None;
            self.effects.push_back(Effect::Stop { job_id });
        }
    }

    /// The root has gone.
    pub(super) fn root_lost(&mut self, job_id: u16) {
        self.silence_served(job_id);
        if let Some(served) = self.served.get(&job_id) {
            let text = format!("{} has ended: its root has gone", served.name);
            self.tell(job_id, Happened::JobEnded, None, text);
        }
        if let Some(served) = self.served.remove(&job_id) {
            note!(self, info, job = served.name, job_id, "its root has gone: serves it no more");
            self.pool.give_back(served.slot_base);
        }
    }

    /// The engine has answered about a job that another daemon leads.
    pub(super) fn served_answer(&mut self, formation: Formation, answer: Result<Done, String>) {
        let Formation { job_id, epoch } = formation;
        let now = self.clock;
        let Some(served) = self.served.get_mut(&job_id).filter(|s| s.epoch() == epoch) else {
            return;
        };
        let conn = served.conn;
        let reply = match (answer, served.step) {
            (Ok(Done::Prepared(local)), Step::Preparing) => {
                served.step = Step::Probing(now, now + self.limits.probe_timeout);
                BranchReply::Prepared { epoch, local }
            }
            (Ok(Done::Started(Started { mode, group })), Step::Starting) => {
                note!(
                    self,
                    info,
                    job = served.name,
                    epoch,
                    mode = mode.name(),
                    "running, as a branch"
                );
                served.step = Step::Running;
                served.mode = Some(mode);
                let again = std::mem::replace(&mut served.ran, true);
                let what = if again { Happened::EpochStarted } else { Happened::JobStarted };
                let text = format!("{} runs in epoch {epoch}, here as a branch", served.name);
                self.tell(job_id, what, None, text);
                BranchReply::Started { epoch, mode, group }
            }
            (Err(reason), _) => {
                note!(self, warn, job = served.name, "the engine failed: {reason}");
                BranchReply::Failed { epoch, reason }
            }
            _ => return,
        };
        self.branch_reply(conn, reply);
    }

    /// Tries the ways up that are due. None is tried for ever: the daemon that asks for it names
    /// the address.
    pub(super) fn probe_uplinks(&mut self) {
        let now = self.clock;
        let mut over = Vec::new();
        for (job_id, served) in &mut self.served {
            let epoch = served.epoch();
            match &mut served.step {
                Step::Probing(due, end) if *due <= now && now >= *end => {
                    let parent = served.setup.as_ref().map(|setup| setup.uplink.data);
                    over.push((*job_id, served.conn, epoch, parent, served.unsent.take()));
                }
                Step::Probing(due, _) if *due <= now => {
                    *due = now + PROBE_PAUSE;
                    let formation = Formation { job_id: *job_id, epoch };
                    self.effects.push_back(Effect::ProbeUplink(formation));
                }
                _ => {}
            }
        }
        let limit = self.limits.probe_timeout.as_secs_f64();
        for (job_id, conn, epoch, parent, unsent) in over {
            self.silence_served(job_id);
            let parent = parent.map_or_else(String::new, |data| format!(" at {data}"));
            let reason = format!(
                "its parent{parent} has not answered its probes within {limit} s: UDP packets must \
                 pass between their data addresses, both ways (this branch's --probe-timeout is \
                 the limit){}",
                unsent
                    .map_or_else(String::new, |why| format!("; the last one was not sent: {why}"))
            );
            self.branch_reply(conn, BranchReply::Failed { epoch, reason });
        }
    }

    /// The engine has tried a way up.
    pub(super) fn uplink_probed(&mut self, formation: Formation, open: Result<bool, String>) {
        let Formation { job_id, epoch } = formation;
        let Some(served) = self.served.get_mut(&job_id).filter(|s| s.epoch() == epoch) else {
            return;
        };
        if !matches!(served.step, Step::Probing(..)) {
            return;
        }
        let conn = served.conn;
        match open {
            Ok(true) => {
                served.step = Step::Linked;
                self.branch_reply(conn, BranchReply::Linked { epoch });
            }
            Ok(false) => served.unsent = None,
            // A route or a firewall may change for a moment: the time limit decides.
            Err(reason) => served.unsent = Some(reason),
        }
    }

    /// The data path has told who contributes here: the root wants to know it.
    pub(super) fn tell_root(&mut self, conn: ConnId, number: u64, heard: &[(u16, Heard)]) {
        let served = self.served.iter().find(|(_, served)| served.conn == conn);
        let Some((job_id, served)) = served else {
            return;
        };
        let told = heard.iter().find(|(id, _)| id == job_id).map_or(&[][..], |(_, told)| told);
        let millis = |ago: &Duration| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        let ranks = told.iter().map(|(rank, ago)| (*rank, ago.as_ref().map(millis))).collect();
        let epoch = served.epoch();
        self.branch_reply(conn, BranchReply::Heard { number, epoch, ranks });
    }

    pub(super) fn branch_reply(&mut self, conn: ConnId, reply: BranchReply) {
        self.reply(conn, Reply::Branch(reply));
    }
}
