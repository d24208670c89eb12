use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::Format;
use crate::types::ElementType;
use crate::types::{Op, Scaling};

/// All workers' parts as the aggregator would sum them: digits of one span, added.
fn sum<T: Element>(parts: &[Vec<T>], whole: bool, divisor: u32) -> Vec<T> {
    let workers = parts.len() as u16;
    let lanes = Format::new(ElementType::I32, Op::Sum, Scaling::Block, None, workers);
    let lanes = lanes.expect("sums of integers");
    let digits = Digits::new(lanes.integer_range(1).1);
    let keys = parts.iter().map(|part| survey(part).keys());
    let span = Span::from_keys(keys.fold([0; KEYS], |all, keys| {
        [all[0].max(keys[0]), all[1].max(keys[1]), all[2].max(keys[2])]
    }));
    let span = if whole { Span::whole::<T>() } else { span };
    let len = parts[0].len();
    let mut rows = vec![0_i32; digits.rows(span) * len];
    for part in parts {
        let mut own = vec![7_i32; rows.len()];
        digits.encode(span, part, &mut own);
        lanes.check(&own, 1).expect("digits fit their lanes");
        rows.iter_mut().zip(&own).for_each(|(sum, digit)| *sum += digit);
    }
    let mut result = parts[0].clone();
    digits.decode(span, &rows, divisor, &mut result);
    result
}

/// The exact sum of floats as an integer times 2 to the power of -149, in 512 bits.
fn exact(values: &[f32]) -> (bool, Vec<u64>) {
    let mut total = [0_u64; 8];
    for value in values {
        let Parts::Finite { negative, magnitude, exponent } = decompose(*value) else {
            unreachable!("finite values")
        };
        let shift = (exponent + 149) as usize;
        let mut own = [0_u64; 8];
        let (word, bit) = (shift / 64, shift % 64);
        own[word] = magnitude << bit;
        if bit > 0 {
            own[word + 1] = magnitude >> (64 - bit);
        }
        add(&mut total, &if negative { negated(own) } else { own });
    }
    let negative = total[7] >> 63 != 0;
    (negative, if negative { negated(total) } else { total }.to_vec())
}

fn add(to: &mut [u64; 8], from: &[u64; 8]) {
    let mut carry = false;
    for (to, from) in to.iter_mut().zip(from) {
        let (sum, first) = to.overflowing_add(*from);
        let (sum, second) = sum.overflowing_add(carry.into());
        (*to, carry) = (sum, first || second);
    }
}

fn negated(number: [u64; 8]) -> [u64; 8] {
    let mut one = [0; 8];
    one[0] = 1;
    let mut negated = number.map(|word| !word);
    add(&mut negated, &one);
    negated
}

/// The float next to an exact number of units of 2 to the power of -149, ties to even.
fn nearest((negative, words): (bool, Vec<u64>)) -> f32 {
    let bit = |at: usize| words[at / 64] >> (at % 64) & 1;
    let Some(highest) = (0..512).rev().find(|at| bit(*at) == 1) else { return 0.0 };
    let lowest = highest.saturating_sub(23);
    let mut mantissa = (lowest..=highest).rev().fold(0_u64, |sum, at| sum << 1 | bit(at));
    let half = lowest > 0 && bit(lowest - 1) == 1;
    let more = (0..lowest.saturating_sub(1)).any(|at| bit(at) == 1);
    mantissa += u64::from(half && (more || mantissa & 1 == 1));
    let value = mantissa as f64 * 2_f64.powi(lowest as i32 - 149);
    if negative { -value as f32 } else { value as f32 }
}

fn ulps(a: f32, b: f32) -> u64 {
    let key = |x: f32| i64::from((x.to_bits() as i32) ^ ((x.to_bits() as i32) >> 31 & i32::MAX));
    key(a).abs_diff(key(b))
}

#[test]
fn a_loss_a_count_and_a_rate_stand_in_one_tensor() {
    let part = vec![2.345_678_9_f32, 1.25e6, 0.0017];
    let sums = sum(&vec![part.clone(); 4], false, 1);
    let expected: Vec<f32> = part.iter().map(|x| 4.0 * x).collect();
    assert_eq!(sums, expected);
    assert_eq!(sum(&vec![part.clone(); 4], false, 4), part);
}

#[test]
fn what_is_no_number_stays_with_its_element() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let parts = vec![vec![1.0, inf, inf, nan, 5.0, -inf], vec![2.0, 3.0, -inf, 1.0, inf, -inf]];
    for whole in [false, true] {
        let sums = sum(&parts, whole, 1);
        assert_eq!((sums[0], sums[1], sums[4], sums[5]), (3.0, inf, inf, -inf));
        assert!(sums[2].is_nan() && sums[3].is_nan());
    }
}

