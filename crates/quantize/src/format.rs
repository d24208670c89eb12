//! A format: what the elements of a call travel as.

use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{MAX_WORKERS, Reduction};

use crate::bound;
use crate::element::{Element, Encoded};
use crate::keys::{key_of, parts_of};
use crate::range::OutOfRange;
use crate::scale::{LaneBias, Scale, exponent_for};
use crate::simd::Simd;
use crate::types::ElementType;
use crate::types::{LaneWidth, Op, Scaling};

/// Factors of `fixed` lie between this and its reciprocal: both are ordinary floats.
const LARGEST_SCALE: f64 = 1e300;

/// What the elements of a call travel as: type, operation, scaling, width of lanes, and how many
/// contributions (one a host) a lane has room for.
///
/// A call's hosts must agree on all of it. `processes` below are those whose values are reduced,
/// `contributors` those hosts whose lanes are in a result: each sums its processes' values first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    element: ElementType,
    op: Op,
    /// None where nothing is scaled.
    scaling: Option<Scaling>,
    width: LaneWidth,
    contributors: u16,
    bias: LaneBias,
    simd: Simd,
}

/// Why a format is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Lanes of this width are of no use here.
    #[error("the {op} of {element} cannot travel in {width}-bit lanes: choose {choose}")]
    Width {
        /// Type of the elements.
        element: ElementType,
        /// Operation.
        op: Op,
        /// Width that was asked for.
        width: LaneWidth,
        /// The widths to choose from.
        choose: &'static str,
    },
    /// The factor is out of range.
    #[error(
        "a scale of {0} is no factor: choose a positive number from 1e-300 to 1e300, such as 1e7, \
         or `block`"
    )]
    Scale(f64),
    /// Too many workers, or none.
    #[error("{0} contributions to a lane: choose 1 to {MAX_WORKERS}")]
    Workers(u16),
}

impl Format {
    /// A format. Without a width, the usual one: 32 bits for sums of f32, f16 and bf16, otherwise
    /// as many as an element has. `scaling` means nothing to integers, minima and maxima.
    ///
    /// `workers` is the most contributions that a lane can get: the hosts of the job.
    ///
    /// # Errors
    /// What makes no sense; the error says what to choose.
    pub fn new(
        element: ElementType,
        op: Op,
        scaling: Scaling,
        width: Option<LaneWidth>,
        workers: u16,
    ) -> Result<Self, FormatError> {
        if workers == 0 || usize::from(workers) > MAX_WORKERS {
            return Err(FormatError::Workers(workers));
        }
        let scaled = element.is_float() && op.adds();
        if let (true, Scaling::Fixed(scale)) = (scaled, scaling)
            && !(1.0 / LARGEST_SCALE..=LARGEST_SCALE).contains(&scale)
        {
            return Err(FormatError::Scale(scale));
        }
        let width = choose_width(element, op, width)?;
        Ok(Self {
            element,
            op,
            scaling: scaled.then_some(scaling),
            width,
            contributors: workers,
            bias: LaneBias::new(width, workers),
            simd: Simd::of_process(),
        })
    }

    /// The same format, computed with other instructions: for tests and benchmarks.
    #[must_use]
    pub const fn with_simd(mut self, simd: Simd) -> Self {
        self.simd = simd;
        self
    }

