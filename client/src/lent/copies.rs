//! Broadcast, all-gather and barrier: bytes through the aggregators, bit for bit.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::ops::Range;
use std::sync::Arc;

use xdp_agg_protocol::worker::{Purpose, Report};
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
    if communicator.is_in_host() {
        return copy_in_host(inner, memory, &Purpose::of(&Arc::from(what)), &parts);
    }
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

/// The same where all ranks are processes of one host: straight from memory to memory.
fn copy_in_host(
    inner: &Inner,
    memory: Memory,
    purpose: &Purpose,
    parts: &[(u16, Range<usize>)],
) -> Result<Rest, Error> {
    // SAFETY: the memory is this call's; the call is in the engines until it has been waited for,
    // or `begun` is dropped.
    let begun = unsafe { inner.communicator.begin_copies(memory.as_bytes(), parts, purpose) }?;
    Ok(Box::new(move |inner, patience| {
        let calls = inner.communicator.wait(begun, patience)?;
        Ok(Outcome { report: Report::of_parts(&calls), ..Outcome::default() })
    }))
}

/// Begins a barrier.
pub(super) fn barrier(inner: &Inner, name: Option<&Name>) -> Result<Rest, Error> {
    let purpose = Purpose::of(&Arc::from(named("barrier", name)));
    if inner.communicator.is_in_host() {
        return copy_in_host(inner, Memory::none(), &purpose, &[]);
    }
    let begun = inner.communicator.begin_owned(vec![1_i32], Op::Max, &purpose)?;
    Ok(Box::new(move |inner, patience| {
        let (_, report) = inner.communicator.wait_owned(begun, patience)?;
        Ok(Outcome { report, ..Outcome::default() })
    }))
}
