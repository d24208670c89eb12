//! The header that is checked in is the one that the sources make.

use std::env;
use std::fs;
use std::path::Path;

/// Set: the header is written instead of compared.
const WRITE: &str = "XDP_AGG_WRITE_HEADER";

/// In the header's order.
const SOURCES: [&str; 8] = [
    "names.rs",
    "api/error.rs",
    "api/config.rs",
    "api/comm.rs",
    "api/buffer.rs",
    "api/calls.rs",
    "api/request.rs",
    "api/start.rs",
];

const HEAD: &str = "\
/*
 * libxdp_agg: all-reduce and other collectives through an aggregator in the network.
 *
 * Functions return a result; what went wrong is told in words by xdp_agg_last_error, on the same
 * thread. docs/c.md is the guide.
 *
 * Made by cbindgen from bindings/c/src: change it there, and write it anew with
 *     XDP_AGG_WRITE_HEADER=1 cargo test -p xdp-agg-c --test header
 */";

fn version() -> String {
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ]
    .map(|number| number.parse::<u32>().expect("a number"));
    let number = major * 10_000 + minor * 100 + patch;
    format!(
        "\n/* Version of this header: major * 10000 + minor * 100 + patch. */\n\
         #define XDP_AGG_VERSION {number}"
    )
}

fn header(root: &Path) -> String {
    let file = root.join("cbindgen.toml");
    let mut config = cbindgen::Config::from_file(&file).expect("cbindgen.toml can be read");
    config.header = Some(HEAD.into());
    config.after_includes = Some(version());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join("src").join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("a header can be made of the sources").write(&mut text);
    String::from_utf8(text).expect("it is text")
}

#[test]
fn it_is_made_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("include/xdp_agg.h");
    let made = header(root);
    let long: Vec<_> = made.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "too long for a header: {long:#?}");
    if env::var_os(WRITE).is_some() {
        fs::write(&file, made).expect("the header can be written");
        return;
    }
    let there = fs::read_to_string(&file).unwrap_or_default();
    let differs = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    assert!(
        there == made,
        "{} is not what the sources make, from line {} on. {WRITE}=1 cargo test -p xdp-agg-c \
         --test header writes it anew",
        file.display(),
        differs.unwrap_or(there.lines().count().min(made.lines().count())) + 1
    );
}
