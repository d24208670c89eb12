//! What a collective inside a host costs: equations (1) to (11) of paper 5.
//!
//! A cost counts launches, synchronisations and bytes that a process moves one after the other. It
//! is linear in `t_LAUNCH`, `t_SYNC` and `1/BW`, so these can be fitted to measured times
//! ([`fit`]). The paper counts for four processes; here `n` is any number.

/// What a host costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// `t_LAUNCH`: seconds to begin an operation.
    pub launch_s: f64,
    /// `t_SYNC`: seconds of a synchronisation of all processes.
    pub sync_s: f64,
    /// `BW`: bytes a second that a process moves while all do.
    pub bytes_per_s: f64,
}

/// A collective's cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Factor of `t_LAUNCH`.
    pub launches: f64,
    /// Factor of `t_SYNC`.
    pub synchronizations: f64,
    /// Factor of `1/BW`, in bytes.
    pub bytes: f64,
    /// Seconds besides: the paper's `t_OTHERS`.
    pub others_s: f64,
}

impl Cost {
    /// Seconds on a host.
    #[must_use]
    pub fn seconds(self, host: Host) -> f64 {
        self.launches * host.launch_s
            + self.synchronizations * host.sync_s
            + self.bytes / host.bytes_per_s
            + self.others_s
    }

    /// Algorithm bandwidth of a collective of `volume` bytes: equations (3) and (4).
    #[must_use]
    pub fn bandwidth(self, volume: f64, host: Host) -> f64 {
        volume / self.seconds(host)
    }

    /// Share of the time in which data moves (Fig. 13).
    #[must_use]
    pub fn moving(self, bytes_per_s: f64, seconds: f64) -> f64 {
        self.bytes / bytes_per_s / seconds
    }
}

/// A transformer that is trained with tensor and sequence parallelism inside a card (section 1.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transformer {
    /// Bytes of a number.
    pub element_bytes: f64,
    /// Samples of a batch, `bs`.
    pub batch: f64,
    /// Data parallelism, `dp`.
    pub data_parallel: f64,
    /// Elements of a sequence, `s`.
    pub sequence: f64,
    /// Width of a hidden layer, `h`.
    pub hidden: f64,
    /// Layers, `l`.
    pub layers: f64,
    /// Pipeline parallelism, `pp`.
    pub pipeline: f64,
}

impl Transformer {
    /// Equations (1) and (2): bytes of all all-gathers of an iteration, and as many of all
    /// reduce-scatters: `6 fp bs/dp s h l/pp`.
    #[must_use]
    pub fn volume(self) -> f64 {
        6.0 * self.element_bytes * self.batch / self.data_parallel
            * self.sequence
            * self.hidden
            * self.layers
            / self.pipeline
    }
}

/// Equation (3), Ring-AG of `volume` bytes in all: `(n-1) (t_LAUNCH + t_SYNC + V/(n BW) +
/// t_OTHERS)`.
#[must_use]
pub fn ring_all_gather(n: u32, volume: f64, others_s: f64) -> Cost {
    let (n, rounds) = (f64::from(n.max(1)), f64::from(n.max(1)) - 1.0);
    Cost {
        launches: rounds,
        synchronizations: rounds,
        bytes: rounds * volume / n,
        others_s: rounds * others_s,
    }
}

/// Equation (4), CSC-AG: `t_LAUNCH + t_SYNC + (n-1) (V/(n BW) + t_OTHERS)`.
#[must_use]
pub fn csc_all_gather(n: u32, volume: f64, others_s: f64) -> Cost {
    Cost { launches: 1.0, synchronizations: 1.0, ..ring_all_gather(n, volume, others_s) }
}

/// Equations (5) and (6) by (5): how many times Ring-AG's bandwidth CSC-AG has where bytes cost
/// nothing.
#[must_use]
pub fn gain_of_short(n: u32, host: Host, others_s: f64) -> f64 {
    let [ring, csc] = [ring_all_gather, csc_all_gather].map(|of| of(n, 0.0, others_s));
    ring.seconds(host) / csc.seconds(host)
}

/// Equations (7) and (8) by (7): the same where all but bytes costs nothing; 1, as both move as
/// many.
#[must_use]
pub fn gain_of_long(n: u32, volume: f64, others_s: f64) -> f64 {
    let host = Host { launch_s: 0.0, sync_s: 0.0, bytes_per_s: 1.0 };
    let [ring, csc] = [ring_all_gather, csc_all_gather].map(|of| of(n, volume, others_s));
    ring.seconds(host) / csc.seconds(host)
}

