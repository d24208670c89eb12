//! ResNet-50 and ResNet-101: bottleneck blocks in four stages.

use crate::network::Tensor;

/// Blocks of each stage.
type Stages = [usize; 4];

pub(crate) const RESNET50: Stages = [3, 4, 6, 3];
pub(crate) const RESNET101: Stages = [3, 4, 23, 3];

/// Channels of a block's output over those of its middle.
const EXPANSION: usize = 4;

/// The parameters of a ResNet, named as in torchvision.
pub(crate) fn resnet(stages: &Stages) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    // 224 x 224 at the start; a convolution of stride 2, then a pooling of stride 2.
    convolution(
        &mut tensors,
        "conv1",
        "bn1",
        Convolution { inputs: 3, outputs: 64, kernel: 7 },
        112,
    );
    let mut channels = 64;
    for (stage, &blocks) in stages.iter().enumerate() {
        let width = 64 << stage;
        let side = 56 >> stage;
        for block in 0..blocks {
            let first = block == 0;
            // The first block of the later stages halves the image, in its second convolution.
            let side_before = if first && stage > 0 { side * 2 } else { side };
            let path = format!("layer{}.{block}", stage + 1);
            let outputs = width * EXPANSION;
            for (i, inputs, outputs, kernel, side) in [
                (1, channels, width, 1, side_before),
                (2, width, width, 3, side),
                (3, width, outputs, 1, side),
            ] {
                let (name, norm) = (format!("{path}.conv{i}"), format!("{path}.bn{i}"));
                let shape = Convolution { inputs, outputs, kernel };
                convolution(&mut tensors, &name, &norm, shape, side);
            }
            if first {
                let (name, norm) = (format!("{path}.downsample.0"), format!("{path}.downsample.1"));
                let shape = Convolution { inputs: channels, outputs, kernel: 1 };
                convolution(&mut tensors, &name, &norm, shape, side);
            }
            channels = outputs;
        }
    }
    tensors.push(Tensor::new("fc.weight", &[1000, channels], 2.0 * (channels * 1000) as f64));
    tensors.push(Tensor::new("fc.bias", &[1000], 0.0));
    tensors
}

/// A convolution without a bias.
struct Convolution {
    inputs: usize,
    outputs: usize,
    kernel: usize,
}

/// A convolution and the batch normalisation behind it. `side`: of its output.
fn convolution(tensors: &mut Vec<Tensor>, name: &str, norm: &str, shape: Convolution, side: usize) {
    let Convolution { inputs, outputs, kernel } = shape;
    let pixels = side * side;
    let flops = 2.0 * (inputs * outputs * kernel * kernel * pixels) as f64;
    let shape = [outputs, inputs, kernel, kernel];
    tensors.push(Tensor::new(format!("{name}.weight"), &shape, flops));
    // Subtract, scale, multiply and shift each pixel of each channel.
    let flops = 4.0 * (outputs * pixels) as f64;
    tensors.push(Tensor::new(format!("{norm}.weight"), &[outputs], flops));
    tensors.push(Tensor::new(format!("{norm}.bias"), &[outputs], 0.0));
}
