//! Inception v3: convolutions of many shapes beside each other, in five kinds of blocks.

use crate::network::Tensor;

/// A convolution of a block: its name, channels in and out, height and width of the kernel.
struct Layer {
    branch: &'static str,
    inputs: usize,
    outputs: usize,
    kernel: (usize, usize),
}

const fn layer(
    branch: &'static str,
    inputs: usize,
    outputs: usize,
    kernel: (usize, usize),
) -> Layer {
    Layer { branch, inputs, outputs, kernel }
}

/// The parameters of Inception v3, named as in torchvision, without the auxiliary classifier,
/// which is dropped after training; images of 299 x 299.
pub(crate) fn inception_v3() -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for (path, inputs, outputs, kernel, side) in [
        ("Conv2d_1a_3x3", 3, 32, (3, 3), 149),
        ("Conv2d_2a_3x3", 32, 32, (3, 3), 147),
        ("Conv2d_2b_3x3", 32, 64, (3, 3), 147),
        ("Conv2d_3b_1x1", 64, 80, (1, 1), 73),
        ("Conv2d_4a_3x3", 80, 192, (3, 3), 71),
    ] {
        convolution(&mut tensors, path, (inputs, outputs), kernel, side);
    }
    for (name, inputs, pooled) in [("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)] {
        block(&mut tensors, name, 35, &a(inputs, pooled));
    }
    block(&mut tensors, "6a", 35, &b_before());
    block(&mut tensors, "6a", 17, &b_after());
    for (name, narrow) in [("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)] {
        block(&mut tensors, name, 17, &c(narrow));
    }
    block(&mut tensors, "7a", 17, &d_before());
    block(&mut tensors, "7a", 8, &d_after());
    for (name, inputs) in [("7b", 1280), ("7c", 2048)] {
        block(&mut tensors, name, 8, &e(inputs));
    }
    tensors.push(Tensor::new("fc.weight", &[1000, 2048], 2.0 * 1000.0 * 2048.0));
    tensors.push(Tensor::new("fc.bias", &[1000], 0.0));
    tensors
}

fn a(inputs: usize, pooled: usize) -> [Layer; 7] {
    [
        layer("branch1x1", inputs, 64, (1, 1)),
        layer("branch5x5_1", inputs, 48, (1, 1)),
        layer("branch5x5_2", 48, 64, (5, 5)),
        layer("branch3x3dbl_1", inputs, 64, (1, 1)),
        layer("branch3x3dbl_2", 64, 96, (3, 3)),
        layer("branch3x3dbl_3", 96, 96, (3, 3)),
        layer("branch_pool", inputs, pooled, (1, 1)),
    ]
}

fn b_before() -> [Layer; 2] {
    [layer("branch3x3dbl_1", 288, 64, (1, 1)), layer("branch3x3dbl_2", 64, 96, (3, 3))]
}

fn b_after() -> [Layer; 2] {
    [layer("branch3x3", 288, 384, (3, 3)), layer("branch3x3dbl_3", 96, 96, (3, 3))]
}

fn c(narrow: usize) -> [Layer; 10] {
    [
        layer("branch1x1", 768, 192, (1, 1)),
        layer("branch7x7_1", 768, narrow, (1, 1)),
        layer("branch7x7_2", narrow, narrow, (1, 7)),
        layer("branch7x7_3", narrow, 192, (7, 1)),
        layer("branch7x7dbl_1", 768, narrow, (1, 1)),
        layer("branch7x7dbl_2", narrow, narrow, (7, 1)),
        layer("branch7x7dbl_3", narrow, narrow, (1, 7)),
        layer("branch7x7dbl_4", narrow, narrow, (7, 1)),
        layer("branch7x7dbl_5", narrow, 192, (1, 7)),
        layer("branch_pool", 768, 192, (1, 1)),
    ]
}

fn d_before() -> [Layer; 4] {
    [
        layer("branch3x3_1", 768, 192, (1, 1)),
        layer("branch7x7x3_1", 768, 192, (1, 1)),
        layer("branch7x7x3_2", 192, 192, (1, 7)),
        layer("branch7x7x3_3", 192, 192, (7, 1)),
    ]
}

fn d_after() -> [Layer; 2] {
    [layer("branch3x3_2", 192, 320, (3, 3)), layer("branch7x7x3_4", 192, 192, (3, 3))]
}

fn e(inputs: usize) -> [Layer; 9] {
    [
        layer("branch1x1", inputs, 320, (1, 1)),
        layer("branch3x3_1", inputs, 384, (1, 1)),
        layer("branch3x3_2a", 384, 384, (1, 3)),
        layer("branch3x3_2b", 384, 384, (3, 1)),
        layer("branch3x3dbl_1", inputs, 448, (1, 1)),
        layer("branch3x3dbl_2", 448, 384, (3, 3)),
        layer("branch3x3dbl_3a", 384, 384, (1, 3)),
        layer("branch3x3dbl_3b", 384, 384, (3, 1)),
        layer("branch_pool", inputs, 192, (1, 1)),
    ]
}

fn block(tensors: &mut Vec<Tensor>, name: &str, side: usize, layers: &[Layer]) {
    for &Layer { branch, inputs, outputs, kernel } in layers {
        let path = format!("Mixed_{name}.{branch}");
        convolution(tensors, &path, (inputs, outputs), kernel, side);
    }
}

/// A convolution without a bias, and the batch normalisation behind it. `side`: of its output.
fn convolution(
    tensors: &mut Vec<Tensor>,
    path: &str,
    (inputs, outputs): (usize, usize),
    (height, width): (usize, usize),
    side: usize,
) {
    let pixels = side * side;
    let flops = 2.0 * (inputs * outputs * height * width * pixels) as f64;
    let shape = [outputs, inputs, height, width];
    tensors.push(Tensor::new(format!("{path}.conv.weight"), &shape, flops));
    let flops = 4.0 * (outputs * pixels) as f64;
    tensors.push(Tensor::new(format!("{path}.bn.weight"), &[outputs], flops));
    tensors.push(Tensor::new(format!("{path}.bn.bias"), &[outputs], 0.0));
}
