//! Keys: what hosts tell each other of a block's magnitudes ahead of its data.
//!
//! A key is the upper half of a 64-bit float without its sign, rounded up: 11 bits of exponent and
//! 5 of mantissa. So keys are ordered as what they stand for. The largest key of all hosts is a
//! bound for each of them, and 0 means that all elements are zeros. A lane of an exponent block has
//! 16 bits. So the 5 bits of mantissa are free, and win up to a bit of precision over the exponent
//! alone.

use xdp_agg_common::lanes::CHUNK_LEN;

use xdp_agg_common::wire::Reduction;

/// Keys in 64 bytes of an exponent block.
pub const KEYS_PER_CHUNK: usize = CHUNK_LEN / 2;

/// Bits of a 64-bit float that a key leaves out.
const DROPPED: u32 = 63 - 16;
/// The key of infinity. As a bound it is 2^1024, which is above every finite float.
const INFINITE: u16 = (f64::INFINITY.to_bits() >> DROPPED) as u16;

/// The smallest key whose bound is not below this magnitude (a NaN has the largest key).
pub(crate) fn key_of(bound: f64) -> u16 {
    let bits = bound.to_bits() << 1 >> 1;
    let up = bits.div_ceil(1 << DROPPED);
    up.min(u64::from(INFINITE)) as u16
}

/// The bound that a key stands for, as `(m, e)`: `m * 2^e` with `1 <= m < 2`, or 0.
pub(crate) fn parts_of(key: u16) -> (f64, i32) {
    if key == 0 {
        return (0.0, 0);
    }
    let bits = u64::from(key.min(INFINITE)) << DROPPED;
    // What a subnormal has to be shifted by, so that its first bit is where a normal one has it.
    let shift = bits.leading_zeros().saturating_sub(11);
    let exponent = (bits >> 52).max(1) as i32 - 1023 - shift as i32;
    (f64::from_bits(bits << shift & MANTISSA | ONE), exponent)
}

const ONE: u64 = 1.0_f64.to_bits();
const MANTISSA: u64 = (1 << 52) - 1;

/// Bytes of an exponent block for this many keys: whole chunks.
#[must_use]
pub const fn keys_payload(keys: usize) -> usize {
    keys.div_ceil(KEYS_PER_CHUNK) * CHUNK_LEN
}

/// Writes keys as 16-bit little-endian lanes, and zeros behind them. The aggregator reduces them by
/// [`Reduction::Max16`].
///
/// # Panics
/// There are more keys than lanes.
pub fn encode_keys(keys: &[u16], to: &mut [u8]) {
    let (used, rest) = to.split_at_mut(2 * keys.len());
    for (lane, key) in used.as_chunks_mut::<2>().0.iter_mut().zip(keys) {
        *lane = key.to_le_bytes();
    }
    rest.fill(0);
}

/// Reads as many keys as `to` holds.
///
/// # Panics
/// There are fewer lanes than that.
pub fn decode_keys(from: &[u8], to: &mut [u16]) {
    let lanes = &from[..2 * to.len()];
    for (lane, key) in lanes.as_chunks::<2>().0.iter().zip(to) {
        *key = u16::from_le_bytes(*lane);
    }
}

/// How the aggregator reduces exponent blocks.
pub const KEY_REDUCTION: Reduction = Reduction::Max16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bound_of(key: u16) -> f64 {
        let (m, e) = parts_of(key);
        let half = e / 2;
        m * 2_f64.powi(half) * 2_f64.powi(e - half)
    }

    #[test]
    fn extremes() {
        assert_eq!(key_of(0.0), 0);
        assert_eq!(key_of(-0.0), 0);
        assert_eq!(key_of(f64::from_bits(1)), 1);
        assert_eq!(key_of(f64::MAX), INFINITE);
        assert_eq!(key_of(f64::INFINITY), INFINITE);
        assert_eq!(key_of(f64::NAN), INFINITE);
        assert_eq!(parts_of(INFINITE), (1.0, 1024));
        assert_eq!(parts_of(u16::MAX), (1.0, 1024));
        assert_eq!(parts_of(key_of(1.0)), (1.0, 0));
        assert_eq!(parts_of(key_of(1.01)), (1.03125, 0));
        assert_eq!(parts_of(1), (1.0, -1027));
    }

    /// Every key: bounds grow with keys, and each is the bound of its own key.
    #[test]
    fn keys_are_ordered_as_bounds_are() {
        for key in 0..INFINITE - 1 {
            assert!(bound_of(key) < bound_of(key + 1), "{key}");
            assert_eq!(key_of(bound_of(key)), key);
        }
    }

    #[test]
    fn blocks_of_keys_hold_what_was_written() {
        let keys: Vec<u16> = (0..70).map(|i| i * 900).collect();
        assert_eq!((keys_payload(704), keys_payload(70), KEYS_PER_CHUNK), (1408, 192, 32));
        let mut block = vec![0xee; keys_payload(keys.len())];
        encode_keys(&keys, &mut block);
        assert!(block[140..].iter().all(|byte| *byte == 0));
        let mut back = vec![1; 70];
        decode_keys(&block, &mut back);
        assert_eq!(back, keys);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_are_tight(bits in 0..f64::INFINITY.to_bits(), less in any::<u64>()) {
            let x = f64::from_bits(bits);
            let key = key_of(x);
            prop_assert!(key == INFINITE || x <= bound_of(key));
            prop_assert!(bits == 0 || bound_of(key - 1) < x);
            prop_assert!(key_of(f64::from_bits(bits.min(less))) <= key);
        }
    }
}
