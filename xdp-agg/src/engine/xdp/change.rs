//! Jobs that are prepared, started and stopped, several at a time.

use std::net::SocketAddrV4;

use xdp_agg_common::control::LocalMembers;
use xdp_agg_common::maps::{JobConf, Member, Phase, ResultMode};
use xdp_agg_common::slot::Pool;
use xdp_agg_protocol::sum::uplink;

use super::object::wrong;
use super::phases;
use super::plan::{self, Plan};
use super::{Job, XdpEngine};
use crate::engine::{Change, Changed, EngineError, JobSetup, Started};

/// A change that has been checked, as far as it is not in the tables.
enum Checked {
    Stop,
    Prepare { pool: Pool, forwarders: u64, local: Option<LocalMembers> },
    Start { plan: Plan, members: Vec<(u16, Member)> },
}

type Step = (u16, phases::Change);

impl XdpEngine {
    pub(super) fn change_one(&mut self, change: Change) -> Result<Changed, EngineError> {
        let done = self.change_all(&[change]).pop();
        done.unwrap_or_else(|| Err(wrong("nothing was changed".into())))
    }

    /// See [`crate::engine::Engine::change`].
    pub(super) fn change_all(&mut self, changes: &[Change]) -> Vec<Result<Changed, EngineError>> {
        let mut steps = Vec::with_capacity(changes.len());
        // Which step is a change's; or there is nothing to do.
        let mut checked = Vec::with_capacity(changes.len());
        for change in changes {
            checked.push(self.check_change(change).map(|(step, checked)| {
                let job_id = step.0;
                steps.push(step);
                (job_id, checked)
            }));
        }
        let mut written = phases::change(&mut self.object, &steps).into_iter();
        let mut finish = |(job_id, checked)| match written.next() {
            Some(written) => self.finish(job_id, checked, written?),
            None => Err(wrong("a change was forgotten".into())),
        };
        checked.into_iter().map(|checked| checked.and_then(&mut finish)).collect()
    }

    /// What a change is to do to the tables. An error: nothing.
    fn check_change(&mut self, change: &Change) -> Result<(Step, Checked), EngineError> {
        match change {
            Change::Stop { job_id } => {
                let job = self.jobs.get_mut(usize::from(*job_id));
                *job.ok_or_else(|| wrong(format!("there can be no job {job_id}")))? = None;
                Ok(((*job_id, phases::Change::Silence), Checked::Stop))
            }
            Change::Prepare(job) => self.check_prepare(job),
            Change::Start { job_id, wanted } => self.check_start(*job_id, *wanted),
        }
    }

    fn check_prepare(&mut self, job: &JobSetup) -> Result<(Step, Checked), EngineError> {
        let pool = self.check_setup(job)?;
        let local = self.local.members(job)?;
        let (group, group_port) = plan::group(job.job_id, &job.conf);
        let forwards = job.uplink.is_some().into();
        let conf = JobConf { group, group_port, forwards, ..job.conf };
        self.jobs[usize::from(job.job_id)] = None;
        let ranks = local.map_or(0, |local| local.ranks);
        let setup = Box::new(JobSetup { conf, local: ranks, ..job.clone() });
        let checked = Checked::Prepare { pool, forwarders: job.forwarders, local };
        Ok(((job.job_id, phases::Change::Prepare(setup)), checked))
    }

    fn check_start(
        &mut self,
        job_id: u16,
        wanted: Option<ResultMode>,
    ) -> Result<(Step, Checked), EngineError> {
        let Job { conf, forwarders, .. } = *self.job(job_id)?;
        if conf.phase != Phase::Probing as u16 {
            return Err(wrong(format!("job {job_id} is running already")));
        }
        let members = self.learned(job_id, &conf)?;
        let up = self.object.uplink(job_id)?;
        uplink::check(&conf, &up, |up| self.port_of(up.ifindex).is_some())?;
        let plan = self.plan(&members, wanted)?;
        uplink::check_mode(plan.mode, forwarders)?;
        self.check_forwarders(forwarders)?;
        self.write_plan(job_id, &plan)?;
        let step = phases::Change::Start(conf, plan.mode as u16);
        Ok(((job_id, step), Checked::Start { plan, members }))
    }

    /// Remembers what was written.
    fn finish(
        &mut self,
        job_id: u16,
        checked: Checked,
        conf: JobConf,
    ) -> Result<Changed, EngineError> {
        match checked {
            Checked::Stop => self.object.set_ports(job_id, &[]).map(|()| Changed::Stopped),
            Checked::Prepare { pool, forwarders, local } => {
                self.jobs[usize::from(job_id)] = Some(Job::new(conf, pool, forwarders));
                Ok(Changed::Prepared(local))
            }
            Checked::Start { plan, members } => {
                let mode = plan.mode;
                let counters = self.object.counters(job_id.into())?;
                if let Some(job) = &mut self.jobs[usize::from(job_id)] {
                    (job.conf, job.plan, job.members, job.counters) =
                        (conf, Some(plan), members, counters);
                }
                let group = SocketAddrV4::new(conf.group.into(), conf.group_port);
                let group = (mode == ResultMode::Multicast).then_some(group);
                Ok(Changed::Started(Started { mode, group }))
            }
        }
    }
}
