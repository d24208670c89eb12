//! The memory of a call: owned by it, or lent by a caller who waits for its end.
#![expect(unsafe_code, reason = "a lent buffer is reached from whichever thread drives the calls")]

/// Elements of a call.
#[derive(Debug)]
pub struct Buffer<T>(Memory<T>);

#[derive(Debug)]
enum Memory<T> {
    /// The call's own.
    Owned(Vec<T>),
    /// A caller's, see [`Buffer::lend`].
    Lent(*mut [T]),
}

// SAFETY: a lent buffer is an exclusive borrow that [`Buffer::lend`]'s caller keeps alive; only the
// holder of this value reaches it, so moving it to another thread moves the exclusive access.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T> Buffer<T> {
    /// A call's own memory.
    #[must_use]
    pub const fn owned(memory: Vec<T>) -> Self {
        Self(Memory::Owned(memory))
    }

    /// Lends memory to a call.
    ///
    /// # Safety
    /// The memory must stay borrowed until the returned value is dropped: the lender waits for
    /// that, also while unwinding.
    pub(crate) unsafe fn lend(memory: &mut [T]) -> Self {
        Self(Memory::Lent(memory))
    }

    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        match &self.0 {
            Memory::Owned(memory) => memory,
            // SAFETY: valid and exclusive as long as `self` lives, by the contract of `lend`.
            Memory::Lent(memory) => unsafe { &**memory },
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Owned(memory) => memory,
            // SAFETY: as above, and `self` is borrowed exclusively.
            Memory::Lent(memory) => unsafe { &mut **memory },
        }
    }

    /// The call's own memory back; empty if it was lent.
    #[must_use]
    pub fn into_owned(self) -> Vec<T> {
        match self.0 {
            Memory::Owned(memory) => memory,
            Memory::Lent(_) => Vec::new(),
        }
    }
}

impl<T> From<Vec<T>> for Buffer<T> {
    fn from(memory: Vec<T>) -> Self {
        Self::owned(memory)
    }
}
