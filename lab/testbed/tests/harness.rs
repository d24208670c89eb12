//! The test network tests itself. Needs root; says so and passes without.

#[path = "harness/beside.rs"]
mod beside;
#[path = "harness/links.rs"]
mod links;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use xdp_agg_testbed::echo::{Until, Way, echo};
use xdp_agg_testbed::traffic::{MAX_TRAIN, ping, send_trains, tcp_transfer, udp_socket};
use xdp_agg_testbed::{
    Direction, Faults, LinkReport, MAX_XDP_MTU, Mode, Probe, Seen, Shape, Topology, need_root,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_secs(10);
const PORT: u16 = 4000;

fn at(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, PORT)
}

/// Sends numbered packets of `payload` bytes in trains as long as UDP allows.
fn send_numbered(socket: &UdpSocket, to: SocketAddrV4, packets: u32, payload: usize) -> TestResult {
    send_trains(socket, payload as u16)?;
    let per_train = MAX_TRAIN.min(64 * payload) / payload;
    let numbers: Vec<u32> = (0..packets).collect();
    for train in numbers.chunks(per_train) {
        let bytes: Vec<u8> = train.iter().flat_map(|&n| packet(n, payload)).collect();
        socket.send_to(&bytes, to)?;
    }
    Ok(())
}

/// A packet that shows any change of a byte.
fn packet(number: u32, payload: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((4..payload).map(|i| (number as usize * 31 + i * 7) as u8));
    bytes
}

/// Receives until nothing comes for the socket's time limit; every packet must be one of ours.
fn receive_numbered(socket: &UdpSocket, payload: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut buffer = vec![0; 65_536];
    while let Ok(len) = socket.recv(&mut buffer) {
        let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        assert_eq!(buffer[..len], packet(number, payload), "packet {number} was changed");
        numbers.push(number);
    }
    numbers
}

fn check_kept(reports: &[LinkReport]) {
    for report in reports {
        eprintln!("{report}");
    }
    assert!(reports.iter().all(|report| report.kept));
}

#[test]
fn everybody_reaches_everybody() -> TestResult {
    need_root!(Ok(()));
    for mode in [Mode::Ports, Mode::OneNic] {
        for wire in [true, false] {
            let net = Topology::builder().workers(3).mode(mode).wire(wire).build()?;
            for i in 0..3 {
                ping(net.worker(i), net.aggregator_addr(), LIMIT)?;
                ping(net.aggregator(), net.worker_addr(i), LIMIT)?;
                let next = (i + 1) % 3;
                let to = (net.worker(next), net.worker_addr(next));
                tcp_transfer(net.worker(i), to, 3_000_000)?;
            }
            let from = udp_socket(net.worker(0), at(net.worker_addr(0)), LIMIT)?;
            let pause = Duration::from_millis(200);
            let to = udp_socket(net.aggregator(), at(net.aggregator_addr()), pause)?;
            send_numbered(&from, at(net.aggregator_addr()), 100, 1400)?;
            assert_eq!(receive_numbered(&to, 1400), (0..100).collect::<Vec<_>>(), "{mode:?}");
        }
    }
    Ok(())
}

const RATE: u64 = 100_000_000;

#[test]
fn rates_hold_for_tcp_in_both_directions() -> TestResult {
    need_root!(Ok(()));
    for (mode, wire) in [(Mode::Ports, true), (Mode::OneNic, true), (Mode::Ports, false)] {
        let net = Topology::builder().mode(mode).wire(wire).rate(Some(RATE)).build()?;
        let meter = net.meter()?;
        let bytes = 5_000_000;
        let to = (net.worker(1), net.worker_addr(1));
        let time = tcp_transfer(net.worker(0), to, bytes)?;
        tcp_transfer(net.worker(1), (net.aggregator(), net.aggregator_addr()), bytes)?;
        let reports = meter.finish()?;
        check_kept(&reports);
        let of = |link: usize, direction| {
            let find = |r: &&LinkReport| r.link == link && r.direction == direction;
            reports.iter().find(find).expect("every link has a report")
        };
        for (link, direction) in [(0, Direction::Up), (1, Direction::Down), (1, Direction::Up)] {
            assert!(of(link, direction).bytes > bytes, "{mode:?} {wire}: not all was counted");
        }
        // No upper limit: a busy machine may take any time.
        let fastest = (bytes - u64::from(net.shape().expect("it has one").burst)) * 8;
        assert!(time.as_secs_f64() > fastest as f64 / RATE as f64 * 0.99, "{time:?}");
    }
    Ok(())
}

