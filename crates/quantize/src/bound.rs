//! Bounds of sums and of errors: what `docs/numerics.md` derives.

use crate::types::ElementType;

/// Half of the distance from 1 to the next float: what one rounding adds, at most, to a magnitude.
pub(crate) fn unit(element: ElementType) -> f64 {
    let bits = match element {
        ElementType::F64 => 53,
        ElementType::F32 => 24,
        ElementType::F16 => 11,
        ElementType::Bf16 => 8,
        ElementType::I32 | ElementType::I64 => return 0.0,
    };
    2_f64.powi(-bits)
}

/// What one rounding of a host's own sum adds: 16-bit floats are summed as f32.
pub(crate) fn sum_unit(element: ElementType) -> f64 {
    unit(element).min(unit(ElementType::F32))
}

/// Half of the smallest subnormal: what rounding adds where there are no more exponents.
pub(crate) fn least(element: ElementType) -> f64 {
    let bits = match element {
        ElementType::F64 => return f64::from_bits(1),
        ElementType::F32 => 150,
        ElementType::F16 => 25,
        ElementType::Bf16 => 134,
        ElementType::I32 | ElementType::I64 => return 0.0,
    };
    2_f64.powi(-bits)
}

/// No sum of elements below these peaks, summed in any order, is larger.
pub(crate) fn of_local_sum(element: ElementType, peaks: &[f64]) -> f64 {
    let sum: f64 = peaks.iter().sum();
    match peaks.len() {
        0 | 1 => sum,
        // Each of the n - 1 additions rounds up by one unit at most; so does each of those above.
        // Sums of subnormals are exact.
        n => sum * (1.0 + 4.0 * n as f64 * sum_unit(element)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each addition of something barely above half a unit rounds up to a whole one.
    #[test]
    fn sums_that_round_up_are_within_their_bound() {
        let parts = [1.0_f32, 6e-8, 6e-8, 6e-8, 6e-8];
        let sum = f64::from(parts.into_iter().reduce(|a, b| a + b).unwrap());
        let peaks = parts.map(f64::from);
        assert!(sum > peaks.iter().sum(), "nothing was tested");
        for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
            assert!(of_local_sum(element, &peaks) >= sum);
        }
        assert_eq!(of_local_sum(ElementType::F32, &[1.5]), 1.5);
        assert_eq!(of_local_sum(ElementType::F32, &[]), 0.0);
    }
}
