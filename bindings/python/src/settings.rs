//! What a communicator needs to know: from arguments, and otherwise from the environment.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Display;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use xdp_agg_client::lent::{self, Settings};
use xdp_agg_client::{Builder, Error};
use xdp_agg_launcher::Launch;

use crate::calls;
use crate::errors::{World, exception};

const JOB: &str = "XDP_AGG_JOB";

type Launched = (Option<u16>, Option<u16>, Option<u16>, Option<u16>, Option<&'static str>);

/// Arguments, under the names of the variables that they go before.
#[derive(Debug, Default)]
pub(crate) struct Given {
    values: lent::Given,
    precision: Option<String>,
    exact_up_to: Option<usize>,
}

impl Given {
    /// An argument, if it was given.
    pub(crate) fn set(&mut self, variable: &'static str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.values.set(variable, Some(value.to_string()));
        }
    }

    /// Where the processes of a host sum among themselves first.
    pub(crate) fn set_in_host(&mut self, in_host: Option<bool>) {
        self.set("XDP_AGG_IN_HOST", in_host.map(|on| if on { "on" } else { "off" }));
    }

    /// `"block"`, `"fixed:1e7"`, or the number of a fixed scale.
    pub(crate) fn set_scaling(&mut self, scaling: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(scaling) = scaling else { return Ok(()) };
        let text = match (scaling.extract::<String>(), scaling.extract::<f64>()) {
            (Ok(name), _) => name,
            (_, Ok(scale)) => format!("fixed:{scale}"),
            _ => {
                return Err(PyTypeError::new_err(
                    "scaling is \"block\", \"fixed:1e7\" or a number",
                ));
            }
        };
        self.set("XDP_AGG_SCALING", Some(text));
        Ok(())
    }

    /// Precision of all calls, and the size up to which they are exact if none is given.
    pub(crate) fn set_numbers(&mut self, precision: Option<String>, exact_up_to: Option<usize>) {
        self.precision = precision;
        self.exact_up_to = exact_up_to;
    }

    /// The job's name.
    pub(crate) fn job(&self) -> String {
        let found = self.values.lookup(JOB).map(|name| name.to_string_lossy().into_owned());
        found.unwrap_or_else(|| "default".into())
    }

    /// Where this process is, as far as that is known before it has joined.
    pub(crate) fn world(&self) -> World {
        let launch = Launch::read(|name| self.values.lookup(name)).unwrap_or_default();
        let (rank, size) = launch.world().unwrap_or((0, 1));
        World { size, first_of_host: rank - rank % launch.processes().max(1) }
    }

    /// The settings of the client, checked as those of the environment are.
    ///
    /// # Errors
    /// A value that cannot be understood, under the name of its variable.
    pub(crate) fn builder(&self) -> Result<Builder, Error> {
        self.values.builder()
    }

    /// How numbers are summed.
    ///
    /// # Errors
    /// `ValueError`: no such precision; a variable that cannot be understood.
    pub(crate) fn settings(&self, py: Python<'_>) -> PyResult<Settings> {
        let found = self.values.settings().map_err(|error| exception(py, &error))?;
        let named = self.precision.as_deref().map(calls::precision).transpose()?;
        Ok(Settings {
            precision: named.or(found.precision),
            exact_up_to: self.exact_up_to.unwrap_or(found.exact_up_to),
        })
    }
}

/// What launchers say by these variables: rank, world size, local rank, local size, and the
/// launcher that gave the rank.
#[pyfunction]
#[pyo3(name = "_launch")]
pub(crate) fn launch(py: Python<'_>, environ: HashMap<String, OsString>) -> PyResult<Launched> {
    let launch = Launch::read(|name| environ.get(name).cloned());
    let launch = launch.map_err(|error| exception(py, &error.into()))?;
    let value = |number: Option<xdp_agg_launcher::Number>| number.map(|number| number.value);
    let (rank, world_size) = (value(launch.rank), value(launch.world_size));
    let who = launch.launcher().map(|launcher| launcher.name);
    Ok((rank, world_size, value(launch.local_rank), value(launch.local_size), who))
}

/// A number that may be out of the client's range, too large or below 0: the client's own error
/// says so then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(i128);

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let index = number.call_method0("__index__").map_err(|_| {
            PyTypeError::new_err(format!("{} is no whole number", number.get_type()))
        })?;
        let wrong = |_| PyValueError::new_err(format!("{index} is too large"));
        index.extract().map(Self).map_err(wrong)
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
