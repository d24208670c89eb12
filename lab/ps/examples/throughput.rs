//! What the parameter server carries on the loopback of this machine: servers and workers are
//! threads of one process, so all of them share its processors.
//!
//! ```sh
//! cargo run --release -p xdp-agg-ps --example throughput -- WORKERS SERVERS MEBIBYTES
//! ```

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_ps::{Op, PsClient, ServeOptions, Server};

const CALLS: u32 = 11;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [workers, servers, mebibytes] = numbers[..] else {
        eprintln!("expected three numbers: WORKERS SERVERS MEBIBYTES");
        std::process::exit(2);
    };
    let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut addresses = Vec::new();
    for _ in 0..servers {
        let server = Server::bind(ServeOptions::new(listen)).expect("a free port");
        addresses.push(server.local_addr().expect("it listens"));
        thread::spawn(|| server.run());
    }
    let len = mebibytes << 18;
    let work = |rank: usize| {
        let deadline = Duration::from_secs(60);
        let mut client =
            PsClient::connect(&addresses, "throughput", rank as u16, workers as u16, deadline)
                .expect("all join");
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let mut data = vec![1.0_f32; len];
            let begun = Instant::now();
            client.all_reduce(&mut data, Op::Sum).expect("a sum");
            times.push(begun.elapsed());
            assert!(data.iter().all(|value| *value == workers as f32));
        }
        times.sort_unstable();
        times[times.len() / 2]
    };
    let median = thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = (0..workers).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).max()
    });
    let median = median.unwrap_or_default();
    let rate = (len * 4) as f64 / median.as_secs_f64() / 1e9;
    println!(
        "{workers} workers, {servers} servers, {mebibytes} MiB: median of {CALLS} calls {:.1} ms, \
         {rate:.2} GB/s a worker and direction, {:.2} GB/s into the servers",
        median.as_secs_f64() * 1e3,
        rate * workers as f64
    );
}
