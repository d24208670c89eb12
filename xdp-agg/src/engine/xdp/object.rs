//! The kernel program: loaded, its maps open, attached to nothing yet.

use std::borrow::Cow;
use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use aya::maps::{
    Array, DevMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues, ProgramArray,
    RingBuf,
};
use aya::programs::{ProgramError, Xdp};
use aya::util::{KernelVersion, nr_cpus};
use aya::{Ebpf, EbpfError, EbpfLoader};
use tracing::info;
use xdp_agg_common::maps::{Fan, JobConf, JobCounters, MAX_JOBS, Member, Quota, Uplink};
use xdp_agg_common::wire::MAX_WORKERS;

use super::sys::{self, RawSlot};
use super::watch::{Descriptors, again};
use crate::engine::EngineError;

/// The compiled kernel half (`cargo xtask build-ebpf`).
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/xdp-agg.bpfel.o");
/// Names another object to load, for work on the kernel half.
const OBJECT_VARIABLE: &str = "XDP_AGG_OBJECT";
const BPF_F_LOCK: u64 = 4;
/// The program that does it all, but for tags.
const INGRESS: &str = "xdp_agg";

/// The oldest kernel whose verifier takes the program.
const OLDEST_KERNEL: KernelVersion = KernelVersion::new(6, 1, 0);

/// What the loader sets in the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// UDP port of the data path.
    pub(super) data_port: u16,
    /// Address of the data path, host byte order; 0: that of each job.
    pub(super) data_addr: u32,
    /// Answers leave by a redirect to the port they came from, not by `XDP_TX`.
    pub(super) redirect_back: bool,
    /// VLAN that the interfaces carry for us; 0: none.
    pub(super) vlan: u16,
    /// Interface and address (host byte order) for workers of this host.
    pub(super) local: Option<(u32, u32)>,
    /// Slots in the whole pool.
    pub(super) slots: u32,
}

/// The loaded program and its maps. Dropping it unloads both.
pub(super) struct Object {
    bpf: Ebpf,
    pub(super) slots: Array<MapData, RawSlot>,
    pub(super) jobs: Array<MapData, JobConf>,
    pub(super) members: Array<MapData, Member>,
    pub(super) copies: Array<MapData, u16>,
    pub(super) quotas: Array<MapData, Quota>,
    pub(super) uplinks: Array<MapData, Uplink>,
    counters: PerCpuArray<MapData, JobCounters>,
    fans: PerCpuHashMap<MapData, u32, Fan>,
    back: DevMap<MapData>,
    ports: Vec<Map>,
    /// Where packets go on that have lost their tag. Its entry lasts as long as this, or its pin.
    _next: ProgramArray<MapData>,
    /// The program that interfaces run.
    entrance: &'static str,
    /// Interface of the workers of this host; 0: none.
    pub(super) local_ifindex: u32,
    /// Some of the maps once more.
    pub(super) watched: Descriptors,
}

