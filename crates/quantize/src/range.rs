//! Which integers can be summed.

/// An integer that is too large, or too small, for a sum over `processes` processes.
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
