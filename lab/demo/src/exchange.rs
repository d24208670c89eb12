//! How gradients become their average: over a network, or in one process.

use xdp_agg_baselines::BoxError;
use xdp_agg_baselines::Collective;
use xdp_agg_client::collectives::{Choice, Way};
use xdp_agg_client::{Communicator, ElementType, Format, FormatError, Op, Scaling};
use xdp_agg_mesh::Mesh;

/// Where the gradients of a step are averaged.
#[derive(Debug)]
pub enum Exchange {
    /// One process computes the gradient of the whole batch; there is nothing to average.
    Single,
    /// One process plays all workers, and averages as an aggregation of fixed-point numbers does:
    /// with the client's own arithmetic, but without network and aggregator. What comes over the
    /// network must be the same, bit for bit.
    Emulated(Emulated),
    /// Workers average by the aggregator.
    Aggregator(Box<Communicator>),
    /// Workers average by the TCP ring.
    Ring(Box<Mesh>),
}

/// An aggregation in one process.
#[derive(Debug)]
pub struct Emulated {
    workers: u16,
    format: Format,
    saturated: u64,
}

impl Emulated {
    /// For this number of workers, with fixed-point numbers of this scale.
    ///
    /// # Errors
    /// A scale or a number of workers that makes no sense.
    pub fn new(workers: u16, scale: f64) -> Result<Self, FormatError> {
        let scaling = Scaling::Fixed(scale);
        let format = Format::new(ElementType::F32, Op::Average, scaling, None, workers)?;
        Ok(Self { workers, format, saturated: 0 })
    }

    /// Leaves the average in the first vector.
    fn average(&mut self, vectors: &mut [Vec<f32>]) {
        let Some(first) = vectors.first() else {
            return;
        };
        let (count, len) = (first.len(), self.format.payload(first.len()));
        let mut sum = vec![0; len];
        let mut payload = vec![0; len];
        for vector in vectors.iter() {
            let encoded = self.format.encode(0, &[vector], &mut payload);
            self.saturated += u64::from(encoded.saturated);
            let lanes = payload.as_chunks::<4>().0;
            for (sum, lane) in sum.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
                let both = u32::from_le_bytes(*sum).wrapping_add(u32::from_le_bytes(*lane));
                *sum = both.to_le_bytes();
            }
        }
        let workers = u32::from(self.workers);
        self.format.decode(0, &sum, workers, workers, &mut vectors[0][..count]);
    }
}

impl Exchange {
    /// The name in tables and records.
    pub fn system(&self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Emulated(_) => "emulated",
            Self::Aggregator(communicator) => communicator.system(),
            Self::Ring(ring) => ring.system(),
        }
    }

    /// This process' rank.
    pub fn rank(&self) -> u16 {
        match self {
            Self::Single | Self::Emulated(_) => 0,
            Self::Aggregator(communicator) => communicator.rank(),
            Self::Ring(ring) => ring.rank(),
        }
    }

    /// Parts that a batch is divided into.
    pub fn parts(&self) -> usize {
        usize::from(match self {
            Self::Single => 1,
            Self::Emulated(emulated) => emulated.workers,
            Self::Aggregator(communicator) => communicator.world_size(),
            Self::Ring(ring) => ring.world_size(),
        })
    }

    /// The parts whose gradients this process computes.
    pub fn own_parts(&self) -> std::ops::Range<usize> {
        match self {
            Self::Single | Self::Emulated(_) => 0..self.parts(),
            Self::Aggregator(_) | Self::Ring(_) => {
                let rank = usize::from(self.rank());
                rank..rank + 1
            }
        }
    }

    /// Leaves rank 0's weights at all ranks. An aggregator sends them, and other ranks throw away
    /// what they have. Elsewhere all have them from the same seed.
    pub fn share(&mut self, weights: &mut [f32]) -> Result<(), BoxError> {
        if let Self::Aggregator(communicator) = self {
            if communicator.rank() != 0 {
                weights.fill(0.0);
            }
            // A small model: one round trip, and workers need not reach each other.
            communicator.broadcast_by(weights, 0, Choice::new(Way::Aggregator))?;
        }
        Ok(())
    }

    /// Leaves in the first vector the average over all parts. `vectors` are those of
    /// [`Self::own_parts`].
    pub fn average(&mut self, vectors: &mut [Vec<f32>]) -> Result<(), BoxError> {
        match self {
            Self::Single => Ok(()),
            Self::Emulated(emulated) => {
                emulated.average(vectors);
                Ok(())
            }
            Self::Aggregator(communicator) => {
                communicator.all_reduce_f32(&mut vectors[0], Op::Average)
            }
            Self::Ring(ring) => ring.all_reduce_f32(&mut vectors[0], Op::Average),
        }
    }

    /// Elements of this process that did not fit the fixed-point numbers; None without such
    /// numbers.
    pub fn saturated(&self) -> Option<u64> {
        match self {
            Self::Single | Self::Ring(_) => None,
            Self::Emulated(emulated) => Some(emulated.saturated),
            Self::Aggregator(communicator) => Some(communicator.counters().saturated),
        }
    }

    /// What sums, where an aggregator does.
    pub fn engine(&self) -> Option<String> {
        match self {
            Self::Aggregator(communicator) => Some(communicator.engine()),
            _ => None,
        }
    }

    /// The communicator's counters, where there is one.
    pub fn counters(&self) -> Option<serde_json::Value> {
        match self {
            Self::Aggregator(communicator) => serde_json::to_value(communicator.counters()).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_average_is_exact_up_to_the_scale() {
        let mut emulated = Emulated::new(3, 1e6).expect("it makes sense");
        let mut vectors: Vec<Vec<f32>> =
            (0..3).map(|r| (0..100).map(|i| ((i * 7 + r) as f32).sin()).collect()).collect();
        let expected: Vec<f64> =
            (0..100).map(|i| vectors.iter().map(|v| f64::from(v[i])).sum::<f64>() / 3.0).collect();
        emulated.average(&mut vectors);
        for (got, expected) in vectors[0].iter().zip(&expected) {
            assert!((f64::from(*got) - expected).abs() <= 0.5e-6 + 6e-8, "{got} {expected}");
        }
        // And it is an aggregation of integers, not of floats.
        assert!(vectors[0].iter().zip(&expected).any(|(g, e)| (f64::from(*g) - e).abs() > 1e-7));
        assert_eq!(emulated.saturated, 0);
        emulated.average(&mut [vec![1e9], vec![0.0], vec![0.0]]);
        assert_eq!(emulated.saturated, 1);
    }
}
