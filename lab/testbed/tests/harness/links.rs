//! Links that stand still, lose everything, or take their time.

use std::net::UdpSocket;
use std::time::Duration;

use xdp_agg_testbed::echo::{Until, Way, echo};
use xdp_agg_testbed::traffic::{ping, tcp_transfer, udp_socket};
use xdp_agg_testbed::{Direction, Error, Faults, Probe, Topology, need_root};

use super::{LIMIT, RATE, TestResult, at, check_kept, packet, receive_numbered, send_numbered};

/// A worker's socket to send by, and another one's that receives until nothing comes for a second.
fn sockets(net: &Topology, from: usize, to: usize) -> Result<(UdpSocket, UdpSocket), Error> {
    let open = |worker, limit| udp_socket(net.worker(worker), at(net.worker_addr(worker)), limit);
    Ok((open(from, LIMIT)?, open(to, LIMIT / 10)?))
}

/// What is sent to a link that stands still waits, whatever sends it, and comes in order.
#[test]
fn a_held_link_stands_still_and_loses_nothing() -> TestResult {
    need_root!(Ok(()));
    for xdp_on_hosts in [false, true] {
        let net = Topology::builder().rate(Some(RATE)).xdp_on_hosts(xdp_on_hosts).build()?;
        let arrived = |link| net.host_counters(link).map(|counters| counters.rx_packets);
        let meter = net.meter()?;
        for link in [0, 1] {
            let (sender, receiver) = sockets(&net, 0, 1)?;
            net.hold(link, true)?;
            let before = arrived(1)?;
            for number in 0..100 {
                sender.send_to(&packet(number, 1000), at(net.worker_addr(1)))?;
            }
            std::thread::sleep(Duration::from_millis(100));
            assert!(arrived(1)? - before <= 2, "{} packets", arrived(1)? - before);
            net.hold(link, false)?;
            assert_eq!(receive_numbered(&receiver, 1000), (0..100).collect::<Vec<_>>());
        }
        net.attach_probe(&net.aggregator_interfaces()[0], Probe::Reflect)?;
        let until = Until::Over(Duration::from_millis(600));
        std::thread::scope(|scope| {
            let echoes = scope.spawn(|| echo(&net, 0, 1430, Way::OURS, until).unwrap().back);
            std::thread::sleep(Duration::from_millis(200));
            net.hold(0, true)?;
            std::thread::sleep(Duration::from_millis(20));
            let before = arrived(0)?;
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(arrived(0)?, before, "what XDP sends is not held");
            net.hold(0, false)?;
            let back = echoes.join().expect("no panic");
            assert!(arrived(0)? > before + 100 && back > 500, "{back} packets came back");
            Ok::<_, xdp_agg_testbed::Error>(())
        })?;
        check_kept(&meter.finish()?);
    }
    let net = Topology::builder().build()?;
    assert!(net.hold(0, true).is_err(), "there is no shaper");
    Ok(())
}

/// What is sent to a link that is cut is lost, in both directions, and nothing of it comes later.
#[test]
fn a_cut_link_loses_everything() -> TestResult {
    need_root!(Ok(()));
    for xdp_on_hosts in [false, true] {
        let net = Topology::builder().rate(Some(RATE)).xdp_on_hosts(xdp_on_hosts).build()?;
        for link in [0, 1] {
            let (sender, receiver) = sockets(&net, 0, 1)?;
            let send = |numbers: std::ops::Range<u32>| {
                let mut all =
                    numbers.map(|n| sender.send_to(&packet(n, 1000), at(net.worker_addr(1))));
                all.try_for_each(|sent| sent.map(drop))
            };
            net.cut(link, true)?;
            send(0..100)?;
            net.cut(link, false)?;
            send(100..200)?;
            let received = receive_numbered(&receiver, 1000);
            let early = received.iter().filter(|&&n| n < 100).count();
            assert!(early <= 2, "{early} packets crossed a link that was cut");
            assert_eq!(received[early..], (100..200).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// Links take as long as they are asked to, whatever crosses them and whatever sends it. Nothing is
/// lost, changed or overtaken for that, and rates and faults are in force.
#[test]
fn links_take_their_time() -> TestResult {
    need_root!(Ok(()));
    const DELAY: Duration = Duration::from_millis(5);
    for (offloads, xdp_on_hosts) in [(true, false), (false, true)] {
        let net = Topology::builder().rate(Some(RATE)).delay(DELAY).offloads(offloads);
        let net = net.xdp_on_hosts(xdp_on_hosts).workers(3).build()?;
        let meter = net.meter()?;
        // There and back, over one link or two.
        assert!(ping(net.worker(0), net.aggregator_addr(), LIMIT)? >= 2 * DELAY);
        assert!(ping(net.worker(0), net.worker_addr(1), LIMIT)? >= 4 * DELAY);
        tcp_transfer(net.worker(0), (net.worker(1), net.worker_addr(1)), 3_000_000)?;
        let (sender, receiver) = sockets(&net, 1, 0)?;
        send_numbered(&sender, at(net.worker_addr(0)), 1000, 1400)?;
        assert_eq!(receive_numbered(&receiver, 1400), (0..1000).collect::<Vec<_>>());
        net.set_faults(0, Direction::Down, &Faults::loss(0.2))?;
        send_numbered(&sender, at(net.worker_addr(0)), 1000, 1400)?;
        let received = receive_numbered(&receiver, 1400);
        let lost = net.fault_counters(0, Direction::Down)?.lost;
        if !offloads {
            assert!(lost > 0 && received.is_sorted(), "{lost} packets were lost");
        }
        assert_eq!(received.len() as u64 + lost, 1000);
        net.attach_probe(&net.aggregator_interfaces()[2], Probe::Reflect)?;
        let back = echo(&net, 2, 1430, Way::OURS, Until::Over(Duration::from_millis(300)))?.back;
        assert!(back > 100, "{back} packets came back");
        check_kept(&meter.finish()?);
        let report = net.delays()?.expect("it has delays");
        eprintln!("{report}");
        assert!(report.packets > 1000 && report.lost == 0, "{report}");
    }
    assert!(Topology::builder().delay(2 * LIMIT).build().is_err(), "too long");
    assert!(Topology::builder().delay(DELAY).wire(false).build().is_err(), "nothing delays");
    assert!(Topology::builder().build()?.delays()?.is_none());
    Ok(())
}
