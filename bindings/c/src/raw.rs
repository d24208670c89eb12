//! The header's enumerations as arguments: C may pass any number, and a number that no enumerator
//! has would be no value of a Rust enumeration. In the header they have the enumerations' types.
#![expect(non_camel_case_types, reason = "names of the C interface")]

/// Any result.
pub(crate) type xdp_agg_result_t = i32;
/// Any type of elements.
pub(crate) type xdp_agg_datatype_t = i32;
/// Any reduction.
pub(crate) type xdp_agg_op_t = i32;
