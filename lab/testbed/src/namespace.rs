//! Network namespaces without names.
//!
//! A namespace is held by a descriptor of this process and by nothing else. So the kernel destroys
//! it, with every interface in it, when the process ends in whatever way: a killed run leaves
//! nothing behind. Its name is for messages only.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{getegid, geteuid, getpid};
use rustix::thread::{CapabilitySet, UnshareFlags, remove_capability_from_bounding_set};

use crate::error::Error;
use crate::netlink::{Netlink, VethEnd};
use crate::sys;

/// A network namespace that lives as long as this value, its clones and the processes in it.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    label: String,
    fd: OwnedFd,
    netlink: Mutex<Netlink>,
}

impl Namespace {
    /// Makes an empty namespace whose loopback interface is up and which does not speak IPv6 of its
    /// own accord. The label is for messages.
    ///
    /// # Errors
    /// No privilege (see [`enter_user_namespace`]), or no more namespaces.
    pub fn new(label: impl Into<String>) -> Result<Self, Error> {
        let label = label.into();
        let (fd, netlink) = on_a_thread(&label, || -> Result<_, Error> {
            sys::unshare(UnshareFlags::NEWNET).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => Error::NotPermitted(
                    "making a network namespace needs root, or a user namespace of one's own \
                     (`unshare --user --map-root-user`)"
                        .into(),
                ),
                _ => Error::os(format!("making network namespace {label}"))(source),
            })?;
            // Neighbour discovery and multicast reports would be noise in every count of packets.
            // Where IPv6 is not compiled in there is no such file, and no noise.
            for which in ["all", "default"] {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
            // Where the machine has bridges' frames meet its packet filter, those of ours need not:
            // a switch has none, and it took an eighth of the time. Elsewhere there are no
            // such files either.
            for which in ["iptables", "ip6tables", "arptables"] {
                let _ = fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{which}"), "0");
            }
            let file = File::open("/proc/thread-self/ns/net")
                .map_err(Error::os("opening the new network namespace (is /proc mounted?)"))?;
            Ok((OwnedFd::from(file), Netlink::open()?))
        })??;
        let namespace = Self(Arc::new(Inner { label, fd, netlink: Mutex::new(netlink) }));
        namespace.netlink().set_up("lo")?;
        Ok(namespace)
    }

    /// What this namespace is called in messages.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// True if this is a handle on the same namespace.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The netlink socket in this namespace, for one thread at a time.
    pub(crate) fn netlink(&self) -> MutexGuard<'_, Netlink> {
        // What a panicking thread leaves is a socket: the next request reads past old answers.
        self.0.netlink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a closure on a thread in this namespace, and waits for it. Sockets that it opens stay
    /// in the namespace, wherever they are used. A panic in the closure goes on here.
    ///
    /// # Errors
    /// The thread could not be started or moved.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        on_a_thread(self.label(), || {
            sys::enter_network(self.as_fd())
                .map_err(Error::os(format!("entering network namespace {}", self.label())))?;
            Ok(work())
        })?
    }

    /// A command that will run in this namespace, lead a process group of its own, and be killed
    /// when the thread that spawns it ends, even if this process is killed.
    ///
    /// Spawn it with [`crate::Process::spawn`], which does so from a thread that lives as long as
    /// this process; `output` and `status` of the standard library are fine as well.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let inner = Arc::clone(&self.0);
        let parent = getpid();
        let mut command = Command::new(program);
        command.process_group(0);
        let prepare = move || {
            sys::die_with_parent(parent)?;
            sys::enter_network(inner.fd.as_fd())
        };
        // SAFETY: between fork and exec the closure makes system calls and nothing else: it does
        // not allocate, lock or touch what another thread may have been changing.
        unsafe { command.pre_exec(prepare) };
        command
    }

    /// The same for a program that has no say over the network, as training has none: its sockets
    /// get no larger buffers than `net.core.rmem_max` and `wmem_max` allow. For root only.
    pub fn unprivileged_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.command(program);
        let drop = || Ok(remove_capability_from_bounding_set(CapabilitySet::NET_ADMIN)?);
        // SAFETY: between fork and exec the closure makes one system call and nothing else. It is
        // the last one, which needs the privilege no more.
        unsafe { command.pre_exec(drop) };
        command
    }

    /// Names of the interfaces in it.
    pub fn interfaces(&self) -> Result<Vec<String>, Error> {
        self.netlink().interfaces()
    }

    /// Sets the MTU of an interface in it.
    ///
    /// # Errors
    /// No such interface, or an MTU that it does not take.
    pub fn set_mtu(&self, interface: &str, mtu: u32) -> Result<(), Error> {
        self.netlink().set_mtu(interface, mtu)
    }

    /// Connects it to another namespace by a veth pair with addresses of its own, up on both ends.
    /// The pair is gone when either namespace is.
    ///
    /// # Errors
    /// Netlink's, such as a name that is taken.
    pub fn connect(
        &self,
        (name, address): (&str, Ipv4Addr),
        other: &Self,
        (other_name, other_address): (&str, Ipv4Addr),
    ) -> Result<(), Error> {
        let end = |name, last| VethEnd { name, mac: [0x02, 0x88, 1, 0, 0, last], index: 0 };
        self.netlink().add_veth(&end(name, 0), (other, &end(other_name, 1)), 1500)?;
        let ends = [(self, name, address), (other, other_name, other_address)];
        for (namespace, name, address) in ends {
            namespace.netlink().set_up(name)?;
            namespace.netlink().add_address(name, address, 30)?;
        }
        Ok(())
    }

    /// Opens a namespace that exists, such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// It is not a namespace, or not ours to enter.
    pub fn open(path: &std::path::Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        let file =
            File::open(path).map_err(Error::os(format!("opening network namespace {label}")))?;
        let fd = OwnedFd::from(file);
        let netlink = on_a_thread(&label, || {
            sys::enter_network(fd.as_fd())
                .map_err(Error::os(format!("entering network namespace {label}")))?;
            Netlink::open()
        })??;
        Ok(Self(Arc::new(Inner { label, fd, netlink: Mutex::new(netlink) })))
    }

    /// The command line that opens a shell in this namespace as long as this process lives.
    pub fn nsenter(&self) -> String {
        format!("nsenter --net=/proc/{}/fd/{}", std::process::id(), self.as_fd().as_raw_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Runs a closure on a thread of its own, so that what it does to its thread ends with it.
fn on_a_thread<T: Send>(label: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name(format!("in {label}"))
            .spawn_scoped(scope, work)
            .map_err(Error::os("starting a thread"))?;
        Ok(thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload)))
    })
}

/// True where this process may make namespaces as it is.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Makes this process root of a user namespace of its own, in which it may build networks (without
/// BPF, so without faults and XDP). For programs that run without root; call it first in `main`,
/// before any thread is started.
///
/// # Errors
/// The process has threads already, or this machine does not allow user namespaces.
pub fn enter_user_namespace() -> Result<(), Error> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(|source| {
        match source.raw_os_error() {
            Some(libc::EINVAL) => Error::Config(
                "a user namespace must be entered before the process starts its first thread"
                    .into(),
            ),
            _ => Error::NotPermitted(format!(
                "this machine does not let ordinary users make user namespaces ({source}): run as \
             root, or allow it (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns)"
            )),
        }
    })?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).map_err(Error::os(format!("writing {file}")))
    };
    // Without this the kernel does not take a group map from an ordinary user.
    write("setgroups", "deny".into())?;
    write("uid_map", format!("0 {uid} 1"))?;
    write("gid_map", format!("0 {gid} 1"))
}
