//! Maps and attachments that outlive the daemon: pinned in a directory of a BPF file system.
//!
//! A directory with a stamp holds a whole data path: maps, and a link for each interface. The links
//! keep the program attached whether a daemon runs or not. The next daemon loads its own program on
//! the same maps and puts it in the place of the old one, interface by interface, between two
//! packets. Entries of device maps hold their egress program, so copies leave by the old one until
//! a job starts anew. The stamp makes sure that both do the same with the same maps: it tells the
//! maps' layout, and what the program was loaded for.

use std::ffi::CString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aya::maps::{Array, MapData};
use tracing::{info, warn};
use xdp_agg_common::maps::{LAYOUT, MAX_JOBS, MAX_PORTS};
use xdp_agg_common::wire::VERSION;

use super::object::other;
use super::sys::{self, Stamp};
use crate::engine::{EngineConfig, EngineError, LocalAddr, XdpMode};
use crate::private;

/// The maps of the object that are pinned, besides the device maps of the jobs.
const MAPS: [&str; 11] = [
    "NEXT", "SLOTS", "JOBS", "MEMBERS", "COUNTERS", "EVENTS", "COPIES", "FANS", "BACK", "QUOTAS",
    "UPLINKS",
];
const STAMP: &str = "stamp";
const MAGIC: u64 = u64::from_be_bytes(*b"xdp-agg\0");

/// The right to use a directory of pins: one daemon at a time.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked just now has a copy until it executes.
        let _ = self.0.unlock();
    }
}

/// A directory of pins.
pub(super) struct Pins {
    dir: PathBuf,
    lock: Option<Lock>,
    /// What was found there.
    found: Option<Stamp>,
    /// Whether the pins stay when this is dropped.
    keep: bool,
}

impl Stamp {
    /// The stamp of a data path as it is wanted; `interfaces` by their numbers.
    pub(super) fn wanted(
        config: &EngineConfig,
        interfaces: impl Iterator<Item = u32>,
        vlan: u16,
    ) -> Result<Self, EngineError> {
        let namespace = fs::metadata("/proc/thread-self/ns/net");
        let mut stamp = Self {
            magic: MAGIC,
            layout: LAYOUT,
            namespace: namespace.map_err(|error| other("the network namespace", error))?.ino(),
            slots: config.slots,
            data_addr: config.data_addr.map_or(0, u32::from),
            data_port: config.data_port,
            wire: VERSION.into(),
            generic: u16::from(config.xdp_mode == XdpMode::Generic),
            vlan,
            local_ifindex: 0,
            local_addr: 0,
            switched_off: [0; MAX_PORTS],
            interfaces: [0; MAX_PORTS],
        };
        stamp.interfaces.iter_mut().zip(interfaces).for_each(|(place, index)| *place = index);
        Ok(stamp)
    }

