//! What C hands over: strings, places for results, vectors.
#![expect(unsafe_code, reason = "memory whose owner the compiler does not know")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;

use xdp_agg_client::lent::{
    Caller, DataType, InFlight, LentView, Memory, Options, Outcome, Reduction, Task, ViewInFlight,
};
use xdp_agg_client::{Error, Name};

use crate::failure::Failure;

const NULL: &str = "is a null pointer";

/// A string; `name` is the argument's.
///
/// # Safety
/// Null, or a string that ends with a zero and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let text = unsafe { optional_text(pointer, name) }?;
    text.ok_or_else(|| Failure::of(name, NULL))
}

/// The same; None: a null pointer.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: a string, as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| Failure::of(name, "is not UTF-8"))
}

/// What a handle stands for.
///
/// # Safety
/// Null, or what this library made and has not freed; for `'a` nobody frees or changes it.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::of(name, NULL))
}

/// The same, to change it.
///
/// # Safety
/// As [`handle`]; for `'a` nobody else looks at it.
pub(crate) unsafe fn handle_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::of(name, NULL))
}

/// A place for a result.
///
/// # Safety
/// Null, or memory for a `T` that is this function's caller's alone for `'a`.
pub(crate) unsafe fn place<'a, T>(
    pointer: *mut T,
    name: &str,
) -> Result<&'a mut MaybeUninit<T>, Failure> {
    // SAFETY: as the caller promises; what is there need not be a `T` yet.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| Failure::of(name, NULL))
}

/// Places for results.
///
/// # Safety
/// As [`place`], for `len` of them.
pub(crate) unsafe fn places<'a, T>(
    pointer: *mut T,
    len: usize,
    name: &str,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Failure::of(name, NULL));
    }
    // SAFETY: not null, and as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// Where a vector of C's begins; how long it is follows from the call that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent(*mut u8);

impl Lent {
    /// Null stands for no vector.
    ///
    /// # Safety
    /// Null, or valid for as many bytes as the header says of that call, and untouched by others
    /// until the call has ended. Where the header says const, the memory is only read: it is
    /// copied, and the call works on the copy.
    pub(crate) const unsafe fn new(pointer: *const c_void) -> Self {
        Self(pointer.cast_mut().cast())
    }

    pub(crate) const fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// The vector of a call that has this number of bytes there.
    pub(crate) const fn vector(self, bytes: usize) -> Vector {
        Vector { pointer: self.0, bytes }
    }
}

/// A vector that a call may read and write until it ends: C's or that of a [`Scratch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the contract of `Lent::new`: the lender leaves the vector to the call, on whatever thread
// the call is carried out.
unsafe impl Send for Vector {}

impl Vector {
    /// It begins where the other does.
    pub(crate) fn is_at(self, other: Self) -> bool {
        std::ptr::eq(self.pointer, other.pointer)
    }

    /// It has bytes in common with the other.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (start, others) = (self.pointer.addr(), other.pointer.addr());
        start < others.saturating_add(other.bytes) && others < start.saturating_add(self.bytes)
    }

    /// Refuses a vector that no call can be made on.
    pub(crate) fn check(self, name: &str, data_type: DataType) -> Result<(), Failure> {
        let size = data_type.size();
        if self.bytes == 0 {
            Ok(())
        } else if self.pointer.is_null() {
            Err(Failure::of(name, NULL))
        } else if !self.pointer.addr().is_multiple_of(size) {
            let problem = format!("is not aligned to its elements of {size} bytes");
            Err(Failure::of(name, &problem))
        } else {
            Ok(())
        }
    }

    /// These bytes of it.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {self:?}");
        Self { pointer: self.pointer.wrapping_add(range.start), bytes: range.len() }
    }

    /// Copies all of it to where the other begins.
    pub(crate) fn copy_to(self, other: Self) {
        assert_eq!(self.bytes, other.bytes, "vectors of one length");
        if self.bytes > 0 {
            // SAFETY: both are valid for that many bytes, by the contract of `Lent::new`;
            // they may overlap.
            unsafe { std::ptr::copy(self.pointer, other.pointer, self.bytes) };
        }
    }

    /// For a call.
    pub(crate) fn memory(self, data_type: DataType) -> Memory {
        if self.bytes == 0 {
            // SAFETY: there are no elements, so there is nothing to promise of them.
            return unsafe { Memory::new(std::ptr::dangling_mut::<u64>().cast(), 0, data_type) };
        }
        // SAFETY: the call's until its end, by the contract of `Lent::new`.
        unsafe { Memory::new(self.pointer, self.bytes / data_type.size(), data_type) }
    }
}

