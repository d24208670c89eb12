//! The XDP engine: loads the kernel program, attaches it to interfaces, and owns its maps.
//!
//! The program decides nothing that is not in `xdp-agg-common`; this engine decides nothing about
//! packets. It writes a job only while its phase is `Off` and no program that saw it in another
//! phase still runs, so a packet never meets half a job.

mod attach;
mod change;
mod clocks;
mod events;
mod interface;
mod local;
mod object;
mod phases;
mod pins;
mod plan;
mod sys;
mod tables;
mod tend;
#[doc(hidden)]
pub mod testing;
mod watch;

use std::os::fd::OwnedFd;
use std::time::Duration;

use tracing::info;
use xdp_agg_common::control::LocalMembers;
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::maps::{JobConf, JobCounters, MAX_JOBS, Member, ResultMode, copy_index};
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::MAX_WORKERS;
use xdp_agg_protocol::sum::{self, since, uplink};

use super::uplink::Prober;
use super::{
    Change, Changed, Engine, EngineConfig, EngineError, JobSetup, Started, Trouble, Watch,
};
use crate::link::features::SwitchedOff;
use clocks::KernelClock;
use events::EventLog;
use interface::Interface;
use local::Local;
use object::{Object, Settings, other, wrong};
use pins::{Lock, Pins};
use plan::Plan;
use sys::Stamp;
use watch::XdpWatch;

/// The XDP program on interfaces of this network namespace. Interfaces are known by their numbers
/// here, so the calls of [`Engine`] are to be made in the namespace in which it was opened.
///
/// Results are redirected into interfaces. On veth that wants NAPI at the peer: GRO on, or an XDP
/// program there; otherwise the kernel drops every result. In generic mode the program sees what
/// the sender handed over as a whole: workers are told to send packet by packet
/// ([`Engine::single_packets`]). Native mode has trains cut before it by itself.
pub struct XdpEngine {
    // Dropped first, then what was attached: no packet arrives while the rest goes.
    pins: Option<Pins>,
    /// The served interfaces, and that of workers of this host: a link each.
    links: Vec<OwnedFd>,
    interfaces: Vec<Interface>,
    /// What attaching switched off at the interfaces.
    switched_off: SwitchedOff,
    _events: EventLog,
    object: Object,
    jobs: [Option<Job>; MAX_JOBS],
    /// Interface of each port.
    ports: Vec<u32>,
    generic: bool,
    slots: u32,
    max_chunks: u16,
    /// Where probes of parents are sent from.
    prober: Prober,
    clock: KernelClock,
    /// How workers of this host are served.
    local: Local,
    // Dropped last: the next daemon finds everything gone, or free.
    _lock: Option<Lock>,
}

/// A job as its last `prepare` and `start` wrote it.
struct Job {
    conf: JobConf,
    pool: Pool,
    /// The members that are aggregators. Unknown for a job that was taken over: it runs already.
    forwarders: u64,
    /// Where its results go; None: as the daemon before has written it.
    plan: Option<Plan>,
    /// As they were when the plan was made.
    members: Vec<(u16, Member)>,
    /// Its counters when it was last looked after.
    counters: JobCounters,
}

impl XdpEngine {
    /// Loads the program and attaches it to all interfaces of `config`.
    ///
    /// # Errors
    /// No such interface, no privilege, an old kernel, an interface that has an XDP program
    /// already, or a driver that refuses.
    pub fn open(config: &EngineConfig) -> Result<Self, EngineError> {
        let (interfaces, vlan) = Interface::find_all(&config.interfaces, config.vlan)?;
        let indexes = interfaces.iter().map(|interface| interface.ifindex);
        if vlan != 0 && config.data_addr.is_none() {
            let why = "a data path in a VLAN needs --data-addr: this host's address in that VLAN";
            return Err(wrong(why.into()));
        }
        let stamp = Stamp::wanted(config, indexes.clone(), vlan)?;
        let pins = config.pin.as_deref().map(|dir| Pins::open(dir, config, &stamp)).transpose()?;
        let found = pins.as_ref().and_then(|pins| pins.found().copied());
        let local = match (&pins, &found) {
            (Some(pins), Some(found)) => Local::found(found, &interfaces)
                .map_err(|error| pins.misfit(format!("workers of this host: {error}")))?,
            _ => Local::make(config, &interfaces, mtu_of(config, &interfaces, vlan))?,
        };
        let far = local.side().map(|(ifindex, _)| ifindex);
        let mut engine = Self::load(config, (&interfaces, vlan), pins, local)?;
        for (port, ifindex) in indexes.clone().chain(far).enumerate() {
            engine.object.register_port(ifindex, port as u32, found.is_some())?;
        }
        engine.ports = indexes.chain(far).collect();
        match found {
            Some(found) => engine.adopt(&found, &interfaces)?,
            None => engine.attach(config.xdp_mode, &interfaces)?,
        }
        engine.interfaces.extend(engine.local.pair().map(|pair| pair.far.clone()));
        if let (Some(pins), None) = (&engine.pins, found) {
            let side = engine.local.side();
            let (local_ifindex, local_addr) =
                side.map_or((0, 0), |(ifindex, addr)| (ifindex, addr.into()));
            let generic = engine.generic.into();
            let switched_off = attach::marks(&engine.switched_off, &interfaces);
            pins.seal(Stamp { generic, local_ifindex, local_addr, switched_off, ..stamp })?;
        }
        engine.set_keep(false);
        info!(
            interfaces = config.interfaces.join(","),
            slots = config.slots,
            block_bytes = engine.max_chunks * 64,
            vlan,
            "serving with {}",
            engine.describe()
        );
        Ok(engine)
    }

