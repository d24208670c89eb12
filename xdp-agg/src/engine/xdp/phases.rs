//! In which order a job's entries are written, so that no packet meets half a job.
//!
//! A program reads an entry field by field while it may be written. So all but the phase is written
//! only while the phase is `Off`, after every run that may have seen another phase has ended: then
//! no program believes it. A phase that lets packets in is written only after every run that may
//! have seen the entry before has ended. So a packet that is let in reads one configuration alone,
//! also on CPUs that reorder reads.

use xdp_agg_common::maps::{JobConf, Phase};

use crate::engine::JobSetup;

/// What the phases are written to: the kernel's maps, or a model of them.
pub(super) trait Tables {
    /// Why an entry could not be read or written.
    type Error;

    /// The job's entry as it is.
    fn conf(&self, job_id: u16) -> Result<JobConf, Self::Error>;

    /// Writes the job's entry, in no certain order of its fields.
    fn write_conf(&mut self, job_id: u16, conf: &JobConf) -> Result<(), Self::Error>;

    /// Writes what belongs to a job besides its entry: members, slots, quota; nothing goes out.
    fn write_rest(&mut self, job: &JobSetup) -> Result<(), Self::Error>;

    /// Waits until every run of the program that began before this call has ended.
    fn wait(&mut self);
}

/// What becomes of a job.
#[derive(Debug)]
pub(super) enum Change {
    /// Its packets are refused, and those are done that were let in before.
    Silence,
    /// It is what this says, and its members' probes are answered. `conf` has the phase and mode
    /// that the caller likes.
    Prepare(Box<JobSetup>),
    /// Its contributions are summed in this mode. The entry is what [`change`] returned for
    /// `Prepare`, and where the results go is written already.
    Start(JobConf, u16),
}

/// Changes jobs, each one as if it were alone, and returns what their entries are then. Waits that
/// several need are one, as each of them is for all running programs. A job may be silenced and
/// then prepared; nothing else happens to it twice.
pub(super) fn change<T: Tables>(
    tables: &mut T,
    changes: &[(u16, Change)],
) -> Vec<Result<JobConf, T::Error>> {
    let mut done = Vec::with_capacity(changes.len());
    done.extend(changes.iter().map(|(job_id, change)| match change {
        Change::Silence | Change::Prepare(_) => off(tables, *job_id),
        Change::Start(conf, mode) => write(tables, *job_id, JobConf { mode: *mode, ..*conf }),
    }));
    let mut next = |then: fn(&mut T, u16, &Change, JobConf) -> Written<T::Error>| {
        if done.iter().any(|written| matches!(written, Ok((_, true)))) {
            tables.wait();
        }
        for (written, (job_id, change)) in done.iter_mut().zip(changes) {
            if let Ok((conf, _)) = *written {
                *written = then(tables, *job_id, change, conf);
            }
        }
    };
    next(|tables, job_id, change, conf| match change {
        Change::Silence => Ok((conf, false)),
        Change::Prepare(job) => {
            tables.write_rest(job)?;
            let silent = JobConf { phase: Phase::Off as u16, mode: 0, ..job.conf };
            write(tables, job_id, silent)
        }
        Change::Start(..) => {
            let (conf, _) =
                write(tables, job_id, JobConf { phase: Phase::Running as u16, ..conf })?;
            Ok((conf, false))
        }
    });
    next(|tables, job_id, change, conf| match change {
        Change::Silence | Change::Start(..) => Ok((conf, false)),
        Change::Prepare(_) => {
            write(tables, job_id, JobConf { phase: Phase::Probing as u16, ..conf })
        }
    });
    done.into_iter().map(|written| written.map(|(conf, _)| conf)).collect()
}

/// A job's entry as it is, and whether running programs may have seen another one.
type Written<E> = Result<(JobConf, bool), E>;

fn write<T: Tables>(tables: &mut T, job_id: u16, conf: JobConf) -> Written<T::Error> {
    tables.write_conf(job_id, &conf)?;
    Ok((conf, true))
}

