//! A network of fully connected layers with tanh between them, softmax and cross-entropy at the
//! end.
//!
//! tanh because it is smooth. With ReLU a difference in the last bit of one gradient can switch a
//! unit on or off. From there on two runs part by far more than the difference that caused it. Runs
//! that are compared in the last digits need a loss whose gradient has no jumps.
//!
//! All parameters lie in one vector, layer by layer: the weights of each output, then the biases.
//! The gradient has the same layout, so it is all-reduced as it is. Everything is computed in
//! 32-bit floats in a fixed order: the same input gives the same bits.

use crate::digits::{CLASSES, Images, PIXELS};
use crate::random::Random;

/// Widths of the layers, from the image to the classes.
pub const WIDTHS: [usize; 4] = [PIXELS, 256, 128, CLASSES];
const LAYERS: usize = WIDTHS.len() - 1;
const INITIAL_WEIGHTS: u64 = 2;

/// Number of parameters.
pub const PARAMETERS: usize = {
    let mut sum = 0;
    let mut layer = 0;
    while layer < LAYERS {
        sum += (WIDTHS[layer] + 1) * WIDTHS[layer + 1];
        layer += 1;
    }
    sum
};

/// The network and the memory that it computes in.
#[derive(Clone, Debug)]
pub struct Network {
    /// All weights and biases.
    pub parameters: Vec<f32>,
    /// Outputs of every layer for every image of a batch; first the images.
    outputs: [Vec<f32>; LAYERS + 1],
    /// Derivatives of the loss by a layer's outputs before tanh.
    deltas: [Vec<f32>; LAYERS],
}

/// What a batch gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// Mean cross-entropy in nats.
    pub loss: f32,
    /// Images whose digit had the largest output.
    pub correct: usize,
}

impl Network {
    /// A network with random weights (evenly within `±sqrt(6 / (inputs + outputs))`, after
    /// Glorot) and zero biases.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, INITIAL_WEIGHTS);
        let mut parameters = Vec::with_capacity(PARAMETERS);
        for [inputs, outputs] in pairs() {
            let limit = (6.0 / (inputs + outputs) as f32).sqrt();
            parameters.extend((0..inputs * outputs).map(|_| random.symmetric() * limit));
            parameters.extend(std::iter::repeat_n(0.0, outputs));
        }
        Self { parameters, outputs: Default::default(), deltas: Default::default() }
    }

    /// The loss of a batch and its gradient, which replaces what `gradient` holds.
    ///
    /// # Panics
    /// `gradient` has not [`PARAMETERS`] elements.
    pub fn gradient(&mut self, batch: &Images, gradient: &mut [f32]) -> Batch {
        assert_eq!(gradient.len(), PARAMETERS, "a gradient has as many elements as parameters");
        let result = self.evaluate(batch);
        self.output_delta(batch);
        gradient.fill(0.0);
        let mut end = PARAMETERS;
        for layer in (0..LAYERS).rev() {
            let start = end - (WIDTHS[layer] + 1) * WIDTHS[layer + 1];
            self.back(layer, start, &mut gradient[start..end]);
            end = start;
        }
        result
    }

    /// The loss of a batch, and how many of its images are recognised.
    pub fn evaluate(&mut self, batch: &Images) -> Batch {
        self.outputs[0].clone_from(&batch.pixels);
        let mut start = 0;
        for layer in 0..LAYERS {
            start += self.forward(layer, start, batch.len());
        }
        let mut loss = 0.0;
        let mut correct = 0;
        for (scores, label) in self.outputs[LAYERS].chunks_exact(CLASSES).zip(&batch.labels) {
            let label = usize::from(*label);
            let best =
                (0..CLASSES).fold(0, |best, i| if scores[i] > scores[best] { i } else { best });
            correct += usize::from(best == label);
            let sum: f32 = scores.iter().map(|s| (s - scores[best]).exp()).sum();
            loss += sum.ln() + scores[best] - scores[label];
        }
        Batch { loss: loss / batch.len().max(1) as f32, correct }
    }

    /// Computes a layer's outputs; returns how many parameters it has.
    fn forward(&mut self, layer: usize, start: usize, images: usize) -> usize {
        let (inputs, outputs) = (WIDTHS[layer], WIDTHS[layer + 1]);
        let (weights, rest) = self.parameters[start..].split_at(inputs * outputs);
        let biases = &rest[..outputs];
        let (before, after) = self.outputs.split_at_mut(layer + 1);
        let after = &mut after[0];
        after.resize(images * outputs, 0.0);
        let rows = before[layer].chunks_exact(inputs).zip(after.chunks_exact_mut(outputs));
        for (row, out) in rows {
            for ((out, weights), bias) in
                out.iter_mut().zip(weights.chunks_exact(inputs)).zip(biases)
            {
                let sum = bias + dot(weights, row);
                *out = if layer + 1 < LAYERS { sum.tanh() } else { sum };
            }
        }
        weights.len() + biases.len()
    }

    /// The derivative of the mean cross-entropy by the last layer's outputs: softmax less truth.
    fn output_delta(&mut self, batch: &Images) {
        let delta = &mut self.deltas[LAYERS - 1];
        delta.clone_from(&self.outputs[LAYERS]);
        let images = batch.len() as f32;
        for (row, label) in delta.chunks_exact_mut(CLASSES).zip(&batch.labels) {
            let best = row.iter().copied().fold(f32::MIN, f32::max);
            row.iter_mut().for_each(|score| *score = (*score - best).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|score| *score /= sum);
            row[usize::from(*label)] -= 1.0;
            row.iter_mut().for_each(|score| *score /= images);
        }
    }

    /// Adds up a layer's gradient, and computes the deltas of the layer before it.
    fn back(&mut self, layer: usize, start: usize, gradient: &mut [f32]) {
        let (inputs, outputs) = (WIDTHS[layer], WIDTHS[layer + 1]);
        let weights = &self.parameters[start..start + inputs * outputs];
        let (weight_gradient, bias_gradient) = gradient.split_at_mut(inputs * outputs);
        let (before, delta) = self.deltas.split_at_mut(layer);
        let mut before = before.last_mut();
        if let Some(before) = &mut before {
            before.clear();
            before.resize(self.outputs[layer].len(), 0.0);
        }
        for (image, delta) in delta[0].chunks_exact(outputs).enumerate() {
            let span = image * inputs..(image + 1) * inputs;
            let row = &self.outputs[layer][span.clone()];
            for (output, &delta) in delta.iter().enumerate() {
                bias_gradient[output] += delta;
                let span_of_output = output * inputs..(output + 1) * inputs;
                add_scaled(&mut weight_gradient[span_of_output.clone()], delta, row);
                if let Some(before) = &mut before {
                    add_scaled(&mut before[span.clone()], delta, &weights[span_of_output]);
                }
            }
            if let Some(before) = &mut before {
                // The derivative of tanh by what it gave.
                let units = before[span].iter_mut().zip(row);
                units.for_each(|(delta, out)| *delta *= 1.0 - out * out);
            }
        }
    }
}

