//! Arrays of NumPy, PyTorch and others as memory for calls.
//!
//! Calls work in place, so an array has to be writable memory of this host, element after element,
//! of a type that is summed. What is not is refused, with what to do about it.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};
use xdp_agg_client::lent::DataType;

use crate::dlpack;
use crate::memory::Loan;

/// The types that can be summed, by their names in NumPy.
const TYPES: &str = "float32, float16, bfloat16, float64, int8, int16, int32, int64, uint8, bool";

/// The memory of an array of any shape: NumPy's, PyTorch's on the CPU, whatever has the buffer
/// protocol, and whatever exports DLPack on the host.
///
/// # Errors
/// `TypeError`: it is not an array, or its type is not summed. `ValueError`: it is read-only, has
/// gaps, or is not on this host.
pub(crate) fn lend(array: &Bound<'_, PyAny>) -> PyResult<Loan> {
    lend_for(array, Use::Written)
}

/// The same for a call that only reads it: it may be read-only.
///
/// # Errors
/// As [`lend`].
pub(crate) fn lend_reading(array: &Bound<'_, PyAny>) -> PyResult<Loan> {
    lend_for(array, Use::Read)
}

/// What a call does with an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Written,
}

fn lend_for(array: &Bound<'_, PyAny>, what: Use) -> PyResult<Loan> {
    let module = array.get_type().module()?.to_string();
    match module.split('.').next().unwrap_or_default() {
        "numpy" => return from_numpy(array, what),
        "jax" | "jaxlib" => {
            return Err(PyTypeError::new_err(
                "arrays of JAX are immutable, so nothing can be summed in place; use \
                 xdp_agg.jax.all_reduce, which returns new arrays",
            ));
        }
        "tensorflow" => {
            return Err(PyTypeError::new_err(
                "tensors of TensorFlow are immutable, so nothing can be summed in place; copy it: \
                 numpy.array(tensor)",
            ));
        }
        _ => {}
    }
    if is_torch(array)? {
        return from_torch(array);
    }
    if let Ok(view) = PyMemoryView::from(array) {
        return from_buffer(&view, what);
    }
    if array.hasattr("__array_interface__")? {
        return from_interface(array, what);
    }
    if array.hasattr("__dlpack__")? {
        return dlpack::lend(array);
    }
    Err(PyTypeError::new_err(format!(
        "{} is no array whose memory could be summed in place; expected a NumPy array, a PyTorch \
         tensor on the CPU, or an object with the buffer protocol or DLPack",
        name_of(array)
    )))
}

/// The same where all that has to be checked is known: `len` elements from `address` on, kept by
/// `keep`.
///
/// # Errors
/// `ValueError`: an address where such elements cannot be.
pub(crate) fn kept(
    address: usize,
    len: usize,
    data_type: DataType,
    keep: &Bound<'_, PyAny>,
) -> PyResult<Loan> {
    if len > 0 && !address.is_multiple_of(data_type.size()) {
        return Err(PyValueError::new_err(format!(
            "the array's memory is not aligned for elements of {} bytes; copy it: \
             numpy.array(array)",
            data_type.size()
        )));
    }
    Ok(Loan::kept(address, len, data_type, keep.clone().unbind()))
}

/// The type's name, for messages.
pub(crate) fn name_of(array: &Bound<'_, PyAny>) -> String {
    array
        .get_type()
        .fully_qualified_name()
        .map_or_else(|_| "this object".into(), |name| name.to_string())
}

/// A type that is not summed.
pub(crate) fn wrong_type(found: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "elements of type {found} are not summed; expected one of {TYPES}: convert it, such as by \
         array.astype(\"float32\")"
    ))
}

/// Memory that must not be written.
pub(crate) fn read_only() -> PyErr {
    PyValueError::new_err(
        "the array is read-only, and calls work in place; pass a copy: numpy.array(array)",
    )
}

/// Memory with gaps, or in another order.
pub(crate) fn gaps() -> PyErr {
    PyValueError::new_err(
        "the array's elements are not one after the other in memory, row by row; pass a copy and \
         copy the result back: numpy.ascontiguousarray(array), tensor.contiguous()",
    )
}

/// The number of elements of a shape; None: it is too large, or a dimension is below 0.
pub(crate) fn count(shape: &[i64]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |product, size| product.checked_mul(usize::try_from(*size).ok()?))
}

/// Row by row without gaps; strides in units of `unit`. Dimensions of one element have any stride.
pub(crate) fn is_dense(shape: &[i64], strides: Option<&[i64]>, unit: i64) -> bool {
    let Some(strides) = strides else { return true };
    if shape.contains(&0) {
        return true;
    }
    let mut expected = unit;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected = expected.saturating_mul(*size);
            fits
        })
}

fn from_numpy(array: &Bound<'_, PyAny>, what: Use) -> PyResult<Loan> {
    match PyMemoryView::from(array) {
        Ok(view) => from_buffer(&view, what),
        // Types that NumPy knows from others, such as bfloat16, have no format there.
        Err(_) if array.hasattr("__array_interface__")? => from_interface(array, what),
        Err(error) => Err(error),
    }
}

