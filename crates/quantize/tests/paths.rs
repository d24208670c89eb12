//! All paths give the same bits, and these are what a few lines of plain arithmetic give.

mod common;

use common::{Random, Sample, formats, paths};
use proptest::prelude::*;
use xdp_agg_quantize::{ElementType, Encoded, Format, LaneWidth, Op, Scaling, bf16, f16};

/// What kinds of elements a case has.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Any bits: NaNs, infinities and subnormals among them.
    Bits,
    /// Ordinary values over some decades.
    Ordinary,
    /// Values that `fixed` has to clamp.
    Large,
    /// Where rounding has ties.
    Halves,
}

fn element<T: Sample>(kind: Kind, random: &mut Random) -> T {
    match kind {
        Kind::Bits => T::from_bits64(random.bits()),
        Kind::Ordinary => T::from_f64(random.symmetric() * 10_f64.powi(random.below(9) as i32 - 4)),
        Kind::Large => T::from_f64(random.symmetric() * 1e15),
        Kind::Halves => T::from_f64((random.below(65) as f64 - 32.0) / 2e4),
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    len: usize,
    sources: usize,
    /// Where slices start, in elements and in bytes.
    offsets: [usize; 2],
    kind: Kind,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = [Kind::Bits, Kind::Ordinary, Kind::Large, Kind::Halves];
    let lens = prop_oneof![0_usize..20, 60_usize..70, 120_usize..200];
    (lens, 1_usize..=6, 0_usize..5, 0_usize..9, prop::sample::select(kinds.to_vec()), any::<u64>())
        .prop_map(|(len, sources, from, to, kind, seed)| Case {
            len,
            sources,
            offsets: [from, to],
            kind,
            seed,
        })
}

/// All that a format does to a case, as bytes and numbers.
fn everything<T: Sample>(format: &Format, case: Case) -> Result<Vec<u64>, TestCaseError> {
    let mut random = Random::new(case.seed);
    let Case { len, sources, offsets: [from, to], kind, .. } = case;
    let data: Vec<Vec<T>> = (0..sources)
        .map(|_| (0..len + from).map(|_| element(kind, &mut random)).collect())
        .collect();
    let parts: Vec<&[T]> = data.iter().map(|part| &part[from..]).collect();
    let peaks: Vec<f64> = parts.iter().map(|part| format.peak(part)).collect();
    let key = format.key(&peaks);

    let payload = format.payload(len) + 64 * (case.seed % 2) as usize;
    let mut lanes = vec![0xee; payload + to];
    let encoded = format.encode(key, &parts, &mut lanes[to..]);
    // What a few lines of plain arithmetic give.
    let mut plain = vec![0xee; payload + to];
    let plainly = encode_plainly(format, key, &parts, &mut plain[to..]);
    prop_assert_eq!((encoded, &lanes), (plainly, &plain), "{:?}", format);
    // By way of a buffer, the sum of 16-bit floats is rounded once more, and NaNs are all the same.
    if if format.op().adds() { T::TYPE.size() > 2 } else { !encoded.non_finite } {
        let (mut scratch, mut unfused) = (vec![T::ZERO; len], vec![0; payload]);
        let flags = format.encode_unfused(key, &parts, &mut scratch, &mut unfused);
        prop_assert_eq!((flags, &unfused[..]), (encoded, &lanes[to..]));
    }

    let mut out: Vec<u64> = peaks.iter().map(|peak| peak.to_bits()).collect();
    out.extend([u64::from(key), u64::from(encoded.saturated), encoded.non_finite.into()]);
    out.extend(lanes.iter().map(|byte| u64::from(*byte)));
    // Random lanes, too: a result may be anything.
    for lane in &mut lanes[to..] {
        *lane = random.bits() as u8;
    }
    let mut elements = vec![T::ZERO; len + from];
    format.decode(key, &lanes[to..], 1, 3, &mut elements[from..]);
    let plain = decode_plainly::<T>(format, key, &lanes[to..], len);
    prop_assert_eq!(elements[from..].iter().map(|x| x.bits64()).collect::<Vec<_>>(), plain);
    out.extend(elements.iter().map(|x| x.bits64()));
    format.reduce(&parts, &mut elements[from..]);
    out.extend(elements.iter().map(|x| x.bits64()));
    Ok(out)
}

/// As the documentation says it, one element at a time.
fn encode_plainly<T: Sample>(
    format: &Format,
    key: u16,
    sources: &[&[T]],
    to: &mut [u8],
) -> Encoded {
    let mut encoded = Encoded::default();
    let bytes = format.width().bytes();
    let bits = format.width().bits();
    for (i, lane) in to.chunks_mut(bytes).enumerate() {
        let of_element: Vec<T> = sources.iter().filter_map(|s| s.get(i)).copied().collect();
        let bias = (1_i128 << (bits - 1)) / i128::from(format.contributors());
        let value = match (format.op(), T::TYPE.is_float()) {
            (Op::Min | Op::Max, float) => {
                let keys = of_element.iter().map(|x| order(x.bits64(), T::TYPE.size(), float));
                encoded.non_finite |= of_element.iter().any(|x| x.to_f64().is_nan());
                match format.op() {
                    Op::Min => keys.min().unwrap_or(u64::MAX),
                    _ => keys.max().unwrap_or(0),
                }
            }
            (_, false) => {
                let of_element = of_element.iter().map(|x| x.bits64());
                of_element.fold(bias as u64, u64::wrapping_add)
            }
            (_, true) => {
                let sum = local_sum(&of_element);
                let scaled = match (format.scaling(), sum) {
                    (_, sum) if !sum.is_finite() => {
                        encoded.non_finite = true;
                        0.0
                    }
                    (Some(Scaling::Fixed(scale)), sum) => sum * scale,
                    _ => divide_by_step(sum, format.step(key)),
                };
                let rounded = scaled.round_ties_even();
                let (min, max) = (-within(bias), within(bias - 1));
                encoded.saturated += u32::from(rounded > max || rounded < min);
                (rounded.clamp(min, max) as i128 + bias) as u64
            }
        };
        lane.copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    encoded
}

/// A result of one contributor and three processes.
fn decode_plainly<T: Sample>(format: &Format, key: u16, from: &[u8], len: usize) -> Vec<u64> {
    let (bytes, bits) = (format.width().bytes(), format.width().bits());
    let mask = u64::MAX >> (64 - bits);
    let one = |lane: &[u8]| {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(lane);
        let lane = u64::from_le_bytes(wide);
        let bias = (1_u64 << (bits - 1)) / u64::from(format.contributors());
        let integer = (lane.wrapping_sub(bias) << (64 - bits)) as i64 >> (64 - bits);
        match (format.op(), T::TYPE.is_float()) {
            (Op::Min | Op::Max, float) => {
                let top = 1 << (bits - 1);
                if float && lane & top == 0 { !lane & mask } else { lane ^ top }
            }
            (Op::Sum, false) => integer as u64 & mask,
            (Op::Average, false) => (integer / 3) as u64 & mask,
            (op, true) => {
                let step = match format.scaling() {
                    Some(Scaling::Fixed(scale)) if op == Op::Average => 1.0 / (scale * 3.0),
                    Some(Scaling::Fixed(scale)) => 1.0 / scale,
                    _ if op == Op::Average => format.step(key) / 3.0,
                    _ => format.step(key),
                };
                T::from_f64(integer as f64 * step).bits64()
            }
        }
    };
    from.chunks(bytes).take(len).map(one).collect()
}

/// A limit as a float, or the next one below where a float cannot hold all of its bits.
fn within(limit: i128) -> f64 {
    let float = limit as f64;
    if float as i128 > limit { float.next_down() } else { float }
}

/// The step is a power of two whose reciprocal a float may not be able to hold.
fn divide_by_step(sum: f64, step: f64) -> f64 {
    if step == 0.0 { 0.0 } else { sum / step }
}

fn local_sum<T: Sample>(elements: &[T]) -> f64 {
    if T::TYPE == ElementType::F64 {
        elements.iter().map(|x| x.to_f64()).reduce(|a, b| a + b).unwrap_or(0.0)
    } else {
        let sum = elements.iter().map(|x| x.to_f64() as f32).reduce(|a, b| a + b);
        f64::from(sum.unwrap_or(0.0))
    }
}

fn order(bits: u64, size: usize, float: bool) -> u64 {
    let top = 1_u64 << (8 * size - 1);
    let all = top | (top - 1);
    if float && bits & top != 0 { !bits & all } else { bits ^ top }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_paths_give_the_same_bits(case in cases(), workers in 1_u16..=64) {
        for format in formats(workers) {
            let mut first = None;
            for path in paths(format) {
                let out = with_type!(format.element(), T => everything::<T>(&path, case))?;
                match &first {
                    None => first = Some(out),
                    Some(first) => prop_assert!(first == &out, "{path:?}"),
                }
            }
        }
    }
}

#[test]
fn every_format_is_among_those_tested() {
    let formats = formats(4);
    // Sums and averages of f32, f16 and bf16 in two widths, of f64 in one, each with two scalings;
    // of i32 and i64; minima and maxima of six types.
    assert_eq!(formats.len(), 2 * (3 * 2 * 2 + 2) + 2 * 2 + 2 * 6);
    let narrow = formats.iter().filter(|format| format.width() == LaneWidth::W16);
    assert_eq!(narrow.count(), 3 * 2 * 2 + 2 * 2);
}