/// Memory of the library's own, for a vector that C does not let be written.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Words, so that it is aligned to every type of elements.
    words: Vec<u64>,
    bytes: usize,
}

impl Scratch {
    /// A copy.
    pub(crate) fn copy_of(vector: Vector) -> Self {
        let bytes = vector.bytes;
        let mut words = vec![0; bytes.div_ceil(size_of::<u64>())];
        let own = Vector { pointer: words.as_mut_ptr().cast(), bytes };
        vector.copy_to(own);
        Self { words, bytes }
    }

    /// Valid as long as this is, wherever it is moved.
    pub(crate) fn vector(&mut self) -> Vector {
        Vector { pointer: self.words.as_mut_ptr().cast(), bytes: self.bytes }
    }
}

/// What C wants to be asked while a thread waits in a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    function: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

// SAFETY: the function may be called with its argument by every thread that makes a call: the
// contract of `new`.
unsafe impl Send for Hook {}

impl Hook {
    /// Is asked with this argument.
    ///
    /// # Safety
    /// Every thread that makes a call may call `function` with `argument`, as long as calls are
    /// made.
    pub(crate) const unsafe fn new(
        function: unsafe extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> Self {
        Self { function, argument }
    }

    /// Asks. True: the call shall be given up.
    fn wants_to_end(self) -> bool {
        // SAFETY: the contract of `new`.
        unsafe { (self.function)(self.argument) != 0 }
    }
}

/// Makes a call on a vector's memory and waits for its end.
pub(crate) fn call(
    caller: &Caller,
    memory: Memory,
    task: &Task,
    (options, hook): (&Options, Option<Hook>),
) -> Result<Outcome, Error> {
    let mut interrupted = || hook.is_some_and(Hook::wants_to_end);
    // SAFETY: a vector's memory is valid, and the call's alone, until the call has ended: the
    // contract of `Lent::new`.
    unsafe { caller.call(memory, task, options, &mut interrupted) }
}

/// Makes an all-reduce that leaves a vector's memory alone, and waits for its end.
pub(crate) fn all_reduce_view(
    caller: &Caller,
    memory: Memory,
    reduction: Reduction,
    (options, hook): (&Options, Option<Hook>),
) -> Result<(LentView, Outcome), Error> {
    let mut interrupted = || hook.is_some_and(Hook::wants_to_end);
    // SAFETY: as in `call`; the memory is only read.
    unsafe { caller.all_reduce_view(memory, reduction, options, &mut interrupted) }
}

/// Starts a call on a vector's memory.
pub(crate) fn start(
    caller: &Caller,
    memory: Memory,
    task: Task,
    options: Options,
) -> Result<InFlight, Error> {
    // SAFETY: as in `call`.
    unsafe { caller.start(memory, task, options) }
}

/// Starts an all-reduce that leaves a vector's memory alone.
pub(crate) fn start_view(
    caller: &Caller,
    memory: Memory,
    reduction: Reduction,
    options: Options,
) -> Result<ViewInFlight, Error> {
    // SAFETY: as in `call`; the memory is only read.
    unsafe { caller.start_view(memory, reduction, options) }
}

/// A call that can be made.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) memory: Memory,
    pub(crate) task: Task,
    /// The caller's name for it.
    pub(crate) name: Option<Name>,
    pub(crate) after: After,
}

/// What is to be done when the call has ended well; what the call needs lives until then.
#[derive(Debug, Default)]
pub(crate) struct After {
    pub(crate) scratch: Option<Scratch>,
    /// Copied from the first to the second.
    pub(crate) copy: Option<(Vector, Vector)>,
}

impl After {
    /// Makes that copy.
    pub(crate) fn carry_out(self) {
        if let Some((from, to)) = self.copy {
            from.copy_to(to);
        }
        drop(self.scratch);
    }
}
