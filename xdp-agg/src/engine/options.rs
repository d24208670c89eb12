//! Which engine to run, and opening it.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::userspace::UserspaceEngine;
use super::xdp::XdpEngine;
use super::{Engine, EngineError};

/// Which engine the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// XDP where it is permitted and interfaces are named, otherwise user space, with a warning.
    #[default]
    Auto,
    /// The XDP program in the kernel, or an error.
    Xdp,
    /// Plain UDP sockets; needs no privilege.
    Userspace,
}

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native where the driver can, otherwise generic, with a warning.
    #[default]
    Auto,
    /// In the driver, or an error.
    Native,
    /// Behind the driver, on any interface; slower.
    Generic,
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
    /// UDP port that workers send to. The user-space engine takes a free one for 0.
    pub data_port: u16,
    /// Slots of the whole pool.
    pub slots: u32,
    /// MTU that bounds the blocks; None: the smallest of the interfaces'.
    pub mtu: Option<u32>,
    /// Directory in a BPF file system where maps and attachments are pinned, so that they outlive
    /// this process. None: they end with it.
    pub pin: Option<PathBuf>,
    /// Removes what an earlier daemon left pinned there, with its jobs, instead of taking it over.
    pub fresh: bool,
}

/// Opens the engine that `config` asks for.
///
/// # Errors
/// The engine's. With [`EngineKind::Auto`] only what the user-space engine cannot mend either:
/// a missing privilege, kernel feature or interface list makes it step in, with a warning.
pub fn open(config: &EngineConfig) -> Result<Box<dyn Engine>, EngineError> {
    match config.kind {
        EngineKind::Userspace => open_userspace(config),
        EngineKind::Xdp => open_xdp(config),
        EngineKind::Auto => match open_xdp(config) {
            Err(
                reason @ (EngineError::NotPermitted(_)
                | EngineError::Unsupported(_)
                | EngineError::NoInterfaces),
            ) => {
                warn!("falling back to the user-space engine, which is slower: {reason}");
                open_userspace(config)
            }
            opened => opened,
        },
    }
}

fn open_userspace(config: &EngineConfig) -> Result<Box<dyn Engine>, EngineError> {
    if config.pin.is_some() {
        warn!("the user-space engine has nothing to pin: its sums end with this daemon");
    }
    Ok(Box::new(UserspaceEngine::open(config)?))
}

fn open_xdp(config: &EngineConfig) -> Result<Box<dyn Engine>, EngineError> {
    if config.interfaces.is_empty() {
        return Err(EngineError::NoInterfaces);
    }
    Ok(Box::new(XdpEngine::open(config)?))
}
