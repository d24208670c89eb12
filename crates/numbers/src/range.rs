//! Which integers can be summed.

use crate::element::Element;
use crate::format::Format;

/// An integer that is too large, or too small, for a sum of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "element {index} is {value}: in a sum over {processes} processes integers must lie between \
     {min} and {max}; scale them down, or use a wider type"
)]
pub struct OutOfRange {
    /// Its place in the data.
    pub index: usize,
    /// Its value.
    pub value: i64,
    /// Processes whose values are summed.
    pub processes: u32,
    /// Smallest value that always fits.
    pub min: i64,
    /// Largest value that always fits.
    pub max: i64,
}

pub(crate) fn check<T: Element>(format: &Format, data: &[T], parts: u16) -> Result<(), OutOfRange> {
    if T::TYPE.is_float() || !format.op().adds() {
        return Ok(());
    }
    let (min, max) = format.integer_range(parts);
    let fits = |value: &T| value.integer().is_none_or(|value| (min..=max).contains(&value));
    match data.iter().position(|value| !fits(value)) {
        None => Ok(()),
        Some(index) => Err(OutOfRange {
            index,
            value: data[index].integer().unwrap_or_default(),
            processes: u32::from(format.contributors()) * u32::from(parts.max(1)),
            min,
            max,
        }),
    }
}
