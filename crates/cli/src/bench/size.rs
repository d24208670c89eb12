//! Sizes of what a benchmark sends.

use xdp_agg_topology::size;

/// Most bytes of a benchmark's vector.
const MOST: u64 = 16 << 30;

/// Bytes as [`size::bytes`] reads them, at most 16 GiB.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let bytes = size::bytes(text).map_err(|error| error.to_string())?;
    match usize::try_from(bytes) {
        Ok(fits) if bytes <= MOST => Ok(fits),
        _ => Err(format!("{text:?} is more than the 16G that a benchmark allows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_has_a_largest_size() {
        assert_eq!(parse("97M"), Ok(97 << 20));
        assert_eq!(parse("97e6"), Ok(97_000_000));
        assert_eq!(parse("16G"), Ok(16 << 30));
        assert!(parse("17G").is_err_and(|error| error.contains("16G that a benchmark allows")));
        assert!(parse("K").is_err_and(|error| error.contains("is no size")));
    }
}
