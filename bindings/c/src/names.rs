//! The enumerations of the header. Their numbers are in programs that were built long ago: new ones
//! may be added, none is ever changed.
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::CStr;

use xdp_agg_client::lent::{DataType, Reduction};

use crate::failure::Failure;
use crate::raw;

/// What a function returned. Numbers never change; a newer library may return further ones, all of
/// which are errors.
///
/// After an error of a call, XDP_AGG_ERROR_ARGUMENT excepted, the contents of its vectors are
/// unspecified and the communicator is of no more use: each later call returns an error. Destroy
/// it, and make another one at all ranks.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum xdp_agg_result_t {
    /// It is done.
    XDP_AGG_SUCCESS = 0,
    /// Of a request: the call has not ended yet. Not an error.
    XDP_AGG_IN_PROGRESS = 1,
    /// An argument cannot be: the text names it. Nothing was done, and the communicator is as good
    /// as before.
    XDP_AGG_ERROR_ARGUMENT = 2,
    /// A setting is missing or out of its range: the text names it.
    XDP_AGG_ERROR_CONFIG = 3,
    /// The aggregator, or its data path, does not answer.
    XDP_AGG_ERROR_UNREACHABLE = 4,
    /// The aggregator does not take this worker: version, token, TLS, no room.
    XDP_AGG_ERROR_REFUSED = 5,
    /// Time is up: xdp_agg_missing_ranks says for whom it was waited.
    XDP_AGG_ERROR_DEADLINE = 6,
    /// A rank is gone: xdp_agg_missing_ranks says which.
    XDP_AGG_ERROR_MEMBER_LOST = 7,
    /// The ranks' calls differ: the text says how.
    XDP_AGG_ERROR_CALL_MISMATCH = 8,
    /// The values, or the type, cannot be reduced in this way.
    XDP_AGG_ERROR_UNSUPPORTED = 9,
    /// The aggregator is gone.
    XDP_AGG_ERROR_AGGREGATOR_LOST = 10,
    /// A rank gave up, this one or another, or the job was ended.
    XDP_AGG_ERROR_ABORTED = 11,
    /// The communicator was destroyed while the call was in flight.
    XDP_AGG_ERROR_CLOSED = 12,
    /// This process was forked from the one that made the communicator.
    XDP_AGG_ERROR_FORKED = 13,
    /// The operating system refused something.
    XDP_AGG_ERROR_SYSTEM = 14,
    /// A fault of the library, or of the aggregator.
    XDP_AGG_ERROR_INTERNAL = 15,
}

/// Types of elements, in the machine's order of bytes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum xdp_agg_datatype_t {
    /// float
    XDP_AGG_FLOAT32 = 0,
    /// IEEE 754 binary16, _Float16
    XDP_AGG_FLOAT16 = 1,
    /// The upper half of a float
    XDP_AGG_BFLOAT16 = 2,
    /// double
    XDP_AGG_FLOAT64 = 3,
    /// int32_t
    XDP_AGG_INT32 = 4,
    /// int64_t
    XDP_AGG_INT64 = 5,
    /// int16_t
    XDP_AGG_INT16 = 6,
    /// int8_t
    XDP_AGG_INT8 = 7,
    /// uint8_t
    XDP_AGG_UINT8 = 8,
    /// bool of <stdbool.h>: a byte, 0 or 1
    XDP_AGG_BOOL = 9,
}

/// How the ranks' elements become one.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum xdp_agg_op_t {
    /// Integers wrap; of bool it is XDP_AGG_OR.
    XDP_AGG_SUM = 0,
    /// The sum, divided by the number of ranks; integers towards zero. Not of bool.
    XDP_AGG_AVERAGE = 1,
    /// A NaN goes before all numbers.
    XDP_AGG_MIN = 2,
    /// A NaN goes before all numbers.
    XDP_AGG_MAX = 3,
    /// Of bool alone.
    XDP_AGG_AND = 4,
    /// Of bool alone.
    XDP_AGG_OR = 5,
}

use xdp_agg_result_t as Code;

