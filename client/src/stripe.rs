//! One aggregator of a communicator: a connection, a flow, and the thread that keeps them going.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use xdp_agg_common::control::AggregatorLoss;
use xdp_agg_mesh::MAX_DEADLINE;

use crate::engine::Engine;
use crate::error::Error;
use crate::machine::Config;
use crate::roll::Roll;
use crate::session::{self, Dial};
use crate::settings::{Builder, Place, Source, Target};
use crate::shared::Shared;
use crate::udp::DataSocket;

/// Longest wait for a route to the daemon.
const ROUTE: Duration = Duration::from_secs(10);

/// One aggregator.
#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) shared: Arc<Shared>,
    progress: Mutex<Option<JoinHandle<()>>>,
}

/// Longest silence of a live daemon: the kernel knows no keep-alive times of more than 9 h.
const SILENCE: Duration = Duration::from_secs(12 * 60 * 60);

impl Stripe {
    /// Begins to join the job at all aggregators.
    pub(crate) fn open_all(settings: &Builder, place: &Place) -> Result<Arc<[Self]>, Error> {
        let wrong = |problem| Error::Config { name: "XDP_AGG_ADDR", problem };
        let targets = &settings.aggregators;
        let hosts = settings.source.as_ref().map(Source::hosts);
        if let Some(hosts) = hosts.filter(|hosts| *hosts != usize::from(place.hosts)) {
            return Err(Error::Config {
                name: "XDP_AGG_TOPOLOGY",
                problem: format!(
                    "it has {hosts} hosts, and the world of {} workers has {}: every host of the \
                     job is listed once, with its rank among the hosts",
                    place.world_size, place.hosts
                ),
            });
        }
        for (index, target) in targets.iter().enumerate() {
            let same = |other: &Target| other.address == target.address;
            if targets[..index].iter().any(same) {
                let problem = format!(
                    "{} is named twice; each part of a vector goes to an \
                                       aggregator of its own",
                    target.address
                );
                return Err(wrong(problem));
            }
        }
        let roll = Arc::new(Roll::new(targets.len()));
        let open = |(index, target)| Self::open(settings, place, target, (roll.clone(), index));
        targets.iter().enumerate().map(open).collect()
    }

    fn open(
        settings: &Builder,
        place: &Place,
        target: &Target,
        roll: (Arc<Roll>, usize),
    ) -> Result<Self, Error> {
        let patience = settings.join_deadline.min(ROUTE);
        let serving = target.serving(place.host);
        let (local, max_chunks) = session::path(serving, settings.mtu, patience)?;
        let socket =
            DataSocket::bind(local).map_err(Error::io("opening a UDP socket for the data path"))?;
        let ring = match settings.policy.aggregator_loss {
            AggregatorLoss::Ring => Some(
                TcpListener::bind((local, 0))
                    .map_err(Error::io("opening a listener for the ring"))?,
            ),
            AggregatorLoss::Fail | AggregatorLoss::Resume => None,
        };
        let ring_port = ring.as_ref().and_then(|listener| listener.local_addr().ok());
        let room = socket.receive_room().map_err(Error::io("reading the receive buffer"))?;
        let config = Config {
            slots: settings.slots,
            result_mode: settings.result_mode,
            policy: settings.policy,
            token: settings.token.clone(),
            aggregator: target.address,
            data_addr: (serving != target.address).then_some(local),
            tree: target.tree.clone(),
            chosen: Some(settings.chosen.told()),
            data_port: socket.port().map_err(Error::io("reading the data port"))?,
            ring_port: ring_port.map(|address| address.port()),
            max_chunks,
            window_room: u32::try_from(room).unwrap_or(u32::MAX),
            rate: settings.rate,
            rto_min: settings.rto_min,
            join_deadline: settings.join_deadline.min(MAX_DEADLINE),
            fallback_after: settings.fallback_after.min(MAX_DEADLINE),
            ..Config::new(job(settings, place), place.host, place.hosts)
        };
        let dead_after = settings.dead_after_or_default().min(SILENCE);
        let dial = Dial { address: target.address, dead_after, tls: settings.load_tls(target)? };
        let engine = Engine::new(config, dial, socket);
        let shared =
            Arc::new(Shared::new(engine, ring, settings.deadline.min(MAX_DEADLINE), roll)?);
        let progress = Arc::clone(&shared);
        let progress = std::thread::Builder::new()
            .name("xdp-agg progress".into())
            .spawn(move || progress.progress())
            .map_err(Error::io("starting the progress thread"))?;
        Ok(Self { shared, progress: Mutex::new(Some(progress)) })
    }

    /// Leaves the job, and waits for the thread if it can end at once.
    pub(crate) fn close(&self) {
        if self.shared.close()
            && let Some(thread) = self.progress.lock().take()
        {
            // A panic of that thread was reported by itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        self.close();
    }
}

/// The job at the aggregator. Where a host has several processes, each of them sums its own slices
/// with its fellows of the other hosts: a job of one worker a host.
fn job(settings: &Builder, place: &Place) -> String {
    match place.local_size {
        1 => settings.job.clone(),
        _ => format!("{}/{}", settings.job, place.local_rank),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Whoever listens there is no daemon: that is told at once, and no clock is asked for a time
    /// that it does not have.
    #[test]
    fn deadlines_may_be_as_long_as_can_be() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let nonsense = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a worker comes");
            stream.write_all(&[0xff; 64]).expect("sent");
            // Until it has heard enough: an end is no nonsense.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let settings = Builder::default()
            .aggregators([address])
            .rank(0)
            .world_size(1)
            .deadline(Duration::MAX)
            .join_deadline(Duration::MAX)
            .fallback_after(Duration::MAX)
            .dead_after(Duration::MAX);
        let error = settings.connect().expect_err("it is no daemon");
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        nonsense.join().expect("no panic");
    }
}
