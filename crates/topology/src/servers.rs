//! What over-subscription costs parameter servers on all nodes (paper 2, section 2.1).

/// How many times longer an all-reduce over parameter servers takes for racks' uplinks that are
/// `o` times over-subscribed, as paper 2 prints it: `o(w-1) / (w(1-1/r))`, for `w` workers with a
/// server each in `r` racks. [`slowdown`] is what the bytes come to: the fraction behind `o` stands
/// upside down in the paper. Its own "1.3 times the load" is `1/(1-1/4)`, which is how much more a
/// host's link carries than its part of an uplink, and not how much less.
#[must_use]
pub fn printed_slowdown(o: f64, workers: usize, racks: usize) -> f64 {
    let (w, r) = (workers as f64, racks as f64);
    o * (w - 1.0) / (w * (1.0 - 1.0 / r))
}

/// The same by the bytes; 1 where hosts' links are the slower ones. Of its vector a worker sends
/// `(w-1)/w` over its own link, to all other servers, and `1-1/r` out of its rack.
#[must_use]
pub fn slowdown(o: f64, workers: usize, racks: usize) -> f64 {
    let (w, r) = (workers as f64, racks as f64);
    (o * (1.0 - 1.0 / r) * w / (w - 1.0)).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_formula_is_as_printed() {
        // Two racks of four at 4:1: 4 * 7 / (8 * 1/2).
        assert!((printed_slowdown(4.0, 8, 2) - 7.0).abs() < 1e-12);
        // Many workers in four racks: "about 1.3 times" for each unit of over-subscription.
        assert!((printed_slowdown(1.0, 10_000, 4) - 4.0 / 3.0).abs() < 1e-3);
    }
}
