//! Questions to the kernel about network interfaces, by `ioctl`, pairs of them ([`pair`]), and
//! word of their changes ([`watch`]).
#![expect(unsafe_code, reason = "ioctl, getifaddrs and setns are C interfaces")]

pub mod features;
pub mod pair;
pub mod vlan;
pub mod watch;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use socket2::{Domain, Socket, Type};

/// An IPv4 address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub addr: Ipv4Addr,
    /// The interface is up.
    pub up: bool,
    /// It is the loopback interface.
    pub loopback: bool,
}

/// All IPv4 addresses of this network namespace.
///
/// # Errors
/// The system's.
pub fn addresses() -> io::Result<Vec<Address>> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is a valid place for the pointer that the call stores.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is the list's head or a `ifa_next` of it, not null, and the list is alive.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null; every socket address starts with its family.
        if i32::from(unsafe { (*entry.ifa_addr).sa_family }) != libc::AF_INET {
            continue;
        }
        // SAFETY: an address of family AF_INET is a `sockaddr_in`.
        let inet = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
        // SAFETY: `ifa_name` is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let has = |flag: libc::c_int| entry.ifa_flags & flag as libc::c_uint != 0;
        found.push(Address {
            interface: name.to_string_lossy().into_owned(),
            addr: Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr)),
            up: has(libc::IFF_UP),
            loopback: has(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: the list came from `getifaddrs` and nothing of it is used below.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Runs `question` on a thread that has entered another network namespace.
///
/// # Errors
/// The namespace may not be entered (CAP_SYS_ADMIN is needed), or no thread can be had.
pub fn in_namespace<T: Send>(
    namespace: &File,
    question: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let enter = || {
        // SAFETY: the call takes a descriptor, and changes only the calling thread.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(question())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the question panicked")))
    })
}

/// Asks the kernel about interfaces.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

/// What a driver says about its features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Generic receive offload; None where the driver cannot tell.
    pub gro: Option<bool>,
    /// Large receive offload; None where the driver cannot tell.
    pub lro: Option<bool>,
    /// Taking VLAN tags off; None where the driver cannot tell.
    pub rx_vlan: Option<bool>,
}

const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value` of the kernel.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_drvinfo` of the kernel.
#[repr(C)]
struct EthtoolDrvinfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

impl Links {
    /// Opens the socket that the questions go through.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::new(Domain::IPV4, Type::DGRAM, None)? })
    }

    /// MTU of an interface, in bytes.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn mtu(&self, interface: &str) -> io::Result<u32> {
        let mut request = named(interface)?;
        // SAFETY: SIOCGIFMTU reads the name and writes the integer of a valid `ifreq`.
        unsafe { ioctl(self.socket.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut request)? };
        // SAFETY: the call succeeded, so the union holds the MTU.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.unsigned_abs())
    }

    /// Whether an interface is up, and whether it has a carrier.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn state(&self, interface: &str) -> io::Result<(bool, bool)> {
        let mut request = named(interface)?;
        // SAFETY: SIOCGIFFLAGS reads the name and writes the flags of a valid `ifreq`.
        unsafe { ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &mut request)? };
        // SAFETY: the call succeeded, so the union holds the flags.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok((flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0))
    }

    /// Name of the driver of an interface.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn driver(&self, interface: &str) -> io::Result<String> {
        let mut info = EthtoolDrvinfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        // SAFETY: `EthtoolDrvinfo` has the layout and size that ETHTOOL_GDRVINFO writes.
        unsafe { self.ethtool(interface, &mut info)? };
        let len = info.driver.iter().position(|b| *b == 0).unwrap_or(info.driver.len());
        Ok(String::from_utf8_lossy(&info.driver[..len]).into_owned())
    }

    /// Receive offloads of an interface.
    #[must_use]
    pub fn offloads(&self, interface: &str) -> Offloads {
        let flags = self.value(interface, ETHTOOL_GFLAGS).ok();
        Offloads {
            gro: self.value(interface, ETHTOOL_GGRO).ok().map(|v| v != 0),
            lro: flags.map(|v| v & ETH_FLAG_LRO != 0),
            rx_vlan: flags.map(|v| v & ETH_FLAG_RXVLAN != 0),
        }
    }

    /// Switches generic receive offload on or off.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn set_gro(&self, interface: &str, on: bool) -> io::Result<()> {
        let mut value = EthtoolValue { cmd: ETHTOOL_SGRO, data: on.into() };
        // SAFETY: the command reads one `ethtool_value`.
        unsafe { self.ethtool(interface, &mut value) }
    }

    fn value(&self, interface: &str, cmd: u32) -> io::Result<u32> {
        let mut value = EthtoolValue { cmd, data: 0 };
        // SAFETY: the commands used here write one `ethtool_value`.
        unsafe { self.ethtool(interface, &mut value)? };
        Ok(value.data)
    }

    /// # Safety
    /// `T` must be the structure that the command in its first field reads and writes.
    unsafe fn ethtool<T: ?Sized>(&self, interface: &str, data: &mut T) -> io::Result<()> {
        let mut request = named(interface)?;
        request.ifr_ifru.ifru_data = ptr::from_mut(data).cast();
        // SAFETY: the request holds a valid name and a pointer to a structure that fits its
        // command, as the caller promises.
        unsafe { ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &mut request) }
    }
}

/// An `ifreq` with this name in it.
fn named(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an `ifreq` of zeros is valid: a name and integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: the kernel wants a C string.
    let room = request.ifr_name.len() - 1;
    if interface.is_empty() || interface.len() > room {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{interface:?} is no name of an interface (1 to {room} bytes)"),
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// # Safety
/// `number` must be a request that reads and writes an `ifreq` as it stands.
unsafe fn ioctl(fd: RawFd, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `request` is a valid `ifreq`; the rest is the caller's promise.
    if unsafe { libc::ioctl(fd, number, ptr::from_mut(request)) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENODEV) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such interface"));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_mtu() {
        let all = addresses().expect("getifaddrs works everywhere");
        let lo = all.iter().find(|a| a.addr == Ipv4Addr::LOCALHOST).expect("there is a loopback");
        assert!(lo.loopback && lo.up, "{lo:?}");
        let mtu = Links::open().and_then(|links| links.mtu(&lo.interface)).expect("it has an MTU");
        assert!(mtu >= 1280, "{mtu}");
    }

    #[test]
    fn an_interface_that_is_not_there_is_not_found() {
        let links = Links::open().expect("a socket");
        for name in ["no-such-if0", "", "a-name-that-is-far-too-long"] {
            let error = links.mtu(name).expect_err("there is no such interface");
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name:?}: {error}");
        }
    }
}
