//! Interface features (offloads) by the names that `ethtool -k` and the kernel use.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::sys;

/// Generic receive offload. On a veth it also gives the interface a receive queue of its own
/// (NAPI), without which frames redirected to its peer by XDP are lost.
pub const GRO: &str = "rx-gro";
/// TCP segmentation by the interface: super-packets cross it whole.
pub const TSO: &str = "tx-tcp-segmentation";
/// UDP segmentation by the interface: trains of `UDP_SEGMENT` cross it whole.
pub const UDP_SEGMENTATION: &str = "tx-udp-segmentation";
/// Checksums by the interface: on a veth, none are worked out at all.
pub const TX_CHECKSUM: &str = "tx-checksum-ip-generic";

/// VLAN tags by the interface: on a veth, they stand beside the frame and not in it.
pub const TX_VLAN: &str = "tx-vlan-hw-insert";

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const NAME_LEN: usize = 32;

/// Turns features of an interface on or off.
///
/// # Errors
/// No such interface or feature, no privilege, or the kernel keeps the feature as it is.
pub fn set_features(
    namespace: &Namespace,
    interface: &str,
    changes: &[(&str, bool)],
) -> Result<(), Error> {
    namespace.run(|| Device::open(interface)?.set(changes))?
}

/// True if a feature of an interface is on.
///
/// # Errors
/// No such interface or feature.
pub fn feature(namespace: &Namespace, interface: &str, name: &str) -> Result<bool, Error> {
    namespace.run(|| {
        let device = Device::open(interface)?;
        let bit = device.bit(name)?;
        Ok(device.active()?[bit / 32] & 1 << (bit % 32) != 0)
    })?
}

struct Device<'a> {
    socket: UdpSocket,
    interface: &'a str,
    names: Vec<String>,
}

impl<'a> Device<'a> {
    /// For the namespace of the calling thread.
    fn open(interface: &'a str) -> Result<Self, Error> {
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(Error::os("opening a socket"))?;
        let mut device = Self { socket, interface, names: Vec::new() };
        device.names = device.read_names()?;
        Ok(device)
    }

    fn call(&self, what: &str, data: &mut [u32]) -> Result<(), Error> {
        sys::ethtool(self.socket.as_fd(), self.interface, data)
            .map_err(Error::os(format!("{what} of interface {}", self.interface)))
    }

    /// Names of all features; the index is the number of the bit.
    fn read_names(&self) -> Result<Vec<String>, Error> {
        // cmd, reserved, mask (64 bits), then one length for the one set that is asked for.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.call("counting the features", &mut info)?;
        let count = info[4] as usize;
        let mut data = vec![0; 3 + count * NAME_LEN / 4];
        data[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info[4]]);
        self.call("reading the features' names", &mut data)?;
        let bytes: Vec<u8> = data[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = |raw: &[u8]| {
            let end = raw.iter().position(|&byte| byte == 0).unwrap_or(raw.len());
            String::from_utf8_lossy(&raw[..end]).into_owned()
        };
        Ok(bytes.chunks_exact(NAME_LEN).map(name).collect())
    }

    fn bit(&self, name: &str) -> Result<usize, Error> {
        self.names.iter().position(|known| known == name).ok_or_else(|| {
            Error::Config(format!("interface {} has no feature named {name}", self.interface))
        })
    }

    fn words(&self) -> usize {
        self.names.len().div_ceil(32)
    }

    fn active(&self) -> Result<Vec<u32>, Error> {
        // cmd, size, then per word: available, requested, active, never changed.
        let mut data = vec![0; 2 + 4 * self.words()];
        data[0] = ETHTOOL_GFEATURES;
        data[1] = self.words() as u32;
        self.call("reading the features", &mut data)?;
        Ok(data[2..].chunks_exact(4).map(|block| block[2]).collect())
    }

    fn set(&self, changes: &[(&str, bool)]) -> Result<(), Error> {
        // cmd, size, then per word: which bits are meant, what they shall be.
        let mut data = vec![0; 2 + 2 * self.words()];
        data[0] = ETHTOOL_SFEATURES;
        data[1] = self.words() as u32;
        for &(name, on) in changes {
            let bit = self.bit(name)?;
            data[2 + 2 * (bit / 32)] |= 1 << (bit % 32);
            data[3 + 2 * (bit / 32)] |= u32::from(on) << (bit % 32);
        }
        self.call("setting features", &mut data)?;
        let active = self.active()?;
        for &(name, on) in changes {
            let bit = self.bit(name)?;
            if (active[bit / 32] & 1 << (bit % 32) != 0) != on {
                let state = if on { "off" } else { "on" };
                return Err(Error::Config(format!(
                    "the kernel keeps {name} of interface {} {state}",
                    self.interface
                )));
            }
        }
        Ok(())
    }
}
