//! Times the TCP ring: run one process per rank, with `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
//! `MASTER_PORT` set as torchrun does. Arguments: sizes in bytes, by comma; seconds per size.
//!
//! `RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ring_bench 4096,1048576 1`

use std::time::{Duration, Instant};

use xdp_agg_client::Op;
use xdp_agg_client::ring::Ring;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let sizes = arguments.next().unwrap_or_else(|| "4096,1048576".into());
    let seconds: f64 = arguments.next().unwrap_or_else(|| "1".into()).parse()?;
    let mut ring = Ring::from_env()?;
    for size in sizes.split(',') {
        measure(&mut ring, size.trim().parse()?, seconds)?;
    }
    Ok(())
}

fn measure(ring: &mut Ring, bytes: usize, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let (rank, world) = (ring.rank(), ring.world_size());
    let value = |i: usize, rank: u16| f32::from(rank + 1) * (i % 1021) as f32;
    let mut data: Vec<f32> = (0..bytes / 4).map(|i| value(i, rank)).collect();
    ring.all_reduce(&mut data, Op::Sum)?;
    let expected = |i| (0..world).map(|rank| value(i, rank)).sum::<f32>();
    let wrong = data.iter().enumerate().filter(|(i, v)| expected(*i) != **v).count();

    data.fill(0.0);
    let mut estimate = Duration::ZERO;
    for _ in 0..3 {
        estimate = time(ring, &mut data)?;
    }
    // All ranks must make equally many calls: the slowest decides.
    let mut rounds = [(seconds / estimate.as_secs_f64().max(1e-6)) as i32];
    ring.all_reduce(&mut rounds, Op::Average)?;
    let mut times: Vec<Duration> =
        (0..rounds[0].clamp(3, 20_000)).map(|_| time(ring, &mut data)).collect::<Result<_, _>>()?;
    times.sort_unstable();
    if rank == 0 {
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        println!(
            "{world} workers {bytes:>10} bytes {:>6} calls: median {:>10.1} us, least {:>10.1}, \
             90 % {:>10.1}, wrong {wrong}",
            times.len(),
            at(0.5),
            at(0.0),
            at(0.9)
        );
    }
    Ok(())
}

fn time(ring: &mut Ring, data: &mut [f32]) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    ring.all_reduce(data, Op::Sum)?;
    Ok(start.elapsed())
}