#[test]
fn rates_hold_for_what_xdp_emits() -> TestResult {
    need_root!(Ok(()));
    for mode in [Mode::Ports, Mode::OneNic] {
        let net = Topology::builder().mode(mode).rate(Some(RATE)).build()?;
        for interface in net.aggregator_interfaces() {
            net.attach_probe(&interface, Probe::Reflect)?;
        }
        let meter = net.meter()?;
        let back = echo(&net, 0, 1430, Way::OURS, Until::Over(Duration::from_millis(300)))?.back;
        let reports = meter.finish()?;
        check_kept(&reports);
        assert!(back > 500, "{mode:?}: only {back} packets came back");
        let path = [Some(0), net.aggregator_link()];
        for link in path.into_iter().flatten() {
            let sent = reports.iter().filter(|r| r.link == link).map(|r| r.bytes);
            let least = back * 1400;
            assert!(sent.min().is_some_and(|bytes| bytes > least), "{mode:?}: link {link}");
        }
    }
    Ok(())
}

#[test]
fn the_meter_notices_what_goes_around_the_shaper() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().rate(Some(RATE)).build()?;
    let meter = net.meter()?;
    let frames = bypass(&net, 1000)?;
    let reports = meter.finish()?;
    let broken: Vec<_> = reports.iter().filter(|report| !report.kept).collect();
    assert_eq!(broken.len(), 1, "{reports:?}");
    assert_eq!((broken[0].link, broken[0].direction), (0, Direction::Up));
    assert_eq!(broken[0].bypassed, frames * 1500);
    Ok(())
}

#[test]
fn the_meter_notices_a_link_without_a_shaper() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().build()?;
    assert!(net.meter().is_err(), "there is no rate to measure against");
    let meter = net.meter_against(Shape::new(RATE))?;
    tcp_transfer(net.worker(0), (net.worker(1), net.worker_addr(1)), 20_000_000)?;
    let reports = meter.finish()?;
    let broken: Vec<_> =
        reports.iter().filter(|r| !r.kept).map(|r| (r.link, r.direction)).collect();
    assert_eq!(broken, [(0, Direction::Up), (1, Direction::Down)]);
    Ok(())
}

/// Sends frames of 1500 bytes past the queue of worker 0's interface, as AF_XDP would.
fn bypass(net: &Topology, frames: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let send = || -> std::io::Result<u64> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        let mut frame = [0; 1500];
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        skip_queue(&socket)?;
        let address = packet_address("eth0")?;
        for _ in 0..frames {
            socket.send_to(&frame, &address)?;
        }
        Ok(frames)
    };
    Ok(net.worker(0).run(send)??)
}

fn skip_queue(socket: &Socket) -> std::io::Result<()> {
    let (on, len) = (1i32, size_of::<i32>() as u32);
    // SAFETY: the pointer is to an integer of that length, which outlives the call.
    let result = unsafe {
        let option = libc::PACKET_QDISC_BYPASS;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const on).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn packet_address(interface: &str) -> std::io::Result<SockAddr> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: `init` fills the storage, which any bytes are valid for, within its length.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, len| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_ifindex = libc::if_nametoindex(name.as_ptr()).cast_signed();
            *len = size_of::<libc::sockaddr_ll>() as u32;
            Ok(())
        })?
    };
    Ok(address)
}

#[test]
fn trains_cross_the_wire_whole_and_reach_xdp_as_packets() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().build()?;
    net.attach_probe("p0", Probe::Count)?;
    let sender = udp_socket(net.worker(0), at(net.worker_addr(0)), LIMIT)?;
    let receiver = udp_socket(net.aggregator(), at(net.aggregator_addr()), LIMIT / 20)?;
    let before = net.host_counters(0)?;
    send_numbered(&sender, at(net.aggregator_addr()), 320, 1000)?;
    assert_eq!(receive_numbered(&receiver, 1000).len(), 320);
    // 64 packets to a train.
    assert_eq!(net.host_counters(0)?.tx_packets - before.tx_packets, 5);
    assert_eq!(net.probe_seen("p0")?, Seen { packets: 320, bytes: 320 * 1042 });
    let counters = net.fault_counters(0, Direction::Up)?;
    assert_eq!((counters.packets, counters.bytes), (320, 320 * 1042));
    Ok(())
}

