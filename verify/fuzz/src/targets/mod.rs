//! The targets, one a module.

mod control;
mod forwarder;
mod jobs;
mod packet;
mod reform;
mod topology;

use std::net::SocketAddrV4;

use xdp_agg_common::admission::Source;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use crate::Target;

/// All of them.
pub const ALL: [Target; 7] = [
    packet::TARGET,
    forwarder::TARGET,
    control::TARGET,
    jobs::TARGET,
    jobs::TREES,
    topology::TARGET,
    reform::TARGET,
];

/// A header of this kind in a job's epoch, of what is added.
pub const fn header(kind: Kind, conf: &JobConf, (job, rank): (u16, u16), block: u64) -> Header {
    let JobConf { cookie, epoch, .. } = *conf;
    Header { kind, flags: 0, reduction: Reduction::Add, job, rank, cookie, epoch, block, tag: 0 }
}

fn source(at: SocketAddrV4) -> Source {
    Source { addr: u32::from(*at.ip()), port: at.port() }
}

/// A packet with a payload of whole chunks.
fn packet(header: &Header, chunks: u16, fill: u8) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    if let Some(front) = bytes.first_chunk_mut() {
        header.emit(front);
    }
    let payload = 0..usize::from(chunks) * CHUNK_LEN;
    bytes.extend(payload.map(|i| fill.wrapping_mul(31).wrapping_add(i as u8)));
    bytes
}
