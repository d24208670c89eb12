//! The kernel program of the links: loading, faults, counters.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TcAttachType, Xdp, XdpMode, tc};
use aya::{Ebpf, EbpfLoader};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::layout::{Counters, HOLD_DEPTH, MAX_INTERFACES, Path, Seen};
use crate::namespace::Namespace;

/// The compiled program. `cargo xtask build-ebpf` makes it from `xdp-agg-ebpf/src/wire.rs`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/wire.bpfel.o");

// SAFETY: `repr(C)`, integers only, and no padding (the sizes are the sums of the fields').
unsafe impl aya::Pod for Path {}
// SAFETY: as above.
unsafe impl aya::Pod for Counters {}
// SAFETY: as above.
unsafe impl aya::Pod for Seen {}

const _: () = assert!(size_of::<Path>() == 48 && size_of::<Counters>() == 72);

/// What goes wrong on one direction of a link. Chances are between 0 and 1 and independent of each
/// other and of what happened before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Chance of a packet being lost.
    pub loss: f64,
    /// Chance of a packet coming twice.
    pub duplicate: f64,
    /// Chance of a UDP packet being held back: it comes behind packets that were sent after it.
    pub hold: f64,
    /// A held packet waits for this many later UDP packets of its direction.
    pub hold_packets: u32,
    /// And for this long. It is sent on by the first packet that passes after both: as long as
    /// nothing passes, it waits.
    pub hold_time: Duration,
    /// If set, only UDP packets from or to this port meet any fault, and TCP, ARP and ping are
    /// left alone.
    pub udp_port: Option<u16>,
}

impl Faults {
    /// An undisturbed link.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        hold: 0.0,
        hold_packets: 0,
        hold_time: Duration::ZERO,
        udp_port: None,
    };

    /// Loses packets with this chance.
    pub const fn loss(chance: f64) -> Self {
        Self { loss: chance, ..Self::NONE }
    }

    /// True if nothing goes wrong.
    pub fn is_none(&self) -> bool {
        self.loss == 0.0 && self.duplicate == 0.0 && self.hold == 0.0
    }

    /// The same for UDP packets from or to one port only.
    pub const fn only_udp(mut self, port: u16) -> Self {
        self.udp_port = Some(port);
        self
    }

    fn apply_to(&self, path: &mut Path) -> Result<(), Error> {
        path.loss_ppm = ppm("loss", self.loss)?;
        path.duplicate_ppm = ppm("duplicate", self.duplicate)?;
        path.hold_ppm = ppm("hold", self.hold)?;
        path.hold_packets = self.hold_packets;
        path.hold_ns = u64::try_from(self.hold_time.as_nanos()).unwrap_or(u64::MAX / 2);
        path.udp_port = self.udp_port.map_or(0, u32::from);
        path.faulty = u32::from(!self.is_none());
        Ok(())
    }
}

fn ppm(what: &str, chance: f64) -> Result<u32, Error> {
    if (0.0..=1.0).contains(&chance) {
        // The range makes the cast exact enough and without surprise.
        Ok((chance * 1e6).round() as u32)
    } else {
        Err(Error::Config(format!("{what} is a chance between 0 and 1, not {chance}")))
    }
}

/// A program on the way in of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Counts what comes and passes it on.
    Count,
    /// Sends UDP packets back by redirection, past all queueing disciplines.
    Reflect,
    /// The same of packets whose payload is zeros, with a checksum. Others arrive damaged.
    Mirror,
    /// Flips a bit of one UDP packet in fifty, counts those alone, and passes everything on.
    Damage,
}

impl Probe {
    const fn program(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Reflect => "reflect",
            Self::Mirror => "mirror",
            Self::Damage => "damage",
        }
    }
}

/// The kernel program in the namespace of the links.
pub(crate) struct Wire {
    namespace: Namespace,
    inner: Mutex<Option<Inner>>,
}

