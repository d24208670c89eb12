//! What crates.io would be given, tried without giving it: each crate is packed and built alone.

use anyhow::Result;

use crate::shell::{cargo, run, step, target};

/// Packs all crates that are published, in order, and builds each from its package.
pub(super) fn dry_run() -> Result<()> {
    step("cargo publish --dry-run, all crates (some minutes)", || {
        let mut publish = cargo();
        // Cargo would build each crate in a directory of its own, and all that it needs once more.
        publish.env("CARGO_TARGET_DIR", target().join("publish"));
        // Whether it builds is all that is asked.
        publish.env("CARGO_PROFILE_DEV_DEBUG", "false");
        // A clone with changes may be tried, too: nothing leaves this machine.
        publish.args(["publish", "--workspace", "--dry-run", "--locked", "--allow-dirty"]);
        run(&mut publish)
    })
}