#[test]
fn the_ends_of_the_range_are_summed() {
    let ends = [f32::MAX, -f32::MAX, f32::from_bits(1), -f32::from_bits(1), f32::MIN_POSITIVE, 0.0];
    let parts = vec![ends.to_vec(), vec![-f32::MAX, f32::MAX, f32::from_bits(1), 1.0, 1.0, -0.0]];
    let expected = [0.0, 0.0, f32::from_bits(2), 1.0, 1.0, 0.0];
    assert_eq!(sum(&parts, false, 1), expected);
    assert_eq!(sum(&vec![vec![f32::MAX]; 2], false, 1), [f32::INFINITY]);
    assert_eq!(sum(&vec![vec![f32::MAX]; 2], false, 2), [f32::MAX]);
    let doubles = [f64::MAX, f64::from_bits(1), 1e300, 1e-300];
    let halves = doubles.map(|x| x / 2.0).to_vec();
    assert_eq!(sum(&[halves.clone(), halves], false, 1)[2..], doubles[2..]);
    let parts = vec![vec![f64::MAX, f64::from_bits(1)], vec![-f64::MAX, f64::from_bits(1)]];
    assert_eq!(sum(&parts, false, 1), [0.0, f64::from_bits(2)]);
}

#[test]
fn zeros_travel_for_nothing() {
    assert_eq!(Digits::new((1 << 29) - 1).rows(survey(&[0.0_f32, -0.0])), 0);
    assert_eq!(sum(&[vec![0.0_f32; 3], vec![-0.0; 3]], false, 1), [0.0; 3]);
}

/// Any bits of a float of this type, finite.
fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()),
        -1e3_f32..1e3,
        (-1e3_f32..1e3).prop_map(|x| x * 1e-12),
        (0..8_i32).prop_map(|x| x as f32),
    ]
}

proptest! {
    /// Against exact sums in 512 bits: at most one unit in the last place off, whatever the span.
    #[test]
    fn sums_are_those_of_the_numbers(
        (workers, len) in (1..9_usize, 1..40_usize),
        values in prop::collection::vec(finite(), 9 * 40),
        whole in any::<bool>(),
    ) {
        let parts: Vec<Vec<f32>> =
            (0..workers).map(|w| values[w * len..(w + 1) * len].to_vec()).collect();
        let sums = sum(&parts, whole, 1);
        for (at, sum) in sums.iter().enumerate() {
            let all: Vec<f32> = parts.iter().map(|part| part[at]).collect();
            let expected = nearest(exact(&all));
            prop_assert!(ulps(*sum, expected) <= 1, "{all:?}: {sum:e}, not {expected:e}");
        }
    }

    /// 64 workers leave least room for a digit.
    #[test]
    fn many_workers_are_summed(values in prop::collection::vec(finite(), 64)) {
        let parts: Vec<Vec<f32>> = values.iter().map(|x| vec![*x]).collect();
        let expected = nearest(exact(&values));
        prop_assert!(ulps(sum(&parts, false, 1)[0], expected) <= 1);
    }

    /// A float alone comes back as it was, of every type.
    #[test]
    fn one_contribution_is_the_sum(bits in any::<u64>()) {
        let double = f64::from_bits(bits);
        let single = f32::from_bits(bits as u32);
        let half = f16::from_bits(bits as u16);
        let brain = bf16::from_bits(bits as u16);
        for whole in [false, true] {
            let back = sum(&[vec![double], vec![0.0]], whole, 1)[0];
            prop_assert!(back == double || back.is_nan() && double.is_nan());
            let back = sum(&[vec![single], vec![0.0]], whole, 1)[0];
            prop_assert!(back == single || back.is_nan() && single.is_nan());
            let back = sum(&[vec![half], vec![f16::ZERO]], whole, 1)[0];
            prop_assert!(back == half || back.is_nan() && half.is_nan());
            let back = sum(&[vec![brain], vec![bf16::ZERO]], whole, 1)[0];
            prop_assert!(back == brain || back.is_nan() && brain.is_nan());
        }
    }

    /// Doubles: next to the sum of two, which is a float's own sum.
    #[test]
    fn two_doubles_are_added_as_they_are(a in any::<f64>(), b in any::<f64>()) {
        let both = a + b;
        let sums = sum(&[vec![a], vec![b]], false, 1);
        prop_assert!(sums[0] == both || both.is_nan() && sums[0].is_nan(), "{sums:?} {both:e}");
    }
}

#[test]
fn spans_are_joined_filled_and_compared() {
    let digits = Digits::new(1 << 28);
    let (small, large) = (survey(&[1e-9_f32, 0.0]), survey(&[-3e5_f32]));
    let both = small.joined(large);
    assert!(both.holds(small) && both.holds(large) && both.holds(Span::EMPTY));
    assert!(!small.holds(large) && !large.holds(small) && !Span::EMPTY.holds(small));
    assert_eq!(Span::EMPTY.joined(small), small);
    assert_eq!(both, survey(&[-3e5_f32, 1e-9]));
    let special = survey(&[f32::NAN, 1e-9]);
    assert!(special.holds(small) && !small.holds(special));
    assert_eq!(special.of_numbers(), small);
    let filled = digits.filled(both);
    assert!(filled.holds(both));
    assert_eq!(digits.rows(filled), digits.rows(both));
    assert_eq!((filled.top - filled.low) % digits.width as i32, 0);
    assert_eq!(digits.filled(Span::EMPTY), Span::EMPTY);
}