    /// In what this differs from what is wanted, in words.
    fn differs(&self, wanted: &Self, config: &EngineConfig) -> Option<String> {
        let (magic, layout, wire) = (self.magic, self.layout, self.wire);
        if (magic, layout, wire) != (wanted.magic, wanted.layout, wanted.wire) {
            return Some("it is of another version of xdp-agg".into());
        }
        if self.namespace != wanted.namespace {
            return Some("it is in another network namespace".into());
        }
        let mode = match config.xdp_mode {
            XdpMode::Auto => self.generic,
            XdpMode::Native => 0,
            XdpMode::Generic => 1,
        };
        let addr = |addr: u32| match addr {
            0 => "any address".to_owned(),
            addr => std::net::Ipv4Addr::from(addr).to_string(),
        };
        let local = match self.local_addr {
            0 => "off".to_owned(),
            there => addr(there),
        };
        let local_wanted = match config.local_addr {
            LocalAddr::Auto => local.clone(),
            LocalAddr::Off => "off".to_owned(),
            LocalAddr::At(addr) => addr.to_string(),
        };
        let indexes = |stamp: &Self| {
            let used = stamp.interfaces.iter().take_while(|index| **index != 0);
            used.map(u32::to_string).collect::<Vec<_>>().join(", ")
        };
        let mode_name = |generic| if generic == 0 { "native" } else { "generic" }.to_owned();
        let rows = [
            ("slots", self.slots.to_string(), wanted.slots.to_string()),
            ("VLAN", self.vlan.to_string(), wanted.vlan.to_string()),
            ("data address", addr(self.data_addr), addr(wanted.data_addr)),
            ("local address", local, local_wanted),
            ("data port", self.data_port.to_string(), wanted.data_port.to_string()),
            ("XDP mode", mode_name(self.generic), mode_name(mode)),
            ("interfaces (by their numbers, in this order)", indexes(self), indexes(wanted)),
        ];
        let differing = rows.iter().filter(|(_, there, here)| there != here);
        let words: Vec<_> = differing
            .map(|(what, there, here)| format!("{what}: {there}, wanted {here}"))
            .collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

impl Pins {
    /// Opens or makes the directory. What is pinned there is to be adopted if it is what is wanted;
    /// with `config.fresh` it is removed, and its jobs end.
    pub(super) fn open(
        dir: &Path,
        config: &EngineConfig,
        wanted: &Stamp,
    ) -> Result<Self, EngineError> {
        make_directory(dir)?;
        let failed = |error| refused(dir, format!("it cannot be used: {error}"));
        let lock = File::open(dir).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(EngineError::PinsInUse { dir: dir.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let lock = Lock(lock);
        for entry in fs::read_dir(dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !name.to_str().is_some_and(is_ours) {
                let name = name.display();
                let why = format!("{name} in it is not xdp-agg's; it wants a directory of its own");
                return Err(refused(dir, why));
            }
        }
        let mut pins = Self { dir: dir.to_owned(), lock: Some(lock), found: None, keep: true };
        let found = pins.read_stamp()?;
        match found {
            Some(_) if config.fresh => pins.remove(),
            // A daemon died before its data path was whole.
            None => pins.remove(),
            Some(stamp) => {
                if let Some(differs) = stamp.differs(wanted, config) {
                    return Err(pins.misfit(differs));
                }
                pins.found = found;
                return Ok(pins);
            }
        }
        make_directory(dir)?;
        pins.keep = false;
        Ok(pins)
    }

    /// The stamp of the data path that is to be adopted.
    pub(super) const fn found(&self) -> Option<&Stamp> {
        self.found.as_ref()
    }

    /// The data path does not fit.
    pub(super) fn misfit(&self, differs: String) -> EngineError {
        EngineError::PinsMisfit { dir: self.dir.clone(), differs }
    }

    /// The maps to pin, and where.
    pub(super) fn maps(&self) -> Vec<(&'static str, PathBuf)> {
        let all = MAPS.into_iter().chain(PORTS);
        all.map(|name| (name, self.dir.join(name))).collect()
    }

    /// Pins the attachment of the interface with this number among the served ones.
    pub(super) fn pin_link(&self, number: usize, link: BorrowedFd<'_>) -> Result<(), EngineError> {
        let pinned = sys::pin(link, &self.c_path(&link_name(number))?);
        pinned.map_err(|error| other("pinning an attachment", error))
    }

    /// The interface has another attachment.
    pub(super) fn pin_link_again(
        &self,
        number: usize,
        link: BorrowedFd<'_>,
    ) -> Result<(), EngineError> {
        match fs::remove_file(self.dir.join(link_name(number))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(other("the pin of an attachment", error))
            }
            _ => self.pin_link(number, link),
        }
    }

    /// Opens that attachment. None: it is not pinned.
    pub(super) fn link(&self, number: usize) -> Result<Option<OwnedFd>, EngineError> {
        match sys::open_pinned(&self.c_path(&link_name(number))?) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(other("a pinned attachment", error)),
        }
    }

    /// All is pinned: from now on the next daemon may adopt it.
    pub(super) fn seal(&self, stamp: Stamp) -> Result<(), EngineError> {
        const WHAT: &str = "pinning the stamp";
        let mut map = Array::<MapData, Stamp>::create(1, 0).map_err(|error| other(WHAT, error))?;
        map.set(0, stamp, 0).map_err(|error| other(WHAT, error))?;
        map.pin(self.dir.join(STAMP)).map_err(|error| other(WHAT, error))
    }

    /// Hands over the lock, to be dropped after all that it guards.
    pub(super) fn take_lock(&mut self) -> Option<Lock> {
        self.lock.take()
    }

    /// Whether the pins stay when this is dropped.
    pub(super) fn set_keep(&mut self, keep: bool) {
        self.keep = keep;
    }

    fn read_stamp(&self) -> Result<Option<Stamp>, EngineError> {
        let path = self.dir.join(STAMP);
        if !path.try_exists().unwrap_or(false) {
            return Ok(None);
        }
        let strange = |error: aya::maps::MapError| {
            self.misfit(format!("it is of another version of xdp-agg ({error})"))
        };
        let map = MapData::from_pin(path).map_err(strange)?;
        if map.info().map_err(strange)?.value_size() as usize != size_of::<Stamp>() {
            return Err(self.misfit("it is of another version of xdp-agg".into()));
        }
        let map = aya::maps::Map::from_map_data(map).map_err(strange)?;
        let map = Array::<MapData, Stamp>::try_from(map).map_err(strange)?;
        map.get(&0, 0).map(Some).map_err(strange)
    }

    /// Removes all pins, the stamp first: half a data path must not look like a whole one.
    fn remove(&self) {
        let links = (0..MAX_PORTS).map(link_name);
        let maps = MAPS.into_iter().chain(PORTS).map(str::to_owned);
        for name in [STAMP.to_owned()].into_iter().chain(links).chain(maps) {
            match fs::remove_file(self.dir.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!(pin = name, "a pin could not be removed: {error}");
                }
                _ => {}
            }
        }
    }

    fn c_path(&self, name: &str) -> Result<CString, EngineError> {
        let path = self.dir.join(name);
        CString::new(path.as_os_str().as_bytes()).map_err(|error| other("the pins' path", error))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        self.remove();
        // Somebody may have put something there meanwhile; the directory stays then.
        let _ = fs::remove_dir(&self.dir);
        info!(dir = %self.dir.display(), "the data path is not pinned any more");
    }
}

const PORTS: [&str; MAX_JOBS] = [
    "PORTS_0", "PORTS_1", "PORTS_2", "PORTS_3", "PORTS_4", "PORTS_5", "PORTS_6", "PORTS_7",
    "PORTS_8", "PORTS_9", "PORTS_10", "PORTS_11", "PORTS_12", "PORTS_13", "PORTS_14", "PORTS_15",
    "PORTS_16", "PORTS_17", "PORTS_18", "PORTS_19", "PORTS_20", "PORTS_21", "PORTS_22", "PORTS_23",
    "PORTS_24", "PORTS_25", "PORTS_26", "PORTS_27", "PORTS_28", "PORTS_29", "PORTS_30", "PORTS_31",
    "PORTS_32", "PORTS_33", "PORTS_34", "PORTS_35", "PORTS_36", "PORTS_37", "PORTS_38", "PORTS_39",
    "PORTS_40", "PORTS_41", "PORTS_42", "PORTS_43", "PORTS_44", "PORTS_45", "PORTS_46", "PORTS_47",
];

fn link_name(number: usize) -> String {
    format!("link_{number}")
}

fn is_ours(name: &str) -> bool {
    let link = name.strip_prefix("link_").and_then(|number| number.parse::<usize>().ok());
    name == STAMP
        || MAPS.contains(&name)
        || PORTS.contains(&name)
        || link.is_some_and(|number| number < MAX_PORTS)
}

/// Makes the directory, if it lies in a BPF file system.
fn make_directory(dir: &Path) -> Result<(), EngineError> {
    let there = dir.ancestors().find(|at| at.exists());
    let there = there.ok_or_else(|| refused(dir, "there is no such place".into()))?;
    let bpf = sys::is_bpf_file_system(there);
    if !bpf.map_err(|error| refused(dir, format!("{}: {error}", there.display())))? {
        let why = format!(
            "{} is not in a BPF file system, the only one that keeps maps and attachments; mount \
             one (`mount -t bpf -o mode=0700 bpf /sys/fs/bpf`) and choose a directory in it",
            there.display()
        );
        return Err(refused(dir, why));
    }
    private::make_directory(dir).map_err(|error| refused(dir, error.to_string()))
}

fn refused(dir: &Path, why: String) -> EngineError {
    EngineError::Pins { dir: dir.to_owned(), why }
}
