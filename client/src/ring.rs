//! The baseline: a TCP ring all-reduce.