impl Object {
    /// Loads the program into the kernel.
    ///
    /// `pins` names maps and their places in a BPF file system: what is there already is used.
    pub(super) fn load(
        settings: &Settings,
        pins: &[(&'static str, PathBuf)],
    ) -> Result<Self, EngineError> {
        check_kernel()?;
        let object = object_bytes()?;
        let mut loader = EbpfLoader::new();
        let redirect_back = u8::from(settings.redirect_back);
        let (local_ifindex, local_addr) = settings.local.unwrap_or_default();
        loader
            .override_global("DATA_PORT", &settings.data_port, true)
            .override_global("DATA_ADDR", &settings.data_addr, true)
            .override_global("REDIRECT_BACK", &redirect_back, true)
            .override_global("VLAN", &settings.vlan, true)
            .override_global("LOCAL_IFINDEX", &local_ifindex, true)
            .override_global("LOCAL_ADDR", &local_addr, true)
            .map_max_entries("SLOTS", settings.slots);
        for (name, path) in pins {
            loader.map_pin_path(name, path);
        }
        let mut bpf = loader.load(&object).map_err(load_error)?;
        let entrance = if settings.vlan == 0 { INGRESS } else { "xdp_agg_tagged" };
        for name in [INGRESS, "copy_out", "xdp_agg_tagged"] {
            if name != "xdp_agg_tagged" || name == entrance {
                xdp_mut(&mut bpf, name)?.load().map_err(|error| load_error(error.into()))?;
            }
        }
        let next = bpf.take_map("NEXT").ok_or_else(|| no_such("NEXT"))?;
        let mut next =
            ProgramArray::try_from(next).map_err(map_error("the program behind tags"))?;
        if entrance != INGRESS {
            let behind = xdp(&bpf, INGRESS)?.fd().map_err(|error| other(INGRESS, error))?;
            next.set(0, behind, 0).map_err(map_error("the program behind tags"))?;
        }
        let twin = |name: &str| {
            let map = bpf.map(name).ok_or_else(|| no_such(name))?;
            again(map).map_err(|error| other("a map for those that watch", error))
        };
        let watched = Descriptors {
            slots: twin("SLOTS")?,
            jobs: twin("JOBS")?,
            members: twin("MEMBERS")?,
            counters: twin("COUNTERS")?,
        };
        let mut take = |name: &str| bpf.take_map(name).ok_or_else(|| no_such(name));
        let ports: Result<_, _> = (0..MAX_JOBS).map(|job| take(&format!("PORTS_{job}"))).collect();
        Ok(Self {
            slots: take("SLOTS")?.try_into().map_err(map_error("the slots"))?,
            jobs: take("JOBS")?.try_into().map_err(map_error("the jobs"))?,
            members: take("MEMBERS")?.try_into().map_err(map_error("the members"))?,
            copies: take("COPIES")?.try_into().map_err(map_error("the recipients"))?,
            quotas: take("QUOTAS")?.try_into().map_err(map_error("the quotas"))?,
            uplinks: take("UPLINKS")?.try_into().map_err(map_error("the parents"))?,
            counters: take("COUNTERS")?.try_into().map_err(map_error("the counters"))?,
            fans: take("FANS")?.try_into().map_err(map_error("the interfaces"))?,
            back: take("BACK")?.try_into().map_err(map_error("the ways back"))?,
            ports: ports?,
            _next: next,
            entrance,
            local_ifindex,
            watched,
            bpf,
        })
    }

    /// The ring that rare events come through. It can be taken once.
    pub(super) fn take_events(&mut self) -> Result<RingBuf<MapData>, EngineError> {
        let map = self.bpf.take_map("EVENTS").ok_or_else(|| no_such("EVENTS"))?;
        map.try_into().map_err(map_error("the events"))
    }

    /// The program that interfaces run for every packet.
    pub(super) fn ingress(&self) -> Result<&Xdp, EngineError> {
        xdp(&self.bpf, self.entrance)
    }

    /// The descriptor of that program.
    pub(super) fn ingress_fd(&self) -> Result<BorrowedFd<'_>, EngineError> {
        let program = self.ingress()?.fd();
        program.map(AsFd::as_fd).map_err(|error| other("the program", error))
    }

    /// Makes an interface known as number `port` to the copies that leave by it. Where the maps
    /// were adopted it is known already, and copies may be leaving.
    pub(super) fn register_port(
        &mut self,
        ifindex: u32,
        port: u32,
        adopted: bool,
    ) -> Result<(), EngineError> {
        if !adopted {
            self.insert_fan(ifindex, port)?;
        }
        let egress = xdp(&self.bpf, "copy_out")?;
        let egress = egress.fd().map_err(|error| other("the program for copies", error))?;
        self.back
            .set(port, ifindex, Some(egress), 0)
            .map_err(|error| other("the way back out of an interface", error))
    }

    /// Whether [`Self::register_port`] still holds: the kernel forgets interfaces that go.
    pub(super) fn is_registered(&self, ifindex: u32, port: u32) -> bool {
        self.back.get(port, 0).is_ok_and(|entry| entry.if_index == ifindex)
    }

    /// An interface has gone for good.
    pub(super) fn forget_port(&mut self, ifindex: u32) {
        // It may not have been known.
        let _ = self.fans.remove(&ifindex);
    }

    fn insert_fan(&mut self, ifindex: u32, port: u32) -> Result<(), EngineError> {
        let cpus = nr_cpus().map_err(|(what, error)| other(what, error))?;
        let fan = Fan { port, ..Fan::default() };
        let values = PerCpuValues::try_from(vec![fan; cpus])
            .map_err(|error| other("the interfaces", error))?;
        self.fans.insert(ifindex, values, 0).map_err(map_error("the interfaces"))
    }

    /// Sets where the copies of a job's results go, in this order.
    pub(super) fn set_ports(&mut self, job: u16, ifindexes: &[u32]) -> Result<(), EngineError> {
        let Self { bpf, ports, .. } = self;
        let map = ports.get_mut(usize::from(job)).ok_or_else(|| no_such("PORTS"))?;
        let egress = xdp(bpf, "copy_out")?;
        let egress = egress.fd().map_err(|error| other("the program for copies", error))?;
        for entry in ifindexes.len()..MAX_WORKERS {
            let fd = device_map_fd(map)?;
            sys::delete_entry(fd, entry as u32).map_err(|error| other("a device map", error))?;
        }
        let mut map = DevMap::try_from(map).map_err(map_error("a device map"))?;
        for (entry, ifindex) in ifindexes.iter().enumerate() {
            map.set(entry as u32, *ifindex, Some(egress), 0)
                .map_err(|error| other("a device map (is the interface still there?)", error))?;
        }
        Ok(())
    }

    /// A slot, read under its lock.
    pub(super) fn slot(&self, index: u32) -> Result<RawSlot, EngineError> {
        self.slots.get(&index, BPF_F_LOCK).map_err(map_error("a slot"))
    }

    /// Counters of a job index, summed over all CPUs.
    pub(super) fn counters(&self, index: usize) -> Result<JobCounters, EngineError> {
        let values = self.counters.get(&(index as u32), 0).map_err(map_error("the counters"))?;
        let mut sum = JobCounters::default();
        values.iter().for_each(|cpu| sum.merge(cpu));
        Ok(sum)
    }
}

/// The object to load: the one compiled in, or the one that the environment names.
fn object_bytes() -> Result<Cow<'static, [u8]>, EngineError> {
    let Some(path) = env::var_os(OBJECT_VARIABLE) else { return Ok(Cow::Borrowed(OBJECT)) };
    info!(path = %path.display(), "loading the kernel program that {OBJECT_VARIABLE} names");
    fs::read(&path)
        .map(Cow::Owned)
        .map_err(|error| other(&format!("{OBJECT_VARIABLE}={}", path.display()), error))
}

