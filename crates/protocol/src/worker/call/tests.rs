//! Tests of one call.

use std::any::Any;
use xdp_agg_common::lanes::{Bias, Lane, Pick, extreme};
use xdp_agg_quantize::{Element, ElementType, Op, Scaling};

use super::*;
use crate::worker::{Buffer, Local, Share};

fn of<T: Element>(data: Vec<T>, op: Op, scaling: Scaling, world: u16) -> Box<dyn Blocks> {
    let format = Format::new(T::TYPE, op, scaling, None, world).expect("it makes sense");
    Box::new(Local::new(Buffer::owned(data), format))
}

fn call(len: usize) -> Call {
    let mut call =
        Call::new(Job::default(), 0, of(vec![1.0_f32; len], Op::Sum, Scaling::Fixed(1e6), 2));
    assert!(!call.is_done());
    call.begin(JobBlock(0), 22, 0b11).expect("it can be cut");
    call
}

#[test]
fn blocks_cover_the_elements_once() {
    for (len, blocks, last) in
        [(0, 0, 0), (1, 1, 128), (336, 1, 1408), (352, 2, 64), (353, 2, 128), (1408, 4, 1408)]
    {
        let call = call(len);
        assert_eq!(call.report.blocks, blocks, "{len}");
        assert_eq!(call.is_done(), len == 0);
        if blocks > 0 {
            assert_eq!(call.payload_len(JobBlock(blocks - 1)), last, "{len}");
            let covered: usize =
                (0..blocks).map(|block| call.blocks.elements(DataBlock(block))).sum();
            assert_eq!(covered, len);
        }
    }
}

/// The flows of a vector group their blocks alike, also where an aggregator takes longer ones: the
/// processes of a host look no further ahead than these groups need.
#[test]
fn groups_are_of_the_blocks_that_were_agreed_upon() {
    let format = Format::new(f32::TYPE, Op::Sum, Scaling::Block, None, 2).expect("it makes sense");
    let elements = 352 * 704 * 4;
    for chunks in [22, 54] {
        let share = Share { index: 1, of: 2 };
        let part = Local::part(Buffer::owned(vec![1.0_f32; elements]), format, share, 22);
        let mut call = Call::new(Job::default(), 0, Box::new(part));
        call.begin(JobBlock(0), chunks, 0b11).expect("it can be cut");
        assert_eq!((call.report.blocks, call.report.exponent_blocks), (704 * 2 + 2, 2));
    }
}

#[test]
fn contributors_are_told_by_block() {
    let mut call = call(352 * 5);
    let payload = vec![0; 1408];
    for (block, members) in [(1, 0b11), (3, 0b01), (4, 0b01), (0, 0b11), (2, 0b01)] {
        call.decode(JobBlock(block), 0, &payload, members);
    }
    assert!(call.is_done());
    let runs = [Held { from: 0, len: 2, members: 0b11 }, Held { from: 2, len: 3, members: 1 }];
    assert_eq!(call.contributors(), runs);
    assert_eq!((call.report.contributors, call.report.partial), (0b01, 0b10));
    assert_eq!(call.report.missing_ranks(2).collect::<Vec<_>>(), [1]);
}