/// An operator's output, an all-gather of it, and an operator's input (section 2.3). `part` bytes
/// are a process's own; bandwidths are of its own memory and of the shared one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fusion {
    /// `V_AG`: bytes of a process.
    pub part: f64,
    /// `BW_LOCAL` in bytes a second.
    pub local: f64,
    /// `BW_GLOBAL` in bytes a second.
    pub global: f64,
    /// `t_LAUNCH` in seconds.
    pub launch_s: f64,
}

impl Fusion {
    /// Equation (9): seconds of the three, one after the other.
    #[must_use]
    pub fn apart(self) -> f64 {
        let Self { part, local, global, launch_s } = self;
        part / local + part / global + 3.0 * part / global + 4.0 * part / local + 3.0 * launch_s
    }

    /// Equation (10): seconds of both operators with the all-gather in them.
    #[must_use]
    pub fn fused(self) -> f64 {
        let Self { part, local, global, launch_s } = self;
        part / global + 3.0 * part / global + part / local + 2.0 * launch_s
    }

    /// Equation (11): the share of the time that is saved, without launches.
    #[must_use]
    pub fn gain(self) -> f64 {
        let Self { part, local, global, .. } = self;
        let saved = 4.0 * part / local;
        saved / (part / local + part / global + 3.0 * part / global + saved)
    }
}

/// The host that explains measured times best: least squares of the relative errors, over hosts
/// none of whose times is negative. None if the measurements fit no host.
#[must_use]
pub fn fit(measured: &[(Cost, f64)]) -> Option<Host> {
    // A time that would be negative is 0, and the others are fitted without it.
    let subsets: [&[usize]; 4] = [&[0, 1, 2], &[0, 2], &[1, 2], &[2]];
    let hosts = subsets.into_iter().filter_map(|subset| fit_some(measured, subset));
    hosts.min_by(|a, b| residual(measured, *a).total_cmp(&residual(measured, *b)))
}

/// The same with some of the three unknowns, the others being 0.
fn fit_some(measured: &[(Cost, f64)], unknowns: &[usize]) -> Option<Host> {
    let count = unknowns.len();
    let mut rows = [[0.0; 4]; 3];
    for (cost, seconds) in measured {
        let all = [cost.launches, cost.synchronizations, cost.bytes].map(|x| x / seconds);
        let right = 1.0 - cost.others_s / seconds;
        for (row, i) in rows.iter_mut().zip(unknowns) {
            for (at, j) in unknowns.iter().enumerate() {
                row[at] += all[*i] * all[*j];
            }
            row[3] += all[*i] * right;
        }
    }
    // Scaled, so that bytes and launches are of one size.
    let scales: Vec<f64> = (0..count).map(|i| rows[i][i].sqrt()).collect();
    if scales.iter().any(|scale| !scale.is_normal()) {
        return None;
    }
    for i in 0..count {
        for j in 0..count {
            rows[i][j] /= scales[i] * scales[j];
        }
        rows[i][3] /= scales[i];
    }
    // Elimination; the matrix is symmetric and not negative.
    for i in 0..count {
        if rows[i][i] < 1e-9 {
            return None;
        }
        for below in i + 1..count {
            let factor = rows[below][i] / rows[i][i];
            let pivot = rows[i];
            rows[below].iter_mut().zip(pivot).for_each(|(x, p)| *x -= factor * p);
        }
    }
    let mut found = [0.0; 3];
    for i in (0..count).rev() {
        let known: f64 = (i + 1..count).map(|j| rows[i][j] * found[j]).sum();
        found[i] = (rows[i][3] - known) / rows[i][i];
    }
    let mut all = [0.0; 3];
    for (at, unknown) in unknowns.iter().enumerate() {
        all[*unknown] = found[at] / scales[at];
    }
    let [launch_s, sync_s, per_byte] = all;
    let is_host = launch_s >= 0.0 && sync_s >= 0.0 && per_byte > 0.0;
    is_host.then(|| Host { launch_s, sync_s, bytes_per_s: 1.0 / per_byte })
}

