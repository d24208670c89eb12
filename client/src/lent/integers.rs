//! Integers, and what is reduced as integers: exact, and sums wrap as they do in memory.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::sync::Arc;

use bytemuck::Pod;
use xdp_agg_protocol::worker::Purpose;
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

use super::floats::keys;
use super::inner::{Inner, Rest, Sum};
use super::{DataType, Memory, Outcome, Reduction};
use crate::error::Error;
use crate::handle::Patience;

/// Begins a reduction of integers, or a minimum or maximum of floats.
pub(super) fn begin(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    let top = matches!(sum.reduction, Reduction::Max | Reduction::Or);
    match (memory.data_type(), op_of(sum, memory.data_type())?) {
        (DataType::F32, op) => {
            let (of, to) = (move |bits| keys::of_f32(bits, top), keys::to_f32);
            widened::<u32, i32>(inner, memory, (sum, op), (of, to), patience)
        }
        (DataType::F64, op) => {
            let (of, to) = (move |bits| keys::of_f64(bits, top), keys::to_f64);
            widened::<u64, i64>(inner, memory, (sum, op), (of, to), patience)
        }
        (DataType::F16, op) => {
            let of = move |bits| keys::of_f32(half(bits), top);
            let to = |key| {
                let value = f32::from_bits(keys::to_f32(key));
                xdp_agg_quantize::f16::from_f32(value).to_bits()
            };
            widened::<u16, i32>(inner, memory, (sum, op), (of, to), patience)
        }
        (DataType::Bf16, op) => {
            let of = move |bits: u16| keys::of_f32(u32::from(bits) << 16, top);
            let to = |key| (keys::to_f32(key) >> 16) as u16;
            widened::<u16, i32>(inner, memory, (sum, op), (of, to), patience)
        }
        (DataType::I32, Op::Sum) => sum_i32(inner, memory, sum, patience),
        (DataType::I32, op) => in_place::<i32>(inner, memory, (sum, op), patience),
        (DataType::I64, Op::Sum) => sum_i64(inner, memory, sum, patience),
        (DataType::I64, op) => in_place::<i64>(inner, memory, (sum, op), patience),
        (DataType::I16, op) => {
            let by = divisor(inner, sum);
            let to = move |sum: i32| (i64::from(sum as i16) / by) as i16;
            widened::<i16, i32>(inner, memory, (sum, op), (i32::from, to), patience)
        }
        (DataType::I8, op) => {
            let by = divisor(inner, sum);
            let to = move |sum: i32| (i64::from(sum as i8) / by) as i8;
            widened::<i8, i32>(inner, memory, (sum, op), (i32::from, to), patience)
        }
        (DataType::U8, op) => {
            let by = divisor(inner, sum);
            let to = move |sum: i32| (i64::from(sum as u8) / by) as u8;
            widened::<u8, i32>(inner, memory, (sum, op), (i32::from, to), patience)
        }
        (DataType::Bool, op) => {
            let of = |byte: u8| i32::from(byte != 0);
            widened::<u8, i32>(inner, memory, (sum, op), (of, |sum| u8::from(sum != 0)), patience)
        }
    }
}

/// A binary16 as the binary32 of the same value.
fn half(bits: u16) -> u32 {
    xdp_agg_quantize::f16::from_bits(bits).to_f32().to_bits()
}

/// What the lanes do. An average is a sum that is divided at its end.
fn op_of(sum: &Sum, data_type: DataType) -> Result<Op, Error> {
    let is_bool = data_type == DataType::Bool;
    match sum.reduction {
        Reduction::Average if is_bool => Err(refused(sum, data_type, "choose and, or, min or max")),
        Reduction::Sum if is_bool => Ok(Op::Max),
        Reduction::Sum | Reduction::Average => Ok(Op::Sum),
        Reduction::Min => Ok(Op::Min),
        Reduction::Max => Ok(Op::Max),
        Reduction::And if is_bool => Ok(Op::Min),
        Reduction::Or if is_bool => Ok(Op::Max),
        Reduction::And | Reduction::Or => {
            Err(refused(sum, data_type, "choose sum, average, min or max; and, or are for bool"))
        }
    }
}

fn refused(sum: &Sum, data_type: DataType, choose: &str) -> Error {
    let problem = format!("{} of {data_type} is not served here; {choose}", sum.reduction);
    Error::Config { name: "op", problem }
}

fn divisor(inner: &Inner, sum: &Sum) -> i64 {
    if sum.average { inner.communicator.world_size().into() } else { 1 }
}

