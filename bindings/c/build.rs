//! Gives the shared library its name for the dynamic linker.

/// Grows when a program that was built with an older header would no longer run.
const INTERFACE: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libxdp_agg.so.{INTERFACE}");
}
