//! Stochastic gradient descent with momentum.
//!
//! Every rank has all images and the same weights: rank 0's, which the aggregator gives to all, or,
//! without an aggregator, those of the same seed. A step's batch is divided evenly, and each rank
//! computes the gradient of its part. All take the same step along the average, so weights stay
//! equal, bit for bit, without being sent again. The loss of the part travels with the gradient, as
//! one more element.

use std::time::{Duration, Instant};

use xdp_agg_baselines::BoxError;

use crate::digits::{Images, Malformed};
use crate::exchange::Exchange;
use crate::network::{Network, PARAMETERS};
use crate::random::Random;
use crate::record::{Options, Record, digest};

const ORDER: u64 = 3;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// The batch cannot be divided among the workers.
    #[error(
        "a batch of {batch} images cannot be divided evenly among {workers} workers: choose a \
         multiple of {workers} between {workers} and {images}"
    )]
    Batch {
        /// Images of a step.
        batch: usize,
        /// Workers.
        workers: usize,
        /// Images for training.
        images: usize,
    },
    /// There is nothing to do.
    #[error("0 epochs: choose at least 1")]
    NoEpochs,
    /// The data set is damaged.
    #[error(transparent)]
    Data(#[from] Malformed),
    /// The all-reduce failed.
    #[error("step {step}: {source}")]
    Exchange {
        /// The step, from 0.
        step: usize,
        /// What the all-reduce said.
        source: BoxError,
    },
    /// The initial weights did not reach all.
    #[error("sharing the initial weights: {0}")]
    Share(BoxError),
    /// Training diverged.
    #[error(
        "the loss is {loss} in step {step}: choose a smaller learning rate than {learning_rate}"
    )]
    Diverged {
        /// The step, from 0.
        step: usize,
        /// The loss.
        loss: f32,
        /// The learning rate.
        learning_rate: f32,
    },
}

/// How far training is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Epochs, from 1.
    pub epoch: usize,
    /// Steps that are done, in all epochs.
    pub step: usize,
    /// Steps that there will be.
    pub steps: usize,
    /// Mean loss of the epoch's steps up to now.
    pub loss: f32,
    /// This was the epoch's last step.
    pub epoch_ends: bool,
}

/// A run's state.
struct Run<'a> {
    options: Options,
    exchange: &'a mut Exchange,
    train: Images,
    network: Network,
    velocity: Vec<f32>,
    /// The gradient of each part of this process, with its loss as the last element.
    gradients: Vec<Vec<f32>>,
    communication: Vec<Duration>,
    losses: Vec<f32>,
    gradient_l1: Vec<f32>,
    gradient_max: Vec<f32>,
}

/// Trains, and returns this process' account. `scale` is noted there.
///
/// # Errors
/// Settings that do not fit, an all-reduce that fails, or a loss that is infinite or NaN.
pub fn train(
    options: Options,
    scale: Option<f64>,
    exchange: &mut Exchange,
    mut progress: impl FnMut(Progress),
) -> Result<Record, TrainingError> {
    let (train, test) = Images::load()?.split(options.seed);
    let (batch, workers, images) = (options.batch, exchange.parts(), train.len());
    if batch == 0 || batch % workers != 0 || batch > images {
        return Err(TrainingError::Batch { batch, workers, images });
    }
    if options.epochs == 0 {
        return Err(TrainingError::NoEpochs);
    }
    let started = Instant::now();
    let parts = exchange.own_parts().len();
    let mut network = Network::new(options.seed);
    exchange.share(&mut network.parameters).map_err(TrainingError::Share)?;
    let mut run = Run {
        options,
        exchange,
        train,
        network,
        velocity: vec![0.0; PARAMETERS],
        gradients: vec![vec![0.0; PARAMETERS + 1]; parts],
        communication: Vec::new(),
        losses: Vec::new(),
        gradient_l1: Vec::new(),
        gradient_max: Vec::new(),
    };
    run.epochs(&mut progress)?;
    let seconds = started.elapsed().as_secs_f64();
    let recognised = run.network.evaluate(&test).correct;
    let accuracy = recognised as f64 / test.len() as f64;
    Ok(run.record(seconds, accuracy, scale, [images, test.len()]))
}

