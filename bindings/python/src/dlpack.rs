//! Tensors that export DLPack: <https://dmlc.github.io/dlpack/latest/python_spec.html>.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use xdp_agg_client::lent::DataType;

use crate::array::{count, gaps, is_dense, kept, name_of, read_only, wrong_type};
use crate::memory::{Exported, Loan, exported};

/// Of devices whose memory this host reads and writes as its own: the host itself, and its memory
/// that CUDA or ROCm has pinned.
const HOSTS: [i32; 3] = [1, 3, 11];

/// The memory of a tensor on this host. The capsule keeps it, and frees it when the loan ends.
///
/// # Errors
/// `TypeError`: elements that are not summed. `ValueError`: another device, read-only, with gaps,
/// or a copy.
pub(crate) fn lend(tensor: &Bound<'_, PyAny>) -> PyResult<Loan> {
    // Before anything is exported: that may wait for a device.
    let (device, _): (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
    check_device(device, tensor)?;
    let capsule = export(tensor)?.cast_into::<PyCapsule>()?;
    let found = exported(&capsule)
        .map_err(|problem| PyValueError::new_err(format!("{}: {problem}", name_of(tensor))))?;
    check_device(found.device, tensor)?;
    if found.is_read_only {
        return Err(read_only());
    }
    if found.is_copy {
        return Err(PyValueError::new_err(format!(
            "{} exports a copy of its memory, where nobody would see the result; copy it yourself: \
             numpy.array(tensor)",
            name_of(tensor)
        )));
    }
    let data_type = data_type(&found).ok_or_else(|| {
        let Exported { code, bits, lanes, .. } = found;
        wrong_type(&format!("(code {code}, {bits} bits, {lanes} lanes, of DLPack)"))
    })?;
    let strides = found.strides.as_deref();
    let len = count(&found.shape).filter(|_| is_dense(&found.shape, strides, 1));
    kept(found.address, len.ok_or_else(gaps)?, data_type, &capsule)
}

/// The capsule. If the exporter can make the versioned kind it is that one, which marks read-only
/// memory.
fn export<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let wishes = PyDict::new(py);
    wishes.set_item("max_version", (1, 0))?;
    wishes.set_item("copy", false)?;
    match tensor.call_method("__dlpack__", (), Some(&wishes)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => tensor.call_method0("__dlpack__"),
        other => other,
    }
}

fn check_device(device: i32, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    if HOSTS.contains(&device) {
        return Ok(());
    }
    let name = match device {
        2 | 13 => "CUDA",
        4 => "OpenCL",
        7 => "Vulkan",
        8 => "Metal",
        10 => "ROCm",
        14 => "oneAPI",
        _ => "another kind",
    };
    Err(PyValueError::new_err(format!(
        "{} is on a device of {name} (number {device} in DLPack), and calls work on this host's \
         memory; copy it to the host, and the result back",
        name_of(tensor)
    )))
}

fn data_type(found: &Exported) -> Option<DataType> {
    match (found.lanes, found.code, found.bits) {
        (1, 2, 32) => Some(DataType::F32),
        (1, 2, 64) => Some(DataType::F64),
        (1, 2, 16) => Some(DataType::F16),
        (1, 4, 16) => Some(DataType::Bf16),
        (1, 0, 8) => Some(DataType::I8),
        (1, 0, 16) => Some(DataType::I16),
        (1, 0, 32) => Some(DataType::I32),
        (1, 0, 64) => Some(DataType::I64),
        (1, 1, 8) => Some(DataType::U8),
        (1, 6, 8) => Some(DataType::Bool),
        _ => None,
    }
}
