//! What is said where an IPv6 address is given.

use std::net::{Ipv6Addr, SocketAddr};

/// Why an IPv6 address does not do, and what does.
pub const IPV4_ONLY: &str = "an IPv4 address, or a name that has one, such as 10.0.0.1: vectors \
                             travel over IPv4 only, so every host needs an IPv4 address on the \
                             network between workers and aggregator";

/// The IPv6 address that a text stands for, in any of the ways to write one: `::1`, `[::1]`,
/// `[::1]:9870`, `fe80::1%eth0`.
#[must_use]
pub fn ipv6(text: &str) -> Option<Ipv6Addr> {
    let text = text.trim();
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let inside = bracketed.map_or(text, |(inside, _)| inside);
    inside.split('%').next()?.parse().ok()
}

/// The first IPv4 address of those that a name has.
///
/// # Errors
/// It has none, in words.
pub fn first_ipv4(mut all: impl Iterator<Item = SocketAddr>) -> Result<SocketAddr, String> {
    let mut others = Vec::new();
    let found = all.find(|address| {
        let fits = address.is_ipv4();
        others.extend((!fits).then(|| address.ip().to_string()));
        fits
    });
    found.ok_or_else(|| {
        format!("has IPv6 addresses only ({}); expected {IPV4_ONLY}", others.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_one_is_known() {
        for text in ["::1", "[::1]", "[::1]:9870", " ::1 "] {
            assert_eq!(ipv6(text), Some(Ipv6Addr::LOCALHOST), "{text}");
        }
        for text in ["fe80::1%eth0", "[fe80::1%eth0]:9870", "2001:db8::a", "::ffff:10.0.0.1"] {
            assert!(ipv6(text).is_some(), "{text}");
        }
        for text in ["10.0.0.1", "10.0.0.1:9870", "host", "host:9870", "", "[", "a:b:c"] {
            assert_eq!(ipv6(text), None, "{text}");
        }
    }
}
