//! The programs that measure: a worker of a benchmark, a parameter server, and ATP's switch.

#![forbid(unsafe_code)]

pub mod all_reduce;
pub mod atp;
pub mod inhost;
pub mod server;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

/// What a program ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed or refused; the message says what was wrong, what was expected and what to do
  2  wrong usage or configuration";

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// A setting that does not fit its purpose.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongConfig(String);

/// How a program ends: what went wrong is said behind its name.
pub fn end(program: &str, done: Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        // If not even this can be written, the exit code says enough.
        drop(writeln!(io::stderr(), "{program}: {}", sentence(&error)));
        ExitCode::from(if is_wrong_setting(&error) { WRONG_USAGE } else { FAILED })
    })
}

/// A worker's settings, in the words of the library that it sums by.
fn is_wrong_setting(error: &anyhow::Error) -> bool {
    use xdp_agg_baselines::Error as Baseline;
    use xdp_agg_client::Error;
    let client = |error: &Error| matches!(error, Error::Config { .. });
    let baseline = |error: &Baseline| matches!(error, Baseline::Client(error) if client(error));
    let mesh = matches!(error.downcast_ref(), Some(xdp_agg_mesh::Error::Setting { .. }));
    error.is::<WrongConfig>()
        || error.is::<xdp_agg_topology::FileError>()
        || error.downcast_ref().is_some_and(client)
        || error.downcast_ref().is_some_and(baseline)
        || mesh
}

/// The error and its causes, without those that the text before them quotes already.
fn sentence(error: &anyhow::Error) -> String {
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
