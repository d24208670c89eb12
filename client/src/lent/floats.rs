//! Sums, minima and maxima of floats.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use xdp_agg_protocol::worker::{Purpose, Report};
use xdp_agg_quantize::exact::{Digits, GROUP, KEYS, Span, survey};
use xdp_agg_quantize::{Element, Op};

use super::guess::Guesses;
use super::inner::{Inner, Rest, Sum};
use super::{Memory, Outcome, Precision};
use crate::collectives::{OwnedSum, Summed};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::handle::Patience;

/// Lanes of a vector that is sent with room for its type's whole range, without asking what range
/// it needs. That is about three packets, which take less time than a second round trip.
const AT_ONCE: usize = 1024;
/// Lanes that are sent at once at most, about: 4 MiB.
const PIECE: usize = 1 << 20;
/// Pieces under way at once.
const PIECES: usize = 3;

/// Begins a sum of floats.
pub(super) fn begin<T: Element>(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    precision: Precision,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    match precision {
        Precision::Exact => begin_exact::<T>(inner, memory, sum, patience),
        Precision::Gradient => begin_gradient::<T>(inner, memory, sum, patience),
    }
}

fn begin_exact<T: Element>(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    let communicator = &inner.communicator;
    // SAFETY: the memory is this call's, and T what it holds; the slice ends with this function.
    let data = unsafe { memory.elements::<T>() };
    let mut rounds = Rounds::new(inner.digits, communicator, sum);
    rounds.begin(communicator, data, &inner.guesses, patience)?;
    Ok(Box::new(move |inner, patience| {
        // SAFETY: as above; nothing else has the memory meanwhile.
        let data = unsafe { memory.elements::<T>() };
        rounds.finish(&inner.communicator, data, patience)?;
        let precision = Some(Precision::Exact);
        Ok(Outcome { report: rounds.report.unwrap_or_default(), precision, redone: 0 })
    }))
}

