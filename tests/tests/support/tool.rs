//! Programs of other packages that single tests need.

use std::env;
use std::path::PathBuf;

/// Where a program of a Debian package is: on the path, or where `cargo xtask test` unpacks the
/// package. None, with a message, where it is missing: but in CI that is a failure.
pub fn tool(name: &str, package: &str) -> Option<PathBuf> {
    let own = env::current_exe().expect("its own path");
    // This program is target/PROFILE/deps/NAME.
    let unpacked = own.ancestors().nth(3).map(|target| target.join(package).join("usr/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut all = env::split_paths(&path).chain(unpacked).map(|directory| directory.join(name));
    let found = all.find(|program| program.is_file());
    if found.is_none() {
        let what = format!(
            "{name} is missing: `cargo xtask test` fetches it, or `apt-get install {package}` does"
        );
        assert!(env::var_os("CI").is_none(), "{what}");
        eprintln!("skipped: {what}");
    }
    found
}
