//! What comes out of whole all-reduces, extremes included.

mod common;

use common::{Outcome, Random, Sample, aggregate, all_reduce, format, formats, narrow, paths};
use proptest::prelude::*;
use xdp_agg_quantize::{
    Element, ElementType, Format, FormatError, LaneWidth, Op, Reduction, Scaling, bf16, f16,
};

const BLOCK: Scaling = Scaling::Block;

#[test]
fn integers_are_exact_up_to_the_edge_of_the_range() {
    for (workers, parts) in [(1, 1), (2, 3), (7, 4), (64, 16)] {
        let format = format(ElementType::I32, Op::Sum, BLOCK, workers);
        let (min, max) = format.integer_range(parts);
        let edge = [min as i32, max as i32, 0, -1, min as i32];
        assert_eq!(format.check(&edge, parts), Ok(()));
        let hosts = vec![vec![edge.to_vec(); parts.into()]; workers.into()];
        let total = i64::from(workers) * i64::from(parts);
        for path in paths(format) {
            let result = all_reduce(&path, &hosts).result;
            let expected = edge.map(|x| i32::try_from(i64::from(x) * total).unwrap());
            assert_eq!(result, expected);
        }
        let over = format.check(&[0, max as i32 + i32::from(max < i64::from(i32::MAX))], parts);
        assert_eq!(over.is_err(), max < i64::from(i32::MAX), "{workers} {parts}");
        if let Err(error) = over {
            assert_eq!((error.index, error.value), (1, max + 1));
            assert!(error.to_string().contains(&format!("between {min} and {max}")), "{error}");
        }
    }
}

#[test]
fn long_integers_are_exact_up_to_the_edge_of_the_range() {
    for (workers, parts) in [(2_u16, 3_u16), (3, 1), (64, 16)] {
        let format = format(ElementType::I64, Op::Average, BLOCK, workers);
        let (min, max) = format.integer_range(parts);
        let edge = [min, max, 7, -7];
        assert_eq!(format.check(&edge, parts), Ok(()));
        assert!(format.check(&[max + 1], parts).is_err());
        assert!(format.check(&[min - 1], parts).is_err());
        let hosts = vec![vec![edge.to_vec(); parts.into()]; workers.into()];
        assert_eq!(all_reduce(&format, &hosts).result, edge);
    }
}

#[test]
fn averages_of_integers_are_divided_towards_zero_by_the_processes() {
    let format = format(ElementType::I32, Op::Average, BLOCK, 2);
    let hosts = vec![vec![vec![1, -1, 5], vec![1, -1, 6]], vec![vec![1, -1, 6], vec![4, -4, 6]]];
    assert_eq!(all_reduce(&format, &hosts).result, [1, -1, 5]);
}

proptest! {
    #[test]
    fn integers_come_through_exactly(
        workers in 1_u16..=64, parts in 1_u16..=4, len in 0_usize..80, seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let format = format(ElementType::I32, Op::Sum, BLOCK, workers);
        let (min, max) = format.integer_range(parts);
        let mut host = || -> Vec<Vec<i32>> {
            let mut one = || (min + random.below((max - min) as u64 + 1) as i64) as i32;
            (0..parts).map(|_| (0..len).map(|_| one()).collect()).collect()
        };
        let hosts: Vec<_> = (0..workers).map(|_| host()).collect();
        let result = all_reduce(&format, &hosts).result;
        for i in 0..len {
            let exact: i64 = hosts.iter().flatten().map(|part| i64::from(part[i])).sum();
            prop_assert_eq!(i64::from(result[i]), exact);
        }
    }

    /// Whatever the order in which contributions are added, and in sums of 64 bits at a time.
    #[test]
    fn the_order_of_arrival_changes_nothing(
        workers in 1_usize..=9, len in 1_usize..80, seed in any::<u64>(),
    ) {
        for format in formats(workers as u16) {
            with_type!(format.element(), T => {
                let mut random = Random::new(seed);
                let mut blocks: Vec<Vec<u8>> = (0..workers).map(|_| {
                    let part: Vec<T> =
                        (0..len).map(|_| T::from_f64(random.symmetric() * 1e4)).collect();
                    let mut lanes = vec![0; format.payload(len)];
                    format.encode(format.key(&[2e4]), &[&part], &mut lanes);
                    lanes
                }).collect();
                let first = aggregate(&format, &blocks);
                for _ in 0..4 {
                    let (a, b) = (random.below(workers as u64), random.below(workers as u64));
                    blocks.swap(a as usize, b as usize);
                    prop_assert_eq!(&aggregate(&format, &blocks), &first);
                }
            });
        }
    }

    /// The largest of the hosts' keys suits all of them: nothing is clamped, whatever the bits.
    #[test]
    fn blocks_cannot_saturate(
        workers in 1_u16..=64, parts in 1_usize..=5, range in 0_u64..2100, seed in any::<u64>(),
    ) {
        for format in formats(workers).into_iter().filter(Format::needs_exponents) {
            with_type!(format.element(), T => {
                let mut random = Random::new(seed);
                let mut part = || -> Vec<T> {
                    (0..33).map(|_| wide(&mut random, range)).collect()
                };
                let hosts: Vec<Vec<Vec<T>>> =
                    (0..2).map(|_| (0..parts).map(|_| part()).collect()).collect();
                let Outcome { key, encoded, .. } = all_reduce(&format, &hosts);
                prop_assert_eq!(encoded.saturated, 0, "{:?} {:?}", format, hosts);
                for host in &hosts {
                    let peaks: Vec<f64> = host.iter().map(|part| format.peak(part)).collect();
                    prop_assert!(format.key(&peaks) <= key);
                    prop_assert!(peaks.iter().sum::<f64>() <= format.key_bound(key));
                }
            });
        }
    }

    #[test]
    fn keys_grow_with_peaks(a in any::<f64>(), b in any::<f64>(), more in 0.0..1e30) {
        let format = format(ElementType::F32, Op::Sum, BLOCK, 8);
        let (a, b) = (a.abs().min(b.abs()), a.abs().max(b.abs()));
        prop_assume!(a.is_finite() && b.is_finite());
        prop_assert!(format.key(&[a]) <= format.key(&[b]));
        prop_assert!(format.key(&[a]) <= format.key(&[a, more]));
        prop_assert!(format.key(&[a, 0.0]) >= format.key(&[a]));
    }
}

