//! The extension module `xdp_agg._xdp_agg`: the worker library of xdp-agg for Python.
//!
//! * `communicator`, `handle`, `report`: the classes. `array`, `dlpack`: what can be summed.
//! * `calls`: arguments, and carrying calls out while other Python threads run and signals are
//!   heard.
//! * `open`: the ends of communicators. `pool`: threads that call Python. `log`: what the library
//!   says. `memory`: all `unsafe`.
#![deny(unsafe_code)]

mod array;
mod calls;
mod communicator;
mod connect;
mod dlpack;
mod errors;
mod handle;
mod log;
mod memory;
mod open;
mod pool;
mod report;
mod settings;

use pyo3::prelude::*;

/// What `xdp_agg` is made of; not an interface of its own.
#[pymodule]
fn _xdp_agg(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CONTROL_VERSION", xdp_agg_common::control::CONTROL_VERSION)?;
    module.add("CONTROL_PORT", xdp_agg_common::control::CONTROL_PORT)?;
    module.add("DATA_PORT", xdp_agg_common::wire::DATA_PORT)?;
    let variables = xdp_agg_launcher::variables().collect::<Vec<_>>();
    module.add("LAUNCHER_VARIABLES", variables)?;
    module.add_function(wrap_pyfunction!(settings::launch, module)?)?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<memory::SharedMemory>()?;
    // It takes the thread that loads it first for the main one, and the log's thread would be that.
    module.py().import("threading")?;
    let atexit = module.py().import("atexit")?;
    // The last one comes first: what it has to say is told then.
    for close in
        [wrap_pyfunction!(log::_close_log, module)?, wrap_pyfunction!(open::_close_all, module)?]
    {
        module.add_function(close.clone())?;
        atexit.call_method1("register", (close,))?;
    }
    Ok(())
}
