//! Calls on vectors that lie in the segment, and results that are read in place: beside those that
//! are copied, and whatever goes wrong. Each "process" is a thread with a mapping of its own.

mod common;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{input, on_all, peak, run, shape, sum};
use proptest::prelude::*;
use xdp_agg_intranode::{
    ABANDONED, Buffer, Error, Exchange, Feeder, Geometry, Group, MAX_VIEWS, Marks, Options, Placed,
    Results, View,
};

/// Where a process has its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Own,
    Segment,
    /// Where a result is no number the input is kept.
    Keeping,
    /// In its own memory, under which pages of the segment were put.
    Under,
}

/// A vector.
enum Vector {
    Own(Vec<u8>),
    Segment(Buffer),
    Under { _placed: Placed, pages: Pages },
}

/// Whole pages of this process's own, with `len` bytes of meaning.
struct Pages {
    memory: NonNull<u8>,
    layout: Layout,
    len: usize,
}

impl Pages {
    fn of(bytes: &[u8]) -> Self {
        let size = bytes.len().max(1).next_multiple_of(4096);
        let layout = Layout::from_size_align(size, 4096).expect("whole pages");
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        let mut pages = Self { memory, layout, len: bytes.len() };
        pages.bytes_mut().copy_from_slice(bytes);
        pages
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated, initialised, and this value's own.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }

    fn put_under(&mut self, group: &Arc<Group>) -> Result<Placed, Error> {
        // SAFETY: whole pages of this value's own, which stays until the call on them is over, and
        // is dropped behind what lies under it.
        unsafe { group.place(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

impl Vector {
    fn new(group: &Arc<Group>, place: Place, bytes: &[u8]) -> Self {
        if place == Place::Own {
            return Self::Own(bytes.to_vec());
        }
        if place == Place::Under && !bytes.is_empty() && group.local_size() > 1 {
            let mut pages = Pages::of(bytes);
            let _placed = pages.put_under(group).expect("room");
            return Self::Under { _placed, pages };
        }
        let mut buffer = group.buffer(bytes.len()).expect("room for a buffer");
        buffer.copy_from_slice(bytes);
        Self::Segment(buffer)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Segment(buffer) => buffer,
            Self::Under { pages, .. } => pages.bytes(),
        }
    }

    /// Where it is, if that may be in the segment.
    fn placed(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Own(_) => None,
            Self::Segment(buffer) => Some(buffer),
            Self::Under { pages, .. } => Some(pages.bytes_mut()),
        }
    }
}

/// A call on one, driven by one thread.
struct Call {
    feeder: Feeder,
    exchange: Arc<Exchange>,
    results: Option<Results>,
    vector: Vector,
    in_segment: bool,
    carried: u64,
    /// Blocks that were looked at, where the input is kept.
    kept: Vec<usize>,
}

/// Stands in for results that are no numbers: every seventh block of the vector has one.
fn is_number(start: usize) -> bool {
    !(start / 256).is_multiple_of(7)
}

impl Call {
    fn begin(
        group: &Arc<Group>,
        sequence: u64,
        len: usize,
        (place, is_view): (Place, bool),
    ) -> Result<Self, Error> {
        let data = input(sequence, group.local_rank(), len);
        let mut vector = Vector::new(group, place, &data);
        let m = group.slice_blocks(64 * 4);
        let geometry = Geometry::new(len, 64, m, group.local_size());
        let (mut feeder, exchange, results) = if is_view {
            let results = group.reserve_view(len * 4)?;
            let begun = group.begin_view(&shape(sequence, len), geometry, results)?;
            (begun.0, begun.1, Some(begun.2))
        } else {
            let begun = group.begin(&shape(sequence, len), geometry)?;
            (begun.0, begun.1, None)
        };
        let mut in_segment = false;
        if let Some(bytes) = vector.placed()
            && let Some(found) = group.find(bytes.as_mut_ptr(), bytes.len())
        {
            // SAFETY: the vector is this call's, and is not touched before the feeder is done or
            // the call is dropped.
            unsafe { feeder.adopt(found, place == Place::Keeping) };
            in_segment = true;
        }
        let (carried, kept) = (0, Vec::new());
        Ok(Self { feeder, exchange, results, vector, in_segment, carried, kept })
    }

    /// Does what there is to do for the vector; whether there was anything.
    fn feed(&mut self) -> Result<bool, Error> {
        let Self { feeder, vector, kept, results, .. } = self;
        let mut wanted = |place: std::ops::Range<usize>, _: &[u8]| {
            if !is_number(place.start) {
                kept.push(place.start);
            }
            true
        };
        let progress = match vector {
            _ if self.in_segment => feeder.poll_in_segment(&mut peak, &mut wanted),
            Vector::Own(bytes) if results.is_some() => {
                feeder.poll_reading(bytes, &mut peak, &mut wanted)
            }
            Vector::Own(bytes) => feeder.poll(bytes, &mut peak),
            // An empty vector has no place.
            Vector::Segment(bytes) if results.is_some() => {
                feeder.poll_reading(bytes, &mut peak, &mut wanted)
            }
            Vector::Segment(bytes) => feeder.poll(bytes, &mut peak),
            Vector::Under { .. } => panic!("it was not found in the segment"),
        };
        Ok(progress?.did)
    }

    /// Sums the next own block, if it is there.
    fn carry(&mut self) -> bool {
        let can = self.carried < self.exchange.staged().min(self.exchange.scanned());
        if can {
            carry(&self.exchange, self.carried);
            self.carried += 1;
        }
        can
    }

    fn turn(&mut self) -> Result<bool, Error> {
        let fed = self.feed()?;
        Ok(self.carry() || fed)
    }

    fn is_done(&self) -> bool {
        self.feeder.done() && self.exchange.finished()
    }

    fn finish(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while !self.is_done() {
            assert!(start.elapsed() < Duration::from_secs(60), "a call does not end");
            if !self.turn()? {
                self.feeder.wait(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn view(&mut self) -> View {
        let results = self.results.take().expect("a call with results in place");
        results.view().expect("the call is done")
    }
}

/// Stands in for the network, as `common::carry`, and hands the result out.
fn carry(exchange: &Exchange, j: u64) {
    let inputs = exchange.inputs(j);
    exchange.with_output(j, |out| {
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let each = inputs.iter().map(|input| input.as_chunks::<4>().0[i]);
            *out = each.fold(0_i32, |sum, x| sum.wrapping_add(i32::from_le_bytes(x))).to_le_bytes();
        }
    });
    drop(inputs);
    let (_, elements) = exchange.geometry().locate(exchange.local_rank(), j);
    exchange.hand_out(j, is_number(elements.start * 4));
    exchange.finish(j, Marks::default());
}

fn with_buffers(options: &mut Options) {
    options.segment = 1 << 20;
    options.buffers = 8 << 20;
}

/// What a process should have after a call: sums, and where it keeps its input, that.
fn expected(sequence: u64, size: usize, len: usize, (place, rank): (Place, usize)) -> Vec<u8> {
    let mut expected = sum(sequence, size, len);
    if place == Place::Keeping {
        let own = input(sequence, rank, len);
        for start in (0..expected.len()).step_by(256).filter(|start| !is_number(*start)) {
            let end = (start + 256).min(expected.len());
            expected[start..end].copy_from_slice(&own[start..end]);
        }
    }
    expected
}

fn places() -> impl Strategy<Value = Vec<(Vec<Place>, bool, usize)>> {
    let place = prop_oneof![
        Just(Place::Own),
        Just(Place::Segment),
        Just(Place::Keeping),
        Just(Place::Under)
    ];
    let call = (prop::collection::vec(place, 3), any::<bool>(), 0_usize..60_000);
    prop::collection::vec(call, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Calls side by side, each process with its vector in its own memory or in the segment, with
    /// results in place or not: all sums are those of the inputs.
    #[test]
    fn sums_are_the_same_wherever_vectors_are(calls in places(), size in 1_usize..4) {
        let ended = AtomicUsize::new(0);
        run(size, with_buffers, move |group| {
            let rank = group.local_rank();
            // Two calls at a time have room, where none of before is left.
            for (round, calls) in calls.chunks(2).enumerate() {
                let sequence = |index: usize| (round * 2 + index) as u64;
                let mut running: Vec<_> = calls.iter().enumerate().map(|(index, call)| {
                    let (places, is_view, len) = call;
                    Call::begin(&group, sequence(index), *len, (places[rank], *is_view))
                        .expect("a call")
                }).collect();
                while !running.iter().all(Call::is_done) {
                    let turns = running.iter_mut().map(|call| call.turn().expect("a turn"));
                    if turns.filter(|did| *did).count() == 0 {
                        std::thread::yield_now();
                    }
                }
                for (index, (call, (places, is_view, len))) in
                    running.iter_mut().zip(calls).enumerate()
                {
                    let (sequence, place) = (sequence(index), places[rank]);
                    let summed = sum(sequence, size, *len);
                    if *is_view {
                        call.feed().expect("nothing is left to do");
                        assert!(call.view()[..] == summed, "{sequence} read in place");
                        let own = input(sequence, rank, *len);
                        assert!(call.vector.bytes() == own, "{sequence} the input stays");
                    } else {
                        let expected = expected(sequence, size, *len, (place, rank));
                        assert!(call.vector.bytes() == expected, "{sequence} {place:?}");
                    }
                    if place == Place::Keeping && *len > 0 {
                        let mut kept = call.kept.clone();
                        kept.sort_unstable();
                        let all: Vec<_> = (0..len * 4).step_by(256)
                            .filter(|start| !is_number(*start)).collect();
                        assert_eq!(kept, all, "each is told of once");
                    }
                }
                drop(running);
                ended.fetch_add(1, SeqCst);
                let start = Instant::now();
                while ended.load(SeqCst) < size * (round + 1) {
                    assert!(start.elapsed() < Duration::from_secs(60), "another process failed");
                    std::thread::yield_now();
                }
            }
        });
    }
}

/// Waits until two processes have come here.
fn both(come: &AtomicUsize) {
    let (_, start) = (come.fetch_add(1, SeqCst), Instant::now());
    while come.load(SeqCst) < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "the other one failed");
        std::thread::yield_now();
    }
}

/// The others sum what a process had when the call began, although its call has failed meanwhile
/// and its caller has written something else there. Nobody gets that memory for something else.
#[test]
fn inputs_of_a_failed_call_stay_as_they_were() {
    // Of the shorter one all is staged: its last page is not full.
    [40_000, 3000].into_iter().for_each(|len| fail_with_inputs(Place::Segment, len));
}

/// The same of a vector in memory of the process's own, under which pages of the segment lie.
#[test]
fn inputs_in_pages_under_a_failed_call_stay_as_they_were() {
    [40_000, 3000].into_iter().for_each(|len| fail_with_inputs(Place::Under, len));
}

fn fail_with_inputs(place: Place, len: usize) {
    let (told, failed) = channel();
    let (told_back, looked) = channel();
    let [failed, looked] = [failed, looked].map(std::sync::Mutex::new);
    let staged = AtomicUsize::new(0);
    run(2, with_buffers, move |group| {
        let mut call = Call::begin(&group, 1, len, (place, false)).expect("a call");
        let start = Instant::now();
        while call.exchange.staged() == 0 {
            assert!(start.elapsed() < Duration::from_secs(20));
            call.feed().expect("a step");
        }
        both(&staged);
        if group.local_rank() == 0 {
            let Call { feeder, exchange, mut vector, .. } = call;
            drop((feeder, exchange));
            let bytes = vector.placed().expect("it is in the segment");
            assert!(bytes[..] == input(1, 0, len), "the caller still has it");
            bytes.fill(0xee);
            assert!(group.find(bytes.as_mut_ptr(), bytes.len()).is_none(), "it is shared");
            drop(vector);
            told.send(()).expect("the other is there");
            // The group stays until the other has looked.
            let _ = looked.lock().expect("one waits").recv_timeout(Duration::from_secs(30));
            return;
        }
        failed.lock().expect("one waits").recv().expect("the other fails");
        // All the room there is: none of it is where the other's vector was.
        let mut rest = Vec::new();
        while let Ok(mut buffer) = group.buffer(64 << 10) {
            buffer.fill(0xdd);
            rest.push(buffer);
        }
        assert!(rest.len() > 50, "{}", rest.len());
        for j in 0..call.exchange.staged() {
            let inputs = call.exchange.inputs(j);
            let (_, elements) = call.exchange.geometry().locate(1, j);
            let place = elements.start * 4..elements.end * 4;
            for rank in 0..2 {
                let own = &input(1, rank, len)[place.clone()];
                assert!(*inputs[rank] == *own, "input of {rank}, block {j}");
            }
        }
        let error = call.finish().expect_err("the other gave up");
        assert!(matches!(error, Error::PeerLeft { .. } | Error::Elsewhere { .. }), "{error}");
        if let Error::Elsewhere { local_rank, code, .. } = error {
            assert_eq!((local_rank, code), (0, ABANDONED));
        }
        told_back.send(()).expect("the other is there");
    });
}

/// The same of a result that is read in place, and that a process gave to another call as input.
#[test]
fn a_result_that_a_failed_call_has_stays_as_it_was() {
    let len = 40_000;
    let (told, failed) = channel();
    let (told_back, looked) = channel();
    let [failed, looked] = [failed, looked].map(std::sync::Mutex::new);
    let staged = AtomicUsize::new(0);
    run(2, with_buffers, move |group| {
        let mut first = Call::begin(&group, 1, len, (Place::Own, true)).expect("a call");
        first.finish().expect("a result");
        let view = first.view();
        drop(first);
        let own = input(2, group.local_rank(), len);
        let geometry = Geometry::new(len, 64, group.slice_blocks(64 * 4), 2);
        let results = group.reserve_view(len * 4).expect("it has one");
        let begun = group.begin_view(&shape(2, len), geometry, results).expect("a call");
        let (mut feeder, exchange, results) = begun;
        let is_first = group.local_rank() == 0;
        if is_first {
            let found = group.find(view.as_ptr().cast_mut(), view.len());
            // SAFETY: the result stays until the call is dropped, and nobody writes to it.
            unsafe { feeder.adopt(found.expect("it is in the segment"), false) };
        }
        let start = Instant::now();
        while exchange.staged() == 0 {
            assert!(start.elapsed() < Duration::from_secs(20));
            let did = match is_first {
                true => feeder.poll_in_segment(&mut peak, &mut |_, _| true),
                false => feeder.poll_reading(&own, &mut peak, &mut |_, _| true),
            };
            did.expect("a step");
        }
        both(&staged);
        if is_first {
            drop((feeder, exchange, results));
            drop(view);
            told.send(()).expect("the other is there");
            // The group stays until the other has looked.
            let _ = looked.lock().expect("one waits").recv_timeout(Duration::from_secs(30));
            return;
        }
        drop(view);
        failed.lock().expect("one waits").recv().expect("the other fails");
        let mut rest = Vec::new();
        while let Ok(mut buffer) = group.buffer(64 << 10) {
            buffer.fill(0xdd);
            rest.push(buffer);
        }
        assert!(rest.len() > 50, "{}", rest.len());
        let (_, elements) = exchange.geometry().locate(1, 0);
        let place = elements.start * 4..elements.end * 4;
        assert!(*exchange.inputs(0)[0] == sum(1, 2, len)[place], "the result is gone");
        told_back.send(()).expect("the other is there");
    });
}

/// A result where the input was, and the input asked for again: no wrong sum goes out.
#[test]
#[should_panic(expected = "a thread")]
fn inputs_are_gone_where_results_are() {
    run(1, with_buffers, |group| {
        let mut call = Call::begin(&group, 1, 1000, (Place::Segment, false)).expect("a call");
        while call.exchange.staged() == 0 {
            call.feed().expect("a step");
        }
        call.exchange.with_output(0, |out| out.fill(0));
        call.exchange.hand_out(0, true);
        drop(call.exchange.inputs(0));
    });
}

/// Memory under which pages were put is the process's own again afterwards, with what is in it, and
/// the room is free. What is no whole page is refused.
#[test]
fn pages_come_under_memory_and_go() {
    run(2, with_buffers, |group| {
        let rank = group.local_rank();
        let mut pages = Pages::of(&input(1, rank, 25_000));
        for round in 0..200 {
            let placed = pages.put_under(&group).expect("room comes back");
            let (start, len) = (pages.bytes_mut().as_mut_ptr(), pages.len);
            assert!(pages.bytes() == input(1 + round, rank, 25_000), "{round}");
            assert!(group.find(start, len).is_some() && group.find(start, len + 4096).is_none());
            assert!(group.find(start.wrapping_add(100), len - 100).is_some());
            pages.bytes_mut().copy_from_slice(&input(2 + round, rank, 25_000));
            drop(placed);
            assert!(group.find(start, len).is_none());
        }
        assert!(pages.bytes() == input(201, rank, 25_000));
        // SAFETY: memory that is refused is not touched.
        let odd = unsafe { group.place(pages.memory.as_ptr().wrapping_add(64), 4096) };
        assert!(matches!(odd, Err(Error::Config { .. })), "{odd:?}");
        let mut large = Pages::of(&vec![7; 9 << 20]);
        let error = large.put_under(&group).expect_err("larger than all there is");
        assert!(matches!(error, Error::BufferRoom { .. }), "{error}");
        assert!(large.bytes().iter().all(|byte| *byte == 7));
        group.barrier().expect("both come");
    });
}

/// What this process itself reads in place leaves no room: that is told at once, and it comes back.
#[test]
fn a_process_does_not_wait_for_its_own_views() {
    run(1, with_buffers, |group| {
        let held: Vec<_> = (0..2).map(|_| group.reserve_view(3 << 20).expect("room")).collect();
        let start = Instant::now();
        let error = group.reserve_view(3 << 20).expect_err("its own leave no room");
        let Error::BufferRoom { wanted, advised, .. } = error else { panic!("{error}") };
        assert!(wanted == 3 << 20 && advised >= 9 << 20, "{advised}");
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(held);
        let all: Vec<_> = (0..MAX_VIEWS).map(|_| group.reserve_view(4).expect("room")).collect();
        let error = group.reserve_view(4).expect_err("there are enough");
        assert_eq!(error, Error::TooManyViews { most: MAX_VIEWS });
        let other = all.into_iter().next().expect("one");
        let geometry = Geometry::new(1000, 64, 1, 1);
        let wrong = group.begin_view(&shape(1, 1000), geometry, other);
        assert!(matches!(wrong, Err(Error::Config { .. })), "a place for other results");
        group.reserve_view(7 << 20).expect("a place is free again when its call could not begin");
    });
}

/// A view is as good as long as it is there, its room comes back with the last one, and how many
/// there may be is said.
#[test]
fn views_come_and_go() {
    on_all(2, |group| {
        let error = group.check_room(4).expect_err("no room is set apart");
        let Error::BufferRoom { advised, room: 0, .. } = error else { panic!("{error}") };
        assert!(advised.is_multiple_of(1 << 20) && advised > 0, "{advised}");
    });
    run(2, with_buffers, |group| {
        let len = 200_000;
        let call = |sequence: u64| {
            let mut call = Call::begin(&group, sequence, len, (Place::Own, true)).expect("a call");
            assert!(call.results.is_some());
            call.finish().expect("a result");
            call.view()
        };
        let views: Vec<_> = (0..MAX_VIEWS as u64).map(call).collect();
        let error = group.reserve_view(4).expect_err("there are enough");
        assert_eq!(error, Error::TooManyViews { most: MAX_VIEWS });
        for (sequence, view) in (0..).zip(&views) {
            assert!(view[..] == sum(sequence, 2, len), "{sequence}");
        }
        drop(views);
        // Far more than there is room for, one after the other. The other process may be slower.
        for sequence in 100..150 {
            let view = call(sequence);
            assert!(view[..] == sum(sequence, 2, len), "{sequence}");
        }
        let error = group.reserve_view(9 << 20).expect_err("larger than all there is");
        let Error::BufferRoom { advised, .. } = error else { panic!("{error}") };
        assert!(advised >= 9 << 20, "{advised}");
        group.barrier().expect("both come");
    });
    // What is advised is enough.
    run(
        1,
        |options| options.buffers = 9 << 20,
        |group| {
            group.buffer(9 << 20).expect("as much as is set apart");
        },
    );
}

/// Results are given out by a call that is done, and by no other.
#[test]
fn there_is_no_view_of_half_a_result() {
    run(1, with_buffers, |group| {
        let mut call = Call::begin(&group, 1, 100_000, (Place::Segment, true)).expect("a call");
        while call.exchange.staged() == 0 {
            call.feed().expect("a step");
        }
        assert!(call.carry());
        assert!(call.results.take().expect("one with results in place").view().is_none());
    });
}

/// Processes that want results in different ways are told so.
#[test]
fn a_view_that_others_do_not_want_is_a_mismatch() {
    let errors = run(2, with_buffers, |group| {
        let is_view = group.local_rank() == 1;
        let call = Call::begin(&group, 7, 5000, (Place::Segment, is_view));
        call.and_then(|mut call| call.finish()).expect_err("they differ")
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
}