/// A vector of one block over two aggregators, while rank 1 is being lost. One worker has heard of
/// it when the second part begins, the other has not, and nothing travels in that part.
#[test]
fn a_part_without_blocks_says_nothing_of_contributors() {
    let part = |len, members| {
        let mut part =
            Call::new(Job::default(), 0, of(vec![1.0_f32; len], Op::Sum, Scaling::Fixed(1e6), 2));
        part.begin(JobBlock(0), 22, 0b11).expect("it can be cut");
        if len == 0 {
            part.report.contributors = members;
        } else {
            part.goes_over_ring();
            part.decode(JobBlock(0), 0, &[0; 1408], members);
        }
        part
    };
    for empty in [0b01, 0b11] {
        for parts in [[part(336, 0b11), part(0, empty)], [part(0, empty), part(336, 0b11)]] {
            let report = Report::of_parts(&parts);
            assert_eq!((report.contributors, report.partial), (0b11, 0), "{empty:b}");
            assert_eq!((report.blocks, report.path), (1, Path::Ring));
        }
    }
    // With blocks in both it is as it was, and a call without any names its members.
    let report = Report::of_parts(&[part(336, 0b11), part(336, 0b01)]);
    assert_eq!((report.blocks, report.contributors, report.partial), (2, 0b01, 0b10));
    assert_eq!(Report::of_parts(&[part(0, 0b01), part(0, 0b11)]).contributors, 0b01);
    assert_eq!(Report::of_parts(&[]), Report::default());
}

#[test]
fn every_argument_changes_the_digest() {
    let make = |sequence, len, op, scale| {
        Call::new(Job::default(), sequence, of(vec![0.0_f32; len], op, Scaling::Fixed(scale), 2))
            .digest
    };
    let tags = [
        make(0, 10, Op::Sum, 1.0),
        make(1, 10, Op::Sum, 1.0),
        make(0, 11, Op::Sum, 1.0),
        make(0, 10, Op::Average, 1.0),
        make(0, 10, Op::Sum, 2.0),
        Call::new(Job::default(), 0, of(vec![0.0_f32; 10], Op::Sum, Scaling::Block, 2)).digest,
        Call::new(Job::default(), 0, of(vec![0_i32; 10], Op::Sum, Scaling::Fixed(1.0), 2)).digest,
    ];
    for (i, tag) in tags.iter().enumerate() {
        assert!(!tags[..i].contains(tag), "{i}");
    }
}

/// The tags of four blocks in a row are the whole digest, in any order.
#[test]
fn four_blocks_say_the_digest() {
    let call = call(352 * 9);
    assert_eq!((call.report.blocks, call.seal), (9, None));
    for first in 0..6 {
        let mut tags: Vec<u16> = (first..first + 4).map(|b| call.tag(JobBlock(b))).collect();
        tags.rotate_right(first as usize % 4);
        let digest = tags.iter().rev().fold(0_u64, |digest, tag| digest << 16 | u64::from(*tag));
        assert_eq!(digest, call.digest, "{first}");
    }
}

/// Of a call with fewer blocks the seal tells what tags cannot: digests that differ in any bits,
/// whatever the reduction, how many members, and wherever it stands.
#[test]
fn a_seal_tells_digests_apart() {
    let kinds = [
        (Op::Sum, Scaling::Fixed(1e6), 10),
        (Op::Sum, Scaling::Fixed(1e6), 352),
        (Op::Average, Scaling::Block, 10),
        (Op::Min, Scaling::Block, 700),
        (Op::Max, Scaling::Block, 1000),
    ];
    for ((op, scaling, len), world) in
        kinds.into_iter().flat_map(|kind| [2, 3, 64].map(|w| (kind, w)))
    {
        for bit in [0, 7, 16, 40, 63] {
            let mut calls: Vec<_> = (0..world)
                .map(|_| {
                    let mut call =
                        Call::new(Job::default(), 0, of(vec![1.0_f32; len], op, scaling, world));
                    call.begin(JobBlock(0), 22, u64::MAX >> (64 - world)).expect("it can be cut");
                    call
                })
                .collect();
            let block = JobBlock(calls[0].seal.expect("it is short"));
            let reduction = calls[0].reduction(block);
            for odd in [false, true] {
                calls[0].digest ^= u64::from(odd) << bit;
                let seals = calls.iter().map(|call| sealing(call.digest, reduction));
                let seal = seals.reduce(|mut all, seal| {
                    for (held, word) in all.as_chunks_mut().0.iter_mut().zip(seal.as_chunks().0) {
                        let (a, b) = (u64::from_le_bytes(*held), u64::from_le_bytes(*word));
                        *held = match reduction {
                            Reduction::Add => a.wrapping_add(b),
                            Reduction::Max16 => extreme::<16>(a, b, Pick::MAX),
                            Reduction::Max32 => extreme::<32>(a, b, Pick::MAX),
                            _ => extreme::<32>(a, b, Pick::MIN),
                        }
                        .to_le_bytes();
                    }
                    all
                });
                let mut payload = vec![0; calls[0].lanes_len(block)];
                payload.extend(seal.expect("there are workers"));
                let agree = calls
                    .iter()
                    .filter(|call| call.is_of_all(block, &payload, call.report.contributors));
                assert_eq!(agree.count(), if odd { 0 } else { calls.len() }, "{op:?} {len} {bit}");
            }
        }
    }
}

