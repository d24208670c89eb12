//! Sizes as people write them.

/// Most bytes of a size: 8 PiB. Whole numbers up to here are exact as floating-point numbers.
pub const MOST: u64 = 1 << 53;

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no size; expected whole bytes such as 4096, 64K, 97M or 1G (1024-based), or 97e6, up \
     to 8388608G"
)]
pub struct BadSize(pub String);

/// Bytes from `4096`, `64K`, `97M`, `1.5G` (1024-based, as in nccl-tests; a `B` or `iB` may follow)
/// and from `97e6`.
///
/// # Errors
/// [`BadSize`]: it is not a size, not a whole number of bytes, or more than [`MOST`].
pub fn bytes(text: &str) -> Result<u64, BadSize> {
    let bad = || BadSize(text.into());
    let lower = text.to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (mut number, unit) = lower.split_at(end);
    let factor = match unit {
        "" | "b" => 1_u32,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => {
            let exponent = unit.strip_prefix('e').ok_or_else(bad)?;
            if exponent.is_empty() || !exponent.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            number = &lower;
            1
        }
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * f64::from(factor);
    if bytes.fract() != 0.0 || !(0.0..=MOST as f64).contains(&bytes) {
        return Err(bad());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 2^53"
    )]
    Ok(bytes as u64)
}

/// Most bytes of a vector that is measured with.
const MOST_OF_VECTOR: u64 = 16 << 30;

/// Bytes of a vector to measure with: as [`bytes`] reads them, at most 16 GiB.
///
/// # Errors
/// What is wrong with it, in words.
pub fn of_vector(text: &str) -> Result<usize, String> {
    let bytes = bytes(text).map_err(|error| error.to_string())?;
    match usize::try_from(bytes) {
        Ok(fits) if bytes <= MOST_OF_VECTOR => Ok(fits),
        _ => Err(format!("{text:?} is more than the 16G that a benchmark allows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_to_measure_with_has_a_largest_size() {
        assert_eq!(of_vector("97M"), Ok(97 << 20));
        assert_eq!(of_vector("97e6"), Ok(97_000_000));
        assert_eq!(of_vector("16G"), Ok(16 << 30));
        assert!(of_vector("17G").is_err_and(|error| error.contains("16G that a benchmark allows")));
        assert!(of_vector("K").is_err_and(|error| error.contains("is no size")));
    }

    #[test]
    fn sizes_are_1024_based_or_decimal() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65536),
            ("97m", 97 << 20),
            ("97MiB", 97 << 20),
            ("1.5G", 3 << 29),
            ("97e6", 97_000_000),
            ("9.7E7", 97_000_000),
            ("1.1e6", 1_100_000),
            ("8388608G", MOST),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "K", "-4", "+4", ".", "4T", "4Kbb", "4iB", "1.0001K", "0.5", "1e", "1e-3", "1e6K",
            "e6", "97e99", "1e999", "inf", "nan", "8388609G", "1 M", "0x10",
        ] {
            assert_eq!(bytes(text), Err(BadSize(text.into())), "{text}");
        }
    }
}
