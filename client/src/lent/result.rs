//! The result of a call that is to be read, and its place.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use xdp_agg_intranode::{Reserved, View};

use crate::error::{Error, JobError};

/// The bytes of a result, to read. Where they are shared all processes of the host read the same
/// memory, which is free when the last of them has dropped its own. They stay what they are as long
/// as this is there, whatever is called meanwhile. In a forked child they must not be touched.
#[derive(Clone, Debug)]
pub struct LentView(Arc<Held>);

#[derive(Debug)]
pub(super) enum Held {
    Shared(View),
    /// Whole words, so that elements of every type are aligned, and how many bytes of them count.
    Private(Vec<u64>, usize),
}

impl LentView {
    /// Whether the processes of the host share it. Else it is a copy of this process's own.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(*self.0, Held::Shared(_))
    }
}

impl Deref for LentView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Held::Shared(view) => view,
            Held::Private(words, len) => &bytemuck::cast_slice(words)[..*len],
        }
    }
}

/// What a call whose result is to be read needs, and where it leaves the result.
#[derive(Clone, Debug)]
pub(super) struct Wanted(Arc<Wants>);

#[derive(Debug)]
struct Wants {
    is_shared: bool,
    /// Taken when the call begins. None besides: the result is this process's own.
    place: Mutex<Option<Reserved>>,
    result: Mutex<Option<LentView>>,
}

impl Wanted {
    /// `place`: of a result that the processes of the host share.
    pub(super) fn new(place: Option<Reserved>) -> Self {
        let (is_shared, result) = (place.is_some(), Mutex::default());
        Self(Arc::new(Wants { is_shared, place: Mutex::new(place), result }))
    }

    /// The place, for the call that begins now.
    pub(super) fn take_place(&self) -> Option<Reserved> {
        self.0.place.lock().take()
    }

    /// The result lies in memory that the processes of the host share.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_shared
    }

    /// The result of a call that has ended well.
    pub(super) fn view(&self) -> Result<LentView, Error> {
        self.0.result.lock().clone().ok_or(Error::Job(JobError::Closed))
    }

    pub(super) fn has(&self, result: Held) {
        *self.0.result.lock() = Some(LentView(Arc::new(result)));
    }
}