/// What the aggregator does with the blocks of some workers of a world, as each gets it back.
fn all_reduce<T: Element>(
    inputs: &[Vec<T>],
    world: u16,
    op: Op,
    scaling: Scaling,
) -> Vec<(Report, Vec<T>)> {
    let members = (1_u64 << inputs.len()) - 1;
    let mut calls: Vec<_> = inputs
        .iter()
        .map(|input| {
            let mut call = Call::new(Job::default(), 0, of(input.clone(), op, scaling, world));
            call.begin(JobBlock(0), 1, members).expect("it can be cut");
            call
        })
        .collect();
    for block in 0..calls[0].report.blocks {
        let mut slot = [Lane::default(); 8];
        let mut flags = 0;
        for (rank, call) in calls.iter_mut().enumerate() {
            assert!(call.release() > JobBlock(block), "what it needs is here");
            let mut payload = vec![0xee; call.payload_len(JobBlock(block))];
            let marks = call.encode(JobBlock(block), true, &mut payload);
            flags |= marks.flags;
            assert_eq!(marks.reduction, call.reduction(JobBlock(block)));
            for (lanes, word) in slot.iter_mut().zip(payload.as_chunks().0) {
                let word = u64::from_le_bytes(*word);
                let held = lanes.bits();
                *lanes = Lane::new(match marks.reduction {
                    _ if rank == 0 => word,
                    Reduction::Add => held.wrapping_add(word),
                    Reduction::Max16 => extreme::<16>(held, word, Pick::MAX),
                    Reduction::Max32 => extreme::<32>(held, word, Pick::MAX),
                    Reduction::Min32 => extreme::<32>(held, word, Pick::MIN),
                    other => panic!("{other:?} is not tried here"),
                });
            }
        }
        let sum: Vec<u8> = slot.iter().flat_map(|lane| lane.bits().to_le_bytes()).collect();
        for call in &mut calls {
            let sum = &sum[..call.payload_len(JobBlock(block))];
            assert!(call.is_of_all(JobBlock(block), sum, members));
            call.decode(JobBlock(block), flags, sum, members);
        }
    }
    let ended = calls.into_iter().map(|call| {
        let report = call.report;
        let blocks: Box<dyn Any> = call.into_blocks();
        let local = blocks.downcast::<Local<T>>().expect("as it began");
        (report, local.into_buffer().into_owned())
    });
    ended.collect()
}

/// More groups than travel ahead of the data: 32 blocks of 16 elements each.
#[test]
fn exponents_are_agreed_ahead_of_the_data() {
    let len = 16 * 32 * 40 + 5;
    let input = |rank: usize| -> Vec<f32> {
        let size = |i: usize| 2_f32.powi(((i / 16 + rank * 7) % 100) as i32 - 50);
        (0..len).map(|i| size(i) * ((i * 31 + rank * 17) % 1001) as f32 / 1001.0).collect()
    };
    let inputs: Vec<_> = (0..3).map(input).collect();
    for (report, output) in all_reduce(&inputs, 4, Op::Sum, Scaling::Block) {
        assert_eq!((report.exponent_blocks, report.saturated), (41, 0));
        for (i, value) in output.iter().enumerate() {
            let exact: f64 = inputs.iter().map(|input| f64::from(input[i])).sum();
            let first = i / 16 * 16;
            let peak = inputs.iter().flat_map(|input| &input[first..(first + 16).min(len)]);
            let peak = peak.fold(0.0_f32, |a, b| a.max(b.abs()));
            // Half a step each, and one rounding to the result's type.
            let bound = f64::from(peak) * 2_f64.powi(-26) + exact.abs() * 2_f64.powi(-24);
            assert!((f64::from(*value) - exact).abs() <= bound, "{i}: {value} {exact}");
        }
    }
}

