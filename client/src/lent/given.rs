//! Settings that a program gives, before those of the environment.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use xdp_agg_launcher::is_local;

use super::{EXACT_UP_TO_NAME, PRECISION, Settings};
use crate::error::Error;
use crate::settings::Builder;

const ADDRESS: &str = "XDP_AGG_ADDR";
const TOPOLOGY: &str = "XDP_AGG_TOPOLOGY";
const STRATEGY: &str = "XDP_AGG_STRATEGY";

/// Settings under the names of the variables that they go before.
#[derive(Debug, Default)]
pub struct Given(HashMap<&'static str, Option<String>>);

impl Given {
    /// Gives a setting; None: as if its variable were not set.
    pub fn set(&mut self, name: &'static str, value: Option<String>) {
        self.0.insert(name, value);
    }

    /// The names of all settings: those that are asked for.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let asked = Mutex::new(vec![PRECISION, EXACT_UP_TO_NAME]);
        // Without any setting each is looked for, and none can be wrong.
        let _ = Builder::from_lookup(|name| {
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            None
        });
        let mut names = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The settings of a communicator, checked as those of the environment are.
    ///
    /// # Errors
    /// A value that cannot be understood, under the name of its variable.
    pub fn builder(&self) -> Result<Builder, Error> {
        Builder::from_values(|name| self.lookup(name))
    }

    /// How numbers are summed.
    ///
    /// # Errors
    /// As [`Self::builder`].
    pub fn settings(&self) -> Result<Settings, Error> {
        Settings::from_values(|name| self.lookup(name))
    }

    /// The value that counts for a variable. A launcher's statement of a process's place on its
    /// host holds for its own world alone. A given setting that names the aggregators overrules
    /// variables that name them otherwise.
    #[must_use]
    pub fn lookup(&self, name: &'static str) -> Option<OsString> {
        if let Some(value) = self.0.get(name) {
            return value.as_ref().map(OsString::from);
        }
        let has = |name| self.0.get(name).is_some_and(Option::is_some);
        let is_overruled = ((has("RANK") || has("WORLD_SIZE")) && is_local(name))
            || (has(ADDRESS) && [TOPOLOGY, STRATEGY].contains(&name))
            || (has(TOPOLOGY) && name == ADDRESS);
        if is_overruled { None } else { std::env::var_os(name) }
    }
}
