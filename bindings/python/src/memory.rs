//! The one module with `unsafe`: memory of Python's is lent to calls, and what DLPack exports is
//! read.
#![expect(
    unsafe_code,
    reason = "calls write into memory that Python owns, and DLPack hands over C structures"
)]

use std::ffi::{CStr, c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use xdp_agg_client::lent::{
    Caller, DataType, InFlight, LentView, Memory, Options, Outcome, Placed, Reduction, Task,
    ViewInFlight,
};
use xdp_agg_client::{Error, SharedBuffer};

/// Memory of an object of Python's, and what keeps it where it is.
#[derive(Debug)]
pub(crate) struct Loan {
    address: usize,
    /// Elements.
    len: usize,
    data_type: DataType,
    /// Keeps the memory alive. None: the caller that named the address answers for it.
    keep: Option<Py<PyAny>>,
}

impl Loan {
    /// Memory that lives, writable, as long as `keep`; `address` is a multiple of the element's
    /// size, unless `len` is 0.
    pub(crate) fn kept(address: usize, len: usize, data_type: DataType, keep: Py<PyAny>) -> Self {
        Self { address, len, data_type, keep: Some(keep) }
    }

    /// Memory at an address that Python code answers for: it must stay, and be left alone, until
    /// the call has ended.
    pub(crate) fn at(address: usize, len: usize, data_type: DataType) -> Self {
        Self { address, len, data_type, keep: None }
    }

    /// No memory, for a barrier.
    pub(crate) fn nothing() -> Self {
        Self { address: 0, len: 0, data_type: DataType::U8, keep: None }
    }

    /// Elements.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// What keeps the memory.
    pub(crate) fn take_keep(&mut self) -> Option<Py<PyAny>> {
        self.keep.take()
    }

    fn memory(&self, task: &Task) -> Memory {
        if matches!(task, Task::Barrier) {
            return Memory::none();
        }
        // Nothing is read or written where there are no elements, but the pointer must be aligned.
        let address = if self.len == 0 { self.data_type.size() } else { self.address };
        // SAFETY: `kept` and `at` say what keeps the memory valid for reads and writes, and
        // aligned.
        // That nobody else touches it meanwhile is what the documentation of every call asks for.
        unsafe { Memory::new(address as *mut u8, self.len, self.data_type) }
    }

    /// Carries out a call on this thread. The loan lives as long as this borrow of it.
    pub(crate) fn call(
        &self,
        caller: &Caller,
        task: &Task,
        options: &Options,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        // SAFETY: the memory is kept by `self` until this function returns, and the call has ended
        // then.
        unsafe { caller.call(self.memory(task), task, options, interrupted) }
    }

    /// Carries out an all-reduce that leaves the memory alone.
    pub(crate) fn all_reduce_view(
        &self,
        caller: &Caller,
        reduction: Reduction,
        options: &Options,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(SharedResult, Outcome), Error> {
        let memory = self.memory(&Task::AllReduce(reduction));
        // SAFETY: as in `call`.
        let done = unsafe { caller.all_reduce_view(memory, reduction, options, interrupted) };
        done.map(|(bytes, outcome)| (SharedResult::new(bytes), outcome))
    }

    /// Starts a call. `self`, or what [`Self::take_keep`] gives, must be kept until the call is
    /// done.
    pub(crate) fn start(
        &self,
        caller: &Caller,
        task: Task,
        options: Options,
    ) -> Result<InFlight, Error> {
        let memory = self.memory(&task);
        // SAFETY: the callers keep the loan in a closure that is dropped when the call is done.
        unsafe { caller.start(memory, task, options) }
    }

    /// The same of an all-reduce that leaves the memory alone.
    pub(crate) fn start_view(
        &self,
        caller: &Caller,
        reduction: Reduction,
        options: Options,
    ) -> Result<ViewInFlight, Error> {
        let memory = self.memory(&Task::AllReduce(reduction));
        // SAFETY: as in `start`.
        unsafe { caller.start_view(memory, reduction, options) }
    }
}

/// Memory in the segment that the processes of a host share, for arrays of Python's: they keep this
/// object, and it keeps the memory.
#[pyclass(module = "xdp_agg._xdp_agg", name = "_SharedMemory", frozen)]
pub(crate) struct SharedMemory {
    address: usize,
    bytes: usize,
    /// Whole words, so that elements of every type are aligned also where it is private.
    _words: SharedBuffer<u64>,
}

impl SharedMemory {
    /// `bytes` zeros.
    pub(crate) fn new(caller: &Caller, bytes: usize) -> Result<Self, Error> {
        let mut words = caller.communicator().buffer::<u64>(bytes.div_ceil(8))?;
        let address = words.as_mut_ptr() as usize;
        Ok(Self { address, bytes, _words: words })
    }
}

#[pymethods]
impl SharedMemory {
    /// The buffer protocol: writable bytes.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (address, bytes) = (slf.get().address, slf.get().bytes);
        let object = slf.as_ptr();
        // SAFETY: `view` is the interpreter's. The memory is valid as long as the object, of which
        // the view gets a reference, and nothing of Rust's touches it but calls.
        let filled = unsafe {
            let memory = address as *mut c_void;
            ffi::PyBuffer_FillInfo(view, object, memory, bytes as ffi::Py_ssize_t, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Memory of another object's, under which pages of that memory lie as long as this is there.
#[pyclass(module = "xdp_agg._xdp_agg", name = "_PlacedMemory", frozen)]
pub(crate) struct PlacedMemory {
    _placed: Placed,
    /// Keeps the memory mapped; dropped behind it.
    _keep: Py<PyAny>,
}

impl PlacedMemory {
    /// None where each process is a worker of its own. `keep` keeps the memory, which Python code
    /// answers for: whole pages of its own that nothing touches while this runs, nor while the
    /// object is dropped, and that no call has then.
    pub(crate) fn new(
        caller: &Caller,
        (address, bytes): (usize, usize),
        keep: Py<PyAny>,
    ) -> Result<Option<Self>, Error> {
        // SAFETY: what Python code answers for; `keep` is dropped last.
        let placed = unsafe { caller.place(address as *mut u8, bytes) }?;
        Ok(placed.map(|placed| Self { _placed: placed, _keep: keep }))
    }
}

/// The result of a call, to read, for arrays of Python's: they keep this object, and it keeps the
/// memory.
#[pyclass(module = "xdp_agg._xdp_agg", name = "_SharedResult", frozen)]
pub(crate) struct SharedResult {
    bytes: LentView,
}

impl SharedResult {
    pub(crate) const fn new(bytes: LentView) -> Self {
        Self { bytes }
    }
}

#[pymethods]
impl SharedResult {
    /// The buffer protocol: bytes to read. A caller that asks for bytes to write gets a
    /// `BufferError`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().bytes;
        let object = slf.as_ptr();
        // SAFETY: `view` is the interpreter's. The memory is valid as long as the object, of which
        // the view gets a reference. The view is read-only, and nobody writes to a result.
        let filled = unsafe {
            let memory = bytes.as_ptr().cast_mut().cast();
            ffi::PyBuffer_FillInfo(view, object, memory, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// Whether all processes of the host read the same memory.
    #[getter]
    fn is_shared(&self) -> bool {
        self.bytes.is_shared()
    }
}

/// What is in a capsule of DLPack.
#[derive(Debug)]
pub(crate) struct Exported {
    /// Address of the first element.
    pub(crate) address: usize,
    /// Kind of the elements: 0 signed, 1 unsigned, 2 float, 4 bfloat16, 5 complex, 6 bool.
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    /// Of the device; 1 is the host.
    pub(crate) device: i32,
    /// Elements in each dimension.
    pub(crate) shape: Vec<i64>,
    /// Elements from one to the next in each dimension. None: row by row, without gaps.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) is_read_only: bool,
    /// The exporter made a copy: nobody would see what is written there.
    pub(crate) is_copy: bool,
}

#[repr(C)]
struct Device {
    kind: i32,
    _id: i32,
}

#[repr(C)]
struct Kind {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    kind: Kind,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, as far as it is read.
#[repr(C)]
struct Managed {
    tensor: Tensor,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    _minor: u32,
    _context: *mut c_void,
    _deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// Layout of `DLManagedTensorVersioned` that this module knows.
const MAJOR: u32 = 1;

/// Reads what a capsule of DLPack describes. Its tensor stays the capsule's: the memory lives as
/// long as the capsule does.
///
/// # Errors
/// It is not such a capsule, has been used already, or is of a later version.
pub(crate) fn exported(capsule: &Bound<'_, PyCapsule>) -> Result<Exported, String> {
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer =
            capsule.pointer_checked(Some(VERSIONED)).map_err(|error| error.to_string())?;
        let managed: *const Versioned = pointer.as_ptr().cast_const().cast();
        // SAFETY: DLPack's specification: a capsule of this name points to this structure, whose
        // first field tells the layout of the rest. It is alive while the capsule is.
        let major = unsafe { (*managed).major };
        if major != MAJOR {
            return Err(format!("it exports version {major} of DLPack's structures; expected 1"));
        }
        // SAFETY: the version is the one of this layout.
        let Versioned { flags, tensor, .. } = unsafe { &*managed };
        let (is_read_only, is_copy) = (flags & 1 != 0, flags & 2 != 0);
        // SAFETY: as above.
        return Ok(Exported { is_read_only, is_copy, ..unsafe { read(tensor) } });
    }
    if capsule.is_valid_checked(Some(PLAIN)) {
        let pointer = capsule.pointer_checked(Some(PLAIN)).map_err(|error| error.to_string())?;
        let managed: *const Managed = pointer.as_ptr().cast_const().cast();
        // SAFETY: DLPack's specification: a capsule of this name points to a `DLManagedTensor`,
        // which begins with the tensor and is alive while the capsule is.
        return Ok(unsafe { read(&(*managed).tensor) });
    }
    Err("what `__dlpack__` gave is no capsule of DLPack that is still unused".into())
}

/// Copies what a tensor says of itself.
///
/// # Safety
/// `shape`, and `strides` unless it is null, point to as many numbers as there are dimensions.
unsafe fn read(tensor: &Tensor) -> Exported {
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let numbers = |pointer: *const i64| {
        if pointer.is_null() || dimensions == 0 {
            return Vec::new();
        }
        // SAFETY: the caller says so.
        unsafe { std::slice::from_raw_parts(pointer, dimensions) }.to_vec()
    };
    Exported {
        address: (tensor.data as usize).wrapping_add(tensor.byte_offset as usize),
        code: tensor.kind.code,
        bits: tensor.kind.bits,
        lanes: tensor.kind.lanes,
        device: tensor.device.kind,
        shape: numbers(tensor.shape),
        strides: (!tensor.strides.is_null()).then(|| numbers(tensor.strides)),
        is_read_only: false,
        is_copy: false,
    }
}
