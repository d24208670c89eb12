//! The loops over elements. Each is written once, over tiles of one chunk of lanes (64 bytes), and
//! compiled for each level of SIMD. Arrays of a fixed length become vectors without a remainder.

mod convert;
mod float;
mod integer;
mod lane;
mod order;
mod single;
mod tiles;

pub(crate) use tiles::TILE;
