//! Interfaces that hosts have besides plain ports: bridges and overlays, whose drivers run no XDP
//! programs, VLANs, and jumbo frames.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_all, check_sums, need_root, on_all, ping};
use xdp_agg_client::{Communicator, Op};
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::steady::Work;
use xdp_agg_testbed::{BpfFs, Namespace, Process, Topology, at_once, program};

/// The aggregator's address on the overlay; the workers' begin at 1.
const OVERLAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
/// A vector that takes 30 s and more where only repetitions get through, one block a timeout.
const LARGE: usize = 4 << 20;

const RESUME: [(&str, &str); 2] =
    [("XDP_AGG_ON_WORKER_LOSS", "shrink"), ("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];

/// Two hosts and a switch whose links take trains whole, as links between namespaces do.
fn two_hosts() -> Topology {
    // The kernel exempts packets that a TC program redirected, as the harness's links do, from
    // generic XDP.
    Topology::builder().workers(2).wire(false).build().expect("a network")
}

fn serve(topology: &Topology, addr: Ipv4Addr, arguments: &[&str]) -> (Process, String) {
    let daemon = topology.aggregator();
    let mut command = daemon.command(program("xdp-agg").expect("the tests' programs are built"));
    let addr = addr.to_string();
    command.args(["serve", "--data-addr", &addr]).args(arguments);
    let process = Process::spawn("xdp-agg serve", command).expect("it starts");
    let ready = process.wait_line("its readiness", LIMIT, |line| line.starts_with("ready "));
    let ready = ready.expect("it gets ready");
    let engine = ready.split_once("engine=").expect("it names its engine").1.trim().to_owned();
    (process, engine)
}

/// How long one large vector takes, and that it is right.
fn sum(topology: &Topology, addr: Ipv4Addr, job: &str) -> Duration {
    let control: SocketAddr = SocketAddrV4::new(addr, CONTROL_PORT).into();
    let connect = |rank: u16| {
        let settings = Communicator::builder().aggregator(control).job(job).rank(rank);
        let settings = settings.world_size(2).deadline(LIMIT).join_deadline(LIMIT).learning(false);
        let host = topology.worker(rank.into());
        host.run(move || settings.connect()).expect("its namespace").expect("it joins")
    };
    let workers = at_once([0, 1], connect);
    check_sums(&workers, 10_000);
    let start = Instant::now();
    on_all(&workers, |worker| {
        let mut vector = vec![i32::from(worker.rank()) + 1; LARGE];
        worker.all_reduce(&mut vector, Op::Sum).expect("in time");
        assert!(vector.iter().all(|element| *element == 3));
    });
    start.elapsed()
}

/// By itself the daemon takes the user-space engine on an interface whose driver runs no XDP
/// programs, and says so, as the doctor does. XDP in the driver is refused.
fn serve_by_itself(topology: &Topology, interface: &str, addr: Ipv4Addr) -> Duration {
    let (daemon, engine) = serve(topology, addr, &["--interface", interface]);
    assert_eq!(engine, "userspace");
    let why = |line: &str| line.contains("taking the user-space engine");
    let said = daemon.wait_error_line("why it is in user space", LIMIT, why).expect("it says so");
    for part in [interface, "cannot run XDP programs itself"] {
        assert!(said.contains(part), "{said}");
    }
    let userspace = sum(topology, addr, "auto");
    daemon.terminate().expect("it ends");
    let said = refused(topology, &["--interface", interface, "--engine", "xdp"]);
    assert!(said.contains("--engine userspace"), "{said}");
    let mut command = topology.aggregator().command(program("xdp-agg").expect("built"));
    let told = command.args(["doctor", "--interface", interface]).output().expect("it runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("takes the user-space engine"), "{told}");
    userspace
}

/// What a daemon says that does not start.
fn refused(topology: &Topology, arguments: &[&str]) -> String {
    let daemon = topology.aggregator();
    let mut command = daemon.command(program("xdp-agg").expect("the tests' programs are built"));
    let ended = command.arg("serve").args(arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    said
}

#[test]
fn a_bridge_is_served_from_user_space() {
    need_root!();
    let topology = two_hosts();
    let addr = topology.aggregator_addr();
    let userspace = serve_by_itself(&topology, "br0", addr);
    // The generic mode that is asked for does not crawl.
    let generic = ["--interface", "br0", "--engine", "xdp", "--xdp-mode", "generic"];
    let (daemon, engine) = serve(&topology, addr, &generic);
    assert_eq!(engine, "xdp (generic)");
    let took = sum(&topology, addr, "generic");
    eprintln!("{LARGE} elements over a bridge: user space {userspace:?}, generic XDP {took:?}");
    assert!(took < LIMIT / 3, "{took:?}, {userspace:?} in user space");
    daemon.terminate().expect("it ends");
    let mut doctor = topology.aggregator().command(program("xdp-agg").expect("built"));
    let told = doctor.args(["doctor", "--interface", "br0"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("--interface p0 --interface p1"), "{told}");
}

#[test]
fn an_overlay_is_served_from_user_space() {
    need_root!();
    let topology = two_hosts();
    let overlay = |host: &Namespace, below: &str, addr: Ipv4Addr| {
        for line in [
            format!("link add vx0 type vxlan id 7 group 239.1.1.1 dev {below} dstport 4789"),
            format!("addr add {addr}/24 dev vx0"),
            "link set vx0 up".into(),
        ] {
            let done = host.command("ip").args(line.split(' ')).output().expect("ip runs");
            assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        }
    };
    overlay(topology.aggregator(), "br0", OVERLAY);
    for rank in 0..2_u8 {
        let addr = Ipv4Addr::new(10, 77, 0, rank + 1);
        overlay(topology.worker(rank.into()), "eth0", addr);
    }
    serve_by_itself(&topology, "vx0", OVERLAY);
    let generic = ["--interface", "vx0", "--engine", "xdp", "--xdp-mode", "generic"];
    let said = refused(&topology, &generic);
    assert!(said.contains("vx0 is a tunnel (vxlan)"), "{said}");
}

/// Jumbo frames of others pass by a native program, ours are as large as one buffer.
#[test]
fn jumbo_frames_are_served_natively() {
    need_root!();
    let topology = Topology::builder().workers(2).mtu(9000).build().expect("a network");
    let Some((_bpffs, mut lab)) = Lab::start_pinned(topology) else { return };
    let workers = lab.connect("jumbo", 2, |settings| settings);
    assert_eq!(workers[0].engine(), "xdp (native)");
    assert_eq!(workers[0].block_bytes(), 3456);
    check_all(&workers, [1, 863, 864, 865, 100_000]);
    drop(workers);
    let aggregator = (lab.topology.aggregator(), lab.topology.aggregator_addr());
    let other = (lab.topology.worker(1), lab.topology.worker_addr(1));
    for (to, addr) in [aggregator, other] {
        foreign(lab.topology.worker(0), to, addr);
    }
    goes_on_after_a_restart(&mut lab);
    let workers = lab.connect("after", 2, |settings| settings);
    assert_eq!(workers[0].block_bytes(), 3456);
    check_sums(&workers, 50_000);
}

/// UDP of 8900 bytes, and TCP in segments of the whole MTU.
fn foreign(from: &Namespace, to: &Namespace, addr: Ipv4Addr) {
    let receiver = to.run(|| UdpSocket::bind((addr, 0))).expect("its namespace").expect("bound");
    receiver.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let sender = from.run(|| UdpSocket::bind("0.0.0.0:0")).expect("its namespace").expect("bound");
    let datagram: Vec<u8> = (0..8900).map(|byte| byte as u8).collect();
    let at = receiver.local_addr().expect("an address");
    sender.send_to(&datagram, at).expect("it goes out");
    let mut got = vec![0; 9000];
    let len = receiver.recv(&mut got).expect("it arrives");
    assert!(got[..len] == datagram, "as it was sent");
    let listener = to.run(|| TcpListener::bind((addr, 0))).expect("its namespace").expect("bound");
    let at = listener.local_addr().expect("an address");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("somebody connects");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("it arrives");
            bytes.len()
        });
        let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(5));
        let mut stream = from.run(connect).expect("its namespace").expect("it connects");
        stream.write_all(&vec![7; 3_000_000]).expect("it goes out");
        drop(stream);
        assert_eq!(reader.join().expect("no panic"), 3_000_000);
    });
}

