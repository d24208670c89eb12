//! One size: verify, time, verify again.

use std::time::Instant;

use xdp_agg_baselines::{BoxError, Collective};
use xdp_agg_client::Op;

use super::pattern::{Element, count_wrong, fill};
use super::report::Row;
use super::usage::{MachineTime, process_cpu_s};

/// What to do for one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes of the vector.
    pub(crate) bytes: usize,
    /// Timed calls.
    pub(crate) iters: u32,
    /// Calls before them.
    pub(crate) warmup: u32,
    /// The vector lies in the segment that the processes of a host share.
    pub(crate) in_segment: bool,
}

/// Measures one size, together with all other ranks.
pub(crate) fn measure<E: Element>(
    collective: &mut dyn Collective,
    plan: Plan,
) -> Result<Row, BoxError> {
    let len = plan.bytes / size_of::<E>();
    let communicator = collective.communicator().filter(|_| plan.in_segment);
    let mut shared = communicator.map(|communicator| communicator.buffer::<E>(len)).transpose()?;
    let mut own = vec![E::ZERO; if shared.is_some() { 0 } else { len }];
    let data: &mut [E] = shared.as_deref_mut().unwrap_or(&mut own);
    let mut wrong = verify(collective, data)?;
    // Zeros: a sum of sums would grow with every call, and refilling would let the ranks drift
    // apart.
    data.fill(E::ZERO);
    for _ in 0..plan.warmup {
        E::all_reduce(collective, data)?;
    }
    barrier(collective)?;
    let cpu_before = process_cpu_s()?;
    let machine_before = MachineTime::now()?;
    let mut times_us = Vec::with_capacity(plan.iters as usize);
    for _ in 0..plan.iters {
        let start = Instant::now();
        E::all_reduce(collective, data)?;
        times_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let process_s = process_cpu_s()? - cpu_before;
    barrier(collective)?;
    let machine = MachineTime::now()?.since(&machine_before);
    wrong += verify(collective, data)?;
    let wrong = total(collective, wrong)?;
    let mean_us = averages(collective, &times_us)?;
    let iters = f64::from(plan.iters);
    Ok(Row {
        bytes: plan.bytes,
        count: data.len(),
        iters: plan.iters,
        warmup: plan.warmup,
        wrong,
        times_us,
        mean_us,
        cpu_s: machine.busy_s / iters,
        steal_s: machine.steal_s / iters,
        process_cpu_s: process_s / iters,
    }
    .rounded())
}

/// Sums the known pattern, and counts this rank's wrong elements.
fn verify<E: Element>(collective: &mut dyn Collective, data: &mut [E]) -> Result<u64, BoxError> {
    fill(data, collective.rank());
    E::all_reduce(collective, data)?;
    Ok(count_wrong(data, collective.world_size()))
}

/// Ends when all ranks have begun it.
fn barrier(collective: &mut dyn Collective) -> Result<(), BoxError> {
    collective.all_reduce_i32(&mut [1], Op::Sum)
}

/// Wrong elements of all ranks together.
fn total(collective: &mut dyn Collective, wrong: u64) -> Result<u64, BoxError> {
    // Capped so that the sum of 64 ranks stays far from what a lane holds: it is wrong in any case.
    let mut sum = [wrong.min(1 << 20) as i32];
    collective.all_reduce_i32(&mut sum, Op::Sum)?;
    Ok(sum[0] as u64)
}

/// Each call's time, averaged over the ranks (as the OSU benchmarks and our OpenMPI peer do).
fn averages(collective: &mut dyn Collective, times_us: &[f64]) -> Result<Vec<f64>, BoxError> {
    // Integers of a unit that all ranks must share: 10 ns where the first rank's calls are short,
    // else 1 µs, so that 64 ranks of 33 s a call still fit.
    let longest = times_us.iter().copied().fold(0.0, f64::max);
    let mut long_ranks = [i32::from(longest > 100_000.0)];
    collective.all_reduce_i32(&mut long_ranks, Op::Sum)?;
    let units_per_us = if long_ranks[0] > 0 { 1.0 } else { 100.0 };
    let most = f64::from(i32::MAX) / f64::from(collective.world_size()) - 1.0;
    let mut sums: Vec<i32> =
        times_us.iter().map(|us| (us * units_per_us).round().min(most) as i32).collect();
    collective.all_reduce_i32(&mut sums, Op::Sum)?;
    let scale = units_per_us * f64::from(collective.world_size());
    Ok(sums.into_iter().map(|sum| f64::from(sum) / scale).collect())
}
