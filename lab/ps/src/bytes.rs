//! The memory of numbers as bytes, so that sockets read and write where the caller's vector is.

use crate::element::Element;

/// The memory of `values`.
pub(crate) fn of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: `Element` is sealed; its types are plain numbers without padding, of which every byte
    // may be read, and the length is theirs.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The memory of `values`, to be written.
pub(crate) fn of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `of`; every bit pattern is a value of these types, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Room for bytes at an address that suits every element.
#[derive(Debug, Default)]
pub(crate) struct Aligned(Vec<f64>);

impl Aligned {
    /// The first `len` bytes; they are kept from call to call.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        let words = len.div_ceil(size_of::<f64>());
        if self.0.len() < words {
            self.0.resize(words, 0.0);
        }
        &mut of_mut(&mut self.0[..words])[..len]
    }

    /// The first `len` bytes as numbers: `len / size_of::<T>()` of them, as many as there are.
    pub(crate) fn values<T: Element>(&self, len: usize) -> &[T] {
        let len = len.min(size_of_val(&self.0[..])) / size_of::<T>();
        // SAFETY: the memory is as long, is aligned for eight bytes, which is enough for every
        // `Element`, and every bit pattern is a value of them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), len) }
    }
}