fn check_kernel() -> Result<(), EngineError> {
    match KernelVersion::current() {
        Ok(version) => check_version(version),
        // A version that cannot be read is not a reason to give up: the verifier has the last word.
        Err(_) => Ok(()),
    }
}

fn check_version(version: KernelVersion) -> Result<(), EngineError> {
    if version >= OLDEST_KERNEL {
        return Ok(());
    }
    let code = version.code();
    let (major, minor, patch) = (code >> 16, code >> 8 & 0xff, code & 0xff);
    Err(EngineError::Unsupported(format!("its version is {major}.{minor}.{patch}")))
}

pub(super) fn xdp<'a>(bpf: &'a Ebpf, name: &str) -> Result<&'a Xdp, EngineError> {
    let program = bpf.program(name).ok_or_else(|| no_such(name))?;
    program.try_into().map_err(|error: ProgramError| other(name, error))
}

pub(super) fn xdp_mut<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, EngineError> {
    let program = bpf.program_mut(name).ok_or_else(|| no_such(name))?;
    program.try_into().map_err(|error: ProgramError| other(name, error))
}

fn device_map_fd(map: &Map) -> Result<BorrowedFd<'_>, EngineError> {
    match map {
        Map::DevMap(data) => Ok(data.fd().as_fd()),
        _ => Err(no_such("PORTS")),
    }
}

