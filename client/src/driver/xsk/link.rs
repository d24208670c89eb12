//! The program's hold on an interface: a link of the kernel, which ends with its descriptor.
#![expect(unsafe_code, reason = "bpf(2) has no wrapper that gives the descriptor away")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use xdp_agg_forks::Kept;

const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The fields of `union bpf_attr` that `BPF_LINK_CREATE` reads.
#[repr(C)]
struct Create {
    program: u32,
    ifindex: u32,
    kind: u32,
    flags: u32,
}

/// A program on an interface, as long as this lives.
pub(super) struct Link(#[expect(dead_code, reason = "it is held")] Kept);

impl Link {
    /// Attaches a program where the driver runs it, and where there is no other one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        let program = program.as_raw_fd() as u32;
        let wanted = Create { program, ifindex, kind: BPF_XDP, flags: XDP_FLAGS_DRV_MODE };
        let create = || -> io::Result<OwnedFd> {
            // SAFETY: the command reads these fields, and no memory.
            let fd = unsafe { bpf(BPF_LINK_CREATE, &wanted)? };
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        // A child's copy would hold the program on the interface when this process is gone.
        Kept::new(create).map(Self)
    }
}

/// `bpf(2)` with the fields of `union bpf_attr` that the command reads.
///
/// # Safety
/// `attr` has the command's fields.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<i32> {
    // SAFETY: the call reads `attr`, whose size is given.
    match unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attr), size_of::<T>()) } {
        answer if answer < 0 => Err(io::Error::last_os_error()),
        answer => Ok(answer as i32),
    }
}
