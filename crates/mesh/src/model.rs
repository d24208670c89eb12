//! What a broadcast costs: the models (1) to (6) of the paper (sections 3.1, 4.2 and 4.4).
//!
//! `n` ranks, `M` bytes, `C` bytes of a chunk, `B` bytes a second of a connection, and `t_s`
//! seconds to start a transfer. All models are linear in `t_s` and `1/B`, so both can be fitted to
//! measured times ([`fit`]).

use crate::schedule::Algorithm;

/// What a network costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// `t_s`: seconds to start a transfer.
    pub startup_s: f64,
    /// `B`: bytes a second of a connection.
    pub bytes_per_s: f64,
}

/// A model's cost: a number of starts, and a number of bytes one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Factor of `t_s`.
    pub starts: f64,
    /// Factor of `1/B`, in bytes.
    pub bytes: f64,
}

impl Cost {
    /// Seconds on a network.
    #[must_use]
    pub fn seconds(self, network: Network) -> f64 {
        self.starts * network.startup_s + self.bytes / network.bytes_per_s
    }

    fn times(factor: f64, bytes: f64) -> Self {
        Self { starts: factor, bytes: factor * bytes }
    }
}

/// Equation (1): `(n-1) (t_s + M/B)`.
#[must_use]
pub fn direct(n: u32, m: f64) -> Cost {
    Cost::times(f64::from(n.saturating_sub(1)), m)
}

/// Equation (2): `(n-1) (t_s + M/B)`.
#[must_use]
pub fn chain(n: u32, m: f64) -> Cost {
    direct(n, m)
}

/// Equation (3): `ceil(log_k n) (t_s + M/B)`; `k = 2` is the binomial tree. A round of a k-nomial
/// tree is `k - 1` sends at a time, which the model takes for one.
#[must_use]
pub fn knomial(n: u32, k: u32, m: f64) -> Cost {
    Cost::times(f64::from(rounds(n, k)), m)
}

/// Equation (4): `(log2 n + n - 1) t_s + 2 (n-1)/n M/B`.
#[must_use]
pub fn scatter_all_gather(n: u32, m: f64) -> Cost {
    let n = f64::from(n.max(1));
    Cost { starts: n.log2() + n - 1.0, bytes: 2.0 * (n - 1.0) / n * m }
}

/// Equation (5): `(M/C + n - 2) (t_s + C/B)`. A message below `C` is one chunk of its own size.
#[must_use]
pub fn pipelined_chain(n: u32, m: f64, c: f64) -> Cost {
    let c = c.min(m).max(1.0);
    Cost::times(((m / c).max(1.0) + f64::from(n) - 2.0).max(0.0), c)
}

/// The chunk that makes (5) least: `sqrt(M t_s B / (n-2))` bytes, in whole KiB, and never so small
/// that a message is more than 1024 chunks. None where the model does not tell: two ranks have
/// nothing to pipeline, and chunks that cost no start would have no size.
#[must_use]
pub fn best_chunk(n: u32, m: f64, network: Network) -> Option<u32> {
    let Network { startup_s, bytes_per_s } = network;
    let hops = f64::from(n.checked_sub(2).filter(|hops| *hops > 0)?);
    let best = (m * startup_s * bytes_per_s / hops).sqrt();
    if !best.is_normal() {
        return None;
    }
    let kib = (best.min(m).max(m / 1024.0) / 1024.0).round().max(1.0);
    Some((kib * 1024.0).min(f64::from(1 << 30)) as u32)
}

/// Equation (6): `M/B_PCIe + ceil(log_k n) (t_s + M/B)` in seconds: a k-nomial tree from memory
/// that has to be copied to the host first at `pcie_bytes_per_s`.
#[must_use]
pub fn staged_knomial(n: u32, k: u32, m: f64, pcie_bytes_per_s: f64, network: Network) -> f64 {
    m / pcie_bytes_per_s + knomial(n, k, m).seconds(network)
}

/// The model of an algorithm.
#[must_use]
pub fn of(algorithm: Algorithm, n: u32, m: f64) -> Cost {
    match algorithm {
        Algorithm::Direct => direct(n, m),
        Algorithm::Chain => chain(n, m),
        Algorithm::Binomial => knomial(n, 2, m),
        Algorithm::Knomial { k } => knomial(n, k, m),
        Algorithm::ScatterAllGather => scatter_all_gather(n, m),
        Algorithm::PipelinedChain { chunk } | Algorithm::TopologyChain { chunk } => {
            pipelined_chain(n, m, f64::from(chunk))
        }
    }
}

