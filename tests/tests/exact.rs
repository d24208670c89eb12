//! Sums of floats on lent memory: exact ones, and NaN and infinities in both precisions.

mod support;

use support::lent::{AVERAGE, SUM, close, everywhere, mixed, sums};
use support::need_root;
use xdp_agg_client::lent::{DataType, Outcome, Precision};

/// Both ways to be on a host, both engines, and vectors that take one round trip, two, and several
/// pieces.
#[test]
fn exact_sums_are_exact_whatever_stands_beside() {
    need_root!();
    everywhere(|engine, size, job| {
        let world = job.world();
        let tensor = |_| vec![2.345_678_9_f32, 1.25e6, 0.0017];
        for (data, outcome) in job.call(tensor, DataType::F32, SUM, None) {
            let expected = tensor(0).into_iter().map(|x| x * f32::from(world));
            assert_eq!(data, expected.collect::<Vec<_>>());
            assert_eq!(outcome.precision, Some(Precision::Exact));
            assert_eq!(outcome.report.contributors.count_ones(), 2);
        }
        for len in [0, 1, 93, 256, 300, 5000, 16_384, 600_000] {
            let exact = Some(Precision::Exact);
            let expected = sums(world, len, |rank| mixed(rank, len));
            for (data, _) in job.call(|r| mixed(r, len), DataType::F32, SUM, exact) {
                let right = expected.iter().zip(&data).all(|(sum, x)| *sum as f32 == *x);
                assert!(right, "{engine}, {size} a host, {len} elements");
            }
            for (data, _) in job.call(|r| mixed(r, len), DataType::F32, AVERAGE, exact) {
                let by = f64::from(world);
                let right = expected.iter().zip(&data).all(|(sum, x)| (*sum / by) as f32 == *x);
                assert!(right, "{engine}, {size} a host, {len} elements, average");
            }
        }
        let stats = job.callers[0].stats().expect("counted");
        assert_eq!((stats.exact_calls, stats.gradient_calls), (17, 0), "{stats:?}");
    });
}

/// An infinity or a NaN is in its element and in no other, in both precisions.
#[test]
fn what_is_no_number_stays_with_its_element() {
    need_root!();
    const LEN: usize = 100_000;
    everywhere(|engine, _, job| {
        let input = |rank: u16| {
            let mut data = mixed(rank, LEN);
            match rank {
                0 => (data[7], data[70_000]) = (f32::INFINITY, f32::NAN),
                _ => (data[8], data[99_999]) = (f32::NEG_INFINITY, f32::INFINITY),
            }
            data
        };
        let finite = sums(job.world(), LEN, |rank| mixed(rank, LEN));
        let mut bits: Option<Vec<u32>> = None;
        for round in 0..3 {
            for (data, outcome) in job.call(input, DataType::F32, SUM, None) {
                assert_eq!(outcome.precision, Some(Precision::Gradient));
                assert!((3..5000).contains(&outcome.redone), "{outcome:?}");
                assert!(data[7] == f32::INFINITY && data[8] == f32::NEG_INFINITY);
                assert!(data[70_000].is_nan() && data[99_999] == f32::INFINITY);
                for (at, (x, sum)) in data.iter().zip(&finite).enumerate() {
                    if ![7, 8, 70_000, 99_999].contains(&at) {
                        assert!(close(*x, *sum), "{engine}, round {round}: {at}: {x} for {sum}");
                    }
                }
                // Those that share the block of an infinity are exact.
                assert_eq!(data[9], finite[9] as f32);
                let own = data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(*bits.get_or_insert_with(|| own.clone()), own, "other bits");
            }
        }
        // Without any, nothing is done again.
        for (_, outcome) in job.call(|r| mixed(r, LEN), DataType::F32, SUM, None) {
            assert_eq!(outcome.redone, 0);
        }
    });
}

/// The spans of a short sum are guessed by those of the one before: that saves packets, and where
/// the guess was wrong, no digit.
#[test]
fn guessed_spans_save_packets_and_no_digit() {
    need_root!();
    const LEN: usize = 256;
    everywhere(|engine, size, job| {
        let sent = || job.callers[0].stats().expect("counted").counters.flow.sent;
        let mut packets = Vec::new();
        // What all calls have alike, then other magnitudes: at all ranks, at one, and for good.
        for scale in [1.0, 1.0, 0.5, 1e-20, 1e-20, 1.0, 1e20, 1e20, 1e20, 1e20_f32] {
            for odd_one in [false, true] {
                let input = |rank: u16| {
                    let by = if odd_one && rank == 1 { 1e3 * scale } else { scale };
                    (0..LEN).map(|i| (i as f32 - 100.0) * by).collect::<Vec<_>>()
                };
                let before = sent();
                let expected = sums(job.world(), LEN, input);
                for (data, outcome) in job.call(input, DataType::F32, SUM, None) {
                    let right = expected.iter().zip(&data).all(|(sum, x)| *sum as f32 == *x);
                    assert!(right, "{engine}, {size} a host, {scale}: {data:?}");
                    assert_eq!(outcome.precision, Some(Precision::Exact));
                }
                packets.push(sent() - before);
            }
        }
        assert!(packets[4] < packets[0], "nothing was saved: {packets:?}");
        // One rank has no room for an infinity, and all do it again.
        let input = |rank: u16| {
            let mut data = vec![1.0_f32; LEN];
            data[3] = if rank == 1 { f32::INFINITY } else { 1.0 };
            data
        };
        for _ in 0..5 {
            for (data, Outcome { redone, .. }) in job.call(input, DataType::F32, SUM, None) {
                let ones = data.iter().filter(|x| **x == f32::from(job.world())).count();
                assert_eq!((data[3], ones, redone), (f32::INFINITY, LEN - 1, 0));
            }
        }
    });
}
