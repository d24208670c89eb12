//! Some workers, drawn at random, stand still at any time, and others from time to time (paper 2,
//! figure 7).

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use xdp_agg_testbed::{Process, Topology};

use super::stall::Stall;

/// How many stand still, and how often others are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) count: usize,
    pub(super) every: Duration,
    pub(super) seed: u64,
}

/// Which workers of so many stand still, period after period.
fn drawn(rng: &mut SmallRng, workers: usize, count: usize) -> Vec<usize> {
    sample(rng, workers, count.min(workers)).into_vec()
}

/// Stops workers until all have ended.
pub(super) fn stop(
    stall: Stall,
    draw: Draw,
    topology: &Topology,
    workers: Vec<Process>,
    limit: Duration,
) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(draw.seed);
    let all = workers.len();
    let mut workers: Vec<Option<Process>> = workers.into_iter().map(Some).collect();
    let start = Instant::now();
    loop {
        for place in &mut workers {
            let ended = place.as_mut().map(Process::try_wait).transpose()?.flatten().is_some();
            if let Some(worker) = place.take_if(|_| ended) {
                worker.wait(Duration::ZERO)?.success()?;
            }
        }
        if workers.iter().all(Option::is_none) {
            return Ok(());
        }
        if start.elapsed() > limit {
            let last = workers.iter().flatten().next().map(Process::last_words).unwrap_or_default();
            bail!("the workers have not ended in {limit:?}{last}");
        }
        let chosen = drawn(&mut rng, all, draw.count);
        let mut still = |stopped: bool| -> Result<()> {
            for link in &chosen {
                let Some(worker) = &mut workers[*link] else { continue };
                if stopped {
                    worker.signal(libc::SIGSTOP)?;
                }
                stall.hold(topology, *link, stopped)?;
                if !stopped {
                    worker.signal(libc::SIGCONT)?;
                }
            }
            Ok(())
        };
        still(true)?;
        std::thread::sleep(draw.every);
        still(false)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_workers_and_all_of_them_in_time() {
        let periods = |seed| -> Vec<Vec<usize>> {
            let mut rng = SmallRng::seed_from_u64(seed);
            (0..200).map(|_| drawn(&mut rng, 8, 2)).collect()
        };
        assert_eq!(periods(7), periods(7));
        assert_ne!(periods(7), periods(8));
        for chosen in periods(7) {
            assert!(chosen.len() == 2 && chosen[0] != chosen[1], "{chosen:?}");
        }
        assert!((0..8).all(|worker| periods(7).iter().flatten().any(|drawn| *drawn == worker)));
    }
}
