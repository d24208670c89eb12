//! Opening the engine that is wanted, or the one that can be had.

use tracing::warn;

use super::userspace::UserspaceEngine;
use super::xdp::XdpEngine;
use super::{Engine, EngineConfig, EngineError, EngineKind, XdpMode};

/// Opens the engine that `config` asks for.
///
/// # Errors
/// The engine's. With [`EngineKind::Auto`] a missing privilege, kernel feature or interface list
/// is not an error: the user-space engine steps in, with a warning. The same holds for a driver
/// that does not run XDP programs itself, or not at this MTU, unless a mode was asked for. Generic
/// mode is not taken in its place: it is the slowest of the three.
pub fn open(config: &EngineConfig) -> Result<Opened, EngineError> {
    let (engine, fallback) = match config.kind {
        EngineKind::Userspace => (open_userspace(config)?, None),
        EngineKind::Xdp => (open_xdp(config)?, None),
        EngineKind::Auto => match open_xdp(config) {
            Err(reason) if gives_way(&reason, config.xdp_mode) => {
                warn!("taking the user-space engine: {reason}");
                (open_userspace(config)?, Some(reason.to_string()))
            }
            opened => (opened?, None),
        },
    };
    Ok(Opened { engine, fallback })
}

/// An engine, and how it was come by.
pub struct Opened {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Why it is the user-space engine, where that is not what was asked for.
    pub fallback: Option<String>,
}

/// Whether the user-space engine may step in for an XDP engine that cannot start.
const fn gives_way(reason: &EngineError, mode: XdpMode) -> bool {
    match reason {
        EngineError::NotPermitted(_) | EngineError::Unsupported(_) | EngineError::NoInterfaces => {
            true
        }
        EngineError::NoNative { .. } | EngineError::MtuTooLarge { .. } => {
            matches!(mode, XdpMode::Auto)
        }
        _ => false,
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