/// As elements of another type on the way, through functions there and back.
fn widened<T: Pod, W: xdp_agg_quantize::Element>(
    inner: &Inner,
    memory: Memory,
    (sum, op): (&Sum, Op),
    (of, to): (impl Fn(T) -> W, impl Fn(W) -> T + Send + 'static),
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    // SAFETY: the memory is this call's, T as long as its elements; the slice ends with the line.
    let wide: Vec<W> = unsafe { memory.elements::<T>() }.iter().map(|x| of(*x)).collect();
    let begun = inner.communicator.begin_owned_sum(wide, op, &purpose(sum, memory), patience)?;
    Ok(Box::new(move |inner, patience| {
        let (wide, report) = inner.communicator.finish_owned_sum(begun, patience)?;
        // SAFETY: as above.
        let elements = unsafe { memory.elements::<T>() };
        elements.iter_mut().zip(wide).for_each(|(element, wide)| *element = to(wide));
        Ok(Outcome { report, ..Outcome::default() })
    }))
}

/// As they are.
fn in_place<T: xdp_agg_quantize::Element + Divided>(
    inner: &Inner,
    memory: Memory,
    (sum, op): (&Sum, Op),
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    let purpose = purpose(sum, memory);
    // SAFETY: the memory is this call's, and T what it holds; the call is in the engines until it
    // has been waited for, or `begun` is dropped.
    let lent = unsafe { memory.elements::<T>() };
    // SAFETY: as above.
    let begun = unsafe { inner.communicator.begin_lent_sum(lent, op, &purpose, patience) }?;
    let by = divisor(inner, sum);
    Ok(Box::new(move |inner, patience| {
        // SAFETY: as above; nothing else has the memory where the call is made now.
        let data = || unsafe { memory.elements::<T>() };
        let summed = inner.communicator.finish_lent_sum(begun, data, patience)?;
        if by > 1 {
            // SAFETY: as above; the call is over.
            unsafe { memory.elements::<T>() }.iter_mut().for_each(|x| *x = x.divided(by));
        }
        Ok(Outcome { report: summed.report, ..Outcome::default() })
    }))
}

/// Integers that are divided towards zero.
trait Divided {
    fn divided(self, by: i64) -> Self;
}

impl Divided for i32 {
    fn divided(self, by: i64) -> Self {
        (i64::from(self) / by) as Self
    }
}

impl Divided for i64 {
    fn divided(self, by: i64) -> Self {
        self / by
    }
}

/// In 64 bits where 32 might not do.
fn sum_i32(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    if is_long(inner, memory) {
        // SAFETY: the memory is this call's, and i32 what it holds.
        let own = unsafe { memory.elements::<i32>() };
        let peak = own.iter().map(|x| i64::from(*x).abs()).max();
        if fits(inner, (memory, sum), (peak, ElementType::I32), patience)? {
            return in_place::<i32>(inner, memory, (sum, Op::Sum), patience);
        }
    }
    let by = divisor(inner, sum);
    let to = move |sum: i64| (sum as i32).divided(by);
    widened::<i32, i64>(inner, memory, (sum, Op::Sum), (i64::from, to), patience)
}

/// In two halves where 64 bits might not do.
fn sum_i64(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    // SAFETY: the memory is this call's, and i64 what it holds.
    let own = unsafe { memory.elements::<i64>() };
    if is_long(inner, memory) {
        let peak = own.iter().map(|x| x.saturating_abs()).max();
        if fits(inner, (memory, sum), (peak, ElementType::I64), patience)? {
            return in_place::<i64>(inner, memory, (sum, Op::Sum), patience);
        }
    }
    let halves = own.iter().flat_map(|x| [x & i64::from(u32::MAX), x >> 32]).collect();
    let begun =
        inner.communicator.begin_owned_sum(halves, Op::Sum, &purpose(sum, memory), patience)?;
    let by = divisor(inner, sum);
    Ok(Box::new(move |inner, patience| {
        let (halves, report) = inner.communicator.finish_owned_sum(begun, patience)?;
        // SAFETY: as above.
        let elements = unsafe { memory.elements::<i64>() };
        for (element, [low, high]) in elements.iter_mut().zip(halves.as_chunks().0) {
            *element = low.wrapping_add(high << 32) / by;
        }
        Ok(Outcome { report, ..Outcome::default() })
    }))
}

/// Worth the question whether its elements are small.
fn is_long(inner: &Inner, memory: Memory) -> bool {
    inner.repeats && memory.bytes() > super::EXACT_UP_TO
}

/// Whether all ranks' integers are small enough that their sum fits as it is.
fn fits(
    inner: &Inner,
    (memory, sum): (Memory, &Sum),
    (peak, element): (Option<i64>, ElementType),
    patience: &mut Patience<'_>,
) -> Result<bool, Error> {
    let communicator = &inner.communicator;
    let what = format!("{}: largest", describe(sum, memory));
    let purpose = Purpose::of(&Arc::from(what));
    let begun = communicator.begin_owned(vec![peak.unwrap_or(0)], Op::Max, &purpose)?;
    let (peaks, _) = communicator.wait_owned(begun, patience)?;
    let place = communicator.place();
    let format = Format::new(element, Op::Sum, Scaling::Block, None, place.hosts)?;
    let (lowest, highest) = format.integer_range(place.local_size);
    Ok(peaks.iter().all(|peak| *peak <= highest.min(lowest.saturating_neg())))
}

fn describe(sum: &Sum, memory: Memory) -> String {
    format!("{} of {} {}", sum.name(), memory.len(), memory.data_type())
}

fn purpose(sum: &Sum, memory: Memory) -> Purpose {
    Purpose::of(&Arc::from(describe(sum, memory)))
}