struct Inner {
    /// Holds the programs and what they are attached to.
    ebpf: Ebpf,
    paths: Array<MapData, Path>,
    counters: PerCpuArray<MapData, Counters>,
    seen: PerCpuArray<MapData, Seen>,
    next_line: u32,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Wire {
    /// Loads the program for this number of directions of links.
    pub(crate) fn load(namespace: &Namespace, directions: u32) -> Result<Self, Error> {
        let load = |error| {
            let error = Error::bpf("loading the kernel program of the test network")(error);
            if error.to_string().contains("not permitted") {
                return Error::NotPermitted(format!(
                    "{error}: BPF needs root of the machine (a network without it, so without \
                     faults and XDP, is built with `wire(false)`)"
                ));
            }
            error
        };
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("LINES", directions.max(1))
            .map_max_entries("HELD", directions.max(1) * HOLD_DEPTH)
            .load(OBJECT)
            .map_err(load)?;
        let take = |ebpf: &mut Ebpf, name: &str| {
            ebpf.take_map(name)
                .ok_or_else(|| Error::Config(format!("the kernel program has no map {name}")))
        };
        let map = |name: &str| Error::bpf(format!("opening map {name} of the kernel program"));
        let paths = take(&mut ebpf, "PATHS")?.try_into().map_err(map("PATHS"))?;
        let counters = take(&mut ebpf, "COUNTERS")?.try_into().map_err(map("COUNTERS"))?;
        let seen = take(&mut ebpf, "SEEN")?.try_into().map_err(map("SEEN"))?;
        let program: &mut SchedClassifier = program(&mut ebpf, "wire")?;
        program.load().map_err(Error::bpf("loading program wire"))?;
        let inner = Inner { ebpf, paths, counters, seen, next_line: 0 };
        Ok(Self { namespace: namespace.clone(), inner: Mutex::new(Some(inner)) })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> Result<T, Error>) -> Result<T, Error> {
        match &mut *self.lock() {
            Some(inner) => work(inner),
            None => Err(Error::Config("the test network is being taken down".into())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries what comes in on one interface of the namespace to another.
    pub(crate) fn connect(&self, from: (&str, u32), to: u32) -> Result<(), Error> {
        let (name, index) = from;
        if index >= MAX_INTERFACES {
            return Err(Error::Config(format!("more than {MAX_INTERFACES} interfaces")));
        }
        self.with(|inner| {
            let path = Path { target: to, line: inner.next_line, ..Path::default() };
            inner.next_line += 1;
            inner.set_path(index, path)?;
            let program: &mut SchedClassifier = program(&mut inner.ebpf, "wire")?;
            let attach = || {
                if let Err(error) = program.attach(name, TcAttachType::Ingress) {
                    // Kernels before 6.6 have no other place to attach to than this.
                    tc::qdisc_add_clsact(name)
                        .map_err(Error::bpf(format!("adding qdisc clsact to {name}")))?;
                    let what = format!("attaching program wire to {name} ({error})");
                    program.attach(name, TcAttachType::Ingress).map_err(Error::bpf(what))?;
                }
                Ok(())
            };
            self.namespace.run(attach)?
        })
    }

    /// Has what comes in on an interface pass a device on its way: it is sent there, and what that
    /// device gives back goes where it went before.
    pub(crate) fn detour(&self, from: u32, device: (&str, u32)) -> Result<(), Error> {
        let to = self.with(|inner| {
            let mut path = inner.path(from)?;
            let to = std::mem::replace(&mut path.target, device.1);
            inner.set_path(from, path).map(|()| to)
        })?;
        self.connect(device, to)
    }

    /// Changes the faults of what comes in on an interface.
    pub(crate) fn set_faults(&self, index: u32, faults: &Faults) -> Result<(), Error> {
        self.with(|inner| {
            let mut path = inner.path(index)?;
            faults.apply_to(&mut path)?;
            inner.set_path(index, path)
        })
    }

    /// Has UDP packets to this port that come in on an interface tagged, and others untagged.
    pub(crate) fn set_vlan(&self, index: u32, (vlan, port): (u16, u16)) -> Result<(), Error> {
        self.with(|inner| {
            let path = inner.path(index)?;
            let (vlan, vlan_port) = (vlan.into(), port.into());
            inner.set_path(index, Path { vlan, vlan_port, ..path })
        })
    }

    /// What came in on an interface, on all processors.
    pub(crate) fn counters(&self, index: u32) -> Result<Counters, Error> {
        self.with(|inner| {
            let what = "reading the counters of a link";
            let values = inner.counters.get(&index, 0).map_err(Error::bpf(what))?;
            Ok(values.iter().fold(Counters::default(), |sum, one| Counters {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
                seen: sum.seen + one.seen,
                lost: sum.lost + one.lost,
                duplicated: sum.duplicated + one.duplicated,
                held: sum.held + one.held,
                released: sum.released + one.released,
                crowded: sum.crowded + one.crowded,
                whole: sum.whole + one.whole,
            }))
        })
    }

    /// Attaches a probe to an interface of a namespace, in native mode, until the network goes.
    pub(crate) fn attach_probe(
        &self,
        namespace: &Namespace,
        name: &str,
        probe: Probe,
    ) -> Result<(), Error> {
        self.with(|inner| {
            let program: &mut Xdp = program(&mut inner.ebpf, probe.program())?;
            if program.fd().is_err() {
                let what = format!("loading program {}", probe.program());
                program.load().map_err(Error::bpf(what))?;
            }
            let what = format!("attaching program {} to {name}", probe.program());
            let attach = || program.attach(name, XdpMode::Driver).map_err(Error::bpf(what));
            namespace.run(attach)?.map(drop)
        })
    }

    /// What probes saw on interfaces with this index (of whichever namespace).
    pub(crate) fn seen(&self, index: u32) -> Result<Seen, Error> {
        self.with(|inner| {
            let what = "reading the counters of a probe";
            let values = inner.seen.get(&index, 0).map_err(Error::bpf(what))?;
            Ok(values.iter().fold(Seen::default(), |sum, one| Seen {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
            }))
        })
    }
}

impl Inner {
    fn path(&self, index: u32) -> Result<Path, Error> {
        self.paths.get(&index, 0).map_err(Error::bpf("reading the path of a link"))
    }

    fn set_path(&mut self, index: u32, path: Path) -> Result<(), Error> {
        self.paths.set(index, path, 0).map_err(Error::bpf("setting up a link"))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let inner = self.lock().take();
        // On kernels where detaching goes by interface index, it must happen in the namespace that
        // the index belongs to. If no thread can be had, the namespaces' end detaches all the same.
        let _ = self.namespace.run(|| drop(inner));
    }
}

fn program<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, Error>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or_else(|| Error::Config(format!("the kernel object has no program {name}")))?
        .try_into()
        .map_err(Error::bpf(format!("program {name} has another type than expected")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_checked() {
        let mut path = Path::default();
        Faults::loss(0.1).apply_to(&mut path).expect("it is a chance");
        assert_eq!((path.loss_ppm, path.faulty), (100_000, 1));
        Faults::NONE.apply_to(&mut path).expect("it is a chance");
        assert_eq!((path.loss_ppm, path.faulty), (0, 0));
        for wrong in [-0.1, 1.1, f64::NAN] {
            let error = Faults::loss(wrong).apply_to(&mut path).expect_err("it is not a chance");
            assert!(error.to_string().contains("between 0 and 1"), "{error}");
        }
    }
}
