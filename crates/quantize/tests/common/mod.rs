//! What the tests share: elements from bits, all formats, and an aggregator of a few lines.
#![expect(dead_code, reason = "each test program uses a part")]

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use xdp_agg_quantize::simd::Simd;
use xdp_agg_quantize::{
    Element, ElementType, Encoded, Format, LaneWidth, Op, Reduction, Scaling, bf16, f16,
};

/// Elements that tests can make and look into.
pub(crate) trait Sample: Element {
    fn from_bits64(bits: u64) -> Self;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn bits64(self) -> u64;
}

macro_rules! sample {
    ($($t:ty: $from_bits:expr, $from:expr, $to:expr, $bits:expr;)*) => {$(
        impl Sample for $t {
            fn from_bits64(bits: u64) -> Self {
                $from_bits(bits)
            }
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn bits64(self) -> u64 {
                $bits(self)
            }
        }
    )*};
}

sample! {
    f32: |b| f32::from_bits(b as u32), |v| v as f32, f64::from, |x: f32| x.to_bits().into();
    f64: f64::from_bits, |v| v, |x| x, f64::to_bits;
    f16: |b| f16::from_bits(b as u16), nearest_f16, f16::to_f64, |x: f16| x.to_bits().into();
    bf16: |b| bf16::from_bits(b as u16), nearest_bf16, bf16::to_f64, |x: bf16| x.to_bits().into();
    i32: |b| b as i32, |v| v as i32, f64::from, |x: i32| x as u32 as u64;
    i64: |b| b as i64, |v| v as i64, |x: i64| x as f64, |x: i64| x as u64;
}

/// The crate `half` looks at the upper 32 bits of a 64-bit float alone, and takes what is barely
/// above the middle between two neighbours for the middle.
macro_rules! nearest {
    ($name:ident: $t:ident) => {
        fn $name(value: f64) -> $t {
            let near = $t::from_f64(value);
            let bits = near.to_bits();
            let neighbours = [bits.wrapping_sub(1), bits.wrapping_add(1)].map($t::from_bits);
            let distance = |x: $t| (x.to_f64() - value).abs();
            let closer = neighbours.into_iter().find(|x| distance(*x) < distance(near));
            closer.filter(|x| x.is_finite() && near.is_finite()).unwrap_or(near)
        }
    };
}

nearest!(nearest_f16: f16);
nearest!(nearest_bf16: bf16);

/// Runs an expression with `$t` as the type of an element.
#[macro_export]
macro_rules! with_type {
    ($element:expr, $t:ident => $run:expr) => {
        $crate::with_type!($element, $t => $run;
            F32 f32, F16 f16, Bf16 bf16, F64 f64, I32 i32, I64 i64)
    };
    ($element:expr, $t:ident => $run:expr; $($variant:ident $type:ty),*) => {
        match $element {
            $(ElementType::$variant => {
                type $t = $type;
                $run
            })*
        }
    };
}

/// Every format that there is, for this many workers.
pub(crate) fn formats(workers: u16) -> Vec<Format> {
    let mut formats = Vec::new();
    let widths = [LaneWidth::W16, LaneWidth::W32, LaneWidth::W64];
    for element in ElementType::ALL {
        for op in Op::ALL {
            for scaling in [Scaling::Block, Scaling::Fixed(1e4)] {
                for width in widths {
                    if let Ok(format) = Format::new(element, op, scaling, Some(width), workers)
                        && !formats.contains(&format)
                    {
                        formats.push(format);
                    }
                }
            }
        }
    }
    formats
}

/// The result of an aggregator: sums by plain 64-bit additions, as it does.
pub(crate) fn aggregate(format: &Format, contributions: &[Vec<u8>]) -> Vec<u8> {
    let mut total = contributions[0].clone();
    for contribution in &contributions[1..] {
        match format.reduction() {
            Reduction::Add => {
                for (t, c) in chunks(&mut total).zip(contribution.as_chunks::<8>().0) {
                    *t = u64::from_le_bytes(*t).wrapping_add(u64::from_le_bytes(*c)).to_le_bytes();
                }
            }
            reduction => compare(reduction, &mut total, contribution),
        }
    }
    total
}

fn chunks<const N: usize>(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; N]> {
    bytes.as_chunks_mut::<N>().0.iter_mut()
}

fn compare(reduction: Reduction, total: &mut [u8], contribution: &[u8]) {
    macro_rules! lanes {
        ($lane:ty, $bytes:literal, $better:ident) => {
            for (t, c) in chunks::<$bytes>(total).zip(contribution.as_chunks::<$bytes>().0) {
                let lanes = [*t, *c].map(<$lane>::from_le_bytes);
                *t = lanes[0].$better(lanes[1]).to_le_bytes();
            }
        };
    }
    match reduction {
        Reduction::Add | Reduction::Copy => unreachable!("not compared"),
        Reduction::Min16 => lanes!(u16, 2, min),
        Reduction::Min32 => lanes!(u32, 4, min),
        Reduction::Min64 => lanes!(u64, 8, min),
        Reduction::Max16 => lanes!(u16, 2, max),
        Reduction::Max32 => lanes!(u32, 4, max),
        Reduction::Max64 => lanes!(u64, 8, max),
    }
}

/// A whole all-reduce: `hosts[h][p]` are the elements of a process.
pub(crate) struct Outcome<T> {
    pub(crate) key: u16,
    pub(crate) encoded: Encoded,
    pub(crate) result: Vec<T>,
}

pub(crate) fn all_reduce<T: Sample>(format: &Format, hosts: &[Vec<Vec<T>>]) -> Outcome<T> {
    let key_of = |host: &Vec<Vec<T>>| {
        let peaks: Vec<f64> = host.iter().map(|part| format.peak(part)).collect();
        format.key(&peaks)
    };
    let key = hosts.iter().map(key_of).max().unwrap();
    let len = hosts[0][0].len();
    let mut encoded = Encoded::default();
    let contributions: Vec<Vec<u8>> = hosts
        .iter()
        .map(|host| {
            let mut lanes = vec![0xee; format.payload(len)];
            let sources: Vec<&[T]> = host.iter().map(Vec::as_slice).collect();
            let one = format.encode(key, &sources, &mut lanes);
            encoded.saturated += one.saturated;
            encoded.non_finite |= one.non_finite;
            lanes
        })
        .collect();
    let processes: usize = hosts.iter().map(Vec::len).sum();
    let mut result = vec![T::ZERO; len];
    let total = aggregate(format, &contributions);
    format.decode(key, &total, hosts.len() as u32, processes as u32, &mut result);
    if encoded.non_finite {
        T::fill_nan(&mut result);
    }
    Outcome { key, encoded, result }
}

pub(crate) fn format(element: ElementType, op: Op, scaling: Scaling, workers: u16) -> Format {
    Format::new(element, op, scaling, None, workers).unwrap()
}

pub(crate) fn narrow(element: ElementType, op: Op, scaling: Scaling, workers: u16) -> Format {
    Format::new(element, op, scaling, Some(LaneWidth::W16), workers).unwrap()
}

/// All paths that this CPU has, as a format each.
pub(crate) fn paths(format: Format) -> impl Iterator<Item = Format> {
    Simd::supported().map(move |simd| format.with_simd(simd))
}

/// A small generator of random bits (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// From -1 to 1.
    pub(crate) fn symmetric(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / 2_f64.powi(52) - 1.0
    }

    /// Of a normal distribution.
    pub(crate) fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.symmetric().abs(), self.symmetric());
        (-2.0 * u.max(1e-300).ln()).sqrt() * (std::f64::consts::PI * v).cos()
    }
}
