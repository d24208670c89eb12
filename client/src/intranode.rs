//! The group of a host's processes, as a communicator wants it.

use std::sync::Arc;

use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_intranode::{Group, MIN_SEGMENT, Options};
use xdp_agg_protocol::worker::layout;

use crate::digest::digest;
use crate::error::Error;
use crate::settings::{Builder, Place};

/// Waits for the other processes of this host, before any of them joins the job.
///
/// Hosts that lost a worker go on without it (`WorkerLoss::Shrink`), and let a process of that host
/// in again when it comes. All of them would then wait in vain for one whose fellows are missing.
pub(crate) fn assemble(settings: &Builder, place: &Place) -> Result<Arc<Group>, Error> {
    let mut options = settings.host_options(place, CHUNK_LEN, None);
    // It shares no data.
    (options.segment, options.buffers) = (MIN_SEGMENT, 0);
    options.run = run(settings, place, ".assembly");
    Ok(Group::join(&options)?)
}

/// A host may have several groups, and other runs' groups of the same name.
fn run(settings: &Builder, place: &Place, what: &str) -> String {
    let origin = settings.origin.as_ref();
    let run = origin.map(|origin| format!("{:016x}.{}", origin.number, place.host));
    run.unwrap_or_default() + what
}

/// Meets the other processes of this host, where they have assembled only as long as all of them
/// are there.
pub(crate) fn join(
    settings: &Builder,
    place: &Place,
    chunks: u16,
    assembled: Option<&Group>,
) -> Result<Arc<Group>, Error> {
    let mut options = options(settings, place, chunks, settings.aggregators.len());
    let Builder { scaling, lanes, aggregators, .. } = settings;
    let agreed = format!("{chunks} {scaling} {lanes:?} {}", aggregators.len());
    options.digest = digest(agreed.bytes());
    options.run = run(settings, place, "");
    Ok(match assembled {
        Some(group) => group.join_again(&options)?,
        None => Group::join(&options)?,
    })
}

/// What follows from blocks of `chunks` chunks over `flows` flows.
///
/// Each flow carries one block in `flows`, and may have to know [`looked_ahead`] of its own before
/// it sends the next: `flows` times that number of the vector's. With fewer, a flow would wait for
/// peaks that no process finds before this flow has gone on. Knowing more peaks costs no memory
/// (`xdp_agg_intranode`'s `call`), so the segment's size does not depend on the flows.
///
/// [`looked_ahead`]: layout::looked_ahead
fn options(settings: &Builder, place: &Place, chunks: u16, flows: usize) -> Options {
    let ahead = layout::looked_ahead(layout::group_of(chunks)) as usize * flows;
    settings.host_options(place, usize::from(chunks) * CHUNK_LEN, Some(ahead))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xdp_agg_protocol::worker::layout::{Content, Layout};
    use xdp_agg_protocol::worker::{DataBlock, Share};

    use super::*;

    fn of(processes: u16, flows: usize, chunks: u16) -> Options {
        let place = Place {
            rank: 0,
            world_size: 2 * processes,
            local_rank: 0,
            local_size: processes,
            host: 0,
            hosts: 2,
        };
        options(&Builder::default(), &place, chunks, flows)
    }

    #[test]
    fn segments_do_not_grow_with_aggregators() {
        let mib = |processes, flows| of(processes, flows, 22).segment >> 20;
        let sizes = [(4, 2), (8, 8), (8, 32), (16, 32), (64, 1), (64, 64)];
        assert_eq!(sizes.map(|(n, flows)| mib(n, flows)), [32, 32, 32, 32, 188, 188]);
    }

    proptest! {
        /// For each of two calls 16 blocks of each process's input and a result of each, and the
        /// peaks of 128 blocks of each owner; or 32 MiB.
        #[test]
        fn segments_are_bounded(n in 1_u16..65, flows in 1_usize..65, chunks in 4_u16..141) {
            let (processes, block) = (usize::from(n), usize::from(chunks) * CHUNK_LEN);
            let data = 2 * 16 * processes * (processes + 1) * block;
            let peaks = 2 * 128 * processes * processes * 8;
            prop_assert!(of(n, flows, chunks).segment <= (32 << 20).max((2 << 20) + data + peaks));
        }

        /// To send the next data, or the keys before it, a flow needs nothing that lies
        /// `scan_ahead` or more behind that block. All that it needs may be scanned while the block
        /// is not finished.
        #[test]
        fn what_all_flows_look_at_is_scanned(
            data in 1_u64..40_000, flows in 1_u64..65, index in 0_u64..64, chunks in 1_u16..30,
        ) {
            let share = Share { index: index % flows, of: flows };
            let ahead = of(1, flows as usize, chunks).scan_ahead as u64;
            let layout = Layout::new(data, layout::group_of(chunks));
            let mut next = DataBlock(0);
            for part in (0..layout.blocks()).map(|index| layout.content(index)) {
                match part {
                    Content::Data(j) => next = j + 1,
                    Content::Keys(k) => {
                        let last = DataBlock(layout.group_range(k).1 - 1);
                        prop_assert!(share.place(last) < share.place(next) + ahead);
                    }
                }
            }
        }
    }
}