/// The network that explains measured times best: least squares of the relative errors. None if the
/// measurements do not tell the two parameters apart, or fit no network.
#[must_use]
pub fn fit(measured: &[(Cost, f64)]) -> Option<Network> {
    // Minimises sum ((starts * t_s + bytes * s) / seconds - 1)^2 over t_s and s = 1/B.
    let (mut aa, mut ab, mut bb, mut a1, mut b1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (cost, seconds) in measured {
        let (a, b) = (cost.starts / seconds, cost.bytes / seconds);
        aa += a * a;
        ab += a * b;
        bb += b * b;
        a1 += a;
        b1 += b;
    }
    let determinant = aa * bb - ab * ab;
    if !determinant.is_normal() || determinant.abs() < 1e-9 * aa * bb {
        return None;
    }
    let startup_s = (a1 * bb - b1 * ab) / determinant;
    // The time to start is never negative: at 0 another rate fits best.
    let (startup_s, per_byte) = match startup_s > 0.0 {
        true => (startup_s, (b1 * aa - a1 * ab) / determinant),
        false => (0.0, b1 / bb),
    };
    let is_network = per_byte > 0.0 && startup_s.is_finite();
    is_network.then(|| Network { startup_s, bytes_per_s: 1.0 / per_byte })
}

/// How far a network's times are from measured ones: the root of the mean square of the relative
/// errors, which [`fit`] makes least; 0 for none.
#[must_use]
pub fn residual(measured: &[(Cost, f64)], network: Network) -> f64 {
    let square = |(cost, seconds): &(Cost, f64)| (cost.seconds(network) / seconds - 1.0).powi(2);
    let count = measured.len().max(1) as f64;
    (measured.iter().map(square).sum::<f64>() / count).sqrt()
}

/// `ceil(log_k n)`.
fn rounds(n: u32, k: u32) -> u32 {
    let (mut reached, mut rounds) = (1_u64, 0);
    while reached < u64::from(n) {
        reached *= u64::from(k.max(2));
        rounds += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 µs and 1 GB/s.
    const NETWORK: Network = Network { startup_s: 1e-5, bytes_per_s: 1e9 };

    fn close(cost: Cost, expected: f64) {
        let seconds = cost.seconds(NETWORK);
        assert!((seconds / expected - 1.0).abs() < 1e-12, "{seconds} {expected}");
    }

    /// Each equation, worked out by hand for 8 ranks and 1 MB (1 ms on the link).
    #[test]
    fn the_equations_by_hand() {
        close(direct(8, 1e6), 7.0 * 1.01e-3);
        close(chain(8, 1e6), 7.0 * 1.01e-3);
        close(knomial(8, 2, 1e6), 3.0 * 1.01e-3);
        close(knomial(8, 4, 1e6), 2.0 * 1.01e-3);
        close(knomial(9, 2, 1e6), 4.0 * 1.01e-3);
        close(scatter_all_gather(8, 1e6), 10.0 * 1e-5 + 2.0 * 7.0 / 8.0 * 1e-3);
        // 10 chunks of 100 kB: 16 steps of 110 µs.
        close(pipelined_chain(8, 1e6, 1e5), 16.0 * 1.1e-4);
        let staged = staged_knomial(8, 2, 1e6, 2e9, NETWORK);
        assert!((staged - (5e-4 + 3.0 * 1.01e-3)).abs() < 1e-15);
        for n in [0, 1] {
            assert_eq!(direct(n, 1e6), Cost { starts: 0.0, bytes: 0.0 });
            assert_eq!(knomial(n, 2, 1e6).starts, 0.0);
        }
        // Two ranks: nothing to pipeline, just the message.
        close(pipelined_chain(2, 1e6, 1e5), 10.0 * 1.1e-4);
    }

    /// No other chunk makes (5) less.
    #[test]
    fn the_best_chunk_is_the_least_of_the_model() {
        for (n, m) in [(3, 1e6), (8, 1e6), (8, 6.4e7), (64, 1e8)] {
            let best = best_chunk(n, m, NETWORK).expect("the model tells");
            let seconds = |c: f64| pipelined_chain(n, m, c).seconds(NETWORK);
            let least = seconds(best.into());
            for factor in [0.5, 0.8, 1.25, 2.0] {
                assert!(seconds(f64::from(best) * factor) >= least, "{n} {m}: {best} x {factor}");
            }
        }
        // sqrt(1e6 * 1e-5 * 1e9 / 6) is 40.8 kB: 40 KiB.
        assert_eq!(best_chunk(8, 1e6, NETWORK), Some(40 << 10));
        assert_eq!(best_chunk(2, 1e6, NETWORK), None);
        assert_eq!(best_chunk(8, 1e6, Network { startup_s: 0.0, ..NETWORK }), None);
        // 256 MiB and next to no start: 1024 chunks.
        let quick = Network { startup_s: 1e-12, ..NETWORK };
        assert_eq!(best_chunk(8, f64::from(1 << 28), quick), Some(256 << 10));
    }

    #[test]
    fn a_start_takes_no_less_than_nothing() {
        // Bursts let the short message through at four times the rate.
        let measured = [(direct(2, 4e3), 1e-6), (direct(2, 1e6), 1e-3), (direct(2, 2e6), 2e-3)];
        let network = fit(&measured).expect("there is one");
        assert_eq!(network.startup_s, 0.0);
        let errors = |rate: f64| residual(&measured, Network { startup_s: 0.0, bytes_per_s: rate });
        let best = network.bytes_per_s;
        assert!((errors(best) - residual(&measured, network)).abs() < 1e-12);
        assert!(errors(best) < errors(best * 1.01) && errors(best) < errors(best / 1.01));
    }

    #[test]
    fn a_fit_finds_the_network() {
        let measured: Vec<_> = [4096.0, 65_536.0, 1e6, 6.4e7]
            .into_iter()
            .flat_map(|m| Algorithm::ALL.map(|algorithm| of(algorithm, 8, m)))
            .map(|cost| (cost, cost.seconds(NETWORK)))
            .collect();
        let network = fit(&measured).expect("there is one");
        assert!((network.startup_s / 1e-5 - 1.0).abs() < 1e-6, "{network:?}");
        assert!((network.bytes_per_s / 1e9 - 1.0).abs() < 1e-6, "{network:?}");
        assert!(residual(&measured, network) < 1e-6);
        assert_eq!(fit(&measured[..1]), None);
        assert_eq!(fit(&[]), None);
    }
}