    fn load(
        config: &EngineConfig,
        (interfaces, vlan): (&[Interface], u16),
        mut pins: Option<Pins>,
        local: Local,
    ) -> Result<Self, EngineError> {
        let settings = Settings {
            data_port: config.data_port,
            data_addr: config.data_addr.map_or(0, u32::from),
            redirect_back: interfaces.is_empty()
                || vlan != 0
                || interfaces.iter().any(|i| i.driver == "veth"),
            local: local.side().map(|(ifindex, addr)| (ifindex, addr.into())),
            vlan,
            slots: config.slots,
        };
        let maps = pins.as_ref().map(Pins::maps).unwrap_or_default();
        let mut object = Object::load(&settings, &maps)?;
        let lock = pins.as_mut().and_then(Pins::take_lock);
        Ok(Self {
            pins,
            links: Vec::new(),
            interfaces: interfaces.to_vec(),
            switched_off: SwitchedOff::default(),
            _events: EventLog::start(object.take_events()?)?,
            object,
            jobs: [const { None }; MAX_JOBS],
            ports: Vec::new(),
            generic: false,
            slots: config.slots,
            max_chunks: chunks_for_mtu(mtu_of(config, interfaces, vlan)),
            prober: Prober::new(config),
            clock: KernelClock::of_this_process(),
            local,
            _lock: lock,
        })
    }

    /// Sets whether all that can outlive this engine does.
    fn set_keep(&mut self, keep: bool) {
        self.local.set_keep(keep);
        self.switched_off.keep = keep;
        if let Some(pins) = &mut self.pins {
            pins.set_keep(keep);
        }
    }

    fn job(&self, job_id: u16) -> Result<&Job, EngineError> {
        let job = self.jobs.get(usize::from(job_id)).and_then(Option::as_ref);
        job.ok_or_else(|| wrong(format!("job {job_id} is not on the data path")))
    }

    fn check_setup(&self, job: &JobSetup) -> Result<Pool, EngineError> {
        let JobSetup { job_id, conf, members, .. } = job;
        let end = u64::from(conf.slot_base) + u64::from(conf.slots);
        let pool = Pool::new(conf.slots).filter(|_| end <= self.slots.into());
        let Some(pool) = pool.filter(|_| usize::from(*job_id) < MAX_JOBS) else {
            return Err(wrong(format!(
                "job {job_id} with {} slots from {} does not fit {} slots and {MAX_JOBS} jobs",
                conf.slots, conf.slot_base, self.slots
            )));
        };
        if !job.is_consistent() || !(1..=self.max_chunks).contains(&conf.max_chunks) {
            return Err(wrong(format!(
                "{} members for {} workers (1 to {MAX_WORKERS}) that are not the ones named, or \
                 blocks of {} chunks where 1 to {} fit",
                members.len(),
                conf.workers,
                conf.max_chunks,
                self.max_chunks
            )));
        }
        Ok(pool)
    }

    /// Other aggregators send trains, whatever workers are told.
    fn check_forwarders(&self, forwarders: u64) -> Result<(), EngineError> {
        if forwarders == 0 || !self.generic {
            return Ok(());
        }
        Err(wrong(
            "generic XDP takes no sums of other aggregators: run the root of the tree with \
             --engine userspace, or on interfaces whose driver takes native XDP"
                .into(),
        ))
    }

    /// The members of a job by rank, with the paths that their probes showed.
    fn learned(&self, job_id: u16, conf: &JobConf) -> Result<Vec<(u16, Member)>, EngineError> {
        (0..conf.workers)
            .filter(|rank| conf.members >> rank & 1 == 1)
            .map(|rank| {
                let member = self.object.member(job_id, rank)?;
                if member.learned_epoch == conf.epoch && member.ifindex != 0 {
                    Ok((rank, member))
                } else {
                    Err(sum::Error::NoPath(rank).into())
                }
            })
            .collect()
    }

    fn port_of(&self, ifindex: u32) -> Option<u32> {
        self.ports.iter().position(|port| *port == ifindex).map(|port| port as u32)
    }

    fn plan(
        &self,
        members: &[(u16, Member)],
        wanted: Option<ResultMode>,
    ) -> Result<Plan, EngineError> {
        let local = self.local.side().map(|(ifindex, _)| ifindex);
        let port_of = |ifindex| self.port_of(ifindex);
        plan::plan(members, port_of, wanted, (!self.generic, local))
    }

