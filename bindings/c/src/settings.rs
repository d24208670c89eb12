//! What a communicator needs to know: settings that were given, and otherwise the environment.

use std::collections::HashMap;
use std::env::var_os;
use std::ffi::OsString;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xdp_agg_client::lent::{Options, Precision, Settings};
use xdp_agg_client::{Builder, Error};
use xdp_agg_launcher::is_local;

use crate::failure::Failure;
use crate::names::xdp_agg_result_t as Code;

const ADDRESS: &str = "XDP_AGG_ADDR";
const TOPOLOGY: &str = "XDP_AGG_TOPOLOGY";
const STRATEGY: &str = "XDP_AGG_STRATEGY";
const PRECISION: &str = "XDP_AGG_PRECISION";
const EXACT_UP_TO: &str = "XDP_AGG_EXACT_UP_TO";
const DEADLINE: &str = "XDP_AGG_DEADLINE";

/// Settings under the names of the variables that they go before.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// None: as if the variable were not set.
    values: HashMap<&'static str, Option<String>>,
}

impl Given {
    /// A setting; None: as if its variable were not set.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        let known = known();
        let Some(name) = known.iter().find(|known| **known == name) else {
            let problem = format!("is no setting; settings are {}", known.join(", "));
            return Err(Failure::argument("name", format_args!("{name:?}"), &problem));
        };
        self.values.insert(name, value.map(ToOwned::to_owned));
        Ok(())
    }

    /// The settings of the client, checked as those of the environment are.
    pub(crate) fn builder(&self) -> Result<Builder, Error> {
        Builder::from_values(|name| self.lookup(name))
    }

    /// How numbers are summed.
    pub(crate) fn numbers(&self) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        if let Some(value) = self.text(PRECISION)? {
            settings.precision = Some(precision(&value)?);
        }
        if let Some(value) = self.text(EXACT_UP_TO)? {
            let problem = || format!("{value:?} is no number of bytes, such as 65536");
            settings.exact_up_to = parse(EXACT_UP_TO, &value, problem)?;
        }
        Ok(settings)
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, Error> {
        let wrong = |_| Error::Config { name, problem: "its value is not UTF-8".into() };
        self.lookup(name).map(|value| value.into_string().map_err(wrong)).transpose()
    }

    fn lookup(&self, name: &'static str) -> Option<OsString> {
        if let Some(value) = self.values.get(name) {
            return value.as_ref().map(OsString::from);
        }
        let has = |name| self.values.get(name).is_some_and(Option::is_some);
        let is_other_world = has("RANK") || has("WORLD_SIZE");
        let is_overruled = (is_other_world && is_local(name))
            // Either names the aggregators; what was given goes before what was found.
            || (has(ADDRESS) && [TOPOLOGY, STRATEGY].contains(&name))
            || (has(TOPOLOGY) && name == ADDRESS);
        if is_overruled { None } else { var_os(name) }
    }
}

/// What may be chosen for the calls of a communicator, from now on.
#[derive(Debug, Default)]
pub(crate) struct Choices(Mutex<Options>);

impl Choices {
    pub(crate) fn options(&self) -> Options {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: as the communicator was made.
    pub(crate) fn set(&self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        let mut options = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            PRECISION => options.precision = value.map(precision).transpose()?,
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

/// The names of all settings: those that the client asks for.
fn known() -> &'static [&'static str] {
    static KNOWN: OnceLock<Vec<&'static str>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let asked = Mutex::new(Vec::new());
        // Without any setting each is looked for, and none can be wrong.
        let _ = Builder::from_lookup(|name| {
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            None
        });
        let mut names = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        names.extend([PRECISION, EXACT_UP_TO]);
        names.sort_unstable();
        names.dedup();
        names
    })
}

fn precision(value: &str) -> Result<Precision, Error> {
    let parsed = value.trim().parse();
    parsed.map_err(|error: xdp_agg_client::lent::UnknownName| Error::Config {
        name: PRECISION,
        problem: error.to_string(),
    })
}

fn deadline(value: &str) -> Result<Duration, Failure> {
    let problem = || format!("{value:?} is no time above 0 in seconds, such as 30 or 0.5");
    let seconds: f64 = parse(DEADLINE, value, problem)?;
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| {
        Failure::new(Code::XDP_AGG_ERROR_CONFIG, format!("{DEADLINE}: {}", problem()))
    })
}

fn parse<T: FromStr>(
    name: &'static str,
    value: &str,
    problem: impl Fn() -> String,
) -> Result<T, Error> {
    value.trim().parse().map_err(|_| Error::Config { name, problem: problem() })
}
