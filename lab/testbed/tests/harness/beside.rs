//! Flows that fill a link, and the probe that sees its queue; pods.

use std::thread::sleep;
use std::time::Duration;

use xdp_agg_testbed::beside::{RttProbe, TcpFlow};
use xdp_agg_testbed::traffic::ping;
use xdp_agg_testbed::{Error, Shape, Topology, need_root};

use super::{LIMIT, TestResult, check_kept};

/// Two flows fill an uplink, of which the probe's round trips tell: none to speak of before, and
/// about as long as the queue takes to leave.
#[test]
fn flows_fill_an_uplink_and_a_probe_sees_the_queue() -> TestResult {
    need_root!(Ok(()));
    const UPLINK: u64 = 20_000_000;
    let shape = Shape { burst: 4 << 10, queue: 100_000, ..Shape::new(2 * UPLINK) };
    let net = Topology::builder().workers(2).racks(2).shape(Some(shape));
    let net = net.uplink(Some(UPLINK)).offloads(false).build()?;
    let meter = net.meter()?;
    let [near, far] = [0, 1].map(|worker| (net.worker(worker), net.worker_addr(worker)));
    let probe = RttProbe::start(near, far, Duration::from_millis(5))?;
    sleep(Duration::from_millis(300));
    let flows = [(); 2].map(|()| TcpFlow::start(near.0, far, "cubic"));
    let flows = flows.into_iter().collect::<Result<Vec<_>, _>>()?;
    let began = probe.began().elapsed();
    sleep(Duration::from_secs(2));
    let received: u64 = flows.iter().map(TcpFlow::received).sum();
    assert!(flows.iter().all(TcpFlow::is_open));
    drop(flows);
    let trips = probe.finish();
    let median = |of: &dyn Fn(Duration) -> bool| {
        let mut times: Vec<_> = trips.iter().filter(|t| of(t.sent)).map(|t| t.time).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let settled = began + Duration::from_millis(500);
    let (idle, busy) = (median(&|sent| sent < began), median(&|sent| sent > settled));
    // The whole queue takes 40 ms.
    assert!(idle < Duration::from_millis(10), "{idle:?}");
    assert!(busy > idle + Duration::from_millis(8), "{idle:?}, {busy:?}");
    assert!(busy < Duration::from_millis(60), "{busy:?}");
    let share = received as f64 * 8.0 / 2.0 / UPLINK as f64;
    assert!((0.6..1.02).contains(&share), "{share} of the uplink");
    check_kept(&meter.finish()?);
    let unknown = TcpFlow::start(near.0, far, "carrier pigeon");
    assert!(unknown.is_err(), "the kernel has no such congestion control");
    Ok(())
}

/// All hosts of two pods reach each other and all switches, and what crosses pods crosses both
/// uplinks on its way.
#[test]
fn pods_reach_each_other_over_their_uplinks() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().workers(8).racks(4).pods(2).build()?;
    let switches =
        (0..4).map(|rack| net.rack_addr(rack)).chain((0..2).map(|pod| net.pod_addr(pod)));
    let addresses: Vec<_> = (0..8).map(|worker| net.worker_addr(worker)).chain(switches).collect();
    for worker in [0, 3, 7] {
        for address in addresses.iter().filter(|address| **address != net.worker_addr(worker)) {
            ping(net.worker(worker), *address, LIMIT)?;
        }
    }
    assert_eq!((net.pod_racks(1), net.pod_of(1), net.pod_of(2)), (2..4, Some(0), Some(1)));
    // A bridge may say something of its own now and then.
    const PINGS: u64 = 50;
    let crossed = |to: usize| -> Result<[u64; 2], Error> {
        let packets = |pod| net.pod_counters(pod).map(|counters| counters.tx_packets);
        let before = [packets(0)?, packets(1)?];
        for _ in 0..PINGS {
            ping(net.worker(0), net.worker_addr(to), LIMIT)?;
        }
        Ok([packets(0)? - before[0], packets(1)? - before[1]])
    };
    let (inside, across) = (crossed(3)?, crossed(4)?);
    assert!(inside.iter().all(|packets| *packets < PINGS / 2), "{inside:?}");
    assert!(across.iter().all(|packets| *packets >= PINGS), "{across:?}");
    let uneven = Topology::builder().workers(6).racks(3).pods(2).build();
    assert!(uneven.is_err_and(|error| error.to_string().contains("3 racks in 2 pods")));
    Ok(())
}