    fn write_plan(&mut self, job_id: u16, plan: &Plan) -> Result<(), EngineError> {
        self.object.set_ports(job_id, &plan.ifindexes)?;
        for port in 0..self.ports.len() as u32 {
            let mine = plan.recipients.iter().filter(|(at, ..)| *at == port);
            // One more entry than there are copies ends the list; entries are rank + 1.
            let ranks = mine.map(|(_, _, rank)| rank + 1).chain([0]).take(MAX_WORKERS);
            for (copy, entry) in ranks.enumerate() {
                let index = copy_index(job_id, port, copy as u32);
                self.object
                    .copies
                    .set(index, entry, 0)
                    .map_err(|error| other("a recipient", error))?;
            }
        }
        Ok(())
    }
}

impl Engine for XdpEngine {
    fn describe(&self) -> String {
        format!("xdp ({})", if self.generic { "generic" } else { "native" })
    }

    fn max_chunks(&self) -> u16 {
        self.max_chunks
    }

    fn single_packets(&self) -> bool {
        // The kernel cuts trains before native XDP. Generic XDP gets them as the sender, or the
        // receiving card, handed them over.
        self.generic
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn prepare(&mut self, job: &JobSetup) -> Result<Option<LocalMembers>, EngineError> {
        match self.change_one(Change::Prepare(Box::new(job.clone())))? {
            Changed::Prepared(local) => Ok(local),
            other => Err(mixed_up(&other)),
        }
    }

    fn probe_uplink(&mut self, job_id: u16) -> Result<bool, EngineError> {
        let conf = self.job(job_id)?.conf;
        let up = self.object.uplink(job_id)?;
        if uplink::is_learned(&conf, &up) {
            return Ok(true);
        }
        self.prober.probe(&conf, &up)?;
        Ok(false)
    }

    fn start(&mut self, job_id: u16, wanted: Option<ResultMode>) -> Result<Started, EngineError> {
        match self.change_one(Change::Start { job_id, wanted })? {
            Changed::Started(started) => Ok(started),
            other => Err(mixed_up(&other)),
        }
    }

    fn stop(&mut self, job_id: u16) -> Result<(), EngineError> {
        self.change_one(Change::Stop { job_id }).map(drop)
    }

    fn change(&mut self, changes: &[Change]) -> Vec<Result<Changed, EngineError>> {
        self.change_all(changes)
    }

    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError> {
        (0..=MAX_JOBS).map(|job| self.object.counters(job)).collect()
    }

    fn missing(&mut self, job_id: u16, block: u64) -> Result<u64, EngineError> {
        let job = self.job(job_id)?;
        let state = self.object.slot(job.slot_of(block))?.head.state;
        Ok(state.missing(job.conf.epoch, job.conf.members, block))
    }

    fn tend(&mut self) -> Vec<Trouble> {
        self.look_after()
    }

    fn adopted(&self) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.found().is_some())
    }

    fn adopted_jobs(&self) -> Vec<(u16, JobConf)> {
        if !self.adopted() {
            return Vec::new();
        }
        let jobs = (0..).zip(&self.jobs);
        jobs.filter_map(|(job_id, job)| Some((job_id, job.as_ref()?.conf))).collect()
    }

    fn keep(&mut self) {
        if self.pins.is_some() {
            self.set_keep(true);
        }
    }

    fn watch(&self) -> Result<Box<dyn Watch>, EngineError> {
        Ok(Box::new(XdpWatch::open(&self.object.watched, self.clock)?))
    }

    fn heard(&mut self, job_id: u16) -> Result<Vec<(u16, Option<Duration>)>, EngineError> {
        let conf = self.job(job_id)?.conf;
        let members = (0..conf.workers).filter(|rank| conf.members >> rank & 1 == 1);
        let heard = |rank| {
            let member = self.object.member(job_id, rank)?;
            // The clock is read after the entry: no member was heard later than that.
            Ok((rank, since(member.heard, self.clock.now())))
        };
        members.map(heard).collect()
    }
}

impl Job {
    fn new(conf: JobConf, pool: Pool, forwarders: u64) -> Self {
        let (members, counters) = (Vec::new(), JobCounters::default());
        Self { conf, pool, forwarders, plan: None, members, counters }
    }

    fn slot_of(&self, block: u64) -> u32 {
        self.conf.slot_base + self.pool.slot_of(block)
    }
}

fn mixed_up(changed: &Changed) -> EngineError {
    wrong(format!("another change was made: {changed:?}"))
}

/// The largest packet that all interfaces take in one buffer.
fn mtu_of(config: &EngineConfig, interfaces: &[Interface], vlan: u16) -> u32 {
    let all = interfaces.iter().map(|interface| interface.room(config.mtu, vlan));
    all.min().or(config.mtu).unwrap_or(u32::MAX)
}
