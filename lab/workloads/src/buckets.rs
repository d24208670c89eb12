//! Gradients in buckets, as data-parallel training sends them.
//!
//! PyTorch's `DistributedDataParallel` collects gradients in buckets in the order in which the
//! backward pass makes them, and all-reduces each as soon as it is full. After its first iteration
//! (`Reducer::rebuild_buckets` in `torch/csrc/distributed/c10d/reducer.cpp`) that order is the one
//! observed: from the last parameter to the first. A bucket is closed by the tensor that brings it
//! to its limit or beyond (`compute_bucket_assignment_by_size`); the limit of the first bucket is
//! 1 MiB (`kDefaultFirstBucketBytes`), that of the others 25 MiB (`kDefaultBucketBytesCap`).

use serde::{Deserialize, Serialize};

use crate::network::{Network, Tensor};

/// Limit of the first bucket in bytes.
pub const FIRST_BUCKET_BYTES: usize = 1 << 20;
/// Limit of the other buckets in bytes.
pub const OTHER_BUCKET_BYTES: usize = 25 << 20;

/// Share of the forward pass in the arithmetic of an iteration: a backward pass takes twice the
/// operations, for the gradients of the inputs and for those of the parameters.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// A bucket of gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// 32-bit elements.
    pub elements: usize,
    /// Tensors whose gradients it holds.
    pub tensors: usize,
    /// Share of an iteration's computation that the backward pass of its layers takes.
    pub compute_share: f64,
}

/// The gradients of a network, or of a smaller likeness of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Whose gradients.
    pub network: Network,
    /// Elements of each tensor over those of the network's; limits of buckets are scaled the same
    /// way, so buckets hold the same tensors.
    pub fraction: f64,
    /// In the order in which they become ready: the last layer's first.
    pub buckets: Vec<Bucket>,
    /// Share of an iteration's computation that its forward pass takes.
    pub forward_share: f64,
}

impl Workload {
    /// The gradients of a network, every tensor scaled to a fraction (above 0) of its elements; a
    /// tensor has at least one.
    pub fn new(network: Network, fraction: f64) -> Self {
        let tensors = network.tensors();
        let flops: f64 = tensors.iter().map(|tensor| tensor.flops).sum();
        let mut buckets = Vec::new();
        for tensors in assign(&tensors) {
            let scaled = |tensor: &&Tensor| scale(tensor.elements(), fraction);
            let bucket_flops: f64 = tensors.iter().map(|tensor| tensor.flops).sum();
            buckets.push(Bucket {
                elements: tensors.iter().map(scaled).sum(),
                tensors: tensors.len(),
                compute_share: (1.0 - FORWARD_SHARE) * bucket_flops / flops,
            });
        }
        Self { network, fraction, buckets, forward_share: FORWARD_SHARE }
    }

    /// Elements of all buckets.
    pub fn elements(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.elements).sum()
    }

    /// Bytes of all buckets: `K`.
    pub fn bytes(&self) -> usize {
        self.elements() * size_of::<f32>()
    }
}

fn scale(elements: usize, fraction: f64) -> usize {
    ((elements as f64 * fraction).round() as usize).max(1)
}

/// The tensors of each bucket, in the order in which their gradients are made.
fn assign(tensors: &[Tensor]) -> Vec<Vec<&Tensor>> {
    let mut buckets = Vec::new();
    let mut open: Vec<&Tensor> = Vec::new();
    let mut bytes = 0;
    for tensor in tensors.iter().rev() {
        open.push(tensor);
        bytes += tensor.elements() * size_of::<f32>();
        let limit = if buckets.is_empty() { FIRST_BUCKET_BYTES } else { OTHER_BUCKET_BYTES };
        if bytes >= limit {
            buckets.push(std::mem::take(&mut open));
            bytes = 0;
        }
    }
    if !open.is_empty() {
        buckets.push(open);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from the sizes of VGG-19's last layers.
    #[test]
    fn the_buckets_of_vgg19_are_those_of_pytorch() {
        let workload = Workload::new(Network::Vgg19, 1.0);
        let elements: Vec<_> = workload.buckets.iter().map(|bucket| bucket.elements).collect();
        let conv = |inputs: usize, outputs: usize| 9 * inputs * outputs + outputs;
        // The three fully connected layers: each is beyond its limit by itself.
        assert_eq!(elements[..3], [4096 * 1000 + 1000, 4096 * 4096 + 4096, 25_088 * 4096 + 4096]);
        // Then 512 x 512 convolutions of 9.4 MB: three weights pass 25 MiB, the bias of the third
        // comes before its weight.
        assert_eq!(elements[3], 3 * conv(512, 512));
        assert_eq!(elements[4], 3 * conv(512, 512));
        assert_eq!(workload.buckets[3].tensors, 6);
        // All that is left, from the seventh of that size down to the first layer: 23 MB.
        assert_eq!((elements.len(), workload.buckets[5].tensors), (6, 20));
        assert_eq!(elements.iter().sum::<usize>(), Network::Vgg19.parameters());
        assert_eq!(workload.bytes(), 4 * 143_667_240);
    }

    #[test]
    fn buckets_keep_their_limits_and_lose_nothing() {
        for network in Network::ALL {
            let tensors = network.tensors();
            let buckets = assign(&tensors);
            let order: Vec<&Tensor> = buckets.iter().flatten().copied().collect();
            assert!(order.into_iter().eq(tensors.iter().rev()), "{network}");
            for (i, bucket) in buckets.iter().enumerate() {
                let bytes = |tensors: &[&Tensor]| -> usize {
                    tensors.iter().map(|tensor| tensor.elements() * 4).sum()
                };
                let limit = if i == 0 { FIRST_BUCKET_BYTES } else { OTHER_BUCKET_BYTES };
                let last = i + 1 == buckets.len();
                assert!(last || bytes(bucket) >= limit, "{network} bucket {i}");
                assert!(bytes(&bucket[..bucket.len() - 1]) < limit, "{network} bucket {i}");
            }
        }
    }

    #[test]
    fn an_iteration_is_computed_once() {
        for network in Network::ALL {
            let workload = Workload::new(network, 0.01);
            let shares: f64 = workload.buckets.iter().map(|bucket| bucket.compute_share).sum();
            assert!((shares + workload.forward_share - 1.0).abs() < 1e-9, "{network}: {shares}");
        }
    }

    #[test]
    fn a_fraction_keeps_buckets_and_proportions() {
        for network in Network::ALL {
            let whole = Workload::new(network, 1.0);
            let part = Workload::new(network, 1.0 / 64.0);
            assert_eq!(whole.buckets.len(), part.buckets.len());
            let ratio = part.bytes() as f64 * 64.0 / whole.bytes() as f64;
            assert!((0.999..1.001).contains(&ratio), "{network}: {ratio}");
            // The smallest tensors keep one element.
            assert!(Workload::new(network, 1e-9).elements() == network.tensors().len());
        }
    }
}