/// Any finite value whose exponent is in the upper `range` of its type's.
fn wide<T: Sample>(random: &mut Random, range: u64) -> T {
    loop {
        let x = T::from_bits64(random.bits());
        if x.to_f64().is_finite() && x.to_f64().abs() * 2_f64.powi(range as i32) >= 1.0 {
            return x;
        }
        if random.below(4) == 0 {
            return T::ZERO;
        }
    }
}

#[test]
fn minima_and_maxima_are_those_of_the_bits() {
    let hosts = vec![
        vec![vec![1.5_f32, -0.0, f32::INFINITY, 3e-45, -2.0], vec![1.0, 0.0, -1.0, 0.0, -3.0]],
        vec![vec![f32::MIN, -0.0, 0.0, -3e-45, -2.5], vec![2.0, -0.0, 1.0, 1.0, f32::NEG_INFINITY]],
    ];
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for path in paths(format(ElementType::F32, Op::Min, BLOCK, 2)) {
        let Outcome { encoded, result, .. } = all_reduce(&path, &hosts);
        assert!(!encoded.non_finite);
        let expected = [f32::MIN, -0.0, -1.0, -3e-45, f32::NEG_INFINITY];
        assert_eq!(bits(&result), bits(&expected));
    }
    for path in paths(format(ElementType::F32, Op::Max, BLOCK, 2)) {
        let result = all_reduce(&path, &hosts).result;
        // 0.0 is above -0.0.
        assert_eq!(bits(&result), bits(&[2.0, 0.0, f32::INFINITY, 1.0, -2.0]));
    }
    let half = |values: [f64; 3]| values.map(f16::from_f64).to_vec();
    let hosts = vec![vec![half([1.0, -2.0, 6e-8])], vec![half([0.5, 65504.0, -6e-8])]];
    let result = all_reduce(&format(ElementType::F16, Op::Max, BLOCK, 2), &hosts).result;
    assert_eq!(result, half([1.0, 65504.0, 6e-8]));
    let hosts = vec![vec![vec![i64::MIN, 5]], vec![vec![i64::MAX, -5]]];
    let result = all_reduce(&format(ElementType::I64, Op::Min, BLOCK, 2), &hosts).result;
    assert_eq!(result, [i64::MIN, -5]);
    assert_eq!(format(ElementType::F16, Op::Max, BLOCK, 2).reduction(), Reduction::Max16);
}

/// Invariant 6: whatever the mode, and wherever among the elements and the processes.
#[test]
fn what_is_no_number_is_seen_in_every_mode() {
    for one in formats(3) {
        if !one.element().is_float() {
            continue;
        }
        with_type!(one.element(), T => {
            for (i, odd) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
                for place in [0, 31, 64, 69] {
                    for path in paths(one) {
                        let mut odd_one = vec![T::from_f64(0.1); 70];
                        odd_one[place] = T::from_f64(odd);
                        let clean = vec![T::from_f64(0.05); 70];
                        let hosts = vec![
                            vec![clean.clone(), clean.clone()],
                            vec![clean.clone(), odd_one],
                            vec![clean.clone(), clean],
                        ];
                        let Outcome { encoded, result, .. } = all_reduce(&path, &hosts);
                        let flagged = i == 0 || one.op().adds();
                        assert_eq!(encoded.non_finite, flagged, "{path:?} {odd} {place}");
                        assert_eq!(result.iter().all(|x| x.to_f64().is_nan()), flagged);
                        assert_eq!(encoded.saturated, 0);
                    }
                }
            }
        });
    }
}

