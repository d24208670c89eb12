//! Numbers of epochs, which go round: 1 follows 65 535. 0 stands for none.

/// Whether `a` comes after `b` (RFC 1982). Where they are half of all apart, the greater does.
pub(super) const fn is_later(a: u16, b: u16) -> bool {
    match a.wrapping_sub(b) as i16 {
        i16::MIN => a > b,
        ahead => ahead > 0,
    }
}

/// The latest of some; 0 of none.
pub(super) fn latest(numbers: impl IntoIterator<Item = u16>) -> u16 {
    let numbers = numbers.into_iter().filter(|number| *number != 0);
    numbers.reduce(|a, b| if is_later(b, a) { b } else { a }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        for (later, earlier) in [(2, 1), (1, 65_535), (32_766, 65_535), (40_000, 30_000)] {
            assert!(is_later(later, earlier) && !is_later(earlier, later), "{later} {earlier}");
            assert_eq!(latest([earlier, later]), later);
            assert_eq!(latest([later, 0, earlier]), later);
        }
        assert!(!is_later(7, 7));
        assert!(is_later(40_000, 7_232) && !is_later(7_232, 40_000), "half of all apart");
        assert_eq!((latest([]), latest([0]), latest([40_000, 0])), (0, 0, 40_000));
    }
}