/// The data path in a VLAN: tagged packets in and out, and nothing of other VLANs.
#[test]
fn a_vlan_is_served_by_the_interface_that_carries_it() {
    need_root!();
    let topology = Topology::builder().workers(3).build().expect("a network");
    let Ok(bpffs) = BpfFs::mount() else { return eprintln!("skipped: no BPF file system") };
    let pins = bpffs.arguments();
    let mut extra: Vec<&str> = pins.iter().map(String::as_str).collect();
    extra.extend(["--vlan", "7", "--probe-timeout", "3"]);
    let mut lab = Lab::start_with(topology, "xdp", &extra);
    let vlan = |link, id, in_frame| {
        lab.topology.set_vlan(link, (id, DATA_PORT), in_frame).expect("the link takes it");
    };
    vlan(0, 7, true);
    vlan(1, 7, true);
    let workers = lab.connect("tagged", 2, |settings| settings);
    assert_eq!(workers[0].engine(), "xdp (native)");
    check_all(&workers, [1, 100_000]);
    drop(workers);
    assert!(lab.topology.worker(0).run(|| ping(lab.topology.aggregator_addr())).expect("inside"));
    // Without a tag, in another VLAN, and where veth keeps the tag beside the frame.
    let alone = |job| {
        let error = lab.connect_one(2, lab.worker(job, 0, 1)).expect_err(job).to_string();
        assert!(error.contains("did not probe in time"), "{job}: {error}");
    };
    alone("untagged");
    vlan(2, 8, true);
    alone("another");
    vlan(2, 7, false);
    alone("taken off");
    let refused = lab.stats().unattributed.rejects;
    assert!(refused.iter().all(|count| *count == 0), "{refused:?}");
    vlan(2, 7, true);
    let workers = lab.connect("all", 3, |settings| settings);
    check_sums(&workers, 10_000);
    drop(workers);
    goes_on_after_a_restart(&mut lab);
}

/// The next daemon takes the programs over, and a job with them.
fn goes_on_after_a_restart(lab: &mut Lab) {
    let work = Work { longest: 150_000, ..Work::default() };
    let steady = lab.steady_job("steady", 2, &RESUME, &work);
    let epoch = lab.job_stats("steady").info.epoch;
    lab.daemon.take().expect("it runs").kill().expect("it was running");
    lab.start_daemon();
    let first = lab.job_stats("steady");
    assert_eq!(first.info.epoch, epoch, "it goes on as it was");
    let give_up = Instant::now() + LIMIT;
    while lab.job_stats("steady").counters.blocks < first.counters.blocks + 1000 {
        assert!(Instant::now() < give_up, "no sums after {}", first.counters.blocks);
        thread::sleep(Duration::from_millis(20));
    }
    for worker in &steady {
        assert_eq!(worker.wait_calls(3, LIMIT).ok(), Some(()));
    }
}
