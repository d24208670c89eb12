//! Room for bytes at an address that suits every element.

use crate::element::Element;

/// Memory that is kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Aligned(Vec<f64>);

impl Aligned {
    /// The first `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        let words = len.div_ceil(size_of::<f64>());
        if self.0.len() < words {
            self.0.resize(words, 0.0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }

    /// The first `len` bytes as numbers: `len / size_of::<T>()` of them, as many as there are.
    pub(crate) fn values<T: Element>(&self, len: usize) -> &[T] {
        let all = bytemuck::cast_slice(&self.0);
        &all[..all.len().min(len / size_of::<T>())]
    }
}
