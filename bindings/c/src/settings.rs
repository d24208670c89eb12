//! What a communicator needs to know: settings that were given, and otherwise the environment.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use xdp_agg_client::lent::{Given, Options, Precision};

use crate::failure::Failure;
use crate::names::xdp_agg_result_t as Code;

const PRECISION: &str = "XDP_AGG_PRECISION";
const DEADLINE: &str = "XDP_AGG_DEADLINE";

/// Gives a setting; None: as if its variable were not set.
pub(crate) fn give(given: &mut Given, name: &str, value: Option<&str>) -> Result<(), Failure> {
    static KNOWN: LazyLock<Vec<&str>> = LazyLock::new(Given::names);
    let Some(name) = KNOWN.iter().find(|known| **known == name) else {
        let problem = format!("is no setting; settings are {}", KNOWN.join(", "));
        return Err(Failure::argument("name", format_args!("{name:?}"), &problem));
    };
    given.set(name, value.map(ToOwned::to_owned));
    Ok(())
}

/// What may be chosen for the calls of a communicator, from now on.
#[derive(Debug, Default)]
pub(crate) struct Choices(Mutex<Options>);

impl Choices {
    pub(crate) fn options(&self) -> Options {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// None: as the communicator was made.
    pub(crate) fn set(&self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        let mut options = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            PRECISION => options.precision = value.map(Precision::of_setting).transpose()?,
            DEADLINE => options.deadline = value.map(deadline).transpose()?,
            _ => {
                let problem = "cannot be changed between calls; XDP_AGG_PRECISION and \
                               XDP_AGG_DEADLINE can, others are given to xdp_agg_config_set";
                return Err(Failure::argument("name", format_args!("{name:?}"), problem));
            }
        }
        Ok(())
    }
}

fn deadline(value: &str) -> Result<Duration, Failure> {
    let seconds = value.trim().parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| {
        let problem = format!("{value:?} is no time above 0 in seconds, such as 30 or 0.5");
        Failure::new(Code::XDP_AGG_ERROR_CONFIG, format!("{DEADLINE}: {problem}"))
    })
}
