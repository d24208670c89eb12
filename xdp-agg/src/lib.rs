//! The aggregator: engines that sum, and the daemon around them and [`xdp_agg_protocol::daemon`].
//!
//! * [`engine`]: what sums contributions: the XDP program in the kernel, or user space.
//! * [`server`]: the control connections around the engine and the daemon's protocol.
//! * [`state`]: the file in which a daemon leaves its running jobs to the next one.
//! * [`config`]: the daemon's settings and where they come from.
//! * [`doctor`]: whether this host can run the XDP engine, and what to do if not.
//! * [`confined`]: what the daemon gives up once it runs.
//! * [`supervisor`]: what it tells the service manager.
//! * [`link`], [`process`]: questions to the kernel.
#![deny(unsafe_code)]

pub mod config;
pub mod confined;
pub mod doctor;
mod drivers;
pub mod engine;
pub mod link;
mod private;
pub mod process;
pub mod server;
pub mod state;
pub mod supervisor;