#[test]
fn the_smallest_and_the_largest_are_exact() {
    let inputs = vec![vec![1.5_f32, -2.0, 1e-40], vec![-0.25, 3e38, 0.0]];
    for (op, expected) in [(Op::Min, [-0.25, -2.0, 0.0]), (Op::Max, [1.5, 3e38, 1e-40])] {
        for (_, output) in all_reduce(&inputs, 2, op, Scaling::Block) {
            assert_eq!(output, expected);
        }
    }
}

/// A call with nothing of its own to send is all done before the job lets it begin. What others of
/// its host have to say of it is not lost.
#[derive(Debug)]
struct Fed(Format);

impl Blocks for Fed {
    fn format(&self) -> &Format {
        &self.0
    }
    fn vector_len(&self) -> usize {
        20
    }
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    fn cut(&mut self, _: u16) -> Result<u64, Error> {
        Ok(0)
    }
    fn elements(&self, _: DataBlock) -> usize {
        0
    }
    fn scanned(&self) -> DataBlock {
        DataBlock(0)
    }
    fn staged(&self) -> DataBlock {
        DataBlock(0)
    }
    fn key(&self, _: DataBlock) -> u16 {
        0
    }
    fn encode(&self, _: DataBlock, _: u16, _: &mut [u8]) -> xdp_agg_quantize::Encoded {
        xdp_agg_quantize::Encoded::default()
    }
    fn decode(&mut self, _: DataBlock, _: u16, _: Option<&[u8]>, _: u32) {}
    fn complete(&self, report: &mut Report) {
        report.contributors = 0b111;
    }
}

#[test]
fn a_call_that_is_done_before_it_begins_is_reported_whole() {
    let format = Format::new(ElementType::F32, Op::Sum, Scaling::Block, None, 3);
    let mut call = Call::new(Job::default(), 0, Box::new(Fed(format.expect("it makes sense"))));
    call.begin(JobBlock(7), 1, 0b101).expect("it can be cut");
    assert!(call.is_done());
    assert_eq!(call.report.contributors, 0b111);
}

#[test]
fn who_is_in_the_exponents_alone_is_no_contributor() {
    let mut call = Call::new(Job::default(), 0, of(vec![1.0_f32; 64], Op::Sum, Scaling::Block, 3));
    call.begin(JobBlock(0), 1, 0b111).expect("it can be cut");
    call.decode(JobBlock(0), 0, &[0; 64], 0b111);
    (1..5).for_each(|block| call.decode(JobBlock(block), 0, &[0; 64], 0b011));
    assert_eq!((call.report.contributors, call.report.partial), (0b011, 0));
    let runs = [Held { from: 0, len: 1, members: 0b111 }, Held { from: 1, len: 4, members: 3 }];
    assert_eq!(call.contributors(), runs);
}

const WORLDS: [(u16, usize); 6] = [(1, 1), (2, 2), (3, 2), (8, 8), (64, 5), (64, 63)];

