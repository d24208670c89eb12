//! What the program ends with, and what it says of an error.

use std::io;

use xdp_agg::config::ConfigError;
use xdp_agg_tls::{SecretError, TlsError};
use xdp_agg_topology::FileError;

use crate::{control, top};

/// What the process ends with.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed or refused; the message says what was wrong, what was expected and what to do
  2  wrong usage or configuration
  3  no daemon answers at the control address (top: at the HTTP address)";

/// An argument or setting that does not fit its purpose.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongConfig(pub(crate) String);

pub(crate) const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const NO_DAEMON: u8 = 3;

pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<control::NoDaemon>() || error.is::<top::NoHttp>() {
        NO_DAEMON
    } else if error.is::<ConfigError>()
        || error.is::<TlsError>()
        || error.is::<SecretError>()
        || error.is::<FileError>()
        || error.is::<WrongConfig>()
        || is_wrong_setting(error)
    {
        WRONG_USAGE
    } else {
        FAILED
    }
}

/// A worker's settings, in the words of the library that it sums by.
fn is_wrong_setting(error: &anyhow::Error) -> bool {
    let client = matches!(error.downcast_ref(), Some(xdp_agg_client::Error::Config { .. }));
    let mesh = matches!(error.downcast_ref(), Some(xdp_agg_mesh::Error::Setting { .. }));
    client || mesh || error.is::<xdp_agg_launcher::Error>()
}

/// `xdp-agg stats --watch 1 | head`: the reader has read enough.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes, without those that the text before them quotes already.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let inner = anyhow::anyhow!("it is broken");
        let quoting = inner.context("cannot open: it is broken").context("serve");
        assert_eq!(sentence(&quoting), "serve: cannot open: it is broken");
    }
}
