//! System calls that no dependency wraps.
#![expect(unsafe_code, reason = "system calls")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use xdp_agg_common::lanes::{Chunk, MAX_CHUNKS};
use xdp_agg_common::maps::{MAX_PORTS, SLOT_LEN, SlotHead};

/// A slot as the kernel's table holds it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawSlot {
    /// The lock, and the slot's state.
    pub head: SlotHead,
    /// Its lanes.
    pub lanes: [Chunk; MAX_CHUNKS],
}

impl RawSlot {
    /// A slot that was never used.
    #[must_use]
    pub fn empty() -> Self {
        Self { head: SlotHead::default(), lanes: [Chunk::default(); MAX_CHUNKS] }
    }
}

const _: () = assert!(size_of::<RawSlot>() == SLOT_LEN);

// SAFETY: repr(C) of plain integers without padding (the sizes add up, asserted above and beside
// the fields' types): any bytes are a value, and no byte is undefined.
unsafe impl aya::Pod for RawSlot {}

/// What a pinned data path was made for (`pins`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Stamp {
    pub(super) magic: u64,
    pub(super) layout: u64,
    /// Number of the network namespace.
    pub(super) namespace: u64,
    pub(super) slots: u32,
    pub(super) data_addr: u32,
    pub(super) data_port: u16,
    /// Version of the wire format.
    pub(super) wire: u16,
    /// 1: attached in generic mode.
    pub(super) generic: u16,
    /// VLAN of the data path; 0: none.
    pub(super) vlan: u16,
    /// Number of the interface for workers of this host; 0: none.
    pub(super) local_ifindex: u32,
    /// Their address for the aggregator.
    pub(super) local_addr: u32,
    /// What attaching switched off at each served interface, as bits.
    pub(super) switched_off: [u8; MAX_PORTS],
    /// Numbers of the served interfaces, then zeros.
    pub(super) interfaces: [u32; MAX_PORTS],
}

const _: () = assert!(size_of::<Stamp>() == 48 + 5 * MAX_PORTS);

// SAFETY: as above.
unsafe impl aya::Pod for Stamp {}

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
const BPF_XDP: u32 = 37;
const MEMBARRIER_CMD_GLOBAL: libc::c_long = 1;

/// The fields of `union bpf_attr` that `BPF_LINK_CREATE` reads.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// The fields of `union bpf_attr` that `BPF_MAP_CREATE` reads.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner_map_fd: u32,
}

/// The fields of `union bpf_attr` that `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_DELETE_ELEM` read.
#[repr(C)]
struct MapElement {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The fields of `union bpf_attr` that `BPF_OBJ_GET_INFO_BY_FD` reads.
#[repr(C)]
struct GetInfo {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// The part of `struct bpf_link_info` that an XDP link has.
#[repr(C, align(8))]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
}

/// The fields of `union bpf_attr` that `BPF_LINK_UPDATE` reads.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// The fields of `union bpf_attr` that `BPF_OBJ_PIN` and `BPF_OBJ_GET` read.
#[repr(C)]
struct Pin {
    path: u64,
    fd: u32,
    flags: u32,
}

/// `bpf(2)` with the fields of `union bpf_attr` that the command reads: what it answers.
///
/// # Errors
/// The system's.
///
/// # Safety
/// `attr` has the command's fields, and what they point to is as they say.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: the call reads `attr`, whose size is given; the rest is as the caller promises.
    match unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attr), size_of::<T>()) } {
        answer if answer < 0 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// The same, of a command that makes a descriptor.
///
/// # Errors
/// The system's.
///
/// # Safety
/// As [`bpf`], and the command makes a descriptor.
unsafe fn bpf_descriptor<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises.
    let fd = unsafe { bpf(command, attr)? };
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Puts another program in the place of a link's, between two packets.
///
/// # Errors
/// `ENOLINK`: the interface is gone. Otherwise the system's.
pub(super) fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attr = LinkUpdate {
        link_fd: link.as_raw_fd() as u32,
        new_prog_fd: program.as_raw_fd() as u32,
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: the command reads these fields, and no memory.
    unsafe { bpf(BPF_LINK_UPDATE, &attr) }.map(drop)
}

/// The interface that an XDP link is attached to; None: to none any more.
pub(super) fn attached_to(link: BorrowedFd<'_>) -> Option<u32> {
    let mut info = LinkInfo::default();
    let attr = GetInfo {
        fd: link.as_raw_fd() as u32,
        info_len: size_of::<LinkInfo>() as u32,
        info: ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the command reads these fields, and writes as much of `info` as they say.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) }.ok()?;
    Some(info.ifindex).filter(|ifindex| *ifindex != 0)
}

