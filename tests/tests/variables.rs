//! Variables that messages and help name are ones that something reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xdp_agg_client::lent::Given;

const PREFIX: &str = "XDP_AGG_";
/// Sources of what ships, without the C library: its enumerators begin with the same letters.
const SOURCES: [&str; 5] =
    ["client/src", "crates", "xdp-agg/src", "bindings/python/src", "bindings/python/python"];
/// What stands before the name of a variable that is read.
const READERS: [&str; 6] =
    ["env = \"", "&str = \"", "get(\"", "environ[\"", "lookup(\"", "text(\""];

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory).expect("a directory of sources");
    for path in entries.map(|entry| entry.expect("it is there").path()) {
        if path.is_dir() && !path.ends_with("tests") {
            files(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
            into.push(path);
        }
    }
}

/// Each name in a text, with what stands before it.
fn names(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices(PREFIX).map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        (&text[..at], rest[..end.unwrap_or(rest.len())].trim_end_matches('_'))
    })
}

#[test]
fn messages_name_variables_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut all = Vec::new();
    SOURCES.iter().for_each(|source| files(&root.join(source), &mut all));
    assert!(all.len() > 200, "{} files", all.len());
    let mut read: BTreeSet<String> = Given::names().into_iter().map(str::to_owned).collect();
    let mut named: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in all {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        // Tests may name what does not exist.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (before, name) in names(text) {
            if READERS.iter().any(|reader| before.ends_with(reader)) {
                read.insert(name.to_owned());
            }
            named.entry(name.to_owned()).or_insert_with(|| file.clone());
        }
    }
    // A star stands for the end: `XDP_AGG_TLS_*`.
    let is_read = |name: &str| {
        read.iter().any(|known| known == name)
            || (name != "XDP_AGG"
                && read.iter().any(|known| known.starts_with(&format!("{name}_"))))
    };
    named.retain(|name, _| name != "XDP_AGG" && !is_read(name));
    assert!(named.is_empty(), "nothing reads {named:?}");
}
