//! The memory of a call: owned by it, or lent by a caller who waits for its end.
#![expect(unsafe_code, reason = "a lent buffer is reached from whichever thread drives the calls")]

/// Elements of a call.
#[derive(Debug)]
pub(crate) enum Buffer<T> {
    /// The call's own.
    Owned(Vec<T>),
    /// A caller's, see [`Buffer::lend`].
    Lent(*mut [T]),
}

// SAFETY: a lent buffer is an exclusive borrow that [`Buffer::lend`]'s caller keeps alive; only the
// holder of this value reaches it, so moving it to another thread moves the exclusive access.
unsafe impl<T: Send> Send for Buffer<T> {}

impl<T> Buffer<T> {
    /// Lends memory to a call.
    ///
    /// # Safety
    /// The memory must stay borrowed until the returned value is dropped: the lender waits for
    /// that, also while unwinding.
    pub(crate) unsafe fn lend(memory: &mut [T]) -> Self {
        Self::Lent(memory)
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Owned(memory) => memory,
            // SAFETY: valid and exclusive as long as `self` lives, by the contract of `lend`.
            Self::Lent(memory) => unsafe { &**memory },
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::Owned(memory) => memory,
            // SAFETY: as above, and `self` is borrowed exclusively.
            Self::Lent(memory) => unsafe { &mut **memory },
        }
    }

    /// The call's own memory back; empty if it was lent.
    pub(crate) fn into_owned(self) -> Vec<T> {
        match self {
            Self::Owned(memory) => memory,
            Self::Lent(_) => Vec::new(),
        }
    }
}