/// What a failed load means to the person who started the daemon.
pub(super) fn load_error(error: EbpfError) -> EngineError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(at) = cause {
        let code = at.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        match code {
            Some(libc::EPERM | libc::EACCES) if !refused_by_verifier(&error) => {
                return EngineError::NotPermitted(
                    "the kernel said: operation not permitted".into(),
                );
            }
            Some(libc::ENOSYS) => {
                return EngineError::Unsupported("it has no bpf() system call".into());
            }
            Some(libc::ENOMEM) => {
                return other("not enough memory for the slots; use a smaller --slots", error);
            }
            _ => cause = at.source(),
        }
    }
    if refused_without_perfmon(&error) {
        return EngineError::NotPermitted(
            "the kernel's verifier refuses arithmetic with pointers to who lacks CAP_PERFMON"
                .into(),
        );
    }
    other("loading the kernel program", error)
}

/// Whether the verifier refused what it permits only with CAP_PERFMON (speculation).
fn refused_without_perfmon(error: &EbpfError) -> bool {
    let EbpfError::ProgramError(ProgramError::LoadError { verifier_log, .. }) = error else {
        return false;
    };
    names_pointers(&verifier_log.to_string())
}

fn names_pointers(verifier_log: &str) -> bool {
    verifier_log.contains("prohibited")
}

/// Whether the verifier refused. It says `EACCES` as a missing privilege does, but leaves a log.
fn refused_by_verifier(error: &EbpfError) -> bool {
    let EbpfError::ProgramError(ProgramError::LoadError { verifier_log, .. }) = error else {
        return false;
    };
    !verifier_log.to_string().is_empty()
}

pub(super) fn no_such(name: &str) -> EngineError {
    let what = format!("the kernel object has no {name}; it is not of this version of xdp-agg");
    EngineError::Other { what: "kernel program".into(), source: what.into() }
}

fn map_error(what: &'static str) -> impl Fn(MapError) -> EngineError {
    move |error| other(what, error)
}

/// The error for a request to the engine that cannot be met.
pub(super) fn wrong(what: String) -> EngineError {
    EngineError::Other { what: "XDP engine".into(), source: what.into() }
}

/// Any other error, with what was tried.
pub(super) fn other(what: &str, error: impl Error + Send + Sync + 'static) -> EngineError {
    EngineError::Other { what: what.into(), source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_named_and_what_to_do() {
        let error = check_version(KernelVersion::new(5, 15, 7)).expect_err("it is too old");
        assert!(matches!(error, EngineError::Unsupported(_)));
        let words = error.to_string();
        for part in ["5.15.7", "6.1", "--engine userspace"] {
            assert!(words.contains(part), "{words}");
        }
        assert!(check_version(KernelVersion::new(6, 0, 255)).is_err());
        assert!(check_version(KernelVersion::new(6, 1, 0)).is_ok());
    }

    #[test]
    fn a_kernel_without_bpf_is_unsupported_and_one_that_forbids_it_is_not() {
        let load = |code| {
            let io_error = io::Error::from_raw_os_error(code);
            let refused = aya::sys::SyscallError { call: "bpf_prog_load", io_error };
            load_error(EbpfError::ProgramError(ProgramError::SyscallError(refused)))
        };
        assert!(matches!(load(libc::ENOSYS), EngineError::Unsupported(_)));
        assert!(matches!(load(libc::EPERM), EngineError::NotPermitted(_)));
        assert!(matches!(load(libc::EINVAL), EngineError::Other { .. }));
    }
}
