//! The workspace's crates: where each lies, and which of the others it is built from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The crates by name: directory from the root, and what is named as dependency there.
pub(super) struct Members(BTreeMap<String, (PathBuf, Vec<String>)>);

impl Members {
    /// Those of the workspace whose root this is.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let workspace = read(&root.join("Cargo.toml"))?;
        let members = workspace.get("workspace").and_then(|table| table.get("members"));
        let members = members.and_then(toml::Value::as_array);
        let mut all = BTreeMap::new();
        for member in members.context("Cargo.toml names no members")? {
            let member = member.as_str().unwrap_or_default();
            for directory in directories(root, member)? {
                let manifest = read(&root.join(&directory).join("Cargo.toml"))?;
                let name = manifest.get("package").and_then(|package| package.get("name"));
                let name = name.and_then(toml::Value::as_str).context("a crate has no name")?;
                all.insert(name.to_owned(), (directory, dependencies(&manifest)));
            }
        }
        Ok(Self(all))
    }

    /// The directories of these crates and of all that they are built and tested with.
    pub(super) fn needed<'a>(&self, roots: impl Iterator<Item = &'a str>) -> Result<Vec<PathBuf>> {
        let mut open: Vec<&str> = roots.collect();
        let mut known = BTreeSet::new();
        let mut needed = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !known.insert(name) {
                continue;
            }
            let (directory, with) = self
                .0
                .get(name)
                .with_context(|| format!("no crate of this workspace has the name {name}"))?;
            needed.insert(directory.clone());
            open.extend(with.iter().map(String::as_str).filter(|name| self.0.contains_key(*name)));
        }
        Ok(needed.into_iter().collect())
    }
}

/// What a member of the workspace stands for: `crates/*` for all crates there.
fn directories(root: &Path, member: &str) -> Result<Vec<PathBuf>> {
    let Some(parent) = member.strip_suffix("/*") else { return Ok(vec![member.into()]) };
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(parent)).with_context(|| parent.to_owned())? {
        let path = Path::new(parent).join(entry?.file_name());
        if root.join(&path).join("Cargo.toml").exists() {
            found.push(path);
        }
    }
    Ok(found)
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let tables = kinds.iter().filter_map(|kind| manifest.get(*kind)?.as_table());
    tables.flat_map(|table| table.keys().cloned()).collect()
}

pub(super) fn read(path: &Path) -> Result<toml::Table> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}
