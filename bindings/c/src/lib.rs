//! `libxdp_agg`: the worker library of xdp-agg for C. `include/xdp_agg.h` is made of these sources.
//!
//! * `api`: the functions, a file for each part of the header. `names`: its enumerations.
//! * `comm`, `request`, `settings`: what the handles stand for. `calls`: their arguments.
//! * `failure`: results, and what a thread can ask about the last one.
//! * `memory`: what C hands over. All `unsafe` is there and in `api`.
#![deny(unsafe_code)]

mod api;
mod calls;
mod comm;
mod failure;
mod memory;
mod names;
mod raw;
mod request;
mod settings;