/// Takes a link's program away from its interface, as an administrator may.
///
/// # Errors
/// The system's.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let fd = link.as_raw_fd() as u32;
    // SAFETY: the command reads the descriptor, and no memory.
    unsafe { bpf(BPF_LINK_DETACH, &fd) }.map(drop)
}

/// Gives a map, program or link a name in a BPF file system, which keeps it.
///
/// # Errors
/// The system's.
pub(super) fn pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let attr = Pin { path: path.as_ptr() as u64, fd: object.as_raw_fd() as u32, flags: 0 };
    // SAFETY: the command reads these fields, and the string that they point to.
    unsafe { bpf(BPF_OBJ_PIN, &attr) }.map(drop)
}

/// Opens what has this name in a BPF file system.
///
/// # Errors
/// The system's.
pub(super) fn open_pinned(path: &CStr) -> io::Result<OwnedFd> {
    let attr = Pin { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the command reads these fields, and the string that they point to. It makes a
    // descriptor.
    unsafe { bpf_descriptor(BPF_OBJ_GET, &attr) }
}

/// Whether this path, which exists, is in a BPF file system.
///
/// # Errors
/// The system's.
pub(super) fn is_bpf_file_system(path: &Path) -> io::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a `statfs` of zeros is valid: integers.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string that is alive, and a place for the answer.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(about.f_type as u64 == BPF_FS_MAGIC)
}

/// Attaches an XDP program to an interface by a link: it lasts as long as the descriptor is open,
/// and no longer than the process.
///
/// # Errors
/// The system's.
pub(super) fn attach_xdp(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type: BPF_XDP,
        flags,
    };
    // SAFETY: the command reads these fields, and no memory. It makes a descriptor.
    unsafe { bpf_descriptor(BPF_LINK_CREATE, &attr) }
}

/// Empties an entry of a map that has 32-bit keys. An empty entry is not an error.
///
/// # Errors
/// The system's.
pub(super) fn delete_entry(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let attr = MapElement {
        map_fd: map.as_raw_fd() as u32,
        pad: 0,
        key: ptr::from_ref(&key) as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: the command reads these fields, and the key that they point to.
    match unsafe { bpf(BPF_MAP_DELETE_ELEM, &attr) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Waits until every run of an XDP program that began before this call has ended.
pub(super) fn wait_for_running_programs() {
    // SAFETY: takes no memory. It waits for an RCU grace period, and programs run inside RCU
    // read-side sections.
    if unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } == 0 {
        return;
    }
    // Not offered on kernels with tick-less CPUs, nor by some profiles of seccomp.
    if let Err(error) = wait_by_map() {
        tracing::warn!(
            "the kernel offers no way to wait until its programs are done ({error}): waiting \
             50 ms, which no packet takes unless its CPU is stopped meanwhile"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The same without `membarrier`: since Linux 4.20 user space that replaces an entry of a map of
/// maps comes back when all programs that may use the old one have ended.
///
/// # Errors
/// The system's.
fn wait_by_map() -> io::Result<()> {
    let create = |kind, value_size, inner_map_fd: u32| {
        let attr = MapCreate { kind, key_size: 4, value_size, entries: 1, flags: 0, inner_map_fd };
        // SAFETY: the command reads these fields, and no memory. It makes a descriptor.
        unsafe { bpf_descriptor(BPF_MAP_CREATE, &attr) }
    };
    let inner = create(BPF_MAP_TYPE_ARRAY, 4, 0)?;
    let inner_fd = inner.as_raw_fd() as u32;
    let outer = create(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, inner_fd)?;
    let key = 0_u32;
    let attr = MapElement {
        map_fd: outer.as_raw_fd() as u32,
        pad: 0,
        key: ptr::from_ref(&key) as u64,
        value: ptr::from_ref(&inner_fd) as u64,
        flags: 0,
    };
    // SAFETY: the command reads these fields, and the key and value that they point to.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }.map(drop)
}

/// The monotonic clock as this process's time namespace has it.
pub(super) fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `now`. It cannot fail: every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Waits until one of two descriptors can be read or is closed at the other end.
///
/// # Errors
/// The system's.
pub(super) fn wait_readable(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<[bool; 2]> {
    let poll =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(a), poll(b)];
    loop {
        // SAFETY: `fds` is an array of two.
        if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } >= 0 {
            return Ok(fds.map(|fd| fd.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether an interface has this number in this network namespace.
pub(super) fn is_here(ifindex: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the call writes a name of at most that length.
    !unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null()
}

/// Index of an interface in this network namespace; None if there is none of that name.
pub(super) fn ifindex(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string that is alive.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without `membarrier` a real grace period is waited for, too. That the kernel waits cannot be
    /// seen from here; that it takes the map can.
    #[test]
    fn there_is_another_way_to_wait_for_programs() {
        match wait_by_map() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: maps need CAP_BPF");
            }
            waited => waited.expect("Linux has maps of maps since 4.12"),
        }
    }
}
