//! Which engine to run, and opening it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which engine the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// XDP where it is permitted, interfaces are named and their drivers run it themselves;
    /// otherwise user space, with a warning.
    #[default]
    Auto,
    /// The XDP program in the kernel, or an error.
    Xdp,
    /// Plain UDP sockets; needs no privilege.
    Userspace,
}

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver; where that cannot be, `--engine auto` takes user space.
    #[default]
    Auto,
    /// In the driver, or an error.
    Native,
    /// Behind the driver, on any interface; slower than the user-space engine.
    Generic,
}

/// The address that workers on the aggregator's own host send data to, with the XDP engine: packets
/// to the host's own addresses reach no interface's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LocalAddr {
    /// One of [`LocalAddr::NET`], where it can be made.
    #[default]
    Auto,
    /// No address: workers on this host are refused.
    Off,
    /// This one, or an error. No host may have it already.
    At(Ipv4Addr),
}

impl LocalAddr {
    /// Of which network an address is chosen: `169.254.109.0/24`, which is link-local (RFC 3927).
    pub const NET: [u8; 3] = [169, 254, 109];
}

impl FromStr for LocalAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            text => crate::config::ipv4(text).map(Self::At).map_err(|error| {
                format!("{text:?}: auto, off or an IPv4 address of nobody is expected ({error})")
            }),
        }
    }
}

impl TryFrom<String> for LocalAddr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What an engine needs to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Which engine.
    pub kind: EngineKind,
    /// How XDP is attached.
    pub xdp_mode: XdpMode,
    /// Interfaces that workers are behind.
    pub interfaces: Vec<String>,
    /// Address that workers send to; None: any address of this host.
    pub data_addr: Option<Ipv4Addr>,
    /// Address that workers on this host send to.
    pub local_addr: LocalAddr,
    /// UDP port that workers send to. The user-space engine takes a free one for 0.
    pub data_port: u16,
    /// Slots of the whole pool.
    pub slots: u32,
    /// MTU that bounds the blocks; None: the smallest of the interfaces'.
    pub mtu: Option<u32>,
    /// VLAN of the data path, which the interfaces carry; None: that of the interfaces, if they
    /// stand for one.
    pub vlan: Option<u16>,
    /// Directory in a BPF file system where maps and attachments are pinned, so that they outlive
    /// this process. None: they end with it.
    pub pin: Option<PathBuf>,
    /// Removes what an earlier daemon left pinned there, with its jobs, instead of taking it over.
    pub fresh: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_read() {
        assert_eq!("auto".parse(), Ok(LocalAddr::Auto));
        assert_eq!("off".parse(), Ok(LocalAddr::Off));
        let addr = Ipv4Addr::new(169, 254, 1, 2);
        assert_eq!("169.254.1.2".parse(), Ok(LocalAddr::At(addr)));
        let error = "::1".parse::<LocalAddr>().expect_err("IPv6");
        assert!(error.contains("over IPv4 only"), "{error}");
        let error = "none".parse::<LocalAddr>().expect_err("no such word");
        assert!(error.contains("auto, off or an IPv4 address"), "{error}");
    }
}