/// How far a host's times are from measured ones: the root of the mean square of the relative
/// errors, which [`fit`] makes least; 0 for none.
#[must_use]
pub fn residual(measured: &[(Cost, f64)], host: Host) -> f64 {
    let square = |(cost, seconds): &(Cost, f64)| (cost.seconds(host) / seconds - 1.0).powi(2);
    let count = measured.len().max(1) as f64;
    (measured.iter().map(square).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's card: 25 µs, 15 µs and 100 GB/s; 5 µs besides.
    const CARD: Host = Host { launch_s: 25e-6, sync_s: 15e-6, bytes_per_s: 100e9 };
    const OTHERS: f64 = 5e-6;

    /// 41 and 69.6 GB/s at 8 MB; three times for short vectors, once for long ones.
    #[test]
    fn the_papers_bandwidths_follow() {
        let bandwidth = |of: fn(u32, f64, f64) -> Cost| of(4, 8e6, OTHERS).bandwidth(8e6, CARD);
        assert!((bandwidth(ring_all_gather) / 1e9 - 41.0).abs() < 0.1);
        assert!((bandwidth(csc_all_gather) / 1e9 - 69.6).abs() < 0.1);
        assert!((gain_of_short(4, CARD, 0.0) - 3.0).abs() < 1e-12);
        assert!((gain_of_short(4, CARD, OTHERS) - 135.0 / 55.0).abs() < 1e-12);
        assert!((gain_of_long(4, 1e12, OTHERS) - 1.0).abs() < 1e-12);
    }

    /// LLaMA 70B: 120 GB, with sequences of 4096 on 512 cards.
    #[test]
    fn the_papers_volume_follows() {
        let llama = Transformer {
            element_bytes: 2.0,
            batch: 2048.0,
            data_parallel: 64.0,
            sequence: 4096.0,
            hidden: 8192.0,
            layers: 80.0,
            pipeline: 8.0,
        };
        assert!((llama.volume() / f64::from(1 << 30) - 120.0).abs() < 1e-9);
    }

    /// About half at 8 MB of four processes; and what is saved is what (9) and (10) differ by.
    #[test]
    fn the_papers_gain_follows() {
        let fusion = Fusion { part: 2e6, local: 100e9, global: 100e9, launch_s: 0.0 };
        assert!((fusion.gain() - 4.0 / 9.0).abs() < 1e-12);
        let saved = (fusion.apart() - fusion.fused()) / fusion.apart();
        assert!((saved - fusion.gain()).abs() < 1e-12);
        let launches = Fusion { launch_s: 1e-5, ..fusion };
        assert!(
            (launches.apart() - launches.fused() - (fusion.apart() - fusion.fused()) - 1e-5).abs()
                < 1e-15
        );
    }

    #[test]
    fn a_host_is_found_again() {
        let sizes = [1e4, 1e5, 1e6, 1e7];
        let costs = sizes.into_iter().flat_map(|volume| {
            let pieces = Cost { synchronizations: 5.0, ..csc_all_gather(4, volume, 0.0) };
            [ring_all_gather(4, volume, 0.0), csc_all_gather(4, volume, 0.0), pieces]
        });
        let times: Vec<_> = costs.map(|cost| (cost, cost.seconds(CARD))).collect();
        let found = fit(&times).expect("there is one");
        for (found, real) in [
            (found.launch_s, CARD.launch_s),
            (found.sync_s, CARD.sync_s),
            (found.bytes_per_s, CARD.bytes_per_s),
        ] {
            assert!((found / real - 1.0).abs() < 1e-6, "{found} {real}");
        }
        assert!(residual(&times, found) < 1e-6);
        // Without a word on synchronisations alone, they are not told from launches.
        let alike: Vec<_> =
            times.iter().filter(|(c, _)| c.launches == c.synchronizations).collect();
        let alike: Vec<_> = alike.into_iter().copied().collect();
        assert!(residual(&alike, fit(&alike).expect("some host")) < 1e-6);
        assert_eq!(fit(&[]), None);
        // Times that fall with bytes are no host's.
        let odd = [(csc_all_gather(4, 1e6, 0.0), 1.0), (csc_all_gather(4, 1e9, 0.0), 0.5)];
        assert!(fit(&odd).is_none_or(|host| host.bytes_per_s > 0.0 && host.launch_s >= 0.0));
    }

    #[test]
    fn shares_of_time() {
        let cost = Cost { bytes: 1e6, ..Cost::default() };
        assert!((cost.moving(1e9, 2e-3) - 0.5).abs() < 1e-12);
    }
}
