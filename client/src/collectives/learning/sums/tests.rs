//! The bits do not depend on the way: sums over meshes of threads, against what an aggregator does.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use xdp_agg_quantize::{Format, LaneWidth, Op, Scaling, bf16, f16};

use super::*;

const ROUTES: [Route; 4] = [Route::Exchange, Route::Doubling, Route::Halving, Route::Ring];
/// Elements: less than a block, whole blocks, and more than a piece of a ring.
const LENS: [usize; 5] = [1, 31, 352, 1000, 9001];

/// Connects that many ranks over loopback.
fn meshes(world: u16) -> Vec<Mesh> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners: Vec<TcpListener> = (0..world).map(bind).collect();
    let addresses: Vec<_> =
        listeners.iter().map(|one| one.local_addr().expect("it is bound")).collect();
    let builders = listeners.into_iter().zip(0..).map(|(listener, rank)| {
        let builder = Mesh::builder().rank(rank).world_size(world).cookie(3);
        builder.addresses(addresses.clone()).listener(listener)
    });
    let builders: Vec<_> = builders.collect();
    thread::scope(|scope| {
        let open =
            |builder: xdp_agg_mesh::Builder| scope.spawn(move || builder.open().expect("all come"));
        let threads: Vec<_> = builders.into_iter().map(open).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn sum<T: Element>(
    cut: &Cut,
    mesh: &mut Mesh,
    route: Route,
    data: &mut [T],
    scratch: &mut Scratch,
) -> Summed {
    let deadline = Duration::from_secs(10);
    let mut patience = Patience { deadline, interrupted: &mut || false };
    cut.sum(mesh, route, data, scratch, &mut patience).expect("all are well")
}

/// What an aggregator's workers get: each block's lanes, added.
fn through_aggregator<T: Element>(cut: &Cut, vectors: &[Vec<T>]) -> (Vec<T>, u64) {
    let format = &cut.format;
    let mut result = vectors[0].clone();
    let mut non_finite_blocks = 0;
    for (index, to) in result.chunks_mut(cut.block).enumerate() {
        let parts = || vectors.iter().map(|vector| &vector[index * cut.block..][..to.len()]);
        let key = parts().map(|part| format.key(&[format.peak(part)])).max();
        let key = key.filter(|_| format.needs_exponents()).unwrap_or_default();
        let mut sum: Option<Vec<u64>> = None;
        let mut non_finite = false;
        for part in parts() {
            let mut lanes = vec![0_u64; format.payload(part.len()) / WORD];
            let encoded = format.encode(key, &[part], bytemuck::cast_slice_mut(&mut lanes));
            non_finite |= encoded.non_finite;
            match &mut sum {
                None => sum = Some(lanes),
                Some(sum) => combine_words(sum, &lanes, format.reduction()),
            }
        }
        let sum = sum.expect("there are workers");
        let hosts = vectors.len() as u32;
        match non_finite {
            true => T::fill_nan(to),
            false => format.decode(key, bytemuck::cast_slice(&sum), hosts, hosts, to),
        }
        non_finite_blocks += u64::from(non_finite);
    }
    (result, non_finite_blocks)
}

/// All routes, operations and lengths of an element type, over one set of meshes.
fn check<T: Element>(world: u16, scaling: Scaling, lanes: Option<LaneWidth>, make: fn(f64) -> T) {
    let mut meshes = meshes(world);
    let mut scratches: Vec<Scratch> = meshes.iter().map(|_| Scratch::default()).collect();
    for op in [Op::Sum, Op::Average, Op::Min, Op::Max] {
        let lanes = lanes.filter(|_| op.adds());
        let format = Format::new(T::TYPE, op, scaling, lanes, world).expect("it can be");
        let block = 3 * format.lanes_per_chunk();
        for leaves_out in [false, true] {
            let leaves_out = leaves_out && format.needs_exponents();
            let cut = Cut { format, block, tag: 5, leaves_out };
            for len in LENS {
                check_len(&cut, len, (&mut meshes, &mut scratches), make);
            }
        }
    }
}

/// All routes of vectors of a length.
fn check_len<T: Element>(
    cut: &Cut,
    len: usize,
    (meshes, scratches): (&mut [Mesh], &mut [Scratch]),
    make: fn(f64) -> T,
) {
    let world = meshes.len() as u16;
    let number = |rank: u16, i: usize| match (i % 1711, rank) {
        // Some blocks hold what is no number, at one worker.
        (1500, 1) => f64::NAN,
        (700, 2) if T::NAN.is_some() => f64::INFINITY,
        _ => (i as f64 * 0.37 + f64::from(rank)).sin() * 10_f64.powi((i / 500 % 5) as i32),
    };
    let vector = |rank: u16| (0..len).map(|i| make(number(rank, i))).collect();
    let vectors: Vec<Vec<T>> = (0..world).map(vector).collect();
    let (expected, non_finite) = through_aggregator(cut, &vectors);
    for route in ROUTES {
        let ranks = meshes.iter_mut().zip(&mut *scratches).zip(&vectors);
        let results: Vec<(Vec<T>, Summed)> = thread::scope(|scope| {
            let call = |((mesh, scratch), vector): ((&mut Mesh, &mut Scratch), &Vec<T>)| {
                let mut data = vector.clone();
                let summed = sum(cut, mesh, route, &mut data, scratch);
                (data, summed)
            };
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || call(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for ((data, summed), own) in results.into_iter().zip(&vectors) {
            let bits = |of: &[T]| bytemuck::cast_slice::<T, u8>(of).to_vec();
            let what = format!("{} {} of {len} by {route}", T::TYPE, cut.format.op());
            let mut expected = expected.clone();
            let left_out = summed.left_out.len() as u64;
            assert_eq!(left_out, if cut.leaves_out { non_finite } else { 0 }, "{what}");
            for range in summed.left_out {
                assert!(expected[range.clone()].iter().all(T::is_nan), "{what}");
                assert!(range.end == len || range.len() == cut.block, "{what}");
                expected[range.clone()].copy_from_slice(&own[range]);
            }
            assert!(bits(&data) == bits(&expected), "{what}");
            let report = summed.report;
            assert_eq!(report.non_finite_blocks, non_finite, "{what}");
            assert_eq!(report.contributors, (1 << world) - 1);
        }
    }
}

#[test]
fn the_bits_are_an_aggregators_by_every_way() {
    for world in [1, 2, 3, 4] {
        for scaling in [Scaling::Block, Scaling::Fixed(1e4)] {
            check::<f32>(world, scaling, None, |value| value as f32);
            check::<f64>(world, scaling, None, |value| value);
        }
        check::<f32>(world, Scaling::Block, Some(LaneWidth::W16), |value| value as f32);
        check::<f16>(world, Scaling::Block, None, |value| f16::from_f32(value as f32));
        check::<bf16>(world, Scaling::Block, None, |value| bf16::from_f32(value as f32));
        check::<i32>(world, Scaling::Block, None, |value| value as i32);
        check::<i64>(world, Scaling::Block, None, |value| (value as i64).wrapping_mul(1 << 33));
    }
}

#[test]
fn values_that_do_not_fit_are_counted_at_their_worker() {
    let mut meshes = meshes(2);
    let format = Format::new(f32::TYPE, Op::Sum, Scaling::Fixed(1e6), None, 2).expect("it can be");
    let cut = Cut { format, block: 32, tag: 0, leaves_out: false };
    for route in ROUTES {
        let counts: Vec<u64> = thread::scope(|scope| {
            let call = |mesh: &mut Mesh| {
                let mut data = vec![if mesh.rank() == 1 { 1e9_f32 } else { 1.0 }; 40];
                sum(&cut, mesh, route, &mut data, &mut Scratch::default()).report.saturated
            };
            let threads: Vec<_> =
                meshes.iter_mut().map(|mesh| scope.spawn(move || call(mesh))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(counts, [0, 40], "{route}");
    }
}