/// Of `n` things that happen with chance `p`, a number that is six standard deviations off is a
/// fault of the program.
fn plausible(count: u64, n: u64, p: f64) -> bool {
    let expected = n as f64 * p;
    (count as f64 - expected).abs() < 6.0 * (expected * (1.0 - p)).sqrt()
}

#[test]
fn loss_meets_packets_and_not_trains() -> TestResult {
    need_root!(Ok(()));
    for direction in Direction::BOTH {
        let net = Topology::builder().build()?;
        let ends = [
            udp_socket(net.worker(0), at(net.worker_addr(0)), LIMIT / 20)?,
            udp_socket(net.aggregator(), at(net.aggregator_addr()), LIMIT / 20)?,
        ];
        let (sender, receiver, to) = match direction {
            Direction::Up => (&ends[0], &ends[1], net.aggregator_addr()),
            Direction::Down => (&ends[1], &ends[0], net.worker_addr(0)),
        };
        net.set_faults(0, direction, &Faults::loss(0.1).only_udp(PORT))?;
        send_numbered(sender, at(to), 10_000, 300)?;
        let received = receive_numbered(receiver, 300);
        let counters = net.fault_counters(0, direction)?;
        assert_eq!((counters.seen, counters.whole), (10_000, 0), "{counters:?}");
        assert!(plausible(counters.lost, 10_000, 0.1), "{counters:?}");
        assert_eq!(received.len() as u64, 10_000 - counters.lost);
        assert!(received.is_sorted());
        let in_a_row = received.windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(plausible(in_a_row as u64, 10_000, 0.81), "losses are not independent");
        // The faults are for one port: this passes at once.
        ping(net.worker(0), net.aggregator_addr(), Duration::from_millis(150))?;
        net.set_faults(0, direction, &Faults::NONE)?;
        send_numbered(sender, at(to), 1000, 300)?;
        assert_eq!(receive_numbered(receiver, 300).len(), 1000, "the faults were taken off");
    }
    Ok(())
}

#[test]
fn packets_come_twice_late_and_out_of_order_but_unchanged() -> TestResult {
    need_root!(Ok(()));
    let faults = Faults {
        duplicate: 0.05,
        hold: 0.05,
        hold_packets: 10,
        hold_time: Duration::from_micros(100),
        ..Faults::NONE
    };
    let net = Topology::builder().faults(faults).build()?;
    net.attach_probe("p0", Probe::Count)?;
    let sender = udp_socket(net.worker(0), at(net.worker_addr(0)), LIMIT)?;
    let receiver = udp_socket(net.aggregator(), at(net.aggregator_addr()), LIMIT / 20)?;
    // Of two lengths, so that a held packet leaves in a buffer of another size.
    let mut received = Vec::new();
    for payload in [1400, 60, 1400] {
        for _ in 0..20 {
            send_numbered(&sender, at(net.aggregator_addr()), 100, payload)?;
            send_numbered(&sender, at(net.aggregator_addr()), 1, 500)?;
        }
    }
    let mut buffer = vec![0; 2048];
    while let Ok(len) = receiver.recv(&mut buffer) {
        let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        assert_eq!(buffer[..len], packet(number, len), "packet {number} was changed");
        assert!([60, 500, 1400].contains(&len));
        received.push(number);
    }
    let counters = net.fault_counters(0, Direction::Up)?;
    eprintln!("{counters:?}");
    assert_eq!((counters.seen, counters.whole, counters.lost), (6060, 0, 0));
    assert!(plausible(counters.duplicated, 6060, 0.05), "{counters:?}");
    assert!(counters.held > 100 && counters.released + 16 >= counters.held, "{counters:?}");
    let still_held = counters.held - counters.released;
    assert_eq!(received.len() as u64, 6060 + counters.duplicated - still_held);
    let late = received.windows(2).filter(|w| w[1] < w[0] && w[1] != 0).count();
    assert!(late as u64 > counters.released / 2, "{late} packets came late");
    Ok(())
}

