//! The grain in which the segment's memory is given out.

/// Bytes of a page of the allocator ([`crate::arena`]).
pub(crate) const PAGE: usize = 8 << 10;

/// Bytes, at most, that the allocator's tables for `len` bytes of pages take.
pub(crate) const fn overhead(len: usize) -> usize {
    let pages = len.div_ceil(PAGE);
    pages * 4 + pages.div_ceil(64) * 8 + 2 * 4096
}