#[test]
fn a_sum_in_a_host_that_overflows_is_seen() {
    for path in paths(format(ElementType::F32, Op::Sum, BLOCK, 2)) {
        let hosts = vec![vec![vec![f32::MAX, 1.0], vec![f32::MAX, 1.0]], vec![vec![1.0, 1.0]; 2]];
        assert!(all_reduce(&path, &hosts).encoded.non_finite);
    }
    // The sum of two hosts overflows where it is decoded, by itself.
    let hosts = vec![vec![vec![f32::MAX, 1e32]], vec![vec![f32::MAX, 1e32]]];
    let Outcome { encoded, result, .. } =
        all_reduce(&format(ElementType::F32, Op::Sum, BLOCK, 2), &hosts);
    assert!(!encoded.non_finite);
    assert_eq!(result[0], f32::INFINITY);
    assert!((result[1] / 2e32 - 1.0).abs() < 1e-2);
    // 16-bit floats are summed as f32, which has room; the average has, too.
    let hosts = vec![vec![vec![f16::MAX], vec![f16::MAX]]];
    let sum = all_reduce(&format(ElementType::F16, Op::Sum, BLOCK, 1), &hosts);
    assert_eq!((sum.encoded.non_finite, sum.result), (false, vec![f16::INFINITY]));
    let average = all_reduce(&format(ElementType::F16, Op::Average, BLOCK, 1), &hosts);
    assert_eq!(average.result, [f16::MAX]);
    let hosts = vec![vec![vec![f64::MAX]], vec![vec![f64::MAX]]];
    let sum = all_reduce(&format(ElementType::F64, Op::Sum, BLOCK, 2), &hosts);
    assert_eq!((sum.encoded.non_finite, sum.result), (false, vec![f64::INFINITY]));
    let average = all_reduce(&format(ElementType::F64, Op::Average, BLOCK, 2), &hosts);
    assert_eq!((average.encoded.saturated, average.result), (0, vec![f64::MAX]));
}

#[test]
fn what_does_not_fit_a_fixed_scale_is_clamped_and_counted() {
    for path in paths(format(ElementType::F32, Op::Sum, Scaling::Fixed(1.0), 2)) {
        let hosts = vec![vec![vec![2e9_f32, -2e9, 1.0, 1e9, f32::MAX]], vec![vec![0.0; 5]]];
        let Outcome { encoded, result, .. } = all_reduce(&path, &hosts);
        assert_eq!((encoded.saturated, encoded.non_finite), (3, false));
        let limit = (1 << 30) as f32;
        assert_eq!(result, [limit, -limit, 1.0, 1e9, limit]);
    }
    for path in paths(narrow(ElementType::F32, Op::Sum, Scaling::Fixed(1.0), 4)) {
        let limit = (1 << 13) as f32;
        let hosts = vec![vec![vec![9e9_f32, limit - 1.0, -limit, -limit - 1.0, limit - 0.5]]];
        let Outcome { encoded, result, .. } = all_reduce(&path, &hosts);
        // Half a step over the edge rounds to even, which is over the edge.
        assert_eq!(encoded.saturated, 2);
        assert_eq!(result, [limit - 1.0, limit - 1.0, -limit, -limit, limit - 1.0]);
    }
    for path in paths(format(ElementType::F64, Op::Sum, Scaling::Fixed(1.0), 1)) {
        let hosts = vec![vec![vec![1e19, -1e19, 9e18, -2_f64.powi(63), 0.5, 1.5]]];
        let Outcome { encoded, result, .. } = all_reduce(&path, &hosts);
        assert_eq!(encoded.saturated, 2);
        let limit = 2_f64.powi(63);
        assert_eq!(result, [limit.next_down(), -limit, 9e18, -limit, 0.0, 2.0]);
    }
}

