//! Results by `AF_XDP`: around the stack, exact, and without a trace when the worker is gone.

mod support;

use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_all, check_sums, need_root, network};
use xdp_agg_client::{Builder, Communicator, Transport};
use xdp_agg_testbed::steady::{Line, Work};
use xdp_agg_testbed::{Faults, Namespace, Topology, program};

const AF_XDP: [(&str, &str); 1] = [("XDP_AGG_TRANSPORT", "af_xdp")];

fn by_af_xdp(settings: Builder) -> Builder {
    settings.transport(Transport::AfXdp)
}

/// Packets that have come around the stack, at each worker.
fn packets(workers: &[Communicator]) -> Vec<u64> {
    workers.iter().map(|worker| worker.counters().af_xdp_packets).collect()
}

fn has_program(host: &Namespace) -> bool {
    let shown = host.command("ip").args(["link", "show", "eth0"]).output().expect("ip runs");
    String::from_utf8_lossy(&shown.stdout).contains("xdp")
}

/// Until the program is gone: the kernel takes a process's files away after its end.
fn wait_without_program(host: &Namespace) {
    let start = Instant::now();
    while has_program(host) {
        assert!(start.elapsed() < LIMIT, "the program stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A network as with cables: a virtual link that hands on trains leaves their checksums out.
fn cables(workers: usize) -> Lab {
    let topology = Topology::builder().workers(workers).offloads(false);
    Lab::start(topology.build().expect("a network"), "xdp")
}

/// Over a cable's packets and over frames that XDP has sent, of both lengths: nearly all results
/// come this way, and every sum is exact.
#[test]
fn results_come_around_the_stack() {
    need_root!();
    for (wire, mtu) in [(true, 1500), (false, 1500), (false, 3500)] {
        let topology = Topology::builder().workers(3).wire(wire).offloads(!wire).mtu(mtu);
        let lab = Lab::start(topology.build().expect("a network"), "xdp");
        let workers = lab.connect("around", 3, by_af_xdp);
        check_all(&workers, [1, 352, 5000, 400_000, 3, 200_000]);
        let block = workers[0].block_bytes() as u64;
        let blocks = (400_000 + 200_000) * 4 / block;
        for packets in packets(&workers) {
            assert!(packets > blocks * 9 / 10, "MTU {mtu}: {packets} of {blocks}");
        }
        drop(workers);
        wait_without_program(lab.topology.worker(0));
    }
}

/// A daemon that sums with sockets leaves checksums to the card, and a virtual card leaves them
/// out. So does a virtual link that makes trains of packets. Only the stack knows that: such
/// results are its own, and sums are exact.
#[test]
fn results_without_a_checksum_are_left_to_the_stack() {
    need_root!();
    for (mode, engine) in [("fanout", "userspace"), ("ports", "xdp")] {
        let lab = Lab::start(network(2, mode), engine);
        let workers = lab.connect("open", 2, by_af_xdp);
        check_all(&workers, [1, 5000, 100_000]);
        let packets = packets(&workers);
        assert!(packets.iter().all(|packets| *packets < 200), "{engine}: {packets:?}");
    }
}

/// Lost, repeated, late and damaged results are mended as by UDP.
#[test]
fn faults_are_mended() {
    need_root!();
    let lab = cables(2);
    let faults = Faults { duplicate: 0.01, ..Faults::loss(0.02) };
    lab.topology.set_all_faults(&faults).expect("faults");
    for link in 0..2 {
        lab.topology.damage(link).expect("it is attached");
    }
    let workers = lab.connect("faults", 2, by_af_xdp);
    check_all(&workers, [100_000, 7, 300_000]);
    let damaged: Vec<u64> = (0..2).map(|link| lab.topology.damaged(link).expect("read")).collect();
    assert!(damaged.iter().all(|damaged| *damaged > 0), "{damaged:?}");
    assert!(packets(&workers).iter().all(|packets| *packets > 0), "{:?}", packets(&workers));
}

/// A second worker on an interface has its results by UDP. When the first one has gone, the next
/// one has the interface.
#[test]
fn one_worker_has_the_interface() {
    need_root!();
    let lab = cables(2);
    let first = lab.connect("first", 2, by_af_xdp);
    let second = lab.connect("second", 2, by_af_xdp);
    for _ in 0..3 {
        check_sums(&first, 50_000);
        check_sums(&second, 50_000);
    }
    assert!(packets(&first).iter().all(|packets| *packets > 0));
    assert_eq!(packets(&second), [0, 0]);
    drop(first);
    wait_without_program(lab.topology.worker(0));
    wait_without_program(lab.topology.worker(1));
    check_sums(&second, 50_000);
    let third = lab.connect("third", 2, by_af_xdp);
    check_sums(&third, 50_000);
    check_sums(&third, 50_000);
    assert!(packets(&third).iter().all(|packets| *packets > 0));
}

/// A worker that is killed leaves no program, also where children of its have copies of its files.
#[test]
fn a_killed_worker_leaves_no_program() {
    need_root!();
    let lab = cables(2);
    let work = Work { children: 2, pause: Duration::from_millis(5), ..Work::default() };
    let mut workers = lab.steady_job("killed", 2, &AF_XDP, &work);
    assert!(has_program(lab.topology.worker(0)));
    let children_live = Instant::now();
    for worker in &mut workers {
        // It alone: its children go when the test does.
        worker.process.signal(libc::SIGKILL).expect("it ends");
    }
    for host in 0..2 {
        wait_without_program(lab.topology.worker(host));
    }
    assert!(children_live.elapsed() < Duration::from_secs(20), "its children have ended");
}

/// A process that may not load programs is told which privilege it lacks, where it asks for this
/// way. Otherwise it works by UDP.
#[test]
fn without_privileges_it_is_an_error_that_names_them() {
    need_root!();
    let lab = cables(2);
    let worker = |transport: &str| {
        let program = program("steady_worker").expect("the tests' programs are built");
        // What root may do beside the rest: any of these would be enough for a part of it.
        let mut command = lab.topology.worker(0).command("setpriv");
        command
            .arg("--bounding-set=-sys_admin,-bpf,-net_admin,-net_raw")
            .arg(program)
            .env("RANK", "0")
            .env("WORLD_SIZE", "1")
            .env("XDP_AGG_ADDR", lab.control().to_string())
            .env("XDP_AGG_TRANSPORT", transport);
        let work = Work { calls: 3, ..Work::default() };
        let worker = xdp_agg_testbed::steady::Steady::spawn("worker", command, &work);
        let worker = worker.expect("it starts");
        let end = |line: &Line| matches!(line, Line::Done | Line::Failed { .. });
        worker.wait("its end", LIMIT, |_, line| end(line)).expect("it ends");
        format!("{:?}", worker.said())
    };
    let said = worker("af_xdp");
    assert!(said.contains("XDP_AGG_TRANSPORT") && said.contains("CAP_NET_ADMIN"), "{said}");
    for transport in ["auto", "udp"] {
        let said = worker(transport);
        assert!(said.contains("Done"), "{said}");
    }
}
