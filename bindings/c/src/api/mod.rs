//! The functions of the header, in its order.
//!
//! Their documentation is the header's, in C's words. What each of them is promised, and by which
//! its `unsafe` is sound, stands there: a handle is one that this library made and has not freed;
//! a vector is valid for as many bytes as is said, and the call's until that has ended; a place for
//! a result is valid and the caller's.
//!
//! cbindgen takes public functions, in files that it is given; nobody links to these from Rust.

mod buffer;
mod calls;
mod comm;
mod config;
mod error;
mod request;
mod start;