#[test]
fn subnormals_and_zeros() {
    let tiny = |i: u32| f32::from_bits(i);
    let hosts = vec![
        vec![vec![tiny(1), -0.0, tiny(77), 0.0]],
        vec![vec![tiny(2), -0.0, -tiny(78), tiny(0x7f_ffff)]],
    ];
    for path in paths(format(ElementType::F32, Op::Sum, BLOCK, 2)) {
        let result = all_reduce(&path, &hosts).result;
        let expected = [tiny(3), 0.0, -tiny(1), tiny(0x7f_ffff)];
        // Sums have no negative zero.
        assert_eq!(result.map_bits(), expected.to_vec().map_bits());
    }
    let tiny = |i: u64| f64::from_bits(i);
    let hosts = vec![vec![vec![tiny(1), -0.0]], vec![vec![tiny(2), tiny(1 << 51)]]];
    for path in paths(format(ElementType::F64, Op::Sum, BLOCK, 2)) {
        assert_eq!(all_reduce(&path, &hosts).result, [tiny(3), tiny(1 << 51)]);
    }
    for one in formats(2).into_iter().filter(|format| format.op().adds()) {
        with_type!(one.element(), T => {
            let zeros = vec![vec![vec![T::ZERO; 5]; 3]; 2];
            let Outcome { key, result, .. } = all_reduce(&one, &zeros);
            assert_eq!(key, 0);
            assert!(result.iter().all(|x| x.bits64() == 0), "{one:?}");
        });
    }
}

trait MapBits {
    fn map_bits(&self) -> Vec<u32>;
}

impl MapBits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|x| x.to_bits()).collect()
    }
}

/// A wrongly chosen key does not give a wrong sum without a word.
#[test]
fn a_key_that_is_too_small_shows_as_saturation() {
    for path in paths(format(ElementType::F32, Op::Sum, BLOCK, 2)) {
        let part = vec![1.0_f32, 1e-3, 4.0];
        for peak in [0.0, 1e-40, 0.9] {
            let encoded = path.encode(path.key(&[peak]), &[&part], &mut [0; 64]);
            assert!(encoded.saturated > 0, "{peak}");
        }
        assert_eq!(path.encode(path.key(&[4.0]), &[&part], &mut [0; 64]).saturated, 0);
    }
}

/// An average over fewer contributors than the job has: the bias is the job's all the same.
#[test]
fn fewer_contributors_than_the_job_has() {
    for op in [Op::Sum, Op::Average] {
        let format = format(ElementType::Bf16, op, BLOCK, 16);
        let hosts = vec![vec![vec![bf16::from_f64(3.0)]; 2], vec![vec![bf16::from_f64(5.0)]; 2]];
        let expected = if op == Op::Sum { 16.0 } else { 4.0 };
        assert_eq!(all_reduce(&format, &hosts).result, [bf16::from_f64(expected)]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_advice() {
    let new = |element, op, scaling, width| Format::new(element, op, scaling, width, 4);
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e301, 1e-301] {
        let error = new(ElementType::F32, Op::Sum, Scaling::Fixed(scale), None).unwrap_err();
        assert!(error.to_string().contains("or `block`"), "{error}");
        // Nothing is scaled here.
        assert!(new(ElementType::I32, Op::Sum, Scaling::Fixed(scale), None).is_ok());
    }
    for (element, op, width, choose) in [
        (ElementType::I32, Op::Sum, LaneWidth::W16, "choose 32"),
        (ElementType::F64, Op::Average, LaneWidth::W32, "choose 64"),
        (ElementType::F32, Op::Sum, LaneWidth::W64, "choose 32, or 16 for half of the bytes"),
        (ElementType::F16, Op::Max, LaneWidth::W32, "choose 16"),
        (ElementType::F32, Op::Min, LaneWidth::W16, "choose 32"),
    ] {
        let error = new(element, op, BLOCK, Some(width)).unwrap_err();
        assert!(error.to_string().contains(choose), "{error}");
    }
    for workers in [0, 65] {
        let error = Format::new(ElementType::F32, Op::Sum, BLOCK, None, workers).unwrap_err();
        assert_eq!(error, FormatError::Workers(workers));
        assert!(error.to_string().contains("choose 1 to 64"), "{error}");
    }
}

#[test]
fn sizes() {
    let wide = format(ElementType::F32, Op::Sum, BLOCK, 2);
    assert_eq!((wide.lanes_per_chunk(), wide.payload(352), wide.payload(1)), (16, 1408, 64));
    let narrow = narrow(ElementType::F16, Op::Sum, BLOCK, 2);
    assert_eq!((narrow.lanes_per_chunk(), narrow.payload(704)), (32, 1408));
    let long = format(ElementType::I64, Op::Max, BLOCK, 2);
    assert_eq!((long.lanes_per_chunk(), long.payload(9)), (8, 128));
    assert!(wide.needs_exponents() && !long.needs_exponents());
    assert!(!format(ElementType::F32, Op::Sum, Scaling::Fixed(1.0), 2).needs_exponents());
}