impl xdp_agg_result_t {
    const ALL: [(Self, &'static CStr); 16] = [
        (Code::XDP_AGG_SUCCESS, c"success"),
        (Code::XDP_AGG_IN_PROGRESS, c"the call is in flight"),
        (Code::XDP_AGG_ERROR_ARGUMENT, c"an argument cannot be"),
        (Code::XDP_AGG_ERROR_CONFIG, c"a setting is missing or out of its range"),
        (Code::XDP_AGG_ERROR_UNREACHABLE, c"the aggregator does not answer"),
        (Code::XDP_AGG_ERROR_REFUSED, c"the aggregator does not take this worker"),
        (Code::XDP_AGG_ERROR_DEADLINE, c"time is up"),
        (Code::XDP_AGG_ERROR_MEMBER_LOST, c"a rank is gone"),
        (Code::XDP_AGG_ERROR_CALL_MISMATCH, c"the ranks' calls differ"),
        (Code::XDP_AGG_ERROR_UNSUPPORTED, c"this cannot be reduced in this way"),
        (Code::XDP_AGG_ERROR_AGGREGATOR_LOST, c"the aggregator is gone"),
        (Code::XDP_AGG_ERROR_ABORTED, c"a rank gave up, or the job was ended"),
        (Code::XDP_AGG_ERROR_CLOSED, c"the communicator was destroyed during the call"),
        (Code::XDP_AGG_ERROR_FORKED, c"the communicator is that of the parent process"),
        (Code::XDP_AGG_ERROR_SYSTEM, c"the operating system refused something"),
        (Code::XDP_AGG_ERROR_INTERNAL, c"a fault of the library, or of the aggregator"),
    ];

    /// In words, of any number.
    pub(crate) fn words(code: raw::xdp_agg_result_t) -> &'static CStr {
        let known = Self::ALL.iter().find(|(known, _)| *known as i32 == code);
        known.map_or(c"no result of this version of libxdp_agg", |(_, words)| words)
    }
}

/// The type of elements that a number stands for.
pub(crate) fn data_type(datatype: raw::xdp_agg_datatype_t) -> Result<DataType, Failure> {
    use xdp_agg_datatype_t as T;
    let all = [
        (T::XDP_AGG_FLOAT32, DataType::F32),
        (T::XDP_AGG_FLOAT16, DataType::F16),
        (T::XDP_AGG_BFLOAT16, DataType::Bf16),
        (T::XDP_AGG_FLOAT64, DataType::F64),
        (T::XDP_AGG_INT32, DataType::I32),
        (T::XDP_AGG_INT64, DataType::I64),
        (T::XDP_AGG_INT16, DataType::I16),
        (T::XDP_AGG_INT8, DataType::I8),
        (T::XDP_AGG_UINT8, DataType::U8),
        (T::XDP_AGG_BOOL, DataType::Bool),
    ];
    let found = all.iter().find(|(number, _)| *number as i32 == datatype);
    let choose = "is no type of elements; choose one of xdp_agg_datatype_t, XDP_AGG_FLOAT32 (0) \
                  to XDP_AGG_BOOL (9)";
    found.map(|(_, found)| *found).ok_or_else(|| Failure::argument("datatype", datatype, choose))
}

/// The reduction that a number stands for.
pub(crate) fn reduction(op: raw::xdp_agg_op_t) -> Result<Reduction, Failure> {
    use xdp_agg_op_t as T;
    let all = [
        (T::XDP_AGG_SUM, Reduction::Sum),
        (T::XDP_AGG_AVERAGE, Reduction::Average),
        (T::XDP_AGG_MIN, Reduction::Min),
        (T::XDP_AGG_MAX, Reduction::Max),
        (T::XDP_AGG_AND, Reduction::And),
        (T::XDP_AGG_OR, Reduction::Or),
    ];
    let found = all.iter().find(|(number, _)| *number as i32 == op);
    let choose = "is no reduction; choose one of xdp_agg_op_t, XDP_AGG_SUM (0) to XDP_AGG_OR (5)";
    found.map(|(_, found)| *found).ok_or_else(|| Failure::argument("op", op, choose))
}
