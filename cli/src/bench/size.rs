//! Sizes as people write them.

/// Bytes from `4096`, `64K`, `97M`, `1G` (1024-based, as in nccl-tests; a `B` or `iB` may follow).
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let expected = || format!("{text:?} is no size; expected bytes such as 4096, 64K, 97M or 1G");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| expected())?;
    let shift = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(expected()),
    };
    let bytes = number.checked_mul(1 << shift).ok_or_else(expected)?;
    if bytes > 16 << 30 {
        return Err(format!("{text:?} is more than the 16G that this benchmark allows"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_1024_based() {
        for (text, bytes) in [("0", 0), ("4", 4), ("4096", 4096), ("64K", 65536), ("97m", 97 << 20)]
        {
            assert_eq!(parse(text), Ok(bytes));
        }
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        for text in ["", "K", "-4", "4T", "1.5M", "99999999999G", "17G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