    /// Type of the elements.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Operation.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.op
    }

    /// Scaling of sums of floats; None for all else.
    #[must_use]
    pub const fn scaling(&self) -> Option<Scaling> {
        self.scaling
    }

    /// Width of a lane.
    #[must_use]
    pub const fn width(&self) -> LaneWidth {
        self.width
    }

    /// Most contributions that a lane has room for.
    #[must_use]
    pub const fn contributors(&self) -> u16 {
        self.contributors
    }

    /// Instructions that the kernels use.
    #[must_use]
    pub const fn simd(&self) -> Simd {
        self.simd
    }

    /// What the aggregator does with the lanes.
    #[must_use]
    pub const fn reduction(&self) -> Reduction {
        match (self.op, self.width) {
            (Op::Sum | Op::Average, _) => Reduction::Add,
            (Op::Min, LaneWidth::W16) => Reduction::Min16,
            (Op::Min, LaneWidth::W32) => Reduction::Min32,
            (Op::Min, LaneWidth::W64) => Reduction::Min64,
            (Op::Max, LaneWidth::W16) => Reduction::Max16,
            (Op::Max, LaneWidth::W32) => Reduction::Max32,
            (Op::Max, LaneWidth::W64) => Reduction::Max64,
        }
    }

    /// Elements in 64 bytes of payload: 32, 16 or 8.
    #[must_use]
    pub const fn lanes_per_chunk(&self) -> usize {
        CHUNK_LEN / self.width.bytes()
    }

    /// Payload bytes that hold this many elements: whole chunks.
    #[must_use]
    pub const fn payload(&self, elements: usize) -> usize {
        elements.div_ceil(self.lanes_per_chunk()) * CHUNK_LEN
    }

    /// Keys have to be agreed ahead of the data.
    #[must_use]
    pub const fn needs_exponents(&self) -> bool {
        matches!(self.scaling, Some(Scaling::Block))
    }

    /// The largest finite magnitude among a process' elements of a block; 0 if no element has one.
    #[must_use]
    pub fn peak<T: Element>(&self, part: &[T]) -> f64 {
        T::peak(self, part)
    }

    /// A host's key of a block from its processes' peaks: no sum of theirs can be above its bound,
    /// its rounding included. The largest of the hosts' keys is the block's key.
    #[must_use]
    pub fn key(&self, peaks: &[f64]) -> u16 {
        key_of(bound::of_local_sum(self.element, peaks))
    }

    /// The bound that a key stands for: no host's sum of its processes' elements is larger.
    #[must_use]
    pub fn key_bound(&self, key: u16) -> f64 {
        let (mantissa, exponent) = parts_of(key);
        let [first, second] = Scale::power(exponent).up;
        mantissa * first * second
    }

    /// What one unit of a lane stands for in a block of this key (0 for unscaled formats, which
    /// are exact). The factor is its reciprocal.
    #[must_use]
    pub fn step(&self, key: u16) -> f64 {
        self.scaling.map_or(0.0, |_| self.scale(key).down.iter().product())
    }

    /// Bound of the difference between an element of a result and the exact one:
    /// `docs/numerics.md` derives it. `magnitude` is (at least) the sum of the element's magnitudes
    /// over all `processes`. 0 for integers, minima and maxima.
    #[must_use]
    pub fn error_bound(&self, key: u16, contributors: u32, processes: u32, magnitude: f64) -> f64 {
        let Some(scaling) = self.scaling else {
            return 0.0;
        };
        let unit_64 = bound::unit(ElementType::F64);
        let parts = processes.div_ceil(contributors.max(1));
        // Each host's sum of its processes' elements.
        let unit = bound::sum_unit(self.element);
        let local = f64::from(parts.saturating_sub(1)) * unit * magnitude * 1.001;
        // Each host's rounding to an integer; any factor but a power of two rounds once before.
        let steps = 0.5 * f64::from(contributors) * self.step(key);
        let factor = match scaling {
            Scaling::Block => 0.0,
            Scaling::Fixed(_) => unit_64 * magnitude,
        };
        let quantized = local + steps + factor;
        // Out of integers: the conversion (64-bit lanes), the factor and its product, the result.
        let sum = (magnitude + quantized) * (1.0 + 4.0 * unit_64);
        let decoded = 4.0 * unit_64 * sum + bound::unit(self.element) * sum;
        let divisor = if self.op == Op::Average { f64::from(processes.max(1)) } else { 1.0 };
        (quantized + decoded) / divisor * 1.001 + bound::least(self.element)
    }

    /// Smallest and largest integer that each of `parts` processes of each host may contribute to a
    /// sum.
    #[must_use]
    pub fn integer_range(&self, parts: u16) -> (i64, i64) {
        let (bias, parts) = (self.bias(), i64::from(parts.max(1)));
        (bias.min() / parts, bias.max() / parts)
    }

    /// Refuses integers that a sum over all hosts, with `parts` processes each, might not hold. All
    /// else is accepted: floats are clamped and counted while they are encoded.
    ///
    /// # Errors
    /// The first one, and what fits.
    pub fn check<T: Element>(&self, data: &[T], parts: u16) -> Result<(), OutOfRange> {
        if T::TYPE.is_float() || !self.op().adds() {
            return Ok(());
        }
        let (min, max) = self.integer_range(parts);
        let fits = |value: &T| value.integer().is_none_or(|value| (min..=max).contains(&value));
        match data.iter().position(|value| !fits(value)) {
            None => Ok(()),
            Some(index) => Err(OutOfRange {
                index,
                value: data[index].integer().unwrap_or_default(),
                processes: u32::from(self.contributors()) * u32::from(parts.max(1)),
                min,
                max,
            }),
        }
    }

    /// Reduces the sources element by element, in their order, straight into lanes. `key` is the
    /// block's, or anything where [`Self::needs_exponents`] is false. Lanes behind the last element
    /// are neutral: a zero in sums.
    ///
    /// Floats are summed as they are (16-bit ones as f32), integers wrapping: [`Self::check`] them.
    ///
    /// # Panics
    /// No sources, or of different lengths; elements of another type than the format's; `to` is not
    /// whole chunks, or too short for the elements.
    pub fn encode<T: Element>(&self, key: u16, sources: &[&[T]], to: &mut [u8]) -> Encoded {
        let len = self.check_sources(sources);
        assert!(
            to.len().is_multiple_of(CHUNK_LEN) && to.len() / self.width.bytes() >= len,
            "{len} elements want whole chunks, {} bytes at least; here are {}",
            self.payload(len),
            to.len()
        );
        T::encode(self, key, sources, to)
    }

    /// Turns the lanes of a result of `contributors` hosts into elements, as many as `to` holds. An
    /// average is divided by `processes`.
    ///
    /// # Panics
    /// Elements of another type than the format's, or fewer lanes than elements.
    pub fn decode<T: Element>(
        &self,
        key: u16,
        from: &[u8],
        contributors: u32,
        processes: u32,
        to: &mut [T],
    ) {
        self.check_type::<T>();
        let lanes = from.len() / self.width.bytes();
        assert!(lanes >= to.len(), "{} elements from {lanes} lanes", to.len());
        T::decode(self, key, from, [contributors, processes], to);
    }

    /// As [`Self::encode`], but by way of `scratch`: the sum is written there as elements, and read
    /// again. The baseline of the fused way.
    ///
    /// # Panics
    /// As [`Self::encode`]; `scratch` is of another length than the sources.
    pub fn encode_unfused<T: Element>(
        &self,
        key: u16,
        sources: &[&[T]],
        scratch: &mut [T],
        to: &mut [u8],
    ) -> Encoded {
        let sum = Self { op: if self.op.adds() { Op::Sum } else { self.op }, ..*self };
        sum.reduce(sources, scratch);
        self.encode(key, &[scratch], to)
    }

    /// Reduces the sources element by element, without lanes: sums in their order (16-bit floats as
    /// f32, rounded once), averages over as many as there are sources. A NaN is [`Element::NAN`] in
    /// its own element alone.
    ///
    /// # Panics
    /// No sources; sources and `to` of different lengths; elements of another type.
    pub fn reduce<T: Element>(&self, sources: &[&[T]], to: &mut [T]) {
        let len = self.check_sources(sources);
        assert_eq!(to.len(), len, "as many results as elements of a source");
        T::reduce(self, sources, to);
    }

    pub(crate) const fn bias(&self) -> LaneBias {
        self.bias
    }

    /// The factors of a block.
    pub(crate) fn scale(&self, key: u16) -> Scale {
        match (self.scaling, self.element) {
            (Some(Scaling::Fixed(scale)), _) => Scale::fixed(scale),
            (_, ElementType::F64) => Scale::power(exponent_for(key, self.bias().max_float())),
            _ => Scale::single_power(exponent_for(key, self.bias().max_float())),
        }
    }

    /// The factors with which a block is decoded.
    pub(crate) fn result_scale(&self, key: u16, processes: u32) -> Scale {
        match (self.op, self.scaling) {
            (Op::Average, Some(Scaling::Fixed(scale))) => Scale::fixed_divided_by(scale, processes),
            (Op::Average, _) => self.scale(key).divided_by(processes),
            _ => self.scale(key),
        }
    }

    fn check_type<T: Element>(&self) {
        assert_eq!(T::TYPE, self.element, "elements of the format's type");
    }

    fn check_sources<T: Element>(&self, sources: &[&[T]]) -> usize {
        self.check_type::<T>();
        let len = sources.first().expect("at least one source").len();
        assert!(sources.iter().all(|source| source.len() == len), "sources of one length");
        len
    }
}

fn choose_width(
    element: ElementType,
    op: Op,
    asked: Option<LaneWidth>,
) -> Result<LaneWidth, FormatError> {
    let narrow = element.is_float() && op.adds() && element != ElementType::F64;
    let usual = match element {
        _ if narrow => LaneWidth::W32,
        ElementType::F16 | ElementType::Bf16 => LaneWidth::W16,
        ElementType::F32 | ElementType::I32 => LaneWidth::W32,
        ElementType::F64 | ElementType::I64 => LaneWidth::W64,
    };
    match asked {
        None => Ok(usual),
        Some(width) if width == usual || narrow && width == LaneWidth::W16 => Ok(width),
        Some(width) => {
            let choose = match usual {
                _ if narrow => "32, or 16 for half of the bytes",
                LaneWidth::W16 => "16",
                LaneWidth::W32 => "32",
                LaneWidth::W64 => "64",
            };
            Err(FormatError::Width { element, op, width, choose })
        }
    }
}