/// The buffer protocol. The view keeps the memory: its owner must not move it as long as there is
/// one.
fn from_buffer(view: &Bound<'_, PyMemoryView>, what: Use) -> PyResult<Loan> {
    // PyO3 takes no buffer without a shape; as bytes a single number has one.
    let is_number = view.getattr("ndim")?.extract::<usize>()? == 0;
    let bytes = if is_number { Some(view.call_method1("cast", ("B",))?) } else { None };
    let buffer = PyUntypedBuffer::get(bytes.as_ref().unwrap_or_else(|| view.as_any()))?;
    if buffer.readonly() && what == Use::Written {
        return Err(read_only());
    }
    let format: String = view.getattr("format")?.extract()?;
    let size: usize = view.getattr("itemsize")?.extract()?;
    let data_type = of_format(format.as_bytes(), size).ok_or_else(|| {
        wrong_type(&format!("{format:?} (of the buffer protocol, {size} bytes each)"))
    })?;
    if !buffer.is_c_contiguous() {
        return Err(gaps());
    }
    kept(buffer.buf_ptr() as usize, buffer.len_bytes() / size, data_type, view)
}

/// The type of a format of the module `struct`: one letter, with the byte order of this machine.
fn of_format(format: &[u8], size: usize) -> Option<DataType> {
    let foreign: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    let letter = match format {
        [letter] => letter,
        [order, letter] if size == 1 || !foreign.contains(order) => letter,
        _ => return None,
    };
    match (letter, size) {
        (b'f', 4) => Some(DataType::F32),
        (b'd', 8) => Some(DataType::F64),
        (b'e', 2) => Some(DataType::F16),
        (b'?', 1) => Some(DataType::Bool),
        (b'B', 1) => Some(DataType::U8),
        (b'b', 1) => Some(DataType::I8),
        (b'h', 2) => Some(DataType::I16),
        (b'i' | b'l', 4) => Some(DataType::I32),
        (b'l' | b'q' | b'n', 8) => Some(DataType::I64),
        _ => None,
    }
}

/// NumPy's `__array_interface__`, for arrays of bfloat16 (ml_dtypes).
fn from_interface(array: &Bound<'_, PyAny>, what: Use) -> PyResult<Loan> {
    let name = array.getattr("dtype").and_then(|of| of.getattr("name")?.extract::<String>());
    let name = name.unwrap_or_else(|_| name_of(array));
    if name != "bfloat16" {
        return Err(wrong_type(&name));
    }
    let interface = array.getattr("__array_interface__")?.cast_into::<PyDict>()?;
    let item = |key: &str| {
        let found = interface.get_item(key)?;
        found.ok_or_else(|| {
            PyValueError::new_err(format!("{} has no {key} in its interface", name_of(array)))
        })
    };
    let (address, is_read_only): (usize, bool) = item("data")?.extract()?;
    if is_read_only && what == Use::Written {
        return Err(read_only());
    }
    let shape: Vec<i64> = item("shape")?.extract()?;
    let strides = interface.get_item("strides")?.map_or(Ok(None), |all| all.extract())?;
    let strides: Option<Vec<i64>> = strides;
    let len = count(&shape).filter(|_| is_dense(&shape, strides.as_deref(), 2));
    kept(address, len.ok_or_else(gaps)?, DataType::Bf16, array)
}

/// An instance of a class derived from PyTorch's.
fn is_torch(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = array.py().import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    match modules.get_item("torch")? {
        // While it is being imported it has no `Tensor` yet.
        Some(torch) => torch.getattr("Tensor").map_or(Ok(false), |class| array.is_instance(&class)),
        None => Ok(false),
    }
}

/// PyTorch's tensors export nothing while they require gradients; their address is there always.
fn from_torch(tensor: &Bound<'_, PyAny>) -> PyResult<Loan> {
    let tensor = tensor.call_method0("detach")?;
    let device = tensor.getattr("device")?;
    if device.getattr("type")?.extract::<String>()? != "cpu" {
        return Err(PyValueError::new_err(format!(
            "the tensor is on {device}, and calls work on this host's memory; use xdp_agg.torch, \
             or tensor.cpu() and copy the result back",
        )));
    }
    let layout = tensor.getattr("layout")?.to_string();
    if layout != "torch.strided" {
        return Err(PyValueError::new_err(format!(
            "the tensor's layout is {layout}; only dense tensors are summed: tensor.to_dense()"
        )));
    }
    let name = tensor.getattr("dtype")?.to_string();
    let name = name.strip_prefix("torch.").unwrap_or(&name);
    let data_type = of_torch(name).ok_or_else(|| wrong_type(name))?;
    if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
        return Err(gaps());
    }
    let address = tensor.call_method0("data_ptr")?.extract()?;
    let len = tensor.call_method0("numel")?.extract()?;
    kept(address, len, data_type, &tensor)
}

fn of_torch(name: &str) -> Option<DataType> {
    match name {
        "float32" => Some(DataType::F32),
        "float16" => Some(DataType::F16),
        "bfloat16" => Some(DataType::Bf16),
        "float64" => Some(DataType::F64),
        "int8" => Some(DataType::I8),
        "uint8" => Some(DataType::U8),
        "int16" => Some(DataType::I16),
        "int32" => Some(DataType::I32),
        "int64" => Some(DataType::I64),
        "bool" => Some(DataType::Bool),
        _ => None,
    }
}
