//! VGG: convolutions of 3 x 3 in five stages, then three fully connected layers.

use crate::network::Tensor;

/// Convolutions of each stage.
type Stages = [usize; 5];

pub(crate) const VGG16: Stages = [2, 2, 3, 3, 3];
pub(crate) const VGG19: Stages = [2, 2, 4, 4, 4];

/// Output channels of each stage's convolutions.
const WIDTHS: [usize; 5] = [64, 128, 256, 512, 512];
/// Height and width of an image.
const IMAGE: usize = 224;

/// The parameters of a VGG, named as in torchvision.
pub(crate) fn vgg(stages: &Stages) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let (mut channels, mut side, mut index) = (3, IMAGE, 0);
    for (&convolutions, &width) in stages.iter().zip(&WIDTHS) {
        for _ in 0..convolutions {
            let flops = 2.0 * (9 * channels * width * side * side) as f64;
            let shape = [width, channels, 3, 3];
            tensors.push(Tensor::new(format!("features.{index}.weight"), &shape, flops));
            tensors.push(Tensor::new(format!("features.{index}.bias"), &[width], 0.0));
            channels = width;
            index += 2; // a rectifier follows
        }
        side /= 2;
        index += 1; // a pooling layer follows
    }
    for (name, inputs, outputs) in
        [("0", channels * side * side, 4096), ("3", 4096, 4096), ("6", 4096, 1000)]
    {
        let flops = 2.0 * (inputs * outputs) as f64;
        tensors.push(Tensor::new(format!("classifier.{name}.weight"), &[outputs, inputs], flops));
        tensors.push(Tensor::new(format!("classifier.{name}.bias"), &[outputs], 0.0));
    }
    tensors
}
