//! BERT-base: embeddings, twelve encoder layers, a pooler.

use crate::network::Tensor;

const VOCABULARY: usize = 30_522;
const POSITIONS: usize = 512;
const TYPES: usize = 2;
const HIDDEN: usize = 768;
const INTERMEDIATE: usize = 3072;
const LAYERS: usize = 12;
/// Tokens of a sequence, for the arithmetic.
const TOKENS: usize = 128;

/// The parameters of `transformers.BertModel` with the configuration `bert-base-uncased`.
pub(crate) fn bert_base() -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for (name, rows) in [
        ("word_embeddings", VOCABULARY),
        ("position_embeddings", POSITIONS),
        ("token_type_embeddings", TYPES),
    ] {
        let name = format!("embeddings.{name}.weight");
        // A look-up, and an addition for each element.
        tensors.push(Tensor::new(name, &[rows, HIDDEN], (TOKENS * HIDDEN) as f64));
    }
    norm(&mut tensors, "embeddings.LayerNorm");
    for layer in 0..LAYERS {
        let path = format!("encoder.layer.{layer}");
        for name in ["query", "key", "value"] {
            let name = format!("{path}.attention.self.{name}");
            // Scores (query and key) and their use (value) belong to no parameter; they are shared
            // among the three.
            let attention = 2.0 * 2.0 * (TOKENS * TOKENS * HIDDEN) as f64 / 3.0;
            linear(&mut tensors, &name, HIDDEN, HIDDEN, TOKENS, attention);
        }
        let output = format!("{path}.attention.output");
        linear(&mut tensors, &format!("{output}.dense"), HIDDEN, HIDDEN, TOKENS, 0.0);
        norm(&mut tensors, &format!("{output}.LayerNorm"));
        let intermediate = format!("{path}.intermediate.dense");
        linear(&mut tensors, &intermediate, HIDDEN, INTERMEDIATE, TOKENS, 0.0);
        linear(&mut tensors, &format!("{path}.output.dense"), INTERMEDIATE, HIDDEN, TOKENS, 0.0);
        norm(&mut tensors, &format!("{path}.output.LayerNorm"));
    }
    // Of the first token alone.
    linear(&mut tensors, "pooler.dense", HIDDEN, HIDDEN, 1, 0.0);
    tensors
}

fn linear(
    tensors: &mut Vec<Tensor>,
    name: &str,
    inputs: usize,
    outputs: usize,
    tokens: usize,
    further_flops: f64,
) {
    let flops = 2.0 * (inputs * outputs * tokens) as f64 + further_flops;
    tensors.push(Tensor::new(format!("{name}.weight"), &[outputs, inputs], flops));
    tensors.push(Tensor::new(format!("{name}.bias"), &[outputs], 0.0));
}

fn norm(tensors: &mut Vec<Tensor>, name: &str) {
    let flops = 4.0 * (TOKENS * HIDDEN) as f64;
    tensors.push(Tensor::new(format!("{name}.weight"), &[HIDDEN], flops));
    tensors.push(Tensor::new(format!("{name}.bias"), &[HIDDEN], 0.0));
}
