//! Broadcast, all-gather and barrier: bytes through the aggregators, bit for bit.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::ops::Range;
use std::sync::Arc;

use xdp_agg_protocol::worker::Purpose;
use xdp_agg_quantize::Op;

use super::inner::{Inner, Rest};
use super::{Memory, Outcome};
use crate::collectives::Words;
use crate::error::Error;
use crate::name::{Name, named};

/// Begins a broadcast.
pub(super) fn broadcast(
    inner: &Inner,
    memory: Memory,
    root: u16,
    name: Option<&Name>,
) -> Result<Rest, Error> {
    let called = named("broadcast", name);
    let what = format!("{called} of {} {} of rank {root}", memory.len(), memory.data_type());
    copy(inner, memory, ("broadcast", what), vec![(root, 0..memory.bytes())])
}

/// Begins an all-gather.
pub(super) fn all_gather(
    inner: &Inner,
    memory: Memory,
    name: Option<&Name>,
) -> Result<Rest, Error> {
    let called = named("all-gather", name);
    let what = format!("{called} of {} {}", memory.len(), memory.data_type());
    let (size, communicator) = (memory.data_type().size(), &inner.communicator);
    let part = |rank| communicator.part(rank, memory.len());
    let parts = (0..communicator.world_size())
        .map(|rank| (rank, part(rank).start * size..part(rank).end * size))
        .collect();
    copy(inner, memory, ("all-gather", what), parts)
}

fn copy(
    inner: &Inner,
    memory: Memory,
    (name, what): (&'static str, String),
    parts: Vec<(u16, Range<usize>)>,
) -> Result<Rest, Error> {
    let communicator = &inner.communicator;
    let mut words = Words::default();
    // SAFETY: the memory is this call's; the slice ends with the statement.
    words.fill(unsafe { memory.as_bytes() }, &parts, communicator.rank());
    let root = match &parts[..] {
        [(root, _)] => Some(root / communicator.local_size()),
        _ => None,
    };
    let purpose = Purpose::of(&Arc::from(what)).with_root(root);
    let begun = communicator.begin_owned(words.into_inner(), Op::Max, &purpose)?;
    Ok(Box::new(move |inner, patience| {
        let communicator = &inner.communicator;
        let (words, report) = communicator.wait_owned(begun, patience)?;
        communicator.refuse_lost(name, &report, &parts)?;
        let words = Words::from(words);
        // SAFETY: as above.
        words.take(unsafe { memory.as_bytes() }, &parts, communicator.rank());
        Ok(Outcome { report, ..Outcome::default() })
    }))
}

/// Begins a barrier.
pub(super) fn barrier(inner: &Inner, name: Option<&Name>) -> Result<Rest, Error> {
    let purpose = Purpose::of(&Arc::from(named("barrier", name)));
    let begun = inner.communicator.begin_owned(vec![1_i32], Op::Max, &purpose)?;
    Ok(Box::new(move |inner, patience| {
        let (_, report) = inner.communicator.wait_owned(begun, patience)?;
        Ok(Outcome { report, ..Outcome::default() })
    }))
}