/// Invariant 6: a NaN or an infinity of any worker makes its block NaN at every worker, and no
/// other block; also where not all of the world contribute.
#[test]
fn non_finite_values_reach_every_worker() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
        for ((world, members), op) in
            WORLDS.into_iter().flat_map(|w| [(w, Op::Sum), (w, Op::Average)])
        {
            for (at, of) in [(0, 0), (15, members / 2), (33, members - 1)] {
                let mut inputs = vec![vec![0.5_f32; 34]; members];
                inputs[of][at] = odd;
                for (report, output) in all_reduce(&inputs, world, op, Scaling::Fixed(1024.0)) {
                    assert_eq!(report.non_finite_blocks, 1);
                    for (i, value) in output.iter().enumerate() {
                        assert_eq!(value.is_nan(), i / 16 == at / 16, "{odd} {world} {op:?}");
                    }
                }
            }
        }
    }
}

/// A finite value stays finite. One that is too small becomes (positive) zero. One that is too
/// large becomes the nearest number that fits, and is counted at its owner.
#[test]
fn extreme_finite_values_are_rounded_or_clamped() {
    let tiny = [0.0, -0.0, f32::from_bits(1), -f32::from_bits(1), f32::MIN_POSITIVE / 2.0];
    for ((world, members), op) in WORLDS.into_iter().flat_map(|w| [(w, Op::Sum), (w, Op::Average)])
    {
        for scale in [1.0, 1e7, 1e30] {
            let inputs = vec![tiny.to_vec(); members];
            for (report, output) in all_reduce(&inputs, world, op, Scaling::Fixed(scale)) {
                assert_eq!((report.saturated, report.non_finite_blocks), (0, 0));
                assert_eq!(output.iter().map(|x| x.to_bits()).max(), Some(0), "{output:?}");
            }
            let mut inputs = vec![vec![0.0, 0.0]; members];
            inputs[0] = vec![f32::MAX, f32::MIN];
            let limit = f64::from(Bias::for_workers(world).max()) / scale;
            let share = if op == Op::Average { members as f64 } else { 1.0 };
            let all = all_reduce(&inputs, world, op, Scaling::Fixed(scale));
            assert!(all.iter().all(|(_, output)| *output == all[0].1));
            let [most, least] = all[0].1[..] else { panic!("two went in") };
            let near = |got: f32, want: f64| (f64::from(got) / want - 1.0).abs() < 1e-6;
            assert!(near(most, limit / share) && near(least, -limit / share), "{most} {least}");
            assert_eq!(all[0].0.saturated, 2);
            assert!(all[1..].iter().all(|(report, _)| report.saturated == 0));
        }
    }
}

/// A call of the only worker is summed from its own lanes, some blocks at a time. It takes none of
/// the job's numbers, and has no seal.
#[test]
fn the_only_workers_call_is_its_own_sum() {
    for len in [0, 1, 353, 100_000] {
        let numbers = |i: usize| (i as f32 - 700.5) * 0.37;
        let data: Vec<f32> = (0..len).map(numbers).collect();
        let mut call = Call::new(Job::default(), 3, of(data, Op::Sum, Scaling::Block, 1));
        call.alone = true;
        assert!(!call.sum_alone(1), "it has not begun");
        call.begin(JobBlock(7), 22, 1).expect("it can be cut");
        let mut steps = 0;
        while !call.is_done() {
            assert!(call.sum_alone(1), "{len}");
            steps += 1;
        }
        let blocks = len.div_ceil(352) as u64;
        assert_eq!(call.report.blocks, blocks + u64::from(len > 0), "keys, and no seal");
        assert!(steps >= call.report.blocks / AT_ONCE && !call.sum_alone(1));
        assert_eq!((call.report.path, call.end()), (Path::Host, JobBlock(7)));
        assert!(!call.holds(JobBlock(7)));
        let blocks: Box<dyn Any> = call.into_blocks();
        let local = blocks.downcast::<Local<f32>>().expect("these were given");
        let sums = local.into_buffer().into_owned();
        let near = |(i, x): (usize, &f32)| (x - numbers(i)).abs() <= numbers(i).abs() * 1e-6 + 1e-5;
        assert!(sums.len() == len && sums.iter().enumerate().all(near));
    }
}