fn begin_gradient<T: Element>(
    inner: &Inner,
    memory: Memory,
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<Rest, Error> {
    let (op, purpose) = inner.of_gradients(sum);
    // SAFETY: the memory is this call's, and T what it holds; the call is in the engines until it
    // has been waited for, or `begun` is dropped.
    let lent = unsafe { memory.elements::<T>() };
    // SAFETY: as above.
    let begun = unsafe { inner.communicator.begin_lent_sum(lent, op, &purpose, patience) }?;
    let sum = sum.clone();
    Ok(Box::new(move |inner, patience| {
        // SAFETY: as above; nothing else has the memory where the call is made now.
        let data = || unsafe { memory.elements::<T>() };
        let Summed { report, left_out } =
            inner.communicator.finish_lent_sum(begun, data, patience)?;
        let redone = if left_out.is_empty() {
            0
        } else {
            // SAFETY: as above; the call itself is over.
            let data = unsafe { memory.elements::<T>() };
            again(inner, data, &left_out, &sum, patience)?
        };
        Ok(Outcome { report, precision: Some(Precision::Gradient), redone })
    }))
}

/// Sums these elements again, exactly, in a job of its own: infinities and NaNs stay with their
/// element, and the others get their sum. How many there were.
pub(super) fn again<T: Element>(
    inner: &Inner,
    data: &mut [T],
    left_out: &[Range<usize>],
    sum: &Sum,
    patience: &mut Patience<'_>,
) -> Result<u64, Error> {
    let communicator = inner.side(sum.turn, patience)?;
    let mut all: Vec<T> =
        left_out.iter().flat_map(|range| data[range.clone()].iter().copied()).collect();
    let mut rounds = Rounds::new(inner.digits, &communicator, sum);
    // Guesses follow the order in which calls begin. Sums done again have another order, so none
    // are made here.
    rounds.begin(&communicator, &mut all, &Mutex::default(), patience)?;
    rounds.finish(&communicator, &mut all, patience)?;
    let mut summed = &all[..];
    for range in left_out {
        let (own, rest) = summed.split_at(range.len());
        data[range.clone()].copy_from_slice(own);
        summed = rest;
    }
    Ok(all.len() as u64)
}

/// An exact sum under way: the workers agree on spans, then sum digits, in pieces.
struct Rounds {
    digits: Digits,
    what: String,
    divisor: u32,
    spans: Vec<Span>,
    flying: VecDeque<Piece>,
    report: Option<Report>,
}

/// Some groups of the vector, on their way.
struct Piece {
    groups: Range<usize>,
    begun: OwnedSum<i32>,
}

impl Rounds {
    fn new(digits: Digits, communicator: &Communicator, sum: &Sum) -> Self {
        let divisor = if sum.average { communicator.world_size().into() } else { 1 };
        let (spans, flying) = (Vec::new(), VecDeque::new());
        let what = format!("exact {}", sum.name());
        Self { digits, what, divisor, spans, flying, report: None }
    }

    /// Begins all that the call is made of.
    fn begin<T: Element>(
        &mut self,
        communicator: &Communicator,
        data: &mut [T],
        guesses: &Mutex<Guesses>,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        self.what = format!("{} of {} {}", self.what, data.len(), T::TYPE);
        let whole = Span::whole::<T>();
        if self.digits.rows(whole) * data.len() <= AT_ONCE {
            self.spans = data.chunks(GROUP).map(|_| whole).collect();
        } else {
            let guess = guesses.lock().take(T::TYPE, data.len(), self.digits);
            if let Some(spans) = guess {
                let is_right = self.guessed(spans, communicator, data, patience)?;
                guesses.lock().was(is_right, T::TYPE, data.len());
                if is_right {
                    return Ok(());
                }
            }
            self.spans = self.agree(communicator, data, patience)?;
            guesses.lock().learn(T::TYPE, data.len(), self.digits, &self.spans);
        }
        let mut first = 0;
        while first < self.spans.len() {
            if self.flying.len() == PIECES {
                self.land(communicator, data, patience)?;
            }
            let last = self.piece_from(first);
            let begun = communicator.begin_owned_sum(
                self.encode(first..last, data),
                Op::Sum,
                &Purpose::of(&Arc::from(format!("{}: digits", self.what))),
                patience,
            )?;
            self.flying.push_back(Piece { groups: first..last, begun });
            first = last;
        }
        Ok(())
    }

    /// Sums with these spans, unless a worker has elements without room in them: false then, and
    /// nothing has been done.
    fn guessed<T: Element>(
        &mut self,
        spans: Vec<Span>,
        communicator: &Communicator,
        data: &mut [T],
        patience: &mut Patience<'_>,
    ) -> Result<bool, Error> {
        self.spans = spans;
        let all = 0..self.spans.len();
        let fits = self.groups(all.clone(), data).all(|(span, group)| span.holds(survey(group)));
        let mut rows =
            if fits { self.encode(all.clone(), data) } else { self.zeros(all.clone(), data) };
        // How many workers have such elements.
        rows.push((!fits).into());
        let spans: Vec<String> = self.spans.iter().map(Span::to_string).collect();
        let what = format!("{}: digits of {}", self.what, spans.join(" "));
        let purpose = Purpose::of(&Arc::from(what));
        let begun = communicator.begin_owned_sum(rows, Op::Sum, &purpose, patience)?;
        let rows = self.take(communicator.finish_owned_sum(begun, patience)?);
        let (misfits, rows) = rows.split_last().unwrap_or((&1, &[]));
        if *misfits == 0 {
            self.decode(all, rows, data);
        }
        Ok(*misfits == 0)
    }

    /// The spans that all workers together need.
    fn agree<T: Element>(
        &self,
        communicator: &Communicator,
        data: &[T],
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Span>, Error> {
        let keys: Vec<i32> = data.chunks(GROUP).flat_map(|group| survey(group).keys()).collect();
        let purpose = Purpose::of(&Arc::from(format!("{}: spans", self.what)));
        let begun = communicator.begin_owned_sum(keys, Op::Max, &purpose, patience)?;
        let (keys, _) = communicator.finish_owned_sum(begun, patience)?;
        Ok(keys.as_chunks::<KEYS>().0.iter().map(|keys| Span::from_keys(*keys)).collect())
    }

    /// One past the last group of a piece.
    fn piece_from(&self, first: usize) -> usize {
        let mut lanes = 0;
        let groups = self.spans[first..].iter().take_while(|span| {
            let fits = lanes < PIECE;
            lanes += self.digits.rows(**span) * GROUP;
            fits
        });
        first + groups.count()
    }

    /// Groups with their spans.
    fn groups<'a, T>(
        &'a self,
        groups: Range<usize>,
        data: &'a [T],
    ) -> impl Iterator<Item = (Span, &'a [T])> {
        let elements = data.chunks(GROUP).skip(groups.start);
        self.spans[groups].iter().copied().zip(elements)
    }

    /// All rows of these groups, with nothing in them.
    fn zeros<T>(&self, groups: Range<usize>, data: &[T]) -> Vec<i32> {
        let groups = self.groups(groups, data);
        vec![0; groups.map(|(span, group)| self.digits.rows(span) * group.len()).sum()]
    }

    fn encode<T: Element>(&self, groups: Range<usize>, data: &[T]) -> Vec<i32> {
        let mut rows = self.zeros(groups.clone(), data);
        let mut rest = &mut rows[..];
        for (span, group) in self.groups(groups, data) {
            let (own, others) = rest.split_at_mut(self.digits.rows(span) * group.len());
            self.digits.encode(span, group, own);
            rest = others;
        }
        rows
    }

    /// Waits for the oldest piece and puts its sums into the vector.
    fn land<T: Element>(
        &mut self,
        communicator: &Communicator,
        data: &mut [T],
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        let Some(Piece { groups, begun }) = self.flying.pop_front() else { return Ok(()) };
        let rows = self.take(communicator.finish_owned_sum(begun, patience)?);
        self.decode(groups, &rows, data);
        Ok(())
    }

    /// What a call brought, and the account of it.
    fn take(&mut self, (rows, report): (Vec<i32>, Report)) -> Vec<i32> {
        self.report = Some(self.report.map_or(report, |before| before.joined(report)));
        rows
    }

    fn decode<T: Element>(&self, groups: Range<usize>, rows: &[i32], data: &mut [T]) {
        let mut rest = rows;
        let pieces = data.chunks_mut(GROUP).skip(groups.start);
        for (span, group) in self.spans[groups].iter().zip(pieces) {
            let (own, others) = rest.split_at(self.digits.rows(*span) * group.len());
            self.digits.decode(*span, own, self.divisor, group);
            rest = others;
        }
    }

    fn finish<T: Element>(
        &mut self,
        communicator: &Communicator,
        data: &mut [T],
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        while !self.flying.is_empty() {
            self.land(communicator, data, patience)?;
        }
        Ok(())
    }
}

/// Floats as integers of the same width and order. A NaN is beyond the end that a reduction looks
/// for, and comes back as one.
pub(super) mod keys {
    /// The integer of a binary32; `top`: NaNs are the largest, else the smallest.
    pub(in super::super) const fn of_f32(bits: u32, top: bool) -> i32 {
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        let bits = if !nan {
            bits
        } else if top {
            0x7fc0_0000
        } else {
            0xffc0_0000
        } as i32;
        bits ^ ((bits >> 31) & i32::MAX)
    }

    /// The binary32 of an integer: the map is its own inverse.
    pub(in super::super) const fn to_f32(key: i32) -> u32 {
        (key ^ ((key >> 31) & i32::MAX)) as u32
    }

    /// As [`of_f32`], of a binary64.
    pub(in super::super) const fn of_f64(bits: u64, top: bool) -> i64 {
        let nan = bits & i64::MAX as u64 > 0x7ff0_0000_0000_0000;
        let quiet = if top { 0x7ff8_0000_0000_0000 } else { 0xfff8_0000_0000_0000 };
        let bits = if nan { quiet } else { bits } as i64;
        bits ^ ((bits >> 63) & i64::MAX)
    }

    /// As [`to_f32`].
    pub(in super::super) const fn to_f64(key: i64) -> u64 {
        (key ^ ((key >> 63) & i64::MAX)) as u64
    }
}