impl Run<'_> {
    fn epochs(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), TrainingError> {
        let Options { epochs, batch, seed, .. } = self.options;
        // What is left of an epoch beyond whole batches comes elsewhere in the next epoch's order.
        let steps_per_epoch = self.train.len() / batch;
        let mut random = Random::new(seed, ORDER);
        let mut order: Vec<usize> = (0..self.train.len()).collect();
        for epoch in 1..=epochs {
            random.shuffle(&mut order);
            for (i, batch) in order.chunks_exact(batch).enumerate() {
                self.step(batch)?;
                let loss = mean(&self.losses[self.losses.len() - 1 - i..]);
                let (step, steps) = (self.losses.len(), epochs * steps_per_epoch);
                let epoch_ends = i + 1 == steps_per_epoch;
                progress(Progress { epoch, step, steps, loss, epoch_ends });
            }
        }
        Ok(())
    }

    /// One step along the average gradient of the images at `batch`.
    fn step(&mut self, batch: &[usize]) -> Result<(), TrainingError> {
        let step = self.losses.len();
        let part_len = batch.len() / self.exchange.parts();
        for (part, gradient) in self.exchange.own_parts().zip(&mut self.gradients) {
            let images = self.train.select(&batch[part * part_len..(part + 1) * part_len]);
            let (gradient, loss) = gradient.split_at_mut(PARAMETERS);
            loss[0] = self.network.gradient(&images, gradient).loss;
        }
        let started = Instant::now();
        let averaged = self.exchange.average(&mut self.gradients);
        averaged.map_err(|source| TrainingError::Exchange { step, source })?;
        self.communication.push(started.elapsed());

        let Options { learning_rate, momentum, .. } = self.options;
        let (gradient, loss) = self.gradients[0].split_at(PARAMETERS);
        if !loss[0].is_finite() {
            return Err(TrainingError::Diverged { step, loss: loss[0], learning_rate });
        }
        self.losses.push(loss[0]);
        self.gradient_l1.push(gradient.iter().map(|g| g.abs()).sum());
        self.gradient_max.push(gradient.iter().map(|g| g.abs()).fold(0.0, f32::max));
        let state = self.network.parameters.iter_mut().zip(&mut self.velocity);
        for ((weight, velocity), gradient) in state.zip(gradient) {
            *velocity = momentum * *velocity + gradient;
            *weight -= learning_rate * *velocity;
        }
        Ok(())
    }

    fn record(self, seconds: f64, accuracy: f64, scale: Option<f64>, images: [usize; 2]) -> Record {
        let communication: Duration = self.communication.iter().sum();
        let mut sorted = self.communication;
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let steps_per_epoch = self.losses.len() / self.options.epochs;
        Record {
            system: self.exchange.system().into(),
            engine: self.exchange.engine(),
            rank: self.exchange.rank(),
            workers: self.exchange.parts(),
            options: self.options,
            scale,
            parameters: PARAMETERS,
            images,
            steps: self.losses.len(),
            loss_by_epoch: self.losses.chunks(steps_per_epoch).map(mean).collect(),
            loss_by_step: self.losses,
            gradient_l1_by_step: self.gradient_l1,
            gradient_max_by_step: self.gradient_max,
            test_accuracy: accuracy,
            seconds,
            compute_seconds: seconds - communication.as_secs_f64(),
            communication_seconds: communication.as_secs_f64(),
            communication_us_median: median.as_secs_f64() * 1e6,
            saturated: self.exchange.saturated(),
            digest: digest(&self.network.parameters),
            counters: self.exchange.counters(),
        }
    }
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use xdp_agg_mesh::Mesh;

    use super::*;
    use crate::exchange::Emulated;

    const SHORT: Options =
        Options { epochs: 2, seed: 5, batch: 64, learning_rate: 0.05, momentum: 0.9 };

    fn single(options: Options) -> Record {
        train(options, None, &mut Exchange::Single, |_| ()).unwrap()
    }

    fn ring_of(workers: u16) -> Vec<Record> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = Some(listener);
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..workers)
                .map(|rank| {
                    let mut ring =
                        Mesh::builder().rank(rank).world_size(workers).rendezvous(address);
                    if let Some(listener) = listener.take() {
                        ring = ring.listener(listener);
                    }
                    scope.spawn(move || {
                        let mut exchange = Exchange::Ring(Box::new(ring.open().unwrap()));
                        train(SHORT, None, &mut exchange, |_| ()).unwrap()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Rounding of sums in another order, some 1e-7 of each gradient element, is all that differs.
    #[test]
    fn two_ranks_train_as_one_process_does() {
        let single = single(SHORT);
        let ranks = ring_of(2);
        assert_eq!(ranks[0].digest, ranks[1].digest);
        assert_eq!(ranks[0].loss_by_step, ranks[1].loss_by_step);
        assert_eq!((ranks[0].steps, ranks[0].workers), (single.steps, 2));
        let losses = single.loss_by_step.iter().zip(&ranks[0].loss_by_step);
        let difference = losses.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-4, "{difference}");
        assert!(single.loss_by_epoch[1] < 0.7 * single.loss_by_epoch[0]);
    }

    #[test]
    fn runs_repeat_bit_for_bit() {
        let emulated = || {
            let mut exchange = Exchange::Emulated(Emulated::new(4, 1e7).expect("it makes sense"));
            train(SHORT, Some(1e7), &mut exchange, |_| ()).unwrap()
        };
        let (a, b) = (emulated(), emulated());
        assert_eq!((&a.digest, &a.loss_by_step), (&b.digest, &b.loss_by_step));
        assert_ne!(a.digest, single(SHORT).digest);
        assert_eq!(a.saturated, Some(0));
    }

    #[test]
    fn settings_that_do_not_fit_are_refused() {
        let with = |options| train(options, None, &mut Exchange::Single, |_| ()).unwrap_err();
        assert!(matches!(with(Options { batch: 0, ..SHORT }), TrainingError::Batch { .. }));
        assert!(matches!(with(Options { batch: 1438, ..SHORT }), TrainingError::Batch { .. }));
        assert!(matches!(with(Options { epochs: 0, ..SHORT }), TrainingError::NoEpochs));
        let diverging = with(Options { learning_rate: 3e38, ..SHORT });
        assert!(matches!(diverging, TrainingError::Diverged { .. }), "{diverging}");
        let mut three = Exchange::Emulated(Emulated::new(3, 1e7).expect("it makes sense"));
        let uneven = train(SHORT, None, &mut three, |_| ()).unwrap_err();
        assert!(uneven.to_string().contains("64 images cannot be divided"), "{uneven}");
    }
}
