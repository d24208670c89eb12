//! Servers and workers of the tests, in threads of this process.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xdp_agg_ps::{Error, Options, PsClient, ServeOptions, Server, Stopper};

/// Servers that end with the test.
pub(crate) struct Servers {
    pub(crate) addresses: Vec<SocketAddr>,
    running: Vec<(Stopper, JoinHandle<Result<(), Error>>)>,
}

impl Servers {
    pub(crate) fn start(number: usize) -> Self {
        Self::with(number, |_| {})
    }

    pub(crate) fn with(number: usize, change: impl Fn(&mut ServeOptions)) -> Self {
        let mut servers = Self { addresses: Vec::new(), running: Vec::new() };
        for _ in 0..number {
            let mut options = ServeOptions::new("127.0.0.1:0".parse().expect("an address"));
            change(&mut options);
            let server = Server::bind(options).expect("a free port");
            servers.addresses.push(server.local_addr().expect("it listens"));
            servers.running.push((server.stopper(), thread::spawn(|| server.run())));
        }
        servers
    }

    /// Runs `work` as every rank of a job, and returns what they made of it.
    pub(crate) fn run<R: Send>(
        &self,
        job: &str,
        world: u16,
        work: impl Fn(PsClient) -> R + Sync,
    ) -> Vec<R> {
        self.run_with(job, world, |_| {}, work)
    }

    pub(crate) fn run_with<R: Send>(
        &self,
        job: &str,
        world: u16,
        change: impl Fn(&mut Options) + Sync,
        work: impl Fn(PsClient) -> R + Sync,
    ) -> Vec<R> {
        let one = |rank| {
            let mut options = Options::new(job, rank, world);
            options.deadline = Duration::from_secs(10);
            change(&mut options);
            work(PsClient::connect_with(&self.addresses, options).expect("all join"))
        };
        thread::scope(|scope| {
            let one = &one;
            let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || one(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no assertion failed")).collect()
        })
    }

    pub(crate) fn stop(&mut self) {
        for (stopper, thread) in self.running.drain(..) {
            stopper.stop();
            thread.join().expect("it does not panic").expect("it ends well");
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}
