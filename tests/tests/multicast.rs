//! Results by multicast come from the aggregator alone: whoever joins the group reads them, cookie
//! and all, and changes none.

mod support;

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use support::{ENGINES, LIMIT, Lab, check_sums, need_root, network};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

/// Host of the network that is not in the job.
const EVIL: usize = 2;
/// Bytes of IPv4 and UDP in front of our header.
const BEFORE: usize = 28;
/// Blocks that follow a result and are forged.
const AHEAD: u64 = 64;

/// What a host without any right to the job has: what every host of the segment gets, and a socket.
struct Forger {
    hears: Socket,
    says: UdpSocket,
}

impl Forger {
    fn new(lab: &Lab) -> Self {
        let addr = lab.topology.worker_addr(EVIL);
        let open = move || {
            // It reads its interface. Any process could join the group instead, once it knows it.
            let kind = Protocol::from(i32::from((libc::ETH_P_IP as u16).to_be()));
            let hears = Socket::new(Domain::PACKET, Type::DGRAM, Some(kind))?;
            hears.set_read_timeout(Some(Duration::from_millis(100)))?;
            let says = UdpSocket::bind((addr, 0))?;
            SockRef::from(&says).set_multicast_if_v4(&addr)?;
            Ok::<_, std::io::Error>(Self { hears, says })
        };
        lab.topology.worker(EVIL).run(open).expect("entering").expect("root may")
    }

    /// The next result to a group that comes by.
    fn next(&self) -> Option<(SocketAddrV4, Header, usize)> {
        let mut packet = [0; 2048];
        let len = (&self.hears).read(&mut packet).ok()?;
        let packet = packet.get(..len)?;
        let to = Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?);
        let port = u16::from_be_bytes(*packet.get(22..)?.first_chunk()?);
        let header = Header::parse(packet.get(BEFORE..)?.first_chunk()?).ok()?;
        let is_result = to.is_multicast() && header.kind == Kind::Result;
        is_result.then_some((SocketAddrV4::new(to, port), header, len - BEFORE - HEADER_LEN))
    }

    /// The results of the next blocks, as it likes them.
    fn forge(&self, (group, header, len): (SocketAddrV4, Header, usize)) -> u64 {
        let mut packet = vec![0x81; HEADER_LEN + len];
        let mut sent = 0;
        for block in header.block + 1..=header.block + AHEAD {
            let header = Header { block, ..header };
            header.emit(packet.first_chunk_mut().expect("it is that long"));
            sent += u64::from(self.says.send_to(&packet, group).is_ok());
        }
        sent
    }
}

#[test]
fn whoever_joins_the_group_changes_no_result() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "multicast"), engine);
        let workers = lab.connect("train", 2, |b| b.result_mode(ResultMode::Multicast));
        let forger = Forger::new(&lab);
        let (over, forged) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if let Some(result) = forger.next() {
                        forged.fetch_add(forger.forge(result), Ordering::Relaxed);
                    }
                }
            });
            // Ended before a failure is told: the thread waits for it.
            let calls = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let end = Instant::now() + LIMIT;
                while forged.load(Ordering::Relaxed) < 20 * AHEAD {
                    check_sums(&workers, 100_000);
                    assert!(Instant::now() < end, "the forger heard next to nothing");
                }
            }));
            over.store(true, Ordering::Relaxed);
            if let Err(failure) = calls {
                std::panic::resume_unwind(failure);
            }
        });
        for worker in &workers {
            assert!(worker.counters().flow.results > 0, "{engine}: {:?}", worker.counters());
        }
    }
}
