//! What can be all-reduced.

use xdp_agg_common::lanes::Bias;

use crate::buffer::Buffer;
use crate::call::Elements;
use crate::error::Error;

/// Element types of [`crate::Communicator::all_reduce`]: `f32` and `i32`.
pub trait Element: sealed::Element {}
impl Element for f32 {}
impl Element for i32 {}

/// Refuses values that cannot be summed by so many workers.
pub(crate) fn check<T: Element>(data: &[T], workers: u16) -> Result<(), Error> {
    T::check(data, workers)
}

mod sealed {
    use super::{Buffer, Elements, Error};

    pub trait Element: Copy + Send + 'static {
        fn wrap(buffer: Buffer<Self>) -> Elements;
        fn unwrap(elements: Elements) -> Vec<Self>;
        fn check(data: &[Self], workers: u16) -> Result<(), Error>;
    }
}

impl sealed::Element for f32 {
    fn wrap(buffer: Buffer<Self>) -> Elements {
        Elements::F32(buffer)
    }

    fn unwrap(elements: Elements) -> Vec<Self> {
        match elements {
            Elements::F32(buffer) => buffer.into_owned(),
            Elements::I32(_) => Vec::new(),
        }
    }

    fn check(_: &[Self], _: u16) -> Result<(), Error> {
        Ok(()) // clamped and counted while encoding
    }
}

impl sealed::Element for i32 {
    fn wrap(buffer: Buffer<Self>) -> Elements {
        Elements::I32(buffer)
    }

    fn unwrap(elements: Elements) -> Vec<Self> {
        match elements {
            Elements::I32(buffer) => buffer.into_owned(),
            Elements::F32(_) => Vec::new(),
        }
    }

    fn check(data: &[Self], workers: u16) -> Result<(), Error> {
        let (min, max) = (Bias::for_workers(workers).min(), Bias::for_workers(workers).max());
        match data.iter().position(|value| !(min..=max).contains(value)) {
            None => Ok(()),
            Some(index) => Err(Error::OutOfRange { index, value: data[index], workers, min, max }),
        }
    }
}
