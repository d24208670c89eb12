//! The engine against closed forms.

use xdp_agg_netsim::engine::{After, Options, ResourceId, Schedule, Stream, Uses, simulate};

#[test]
fn one_stream_takes_bytes_over_rate_and_latency() {
    let mut schedule = Schedule::new();
    let mut uses = Uses::new(1);
    uses.add(ResourceId(0), 1.0);
    schedule.add(Stream { latency: 0.5, overhead: 0.25, ..Stream::whole(100.0) }, &mut uses);
    let outcome = simulate(&schedule, &[10.0], &Options::default(), &mut |_| {}).expect("ends");
    assert!((outcome.seconds - 10.75).abs() < 1e-9, "{outcome:?}");
}

#[test]
fn a_ring_of_streams() {
    let n = 4096_u32;
    let mut schedule = Schedule::new();
    let mut uses = Uses::new(2 * n as usize);
    let streams: Vec<_> = (0..n)
        .map(|i| {
            uses.add(ResourceId(i), 1.0);
            uses.add(ResourceId(n + (i + 1) % n), 1.0);
            schedule.add(
                Stream {
                    latency: if i % 16 == 0 { 5e-6 } else { 1e-6 },
                    ..Stream::chunked(2 * (n - 1), 24e3)
                },
                &mut uses,
            )
        })
        .collect();
    for i in 0..n as usize {
        schedule.wait(streams[i], streams[(i + n as usize - 1) % n as usize], After::Lag(1));
    }
    let t = std::time::Instant::now();
    let outcome =
        simulate(&schedule, &vec![1.25e9; 2 * n as usize], &Options::default(), &mut |_| {})
            .expect("ends");
    eprintln!("{} {} {} {:?}", outcome.seconds, outcome.events, outcome.fillings, t.elapsed());
}
