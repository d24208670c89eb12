//! What this process holds of the segment.

/// Where memory is under which pages of the segment lie
/// ([`Group::place`](crate::Group::place)), and where it is in the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) offset: usize,
}

impl Alias {
    /// Where these bytes of the process's memory are in the segment.
    pub(crate) fn find(&self, memory: *const u8, len: usize) -> Option<usize> {
        let within = memory.addr().checked_sub(self.start)?;
        let end = within.checked_add(len)?;
        (end <= self.len).then_some(self.offset + within)
    }
}

/// The results that this process reads in place, or may have begun calls for.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) count: usize,
    /// In whole pages.
    pub(crate) bytes: usize,
}
