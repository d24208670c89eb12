//! What changes under a running data path: members that are reached another way, and interfaces.
//!
//! The program learns the way to a member again from each of its packets. What it cannot change are
//! the tables that say by which interfaces copies leave: they follow here. While they are written,
//! copies may leave by the wrong interface. These are lost, and repeated as any lost result.

use std::os::fd::AsFd as _;

use tracing::{info, warn};
use xdp_agg_common::frame::{IP_OVERHEAD, chunks_for_mtu};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{MAX_JOBS, Member, Phase, ResultMode};

use super::interface::links;
use super::sys;
use super::{Job, XdpEngine};
use crate::engine::{EngineError, Trouble};
use crate::link::Links;

impl XdpEngine {
    pub(super) fn look_after(&mut self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        let mut mended = false;
        let asked = links();
        for number in 0..self.interfaces.len() {
            let checked = match &asked {
                Ok(links) => self.mend(number).and_then(|mend| {
                    mended |= mend;
                    self.check(number, links, &mut troubles)
                }),
                Err(_) => Ok(()),
            };
            if let Err(what) = checked {
                let members = self.members_behind(number, |_| true);
                troubles.push(Trouble { what, members });
            }
        }
        for job_id in 0..MAX_JOBS as u16 {
            if let Err(error) = self.follow(job_id, mended) {
                warn!(job_id, "its results cannot follow members that moved: {error}");
            }
        }
        troubles
    }

    /// Puts right what an interface has lost by going and coming back. True: something was. The
    /// error is a sentence.
    fn mend(&mut self, number: usize) -> Result<bool, String> {
        let at = &self.interfaces[number];
        let (name, old) = (at.name.clone(), at.ifindex);
        if !sys::is_here(old) {
            let Some(ifindex) = sys::ifindex(&name) else {
                return Err(format!(
                    "{name} is gone: it was removed, or moved to another network namespace; when \
                     an interface of this name is there, it is served again"
                ));
            };
            self.object.forget_port(old);
            self.interfaces[number].ifindex = ifindex;
            self.ports[number] = ifindex;
        }
        let (ifindex, port) = (self.interfaces[number].ifindex, number as u32);
        let attached = sys::attached_to(self.links[number].as_fd()) == Some(ifindex);
        if !attached {
            self.attach_again(number)
                .map_err(|error| format!("{name} has lost its program: {error}"))?;
        }
        let registered = self.object.is_registered(ifindex, port);
        if !registered {
            let known = self.object.register_port(ifindex, port, false);
            known.map_err(|error| format!("{name} cannot be sent by any more: {error}"))?;
        }
        Ok(!attached || !registered)
    }

    /// Whether results can leave by an interface. The error is a sentence, and true of all jobs.
    fn check(
        &self,
        number: usize,
        links: &Links,
        troubles: &mut Vec<Trouble>,
    ) -> Result<(), String> {
        let name = &self.interfaces[number].name;
        match links.state(name) {
            Ok((false, _)) => return Err(format!("{name} is down")),
            Ok((true, false)) => {
                return Err(format!("{name} has no carrier: is the cable or the host gone?"));
            }
            // A renamed interface is as good as before.
            Ok((true, true)) | Err(_) => {}
        }
        let Ok(mtu) = links.mtu(name) else { return Ok(()) };
        let room = chunks_for_mtu(mtu);
        let members = self.members_behind(number, |job| job.conf.max_chunks > room);
        if !members.is_empty() {
            let chunks = self.jobs.iter().flatten().map(|job| job.conf.max_chunks).max();
            let needed = IP_OVERHEAD + usize::from(chunks.unwrap_or(0)) * CHUNK_LEN;
            let what = format!("the MTU of {name} is {mtu} now: jobs here need {needed}");
            troubles.push(Trouble { what, members });
        }
        Ok(())
    }

    /// The members of each job of this kind whose packets came in on an interface.
    fn members_behind(&self, number: usize, of: impl Fn(&Job) -> bool) -> Vec<(u16, u64)> {
        let ifindex = self.ports[number];
        let jobs = (0..).zip(&self.jobs).filter_map(|(job_id, job)| Some((job_id, job.as_ref()?)));
        let behind = jobs.filter(|(_, job)| of(job)).map(|(job_id, job)| {
            let is_behind = |rank: &u16| {
                let member = self.object.member(job_id, *rank);
                member.is_ok_and(|m| m.learned_epoch == job.conf.epoch && m.ifindex == ifindex)
            };
            let ranks = (0..job.conf.workers).filter(|rank| job.conf.members >> rank & 1 == 1);
            (job_id, ranks.filter(is_behind).fold(0, |bits, rank| bits | 1 << rank))
        });
        behind.filter(|(_, ranks)| *ranks != 0).collect()
    }

    /// Has a job's results follow members that have moved, or interfaces that were `mended`.
    fn follow(&mut self, job_id: u16, mended: bool) -> Result<(), EngineError> {
        let Some(job) = &self.jobs[usize::from(job_id)] else { return Ok(()) };
        if job.conf.phase != Phase::Running as u16 {
            return Ok(());
        }
        let (conf, before) = (job.conf, job.counters);
        let counters = self.object.counters(job_id.into())?;
        let as_before = job.plan.is_some() && !mended && counters.moves == before.moves;
        // The parent says nothing as long as our sums do not reach it: the kernel may know a new
        // way to it, and the answer shows it.
        let unheard = counters.forwards_again != before.forwards_again
            && counters.deliveries == before.deliveries;
        if unheard {
            self.prober.probe(&conf, &self.object.uplink(job_id)?)?;
        }
        let mut result = Ok(());
        if !as_before {
            result = self.plan_again(job_id, mended);
        }
        if let Some(job) = &mut self.jobs[usize::from(job_id)] {
            job.counters = counters;
        }
        result
    }

    fn plan_again(&mut self, job_id: u16, mended: bool) -> Result<(), EngineError> {
        let conf = self.job(job_id)?.conf;
        let members = self.learned(job_id, &conf)?;
        let multicast = ResultMode::Multicast;
        let wanted = (conf.mode == multicast as u16).then_some(multicast);
        let plan = self.plan(&members, wanted)?;
        let job = self.job(job_id)?;
        for ((rank, new), (_, old)) in members.iter().zip(&job.members) {
            if way(new) != way(old) {
                let (old, new) = (words(old), words(new));
                info!(job_id, rank, "it is reached by {new} now, and was by {old}");
            }
        }
        if mended || job.plan.as_ref() != Some(&plan) {
            self.write_plan(job_id, &plan)?;
        }
        if let Some(job) = &mut self.jobs[usize::from(job_id)] {
            (job.plan, job.members) = (Some(plan), members);
        }
        Ok(())
    }
}

fn way(member: &Member) -> (u32, [u8; 6], [u8; 6]) {
    (member.ifindex, member.mac, member.local_mac)
}

/// A member's way, for people.
fn words(member: &Member) -> String {
    let mac = member.mac.map(|byte| format!("{byte:02x}")).join(":");
    format!("{mac} on interface {}", member.ifindex)
}
