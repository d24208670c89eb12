//! What a run leaves behind.

use std::hash::Hasher;
use std::path::{Path, PathBuf};

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

/// Settings that decide the course of training; equal in runs that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Passes over the training images.
    pub epochs: usize,
    /// Seed of the initial weights, of the order of the images and of the split.
    pub seed: u64,
    /// Images of a step, over all workers.
    pub batch: usize,
    /// Step size.
    pub learning_rate: f32,
    /// Part of the last step that the next one keeps.
    pub momentum: f32,
}

impl Default for Options {
    fn default() -> Self {
        Self { epochs: 16, seed: 1, batch: 64, learning_rate: 0.05, momentum: 0.9 }
    }
}

/// One process' account of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `single`, `emulated`, `xdp-agg` or `tcp-ring`.
    pub system: String,
    /// What sums, where an aggregator does: `xdp (native)`, …
    pub engine: Option<String>,
    /// This process' rank.
    pub rank: u16,
    /// Parts that every batch was divided into.
    pub workers: usize,
    /// Settings.
    #[serde(flatten)]
    pub options: Options,
    /// Scale of the fixed-point numbers, where there are any.
    pub scale: Option<f64>,
    /// Parameters of the network.
    pub parameters: usize,
    /// Images for training and for testing.
    pub images: [usize; 2],
    /// Steps that were made.
    pub steps: usize,
    /// Mean loss of each step's batch, over all workers.
    pub loss_by_step: Vec<f32>,
    /// Mean of the losses of each epoch's steps.
    pub loss_by_epoch: Vec<f32>,
    /// Sum of the magnitudes of each step's averaged gradient.
    pub gradient_l1_by_step: Vec<f32>,
    /// Largest magnitude in each step's averaged gradient.
    pub gradient_max_by_step: Vec<f32>,
    /// Part of the test images that were recognised at the end.
    pub test_accuracy: f64,
    /// Seconds of the whole training.
    pub seconds: f64,
    /// Seconds of computing gradients and weights.
    pub compute_seconds: f64,
    /// Seconds in all-reduce, waiting for other workers included.
    pub communication_seconds: f64,
    /// Median over the steps of the microseconds in all-reduce.
    pub communication_us_median: f64,
    /// Elements of this process that did not fit the fixed-point numbers, where there are any.
    pub saturated: Option<u64>,
    /// Of the bits of the final weights: equal on all ranks.
    pub digest: String,
    /// The communicator's counters, where there is one.
    pub counters: Option<serde_json::Value>,
}

/// A record that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} the record {path}: {source}")]
pub struct RecordError {
    doing: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl Record {
    /// Writes it as JSON.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let json = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        let fail = |source| RecordError { doing: "write", path: path.into(), source };
        json.and_then(|json| std::fs::write(path, json + "\n")).map_err(fail)
    }

    /// Reads one that [`Self::write`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold a record.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let fail = |source| RecordError { doing: "read", path: path.into(), source };
        let json = std::fs::read(path).map_err(fail)?;
        serde_json::from_slice(&json).map_err(|e| fail(e.into()))
    }
}

/// A digest of the bits of `values` (64-bit FNV-1a of their little-endian bytes).
pub fn digest(values: &[f32]) -> String {
    let mut state = FnvHasher::default();
    values.iter().for_each(|value| state.write(&value.to_le_bytes()));
    format!("{:016x}", state.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_see_every_bit() {
        assert_eq!(digest(&[]), "cbf29ce484222325");
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
        assert_ne!(digest(&[1.0, 2.0]), digest(&[2.0, 1.0]));
    }

    #[test]
    fn a_file_that_is_no_record_is_named() {
        let path = std::env::temp_dir().join(format!("record-{}.json", std::process::id()));
        std::fs::write(&path, "{}").unwrap();
        let error = Record::read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("cannot read") && error.contains("missing field"), "{error}");
        assert!(Record::read(&path).is_err());
    }
}
