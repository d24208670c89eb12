//! One aggregator of a communicator: a connection, a flow, and the thread that keeps them going.

use std::net::{SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xdp_agg_common::control::AggregatorLoss;
use xdp_agg_forks::{Origin, own};
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_protocol::worker::Config;

use crate::driver::engine::Engine;
use crate::driver::reach::Pause;
use crate::driver::roll::Roll;
use crate::driver::session::{self, Dial};
use crate::driver::shared::Shared;
use crate::driver::udp::DataSocket;
use crate::driver::xsk::Results;
use crate::error::Error;
use crate::settings::{Builder, Place, Source, Target};
use crate::trace::Recorder;

/// One aggregator.
#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) shared: Arc<Shared>,
    origin: Origin,
    progress: Mutex<Option<JoinHandle<()>>>,
}

/// Longest silence of a live daemon: the kernel knows no keep-alive times of more than 9 h.
const SILENCE: Duration = Duration::from_secs(12 * 60 * 60);

impl Stripe {
    /// Begins to join the job at all aggregators.
    pub(crate) fn open_all(
        settings: &Builder,
        place: &Place,
        until: Instant,
    ) -> Result<Arc<[Self]>, Error> {
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
        // A plan may have several trees with one root; it leads a job for each.
        let planned = hosts.is_some();
        for (index, target) in targets.iter().enumerate() {
            let named_before = twins(targets, index) > 0;
            if named_before && !planned && target.tree.is_single() {
                let problem = format!(
                    "{} is named twice; each part of a vector goes to an aggregator of its \
                     own",
                    target.address
                );
                return Err(wrong(problem));
            }
        }
        let roll = Arc::new(Roll::new(targets.len(), place.host));
        let open = |index| Self::open(settings, place, (roll.clone(), index), until);
        (0..targets.len()).map(open).collect()
    }

    fn open(
        settings: &Builder,
        place: &Place,
        roll: (Arc<Roll>, usize),
        until: Instant,
    ) -> Result<Self, Error> {
        let target = &settings.aggregators[roll.1];
        let patience = (until, Pause::new(settings.warn_after));
        let serving = target.serving(place.host);
        let (local, max_chunks) = session::path(serving, settings.mtu, patience)?;
        let socket =
            DataSocket::bind(local).map_err(Error::io("opening a UDP socket for the data path"))?;
        let ring = match settings.policy.aggregator_loss {
            AggregatorLoss::Ring => Some(
                own(|| TcpListener::bind((local, 0)))
                    .map_err(Error::io("opening a listener for the ring"))?,
            ),
            AggregatorLoss::Fail | AggregatorLoss::Resume => None,
        };
        let ring_port = ring.as_ref().and_then(|listener| listener.local_addr().ok());
        let room = socket.receive_room().map_err(Error::io("reading the receive buffer"))?;
        let config = Config {
            local_size: place.local_size,
            local_rank: place.local_rank,
            alone: settings.stays_in_host(place),
            // Nothing of its calls comes to the aggregator.
            slots: if settings.stays_in_host(place) { Some(2) } else { settings.slots },
            result_mode: settings.result_mode,
            policy: settings.policy,
            token: settings.token.clone(),
            aggregator: target.address,
            data_addr: (serving != target.address).then_some(local),
            tree: target.tree.clone(),
            chosen: Some(settings.chosen.told()),
            origin: settings.origin.clone().map(Box::new),
            data_port: socket.port().map_err(Error::io("reading the data port"))?,
            ring_port: ring_port.map(|address| address.port()),
            ring_order: settings.ring_order.clone(),
            max_chunks,
            window_room: u32::try_from(room).unwrap_or(u32::MAX),
            rate: settings.rate,
            congestion: settings.congestion,
            rto_min: settings.rto_min,
            join_deadline: until.saturating_duration_since(Instant::now()),
            stall_deadline: settings.stall_deadline.min(MAX_DEADLINE),
            warn_after: settings.warn_after.min(MAX_DEADLINE),
            fallback_after: settings.fallback_after.min(MAX_DEADLINE),
            ..Config::new(job(settings, place, roll.1), place.host, place.hosts)
        };
        let dead_after = settings.dead_after_or_default().min(SILENCE);
        let (name, tls) = (target.name.clone(), settings.load_tls(target)?);
        let dial = Dial { address: target.address, name, dead_after, tls };
        let tracer = settings.tracer(place)?;
        let recorder = Recorder::new(&tracer, roll.1 as u16);
        let port = config.data_port;
        let mut engine = Engine::new(config, dial, socket, recorder)?;
        if !settings.stays_in_host(place) {
            let local = SocketAddrV4::new(local, port);
            engine.receive_by(Results::choose(settings.transport, serving, local, max_chunks)?);
        }
        let shared = Shared::new(engine, ring, settings.ring_times(), roll, tracer)?;
        let shared = Arc::new(shared);
        let progress = Arc::clone(&shared);
        let progress = std::thread::Builder::new()
            .name("xdp-agg progress".into())
            .spawn(move || progress.progress())
            .map_err(Error::io("starting the progress thread"))?;
        Ok(Self { shared, origin: Origin::here(), progress: Mutex::new(Some(progress)) })
    }

    /// This process is a copy of the one whose stripe it is: it must not touch the engine.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
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

impl AsRef<Shared> for Stripe {
    fn as_ref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        if self.is_forked() {
            // Its threads are not here, and others may have held its locks.
            std::mem::forget((Arc::clone(&self.shared), self.progress.get_mut().take()));
            return;
        }
        self.close();
    }
}

/// How many of the targets before this one have the same root.
fn twins(targets: &[Target], index: usize) -> usize {
    targets[..index].iter().filter(|other| other.address == targets[index].address).count()
}

/// The job at an aggregator. If a host has several processes, each sums its own slices with its
/// fellows of the other hosts: a job of one worker a host. Each further tree with the same root is
/// a job of its own there.
fn job(settings: &Builder, place: &Place, index: usize) -> String {
    let name = match place.local_size {
        1 => settings.job.clone(),
        _ => format!("{}/{}", settings.job, place.local_rank),
    };
    match twins(&settings.aggregators, index) {
        0 => name,
        further => format!("{name}#{further}"),
    }
}