fn pairs() -> impl Iterator<Item = [usize; 2]> {
    WIDTHS.windows(2).map(|pair| [pair[0], pair[1]])
}

/// The scalar product, in eight interleaved sums: a fixed order that vector instructions can
/// follow.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// `into += factor * values`.
fn add_scaled(into: &mut [f32], factor: f32, values: &[f32]) {
    for (into, value) in into.iter_mut().zip(values) {
        *into += factor * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(images: usize) -> Images {
        let all = Images::load().unwrap();
        all.select(&(0..images).map(|i| i * 7).collect::<Vec<_>>())
    }

    #[test]
    fn the_size_is_as_advertised() {
        assert_eq!(PARAMETERS, 64 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
        assert_eq!(Network::new(1).parameters.len(), PARAMETERS);
    }

    /// Along random directions the loss changes as the gradient says.
    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let batch = batch(24);
        let network = Network::new(3);
        let mut gradient = vec![0.0; PARAMETERS];
        network.clone().gradient(&batch, &mut gradient);
        let mut random = Random::new(4, 4);
        let mut start = 0;
        // Each layer by itself, so that an error in a small one is not drowned by a large one.
        for [inputs, outputs] in pairs() {
            let weights = start..start + inputs * outputs;
            let biases = weights.end..weights.end + outputs;
            start = biases.end;
            for part in [weights, biases] {
                let direction: Vec<f32> = part.clone().map(|_| random.symmetric()).collect();
                let expected = dot(&direction, &gradient[part.clone()]);
                let step = 3e-2 / (part.len() as f32).sqrt();
                let moved = |sign: f32| {
                    let mut network = network.clone();
                    add_scaled(&mut network.parameters[part.clone()], sign * step, &direction);
                    f64::from(network.evaluate(&batch).loss)
                };
                let measured = (moved(1.0) - moved(-1.0)) / f64::from(2.0 * step);
                // Rounding of the two losses, some 1e-6, is divided by twice the step as well.
                let noise = 2e-6 / f64::from(2.0 * step);
                let error = (measured - f64::from(expected)).abs();
                assert!(error < 0.02 * f64::from(expected.abs()) + noise, "{part:?}: {error}");
                assert!(f64::from(expected.abs()) > 2.0 * noise, "{part:?}: nothing was tested");
            }
        }
    }

    #[test]
    fn the_gradient_of_a_batch_is_the_mean_of_its_parts() {
        let batch = batch(32);
        let indices: Vec<usize> = (0..32).collect();
        let mut network = Network::new(5);
        let mut whole = vec![0.0; PARAMETERS];
        network.gradient(&batch, &mut whole);
        let mut mean = vec![0.0; PARAMETERS];
        let mut part = vec![0.0; PARAMETERS];
        for indices in indices.chunks(8) {
            network.gradient(&batch.select(indices), &mut part);
            add_scaled(&mut mean, 0.25, &part);
        }
        let error = whole.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 1e-6, "{error}");
        assert!(whole.iter().any(|g| g.abs() > 0.01));
    }

    #[test]
    fn an_untrained_network_guesses() {
        let batch = batch(200);
        let result = Network::new(6).evaluate(&batch);
        assert!((1.5..4.0).contains(&result.loss), "{result:?}");
        assert!(result.correct < 80, "{result:?}");
    }
}
