//! The memory of a call: owned by it, or lent by a caller that waits for its end.
//!
//! A call over several aggregators has a part in each of them; the parts share one memory and each
//! touches blocks of its own.
#![expect(unsafe_code, reason = "a lent buffer is reached from whichever thread drives the calls")]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Elements of a call.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: *mut T,
    len: usize,
    /// Nobody may write to it.
    is_read_only: bool,
    /// Keeps a call's own memory. None: the memory is a caller's, see [`Buffer::lend`].
    owner: Option<Arc<Owner<T>>>,
    /// Keeps memory that is only read, see [`Buffer::kept`].
    keeper: Option<Arc<dyn Any + Send + Sync>>,
}

/// A vector in parts, as [`Vec::from_raw_parts`] wants them: while buffers point into it, no
/// reference to it may exist.
#[derive(Debug)]
struct Owner<T> {
    memory: *mut T,
    len: usize,
    capacity: usize,
}

// SAFETY: a buffer is an exclusive access to its elements, or to those of its blocks (see `share`),
// which its holder may move to another thread.
unsafe impl<T: Send> Send for Buffer<T> {}

// SAFETY: only the thread that drops the last reference uses the owner's pointer.
unsafe impl<T: Send> Send for Owner<T> {}
// SAFETY: as above; a shared reference gives no access.
unsafe impl<T: Send> Sync for Owner<T> {}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        // SAFETY: the parts of a vector that was taken apart in `Buffer::owned`, put together once.
        drop(unsafe { Vec::from_raw_parts(self.memory, self.len, self.capacity) });
    }
}

impl<T> Buffer<T> {
    /// A call's own memory.
    #[must_use]
    pub fn owned(memory: Vec<T>) -> Self {
        let mut memory = std::mem::ManuallyDrop::new(memory);
        let owner =
            Owner { memory: memory.as_mut_ptr(), len: memory.len(), capacity: memory.capacity() };
        let (memory, len) = (owner.memory, owner.len);
        Self { memory, len, is_read_only: false, owner: Some(Arc::new(owner)), keeper: None }
    }

    /// Lends memory to a call.
    ///
    /// # Safety
    /// The memory must stay borrowed until the returned value and all that it is shared to are
    /// dropped: the lender waits for that, also while unwinding.
    pub unsafe fn lend(memory: &mut [T]) -> Self {
        let (len, memory) = (memory.len(), memory.as_mut_ptr());
        Self { memory, len, is_read_only: false, owner: None, keeper: None }
    }

    /// Lends memory that is not written to.
    ///
    /// # Safety
    /// As [`Self::lend`].
    pub unsafe fn lend_reading(memory: &[T]) -> Self {
        let (len, memory) = (memory.len(), memory.as_ptr().cast_mut());
        Self { memory, len, is_read_only: true, owner: None, keeper: None }
    }

    /// Memory that is not written to, and what keeps it until all parts of the call are gone.
    ///
    /// # Safety
    /// As long as `keeper` is there, the memory is valid, and nobody writes to it.
    pub unsafe fn kept(memory: &[T], keeper: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the keeper is dropped with the last part.
        Self { keeper: Some(keeper), ..unsafe { Self::lend_reading(memory) } }
    }

    /// The same memory for another part of the call.
    ///
    /// # Safety
    /// No element is reached through both while one of them writes it: each part has blocks of its
    /// own.
    pub unsafe fn share(&self) -> Self {
        let Self { memory, len, is_read_only, owner, keeper } = self;
        let (owner, keeper) = (owner.clone(), keeper.clone());
        Self { memory: *memory, len: *len, is_read_only: *is_read_only, owner, keeper }
    }

    /// Keeps a call's own memory until all parts of the call are gone.
    #[must_use]
    pub fn keep(&self) -> Kept<T> {
        Kept(self.owner.clone())
    }

    /// How many elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements.
    ///
    /// # Panics
    /// The range does not lie in the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within memory that is valid as long as `self` lives, by the contracts of `lend`
        // and `owned`; nobody writes these elements meanwhile, by that of `share`.
        unsafe { std::slice::from_raw_parts(self.memory.add(range.start), range.len()) }
    }

    /// Where it is.
    #[must_use]
    pub const fn pointer(&self) -> *mut T {
        self.memory
    }

    /// Elements, to write.
    ///
    /// # Panics
    /// As [`Self::slice`]; if it was lent for reading.
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [T] {
        assert!(!self.is_read_only, "lent for reading");
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: as in `slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(range.start), range.len()) }
    }

    /// The call's own memory back; empty if it was lent, or while another part still has it.
    #[must_use]
    pub fn into_owned(self) -> Vec<T> {
        Kept(self.owner).into_owned()
    }
}

/// A call's own memory, which nobody reaches through this while the call has it.
#[derive(Debug)]
pub struct Kept<T>(Option<Arc<Owner<T>>>);

impl<T> Kept<T> {
    /// The memory back; empty if it was lent, or while a part of the call still has it.
    #[must_use]
    pub fn into_owned(self) -> Vec<T> {
        let Some(owner) = self.0.and_then(Arc::into_inner) else { return Vec::new() };
        let owner = std::mem::ManuallyDrop::new(owner);
        // SAFETY: as in the owner's drop, which does not run.
        unsafe { Vec::from_raw_parts(owner.memory, owner.len, owner.capacity) }
    }
}

impl<T> From<Vec<T>> for Buffer<T> {
    fn from(memory: Vec<T>) -> Self {
        Self::owned(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_has_the_memory() {
        let mut first = Buffer::owned(vec![1, 2, 3, 4]);
        // SAFETY: the two are used one after the other.
        let mut second = unsafe { first.share() };
        first.slice_mut(0..2)[0] = 10;
        second.slice_mut(2..4)[1] = 40;
        assert_eq!(first.slice(1..3), [2, 3]);
        let kept = first.keep();
        assert!(first.keep().into_owned().is_empty(), "a part has it");
        assert!(first.into_owned().is_empty());
        drop(second);
        assert_eq!(kept.into_owned(), [10, 2, 3, 40]);
    }

    #[test]
    fn nothing_is_freed_twice_or_never() {
        let counted = Arc::new(());
        let buffer = Buffer::owned(vec![Arc::clone(&counted); 3]);
        // SAFETY: nothing is reached.
        let other = unsafe { buffer.share() };
        drop(buffer);
        assert_eq!(Arc::strong_count(&counted), 4);
        drop(other);
        assert_eq!(Arc::strong_count(&counted), 1);
        drop(Buffer::<u8>::owned(Vec::new()).into_owned());
    }

    #[test]
    fn what_keeps_memory_goes_with_the_last_part() {
        let keeper = Arc::new(vec![1, 2, 3]);
        // SAFETY: the vector is the keeper's, and nobody writes to it.
        let first = unsafe { Buffer::kept(&keeper, Arc::<Vec<i32>>::clone(&keeper)) };
        // SAFETY: nothing is written.
        let second = unsafe { first.share() };
        drop(first);
        assert_eq!((second.slice(1..3), Arc::strong_count(&keeper)), (&[2, 3][..], 2));
        drop(second);
        assert_eq!(Arc::into_inner(keeper), Some(vec![1, 2, 3]));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn beyond_the_end_is_refused() {
        let _ = Buffer::owned(vec![0; 4]).slice(2..5);
    }
}
