//! Refused packets are told, and a flood of them is not told packet by packet.

use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_common::wire::Header;
use xdp_agg_testbed::Log;

use crate::frames::Frame;
use crate::setup::{engine, header, job, pin_to_cpu, start};

/// A block that no other test sends: they run beside this one, and log to the same place.
const BLOCK: u64 = 77_777;

#[test]
fn refused_packets_are_logged_at_powers_of_two() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets one");
    let Some(mut engine) = engine(32) else { return };
    let job = job(2, 77);
    start(&mut engine, &job, None);
    pin_to_cpu(0); // counts are per CPU
    for _ in 0..100 {
        let spoilt = Header { cookie: 1, ..header(&job, 1, BLOCK) };
        let mut frame = Frame::from_worker(1, &spoilt, 1);
        engine.test_run(&mut frame.bytes, 1).expect("it runs");
    }
    let wanted =
        [1, 2, 4, 8, 16, 32, 64].map(|count| format!("count={count} job=3 rank=1 block={BLOCK}"));
    let end = Instant::now() + Duration::from_secs(10);
    let told = || {
        let text = log.text();
        let ours = |line: &&str| {
            let from = line.contains("10.1.0.2:40001") && line.contains("(cookie)");
            from && line.ends_with(&format!("block={BLOCK}"))
        };
        text.lines().filter(ours).map(String::from).collect::<Vec<_>>()
    };
    while told().len() < wanted.len() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    let told = told();
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for (line, wanted) in told.iter().zip(&wanted) {
        assert!(line.contains(wanted), "{line}: no {wanted}");
    }
}