#[test]
fn the_largest_packets_that_xdp_takes_come_back() -> TestResult {
    need_root!(Ok(()));
    for mode in [Mode::Ports, Mode::OneNic] {
        let net = Topology::builder().mode(mode).mtu(MAX_XDP_MTU).build()?;
        net.attach_probe(&net.aggregator_interfaces()[0], Probe::Reflect)?;
        let socket = udp_socket(net.worker(0), at(net.worker_addr(0)), LIMIT / 20)?;
        let payload = MAX_XDP_MTU as usize - 28;
        send_numbered(&socket, at(net.aggregator_addr()), 40, payload)?;
        assert_eq!(receive_numbered(&socket, payload), (0..40).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn an_unplugged_link_carries_nothing_and_recovers() -> TestResult {
    need_root!(Ok(()));
    for wire in [true, false] {
        let net = Topology::builder().rate(Some(RATE)).wire(wire).build()?;
        ping(net.worker(0), net.aggregator_addr(), LIMIT)?;
        net.set_link_up(0, false)?;
        let short = Duration::from_millis(100);
        ping(net.worker(0), net.aggregator_addr(), short).expect_err("there is no link");
        ping(net.worker(1), net.aggregator_addr(), LIMIT)?;
        net.set_link_up(0, true)?;
        ping(net.worker(0), net.aggregator_addr(), LIMIT)?;
        let meter = net.meter()?;
        tcp_transfer(net.worker(0), (net.worker(1), net.worker_addr(1)), 2_000_000)?;
        check_kept(&meter.finish()?);
    }
    Ok(())
}

/// Without offloads no packet is larger than the MTU, as on a cable.
#[test]
fn without_offloads_only_packets_cross() -> TestResult {
    need_root!(Ok(()));
    for wire in [true, false] {
        let net = Topology::builder().offloads(false).wire(wire).build()?;
        let bytes = 3_000_000;
        tcp_transfer(net.worker(0), (net.worker(1), net.worker_addr(1)), bytes)?;
        for counters in [net.host_counters(0)?, net.port_counters(1)?] {
            let longest = counters.tx_bytes / counters.tx_packets;
            assert!(longest <= 1514 && counters.tx_packets > bytes / 1500, "{counters:?}");
        }
    }
    Ok(())
}

/// TCP cut up for faults arrives at them packet by packet, too, and survives.
#[test]
fn tcp_lives_through_faults() -> TestResult {
    need_root!(Ok(()));
    let faults = Faults { loss: 0.01, duplicate: 0.01, ..Faults::NONE };
    let net = Topology::builder().faults(faults).build()?;
    tcp_transfer(net.worker(0), (net.worker(1), net.worker_addr(1)), 3_000_000)?;
    for (link, direction) in [(0, Direction::Up), (1, Direction::Down)] {
        let counters = net.fault_counters(link, direction)?;
        assert!(counters.seen > 2000 && counters.whole == 0, "{counters:?}");
        assert!(counters.lost > 0 && counters.duplicated > 0, "{counters:?}");
    }
    Ok(())
}

#[test]
fn a_network_that_cannot_be_is_refused() -> TestResult {
    need_root!(Ok(()));
    let refused = |error: Result<Topology, _>, text: &str| {
        let error: xdp_agg_testbed::Error = error.expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(Topology::builder().workers(0).build(), "1 to 64 workers");
    refused(Topology::builder().workers(65).build(), "1 to 64 workers");
    refused(Topology::builder().mtu(10).build(), "an MTU is 68 to 65535");
    refused(Topology::builder().wire(false).faults(Faults::loss(0.1)).build(), "wire(true)");
    refused(Topology::builder().faults(Faults::loss(2.0)).build(), "between 0 and 1");
    let net = Topology::builder().mtu(MAX_XDP_MTU + 1).build()?;
    let error = net.attach_probe("p0", Probe::Count).expect_err("the packets are too long");
    assert!(error.to_string().contains("attaching program count to p0"), "{error}");
    let error = net.set_faults(7, Direction::Up, &Faults::NONE).expect_err("no such link");
    assert!(error.to_string().contains("no link 7"), "{error}");
    Ok(())
}

/// Buffers beyond the system's limit are for the privileged only.
#[test]
fn who_has_no_privilege_gets_no_larger_buffers() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().build()?;
    let may = |mut command: std::process::Command| -> Result<bool, Box<dyn std::error::Error>> {
        let output = command.args(["CapEff", "/proc/self/status"]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let bits = text.split_whitespace().nth(1).ok_or("no capabilities")?;
        Ok(u64::from_str_radix(bits, 16)? & 1 << 12 != 0)
    };
    assert!(may(net.worker(0).command("grep"))?, "the test would show nothing");
    assert!(!may(net.worker(0).unprivileged_command("grep"))?);
    Ok(())
}

#[test]
fn the_largest_network_can_be_built() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().workers(64).mode(Mode::OneNic).rate(Some(RATE)).build()?;
    ping(net.worker(63), net.aggregator_addr(), LIMIT)?;
    ping(net.worker(0), net.worker_addr(63), LIMIT)?;
    Ok(())
}
