//! What the daemon tells of itself: an observer that looks at jobs and data path five times a
//! second, and an HTTP server that shows what it saw.
//!
//! Both have threads of their own, without capabilities. The control loop answers one question a
//! look. The data path is read through the observer's own descriptors ([`crate::engine::Watch`]).
//! However many ask, no more is done than that.

pub mod api;
pub mod events;
mod http;
mod known;
pub mod lag;
mod metrics;
mod pages;
mod ports;
mod sampler;
#[cfg(test)]
mod tests;
mod text;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use crate::confined::confine_helper;
use crate::engine::Watch;
use crate::server::Ask;
pub use http::{HttpError, HttpListener};
use pages::Pages;
use sampler::Sampler;

/// What the observer is told of the daemon when it begins.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The engine's description.
    pub engine: String,
    /// Why the user-space engine was taken in place of XDP, if it was.
    pub fallback: Option<String>,
    /// The interfaces that were named.
    pub interfaces: Vec<String>,
    /// Where workers and tools connect.
    pub control: SocketAddr,
    /// UDP port of the data path.
    pub data_port: u16,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// Starts to observe, and to answer on `listener`, until the other end of `asks` is gone.
///
/// # Errors
/// A thread cannot be started.
pub fn start(
    listener: HttpListener,
    facts: Facts,
    watch: Box<dyn Watch>,
    asks: mpsc::Sender<Ask>,
) -> io::Result<()> {
    http::warn_if_open(&listener);
    let pages = Arc::new(Pages::default());
    let mut sampler = Sampler::new(facts, watch, asks, Arc::clone(&pages));
    let (looks, answers) = (runtime()?, runtime()?);
    let (looking, ended) = oneshot::channel::<()>();
    spawn("xdp-agg-look", move || {
        looks.block_on(sampler.run());
        drop(looking);
    })?;
    spawn("xdp-agg-http", move || {
        let served = answers.block_on(async {
            tokio::select! {
                _ = ended => Ok(()),
                served = http::serve(listener, pages) => served,
            }
        });
        if let Err(error) = served {
            error!("HTTP has ended: {error}");
        }
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let confined = move || {
        confine_helper();
        work();
    };
    thread::Builder::new().name(name.into()).spawn(confined).map(drop)
}