fn off<T: Tables>(tables: &mut T, job_id: u16) -> Written<T::Error> {
    let conf = tables.conf(job_id)?;
    if conf.phase == Phase::Off as u16 {
        return Ok((conf, false));
    }
    write(tables, job_id, JobConf { phase: Phase::Off as u16, ..conf })
}

/// Refuses the job's packets from now on, and waits for those that were let in before.
pub(super) fn silence<T: Tables>(tables: &mut T, job_id: u16) -> Result<(), T::Error> {
    change(tables, &[(job_id, Change::Silence)]).into_iter().try_for_each(|done| done.map(drop))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::net::{Ipv4Addr, SocketAddrV4};

    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use xdp_agg_common::admission::{Request, Source, check_job, check_member};
    use xdp_agg_common::maps::Member;
    use xdp_agg_common::slot::{Pool, SlotState};
    use xdp_agg_common::wire::{Header, Kind, Reduction};

    use super::*;

    fn alone(tables: &mut Daemon, change: Change) -> JobConf {
        let mut done = super::change(tables, &[(1, change)]);
        let Some(Ok(conf)) = done.pop() else { unreachable!("one, which cannot fail") };
        conf
    }

    /// What must not be left out.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Care {
        All,
        NoWait,
        /// Waits when the job is switched off, but not before packets are let in.
        FirstWait,
        NeverOff,
    }

    /// The maps, a field a word. Each field is read and written on its own and in no order, as
    /// `memcpy` and a program do it at the same time on the weakest of CPUs.
    struct Maps {
        phase: AtomicU64,
        cookie: AtomicU64,
        members: AtomicU64,
        mode: AtomicU64,
        /// Address of the member that sends.
        addr: AtomicU64,
        slot: Mutex<SlotState>,
        /// A CPU holds its own while it runs the program.
        running: [Mutex<()>; CPUS],
    }

    /// One: runs of the program share the slot alone, and the slot has tests of its own.
    const CPUS: usize = 1;
    const SLOTS: u32 = 2;

    /// The daemon's side.
    struct Daemon {
        maps: Arc<Maps>,
        last: JobConf,
        first: bool,
        care: Care,
    }

    impl Tables for Daemon {
        type Error = Infallible;

        fn conf(&self, _: u16) -> Result<JobConf, Infallible> {
            let conf = self.last;
            let off = self.care == Care::NeverOff;
            Ok(if off { JobConf { phase: Phase::Off as u16, ..conf } } else { conf })
        }

        fn write_conf(&mut self, _: u16, conf: &JobConf) -> Result<(), Infallible> {
            let maps = &self.maps;
            let last = std::mem::replace(&mut self.last, *conf);
            // A program cannot see that a value is replaced by the same value.
            let write = |field: &AtomicU64, from: u64, to: u64| {
                if from != to {
                    field.store(to, Relaxed);
                }
            };
            let off = conf.phase == Phase::Off as u16;
            if !(off && self.care == Care::NeverOff) {
                write(&maps.phase, last.phase.into(), conf.phase.into());
            }
            write(&maps.mode, last.mode.into(), conf.mode.into());
            write(&maps.members, last.members, conf.members);
            write(&maps.cookie, last.cookie, conf.cookie);
            Ok(())
        }

        fn write_rest(&mut self, job: &JobSetup) -> Result<(), Infallible> {
            let addr = job.members.values().next().map_or(0, |at| u32::from(*at.ip()));
            self.maps.addr.store(addr.into(), Relaxed);
            *self.maps.slot.lock().expect("nobody panics") = SlotState::default();
            Ok(())
        }

        fn wait(&mut self) {
            let first = std::mem::take(&mut self.first);
            let waits = match self.care {
                Care::All | Care::NeverOff => true,
                Care::FirstWait => first,
                Care::NoWait => false,
            };
            if waits {
                for cpu in &self.maps.running {
                    drop(cpu.lock().expect("nobody panics"));
                }
            }
        }
    }

    /// Two epochs of a job whose first member has moved.
    fn setup(epoch: u16) -> JobSetup {
        let addr = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, epoch as u8), 4000);
        let conf = JobConf {
            members: if epoch == 1 { 0b01 } else { 0b11 },
            cookie: epoch.into(),
            epoch: 7,
            workers: 2,
            slots: SLOTS,
            max_chunks: 1,
            ..JobConf::default()
        };
        let other = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 4000);
        let members = [(0, addr), (1, other)].into_iter().take(usize::from(epoch));
        JobSetup::new(3, conf, BTreeMap::from_iter(members))
    }

    const MODE: u16 = 2;

    fn running(epoch: u16) -> JobConf {
        JobConf { phase: Phase::Running as u16, mode: MODE, ..setup(epoch).conf }
    }

    impl Maps {
        /// The entry, field by field; what does not change is not in the maps.
        fn conf(&self) -> JobConf {
            JobConf {
                phase: self.phase.load(Relaxed) as u16,
                cookie: self.cookie.load(Relaxed),
                members: self.members.load(Relaxed),
                mode: self.mode.load(Relaxed) as u16,
                ..setup(1).conf
            }
        }

        /// What the program does to let in an honest packet of this epoch, or not. Returns the
        /// configuration under which the packet was let in.
        fn receive(&self, cpu: usize, epoch: u16) -> Option<(JobConf, Member)> {
            let _running = self.running[cpu].lock().expect("nobody panics");
            let conf = self.conf();
            let member =
                Member { addr: self.addr.load(Relaxed) as u32, port: 4000, ..Member::default() };
            let header = Header {
                kind: Kind::Contribution,
                flags: 0,
                reduction: Reduction::Add,
                job: 3,
                rank: 0,
                cookie: epoch.into(),
                epoch: 7,
                block: 0,
                tag: 1,
            };
            let source = Source { addr: member.addr, port: 4000 };
            check_job(&conf, &header).ok()?;
            match check_member(&conf, &member, &header, source, 64).ok()? {
                Request::Probe => None,
                Request::Contribute(c) => {
                    let pool = Pool::new(SLOTS).expect("a power of two");
                    let mut slot = self.slot.lock().expect("nobody panics");
                    let _ = slot.contribute(pool, conf.members, &c);
                    Some((conf, member))
                }
            }
        }
    }

    /// An epoch ends and the next one begins while packets of this epoch come in on every CPU.
    fn change_of_epoch(care: Care, epoch: u16) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let first = running(1);
            let maps = Arc::new(Maps {
                phase: AtomicU64::new(first.phase.into()),
                cookie: AtomicU64::new(first.cookie),
                members: AtomicU64::new(first.members),
                mode: AtomicU64::new(MODE.into()),
                addr: AtomicU64::new(u32::from(Ipv4Addr::new(10, 0, 0, 1)).into()),
                slot: Mutex::new(SlotState::default()),
                running: std::array::from_fn(|_| Mutex::new(())),
            });
            let cpus: Vec<_> = (0..CPUS)
                .map(|cpu| {
                    let maps = Arc::clone(&maps);
                    thread::spawn(move || {
                        let admitted = maps.receive(cpu, epoch);
                        let Some((conf, member)) = admitted else { return };
                        assert_eq!(conf, running(epoch), "a mix of two configurations");
                        let addr = Ipv4Addr::new(10, 0, 0, epoch as u8);
                        assert_eq!(member.addr, u32::from(addr), "a mix of two configurations");
                    })
                })
                .collect();
            let mut daemon = Daemon { maps: Arc::clone(&maps), last: first, first: true, care };
            let conf = alone(&mut daemon, Change::Prepare(Box::new(setup(2))));
            alone(&mut daemon, Change::Start(conf, MODE));
            cpus.into_iter().for_each(|cpu| cpu.join().expect("no panic"));
            let held = maps.slot.lock().expect("nobody panics").seen;
            assert!(held == 0 || epoch == 2, "an old packet is in a new epoch's slot");
        });
    }

    #[test]
    fn no_packet_is_let_in_under_a_mix_of_two_configurations() {
        change_of_epoch(Care::All, 1);
        change_of_epoch(Care::All, 2);
    }

    #[test]
    #[should_panic(expected = "a mix of two configurations")]
    fn without_the_wait_a_new_packet_meets_a_mix() {
        change_of_epoch(Care::NoWait, 2);
    }

    #[test]
    #[should_panic]
    fn without_the_wait_an_old_packet_gets_into_a_new_slot() {
        change_of_epoch(Care::NoWait, 1);
    }

    #[test]
    #[should_panic(expected = "a mix of two configurations")]
    fn without_the_later_waits_a_new_packet_meets_a_mix() {
        change_of_epoch(Care::FirstWait, 2);
    }

    #[test]
    #[should_panic]
    fn a_job_that_is_not_off_first_is_met_half_written() {
        change_of_epoch(Care::NeverOff, 1);
    }

    /// What is done to several jobs, in order.
    #[derive(Default)]
    struct Recorder {
        confs: BTreeMap<u16, JobConf>,
        log: Vec<String>,
        /// Its entry cannot be written.
        broken: Option<u16>,
    }

    impl Tables for Recorder {
        type Error = u16;

        fn conf(&self, job_id: u16) -> Result<JobConf, u16> {
            Ok(self.confs.get(&job_id).copied().unwrap_or_default())
        }

        fn write_conf(&mut self, job_id: u16, conf: &JobConf) -> Result<(), u16> {
            if self.broken == Some(job_id) {
                return Err(job_id);
            }
            self.log.push(format!("{job_id}:{}", conf.phase));
            self.confs.insert(job_id, *conf);
            Ok(())
        }

        fn write_rest(&mut self, job: &JobSetup) -> Result<(), u16> {
            self.log.push(format!("{} rest", job.job_id));
            Ok(())
        }

        fn wait(&mut self) {
            self.log.push("wait".into());
        }
    }

    /// Job 1 ends, and job 2, which may get its slots, is prepared; job 4 starts meanwhile.
    #[test]
    fn jobs_that_change_together_wait_together() {
        let job = |job_id| Box::new(JobSetup { job_id, ..setup(2) });
        let mut tables = Recorder::default();
        let ready =
            change(&mut tables, &[(1, Change::Prepare(job(1))), (4, Change::Prepare(job(4)))]);
        let [Ok(one), Ok(four)] = ready[..] else { panic!("{ready:?}") };
        let running = change(&mut tables, &[(1, Change::Start(one, MODE))]);
        assert!(running.iter().all(Result::is_ok));
        tables.log.clear();
        let changes = [
            (1, Change::Silence),
            (2, Change::Prepare(job(2))),
            (4, Change::Start(four, MODE)),
            // The index of a job that ended may be another one's at once.
            (1, Change::Prepare(job(1))),
        ];
        let done = change(&mut tables, &changes);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let (off, probing, running) =
            (Phase::Off as u16, Phase::Probing as u16, Phase::Running as u16);
        let expected = [
            format!("1:{off}"),
            format!("4:{probing}"),
            "wait".into(),
            "2 rest".into(),
            format!("2:{off}"),
            format!("4:{running}"),
            "1 rest".into(),
            format!("1:{off}"),
            "wait".into(),
            format!("2:{probing}"),
            format!("1:{probing}"),
        ];
        assert_eq!(tables.log, expected);
        let phases = [1, 2, 4].map(|job| tables.confs[&job].phase);
        assert_eq!(phases, [probing, probing, running]);
    }

    #[test]
    fn a_job_that_cannot_be_written_is_alone_with_its_error() {
        let job = |job_id| Change::Prepare(Box::new(JobSetup { job_id, ..setup(2) }));
        let mut tables = Recorder { broken: Some(2), ..Recorder::default() };
        let done = change(&mut tables, &[(1, job(1)), (2, job(2)), (4, job(4))]);
        let ok: Vec<_> = done.iter().map(|done| done.as_ref().map(|conf| conf.phase)).collect();
        let probing = Phase::Probing as u16;
        assert_eq!(ok, [Ok(probing), Err(&2), Ok(probing)]);
        assert!(!tables.log.iter().any(|line| line.starts_with("2:")), "{:?}", tables.log);
    }
}
