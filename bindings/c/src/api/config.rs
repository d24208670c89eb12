//! Settings.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::c_char;

use xdp_agg_client::lent::Given;

use crate::failure::guarded;
use crate::memory::{handle_mut, optional_text, place, text};
use crate::names::xdp_agg_result_t;
use crate::settings::give;

/// Settings of communicators.
#[derive(Debug, Default)]
pub struct xdp_agg_config {
    given: Given,
}

/// Settings of communicators. To be used by one thread at a time.
pub type xdp_agg_config_t = *mut xdp_agg_config;

impl xdp_agg_config {
    pub(super) const fn given(&self) -> &Given {
        &self.given
    }
}

/// Makes settings, of which none is given yet: a communicator that is made with them takes all from
/// the environment.
///
/// `config`: is set to the settings, to be freed with xdp_agg_config_destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_config_create(config: *mut xdp_agg_config_t) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's place.
        let place = unsafe { place(config, "config") }?;
        place.write(Box::into_raw(Box::default()));
        Ok(())
    })
}

/// Gives a setting, which goes before the environment. Values are checked when a communicator is
/// made.
///
/// Where RANK or WORLD_SIZE is given, what a launcher says of this process's place on its host does
/// not count any more: give LOCAL_RANK and LOCAL_WORLD_SIZE, too, where several processes of a host
/// shall sum among themselves first.
///
/// `name`: of the environment variable, such as "XDP_AGG_ADDR", "XDP_AGG_JOB", "RANK"; one that is
/// no setting is XDP_AGG_ERROR_ARGUMENT, and the text lists all.
/// `value`: its value; NULL: as if the variable were not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_config_set(
    config: xdp_agg_config_t,
    name: *const c_char,
    value: *const c_char,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and strings of the caller's.
        let (config, name, value) = unsafe {
            (handle_mut(config, "config")?, text(name, "name")?, optional_text(value, "value")?)
        };
        give(&mut config.given, name, value)
    })
}

/// Frees settings; communicators that were made with them keep what they need. NULL: nothing
/// happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_config_destroy(config: xdp_agg_config_t) -> xdp_agg_result_t {
    guarded(|| {
        if !config.is_null() {
            // SAFETY: a handle of this library, and freed once.
            drop(unsafe { Box::from_raw(config) });
        }
        Ok(())
    })
}
