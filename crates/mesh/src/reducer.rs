//! What becomes of elements on their way, where a call reduces them.

use std::ops::Range;

use crate::element::Arithmetic;

/// What a call does with a vector while it travels. `at`: where in the vector, in bytes.
///
/// Except in [`Self::came`], bytes are whole units of the size that the call was made with. The
/// vector's last unit may be shorter.
pub trait Reducer {
    /// True: this rank's own elements are not what travels until [`Self::make_ready`] has made it
    /// of them. [`Self::join`] does that with those that it gets.
    fn makes_ready(&self) -> bool {
        false
    }

    /// Makes of this rank's own elements what travels.
    fn make_ready(&mut self, _at: usize, _own: &mut [u8]) {}

    /// Reduces what another rank sent into what is here; both are equally long.
    fn join(&mut self, at: usize, own: &mut [u8], theirs: &[u8]);

    /// All ranks' elements are in these.
    fn finish(&mut self, _at: usize, _all: &mut [u8]) {}

    /// These bytes of the vector came finished, in pieces of any length.
    fn came(&mut self, _bytes: Range<usize>, _vector: &[u8]) {}
}

/// Elements that are reduced as they are.
pub(crate) struct Plain {
    pub(crate) arithmetic: Arithmetic,
    pub(crate) world: u16,
}

impl Reducer for Plain {
    fn join(&mut self, _at: usize, own: &mut [u8], theirs: &[u8]) {
        (self.arithmetic.combine)(own, theirs);
    }

    fn finish(&mut self, _at: usize, all: &mut [u8]) {
        if let Some(finish) = self.arithmetic.finish {
            finish(all, self.world);
        }
    }
}
