/* Types and operations of MPI that an aggregator serves. */
#include <stdint.h>

#include "parts.h"

/* Integers of this number of bytes; false: none of ours. */
static bool integer(size_t bytes, xdp_agg_datatype_t *type)
{
    switch (bytes) {
    case 1:
        *type = XDP_AGG_INT8;
        return true;
    case 2:
        *type = XDP_AGG_INT16;
        return true;
    case 4:
        *type = XDP_AGG_INT32;
        return true;
    case 8:
        *type = XDP_AGG_INT64;
        return true;
    default:
        return false;
    }
}

/* Bytes of a signed integer type; 0: it is another. */
static size_t signed_bytes(MPI_Datatype type)
{
    if (type == MPI_INT)
        return sizeof(int);
    if (type == MPI_LONG)
        return sizeof(long);
    if (type == MPI_LONG_LONG)
        return sizeof(long long);
    if (type == MPI_SHORT)
        return sizeof(short);
    if (type == MPI_SIGNED_CHAR || type == MPI_INT8_T)
        return 1;
    if (type == MPI_INT16_T)
        return 2;
    if (type == MPI_INT32_T)
        return 4;
    return type == MPI_INT64_T ? 8 : 0;
}

/* The same of an unsigned one of more than a byte. */
static size_t unsigned_bytes(MPI_Datatype type)
{
    if (type == MPI_UNSIGNED)
        return sizeof(unsigned);
    if (type == MPI_UNSIGNED_LONG)
        return sizeof(unsigned long);
    if (type == MPI_UNSIGNED_LONG_LONG)
        return sizeof(unsigned long long);
    if (type == MPI_UNSIGNED_SHORT)
        return sizeof(unsigned short);
    if (type == MPI_UINT16_T)
        return 2;
    if (type == MPI_UINT32_T)
        return 4;
    return type == MPI_UINT64_T ? 8 : 0;
}

static bool type_of(MPI_Datatype mpi, MPI_Op op, xdp_agg_datatype_t *type)
{
    if (mpi == MPI_FLOAT)
        *type = XDP_AGG_FLOAT32;
    else if (mpi == MPI_DOUBLE)
        *type = XDP_AGG_FLOAT64;
    else if (mpi == MPI_UNSIGNED_CHAR || mpi == MPI_UINT8_T)
        *type = XDP_AGG_UINT8;
    else if (signed_bytes(mpi) > 0)
        return integer(signed_bytes(mpi), type);
    else
        /* Sums that wrap are the same, signed or not; what is larger is not. */
        return op == MPI_SUM && integer(unsigned_bytes(mpi), type);
    return true;
}

bool translate(MPI_Datatype mpi, MPI_Op mpi_op, xdp_agg_datatype_t *type, xdp_agg_op_t *op)
{
    if (mpi == MPI_C_BOOL) {
        *type = XDP_AGG_BOOL;
        *op = mpi_op == MPI_LAND ? XDP_AGG_AND : XDP_AGG_OR;
        return sizeof(bool) == 1 && (mpi_op == MPI_LAND || mpi_op == MPI_LOR);
    }
    if (mpi_op == MPI_SUM)
        *op = XDP_AGG_SUM;
    else if (mpi_op == MPI_MIN)
        *op = XDP_AGG_MIN;
    else if (mpi_op == MPI_MAX)
        *op = XDP_AGG_MAX;
    else
        return false;
    return type_of(mpi, mpi_op, type);
}
