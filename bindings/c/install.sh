#!/bin/sh
# Installs libxdp_agg after `cargo build --release -p xdp-agg-c`: library, header, pkg-config file.
#
#   bindings/c/install.sh                       into /usr/local
#   PREFIX=/usr DESTDIR=pkg bindings/c/install.sh
#   FROM=target/debug STATIC=no bindings/c/install.sh
#
# PREFIX is where the library will be, DESTDIR what stands before that now, FROM the directory that
# cargo built it in; STATIC=no leaves libxdp_agg.a out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
from=${FROM:-${CARGO_TARGET_DIR:-$here/../../target}/release}
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
# As in build.rs.
interface=0

if [ ! -f "$from/libxdp_agg.so" ]; then
    echo "$from/libxdp_agg.so is not there: cargo build --release -p xdp-agg-c makes it," \
        "FROM=target/debug takes another build" >&2
    exit 1
fi
mkdir -p "$root/include" "$root/lib/pkgconfig"
install -m 644 "$here/include/xdp_agg.h" "$root/include/"
install -m 755 "$from/libxdp_agg.so" "$root/lib/libxdp_agg.so.$version"
ln -sf "libxdp_agg.so.$version" "$root/lib/libxdp_agg.so.$interface"
ln -sf "libxdp_agg.so.$interface" "$root/lib/libxdp_agg.so"
if [ "${STATIC:-yes}" != no ]; then
    install -m 644 "$from/libxdp_agg.a" "$root/lib/"
fi
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" "$here/xdp-agg.pc.in" \
    >"$root/lib/pkgconfig/xdp-agg.pc"
