//! Networks by name, and what their tensors are.

use serde::{Deserialize, Serialize};

use crate::{bert, inception, resnet, vgg};

/// A parameter tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name in `torchvision` or Hugging Face `transformers`, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Floating-point operations of its layer in a forward pass of one sample; all of a layer's are
    /// with its weight, none with its bias.
    pub flops: f64,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, shape: &[usize], flops: f64) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), flops }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A network whose gradients can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownNetwork, parse_err_fn = no_network)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// ResNet-50 (He et al. 2016) as in torchvision: 1000 classes, images of 224 x 224.
    Resnet50,
    /// ResNet-101 likewise.
    Resnet101,
    /// VGG-16 without batch normalisation (Simonyan and Zisserman 2015), the same input.
    Vgg16,
    /// VGG-19 likewise.
    Vgg19,
    /// BERT-base, uncased (Devlin et al. 2019), as `transformers.BertModel`: with the pooler and
    /// without any head, sequences of 128 tokens.
    Bert,
    /// Inception v3 (Szegedy et al. 2016) as in torchvision, without the auxiliary classifier:
    /// images of 299 x 299.
    Inception,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Resnet50, Self::Resnet101, Self::Vgg16, Self::Vgg19, Self::Bert, Self::Inception];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its parameter tensors, from the first layer to the last.
    pub fn tensors(self) -> Vec<Tensor> {
        match self {
            Self::Resnet50 => resnet::resnet(&resnet::RESNET50),
            Self::Resnet101 => resnet::resnet(&resnet::RESNET101),
            Self::Vgg16 => vgg::vgg(&vgg::VGG16),
            Self::Vgg19 => vgg::vgg(&vgg::VGG19),
            Self::Bert => bert::bert_base(),
            Self::Inception => inception::inception_v3(),
        }
    }

    /// Number of parameters.
    pub fn parameters(self) -> usize {
        self.tensors().iter().map(Tensor::elements).sum()
    }

    /// Bytes of the gradient in 32-bit floats: `K` of the paper.
    pub fn gradient_bytes(self) -> usize {
        self.parameters() * size_of::<f32>()
    }
}

/// A name that no network has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network; expected one of {names}", names = names())]
pub struct UnknownNetwork(String);

fn names() -> String {
    Network::ALL.map(Network::name).join(", ")
}

fn no_network(text: &str) -> UnknownNetwork {
    UnknownNetwork(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that torchvision and `transformers` publish.
    #[test]
    fn totals_are_the_published_ones() {
        assert_eq!(Network::Resnet50.parameters(), 25_557_032);
        assert_eq!(Network::Resnet101.parameters(), 44_549_160);
        assert_eq!(Network::Inception.parameters(), 23_834_568);
        assert_eq!(Network::Vgg16.parameters(), 138_357_544);
        assert_eq!(Network::Vgg19.parameters(), 143_667_240);
        assert_eq!(Network::Bert.parameters(), 109_482_240);
    }

    #[test]
    fn numbers_of_tensors_are_those_of_the_frameworks() {
        let count = |network: Network| network.tensors().len();
        assert_eq!(count(Network::Resnet50), 161);
        assert_eq!(count(Network::Resnet101), 314);
        assert_eq!(count(Network::Inception), 284);
        assert_eq!(count(Network::Vgg16), 32);
        assert_eq!(count(Network::Vgg19), 38);
        assert_eq!(count(Network::Bert), 199);
    }

    /// Published multiply-adds of one image (torchvision's model pages, "GFLOPS"), in billions; an
    /// operation here is a multiplication or an addition.
    #[test]
    fn arithmetic_is_close_to_what_is_published() {
        for (network, giga_macs) in [
            (Network::Resnet50, 4.09),
            (Network::Resnet101, 7.8),
            (Network::Vgg16, 15.47),
            (Network::Vgg19, 19.63),
            (Network::Inception, 5.71),
        ] {
            let flops: f64 = network.tensors().iter().map(|tensor| tensor.flops).sum();
            let ratio = flops / 2e9 / giga_macs;
            assert!((0.98..1.02).contains(&ratio), "{network}: {ratio}");
        }
    }

    #[test]
    fn names_are_unique_and_survive_their_text() {
        for network in Network::ALL {
            assert_eq!(network.name().parse(), Ok(network));
            let mut names: Vec<_> = network.tensors().into_iter().map(|t| t.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), network.tensors().len(), "{network}");
        }
        assert!("alexnet".parse::<Network>().is_err());
    }
}
