//! Questions to HTTP servers of a namespace.

use std::net::SocketAddr;

use xdp_agg_testbed::{Namespace, http};

use super::LIMIT;

/// The body of an answer.
pub fn get(namespace: &Namespace, from: SocketAddr, path: &str) -> Option<String> {
    namespace.run(|| http::get(from, path, LIMIT)).expect("entering the namespace")
}
