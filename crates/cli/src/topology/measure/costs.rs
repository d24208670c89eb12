//! What messages and bytes cost: over TCP, and over the daemons.

use std::net::{SocketAddrV4, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use statrs::statistics::{Data, Median};
use xdp_agg_client::{Builder, Communicator, Op};
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_mesh::Mesh;
use xdp_agg_topology::KnownCosts;

use super::{Facts, gather};

/// Timed rounds of messages; of large vectors.
const ROUNDS: usize = 100;
const LARGE_ROUNDS: usize = 5;
/// Elements of a large vector: 16 MiB, beyond any cache.
const LARGE: usize = 4 << 20;
/// Longest time to join a daemon's job, and for a call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures all costs that can be measured; the same at all hosts. The slowest host counts.
pub(super) fn measure(mesh: &mut Mesh, hosts: &[Facts], no_daemons: bool) -> Result<KnownCosts> {
    let own = &hosts[usize::from(mesh.rank())];
    let tcp_message = tcp_message(mesh)?;
    mesh.barrier()?;
    let tcp_byte = noted(mesh, "tcp_byte", tcp_byte());
    // As far as all can know it, so that all take part or none.
    let message = if no_daemons { None } else { message(mesh, hosts) };
    mesh.barrier()?;
    let daemon_byte = own.daemon.then(|| daemon_byte(mesh, own));
    let daemon_byte = daemon_byte.and_then(|measured| noted(mesh, "daemon_byte", measured));
    let known = [message, Some(tcp_message), daemon_byte, tcp_byte];
    let all = gather(mesh, &known.map(|cost| cost.unwrap_or(0.0)))?;
    let slowest = |cost: usize| {
        let most = all.iter().map(|host| host[cost]).fold(0.0, f64::max);
        (most > 0.0).then_some(most)
    };
    Ok(KnownCosts {
        message: slowest(0),
        tcp_message: slowest(1),
        daemon_byte: slowest(2),
        tcp_byte: slowest(3),
    })
}

/// What could be measured; what could not is said and left out.
fn noted(mesh: &Mesh, what: &str, measured: Result<f64>) -> Option<f64> {
    measured
        .inspect_err(|error| {
            eprintln!("host {}: no {what}, {}", mesh.rank(), crate::exit::sentence(error));
        })
        .ok()
}

/// Seconds of a step of a ring.
fn tcp_message(mesh: &mut Mesh) -> Result<f64> {
    let world = usize::from(mesh.world_size());
    let mut data = vec![0.0_f32; world];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        mesh.barrier()?;
        let start = Instant::now();
        mesh.reduce_scatter(&mut data, Op::Max)?;
        mesh.all_gather(&mut data)?;
        times.push(start.elapsed().as_secs_f64() / (2 * (world - 1)) as f64);
    }
    Ok(Data::new(times).median())
}

/// Seconds for a byte that a worker receives: two workers on this host, over loopback, so that no
/// link limits them.
fn tcp_byte() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on 127.0.0.1")?;
    let address = listener.local_addr()?;
    let start = |rank| Mesh::builder().rank(rank).world_size(2).deadline(PATIENCE);
    let first = start(0).listener(listener);
    let second = start(1).rendezvous(address);
    let work = |builder: xdp_agg_mesh::Builder| -> Result<f64> {
        let mut mesh = builder.open()?;
        let mut data = vec![1.0_f32; LARGE];
        let mut times = Vec::with_capacity(LARGE_ROUNDS);
        for _ in 0..LARGE_ROUNDS {
            mesh.barrier()?;
            let start = Instant::now();
            mesh.reduce_scatter(&mut data, Op::Max)?;
            mesh.all_gather(&mut data)?;
            // Half of the vector comes in to be reduced, and half of it as it is.
            times.push(start.elapsed().as_secs_f64() / size_of_val(&*data) as f64);
        }
        Ok(Data::new(times).median())
    };
    thread::scope(|scope| {
        let second = scope.spawn(move || work(second));
        let first = work(first)?;
        let second = second.join().map_err(|_| anyhow!("the second worker panicked"))??;
        Ok(first.max(second))
    })
}

/// Seconds of one of the two messages of a round trip over the daemons of the hosts, or over those
/// of `XDP_AGG_ADDR`.
fn message(mesh: &Mesh, hosts: &[Facts]) -> Option<f64> {
    let daemons: Vec<_> = hosts
        .iter()
        .filter(|host| host.daemon)
        .map(|host| SocketAddrV4::new(host.address, CONTROL_PORT).into())
        .collect();
    let named = std::env::var_os("XDP_AGG_ADDR").is_some();
    if daemons.is_empty() && !named {
        return None;
    }
    let measure = || {
        let settings = settings("measure-messages", mesh.rank(), mesh.world_size())?;
        let settings = if named { settings } else { settings.aggregators(daemons) };
        let communicator = settings.connect()?;
        let times = timed(ROUNDS, || Ok(communicator.barrier()?))?;
        Ok(Data::new(times).median() / 2.0)
    };
    noted(mesh, "message", measure())
}

/// Seconds for a byte that arrives at this host's daemon: a job of this host alone, so that no link
/// limits it. As in co-located aggregation, worker and daemon of a host share its processors, and
/// as much arrives at both.
fn daemon_byte(mesh: &Mesh, own: &Facts) -> Result<f64> {
    let daemon = SocketAddrV4::new(own.address, CONTROL_PORT).into();
    let job = format!("measure-bytes-{}", mesh.rank());
    let communicator: Communicator = settings(&job, 0, 1)?.aggregator(daemon).connect()?;
    let mut data = vec![1.0_f32; LARGE];
    let times = timed(LARGE_ROUNDS, || {
        communicator.all_reduce(&mut data, Op::Sum).map(drop).map_err(Into::into)
    })?;
    Ok(Data::new(times).median() / (LARGE * size_of::<f32>()) as f64)
}

/// As in the environment, but for what makes it a worker of another job.
fn settings(job: &str, rank: u16, world_size: u16) -> Result<Builder> {
    const OTHERS: [&str; 4] =
        ["XDP_AGG_TOPOLOGY", "XDP_AGG_STRATEGY", "XDP_AGG_TUNING", "GROUP_RANK"];
    let settings = Builder::from_values(|name| {
        let other = OTHERS.contains(&name) || name.contains("LOCAL");
        if other { None } else { std::env::var_os(name) }
    })?;
    Ok(settings
        .job(job)
        .rank(rank)
        .world_size(world_size)
        .join_deadline(PATIENCE)
        .deadline(PATIENCE))
}

/// Seconds of each call, after one that is not timed.
fn timed(rounds: usize, mut call: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    call()?;
    let mut one = |_| {
        let start = Instant::now();
        call()?;
        Ok(start.elapsed().as_secs_f64())
    };
    (0..rounds).map(&mut one).collect()
}
