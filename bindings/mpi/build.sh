#!/bin/sh
# Builds libxdp_agg_mpi.so for one MPI, after `cargo build --release -p xdp-agg-c`.
#
#   bindings/mpi/build.sh                                  with the mpicc on the PATH
#   MPICC=/opt/openmpi/bin/mpicc OUT=libxdp_agg_mpi.so bindings/mpi/build.sh
#   FROM=target/debug bindings/mpi/build.sh
#
# MPICC is the compiler of the MPI that programs use: the library is for that one's binary interface
# alone. OUT is the file that is made, FROM the directory that cargo built libxdp_agg.a in, which
# becomes a part of it: nothing else has to be installed. CFLAGS go to the compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
from=${FROM:-${CARGO_TARGET_DIR:-$here/../../target}/release}
out=${OUT:-$from/libxdp_agg_mpi.so}
mpicc=${MPICC:-mpicc}

if [ ! -f "$from/libxdp_agg.a" ]; then
    echo "$from/libxdp_agg.a is not there: cargo build --release -p xdp-agg-c makes it," \
        "FROM=target/debug takes another build" >&2
    exit 1
fi
if ! command -v "$mpicc" >/dev/null 2>&1; then
    echo "$mpicc is not there: set MPICC to the mpicc of your MPI" >&2
    exit 1
fi
# Whoever loads it while it is written shall see the old one, or none.
# shellcheck disable=SC2086 # several words
"$mpicc" -std=c99 -O2 -g -Wall -Wextra ${CFLAGS:-} -fPIC -fvisibility=hidden -pthread -shared \
    -I "$here/../c/include" -o "$out.new" "$here"/*.c "$from/libxdp_agg.a" \
    -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,-z,defs -Wl,-soname,libxdp_agg_mpi.so \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl
mv "$out.new" "$out"
echo "$out"
