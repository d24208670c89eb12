//! Memory that a caller of another language lends to a call.
#![expect(unsafe_code, reason = "memory whose type and owner the compiler does not know")]

use std::ptr::NonNull;

use super::DataType;
use crate::error::Error;

/// A vector in somebody else's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pointer: *mut u8,
    len: usize,
    data_type: DataType,
}

// SAFETY: the lender leaves the memory to the call, on whichever thread the call is carried out:
// the contract of `new`.
unsafe impl Send for Memory {}

impl Memory {
    /// `len` elements from `pointer` on.
    ///
    /// # Safety
    /// Until every call that it is given to has ended, the memory must be valid for reading and
    /// writing, and nobody else may touch it. Its elements must be of that type; of bool, 0 or 1.
    #[must_use]
    pub const unsafe fn new(pointer: *mut u8, len: usize, data_type: DataType) -> Self {
        Self { pointer, len, data_type }
    }

    /// No elements.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            pointer: NonNull::<u64>::dangling().as_ptr().cast(),
            len: 0,
            data_type: DataType::U8,
        }
    }

    /// Elements.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// No elements.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// What they are.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        self.data_type
    }

    /// Bytes of all elements.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.len * self.data_type.size()
    }

    /// What no call could be made on.
    pub(super) fn check(self) -> Result<(), Error> {
        let size = self.data_type.size();
        let problem = if self.len > isize::MAX as usize / size {
            "longer than memory can be"
        } else if self.len > 0 && self.pointer.is_null() {
            "a null pointer"
        } else if self.len > 0 && !self.pointer.addr().is_multiple_of(size) {
            "not aligned to its elements; copy it into an array of its own"
        } else {
            return Ok(());
        };
        let problem = format!("{} elements of {}: {problem}", self.len, self.data_type);
        Err(Error::Config { name: "data", problem })
    }

    /// The elements, for a step of the call.
    ///
    /// # Safety
    /// A call has this memory and has not ended; no other slice of it is alive; `T` is as long as
    /// an element and takes any bits. [`Self::check`] has accepted it.
    pub(super) unsafe fn elements<'a, T: bytemuck::Pod>(self) -> &'a mut [T] {
        debug_assert_eq!(size_of::<T>(), self.data_type.size());
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: valid, aligned and the call's alone, by the contracts of `new` and of this
        // function; any bits are a `T`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.len) }
    }

    /// The elements, of a call that only reads them.
    ///
    /// # Safety
    /// As [`Self::elements`], but there may be other slices to read, and the memory need not be
    /// valid for writing.
    pub(super) unsafe fn reading<'a, T: bytemuck::Pod>(self) -> &'a [T] {
        debug_assert_eq!(size_of::<T>(), self.data_type.size());
        if self.len == 0 {
            return &[];
        }
        // SAFETY: valid, aligned and not written to, by the contracts of `new` and of this
        // function; any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.pointer.cast_const().cast(), self.len) }
    }

    /// The same as bytes.
    ///
    /// # Safety
    /// As [`Self::reading`].
    pub(super) unsafe fn reading_bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: as in `reading`.
        unsafe { std::slice::from_raw_parts(self.pointer.cast_const(), self.bytes()) }
    }

    /// All of it as bytes.
    ///
    /// # Safety
    /// As [`Self::elements`].
    pub(super) unsafe fn as_bytes<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `elements`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes()) }
    }
}
