//! Files of what ships do not use each other in circles of more than two. So a reader can begin
//! with files that use no others, and end with those that no others use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Where the sources of what ships are, from the root of the repository.
const PRODUCT: [&str; 5] = ["xdp-agg-ebpf", "xdp-agg", "client", "crates", "bindings"];

/// A module's name within its crate, in parts; the crate itself has none.
type Module = Vec<String>;

/// What a module names of its crate.
#[derive(Default)]
struct Named {
    uses: Vec<Module>,
    reexports: Vec<Module>,
    /// Modules within the file that are around the place that is looked at.
    depth: usize,
}

impl Named {
    /// `super` within a module of the file is the file.
    fn add(&mut self, mut path: Module, reexported: bool) {
        let out = path.iter().take_while(|part| *part == "super").count().min(self.depth);
        path.drain(..out);
        if reexported { self.reexports.push(path) } else { self.uses.push(path) }
    }
}

impl<'a> Visit<'a> for Named {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_beside) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let reexported = !matches!(item.vis, Visibility::Inherited);
        for path in flat(&item.tree) {
            self.add(path, reexported);
        }
    }

    /// `pub(super)` uses nothing.
    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(path.segments.iter().map(|part| part.ident.to_string()).collect(), false);
        visit::visit_path(self, path);
    }
}

/// For tests or for links in comments alone.
fn is_beside(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute
            .meta
            .require_list()
            .is_ok_and(|list| ["test", "doc"].contains(&list.tokens.to_string().as_str()))
}

/// The paths of a `use`.
fn flat(tree: &UseTree) -> Vec<Module> {
    let before = |name: String, rest: Vec<Module>| {
        let joined = rest.into_iter().map(|rest| [vec![name.clone()], rest].concat());
        joined.collect()
    };
    match tree {
        UseTree::Path(path) => before(path.ident.to_string(), flat(&path.tree)),
        UseTree::Name(name) if name.ident == "self" => vec![vec![]],
        UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        UseTree::Rename(name) => vec![vec![name.ident.to_string()]],
        UseTree::Glob(_) => vec![vec![]],
        UseTree::Group(group) => group.items.iter().flat_map(flat).collect(),
    }
}

/// The modules of a crate that are files of their own, but for its tests.
fn modules(sources: &Path) -> BTreeMap<Module, Named> {
    let mut found = BTreeMap::new();
    for file in files(sources) {
        let inside = file.strip_prefix(sources).expect("it was found there").with_extension("");
        let mut name: Module =
            inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        name.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        if name.iter().any(|part| part == "tests") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a file that was listed");
        let mut named = Named::default();
        named.visit_file(&syn::parse_file(&text).expect("the compiler takes it"));
        found.insert(name, named);
    }
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of sources");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let found = paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The file that a path leads to, where it leads to one of this crate.
fn target(all: &BTreeMap<Module, Named>, from: &[String], path: &[String]) -> Option<Module> {
    let (first, mut rest) = path.split_first()?;
    let mut base = match first.as_str() {
        "crate" => vec![],
        "self" => from.to_vec(),
        "super" => from.split_last()?.1.to_vec(),
        child if all.contains_key(&[from, &[child.into()]].concat()) => {
            rest = path;
            from.to_vec()
        }
        _ => return None,
    };
    while let Some((next, further)) = rest.split_first() {
        let inner = [base.clone(), vec![next.clone()]].concat();
        if next == "super" {
            base.pop();
        } else if all.contains_key(&inner) {
            base = inner;
        } else {
            let reexports = all.get(&base).map_or(&[][..], |named| &named.reexports);
            let found = reexports.iter().find(|path| path.last() == Some(next));
            return found.and_then(|path| target(all, &base, path)).or(Some(base));
        }
        rest = further;
    }
    Some(base)
}

/// Circles of more than two files: which uses which.
fn circles(sources: &Path) -> Vec<Vec<String>> {
    let all = modules(sources);
    let mut graph = DiGraph::<&Module, ()>::new();
    let nodes: BTreeMap<&Module, NodeIndex> =
        all.keys().map(|name| (name, graph.add_node(name))).collect();
    for (name, named) in &all {
        for used in named.uses.iter().filter_map(|path| target(&all, name, path)) {
            if let Some(&to) = nodes.get(&used).filter(|_| used != *name) {
                graph.update_edge(nodes[name], to, ());
            }
        }
    }
    let large = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 2);
    let uses = |circle: Vec<NodeIndex>| {
        let edges = graph
            .edge_references()
            .filter(|edge| circle.contains(&edge.source()) && circle.contains(&edge.target()));
        let told = edges.map(|edge| {
            format!("{} uses {}", graph[edge.source()].join("::"), graph[edge.target()].join("::"))
        });
        told.collect()
    };
    large.map(uses).collect()
}

/// Directories with a crate's sources.
fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let wings = PRODUCT.map(|wing| root.join(wing));
    let inner = |wing: &PathBuf| {
        let entries = fs::read_dir(wing).expect("a wing of the house");
        entries.map(|entry| entry.expect("it can be read").path()).collect::<Vec<_>>()
    };
    let all = wings.iter().flat_map(|wing| [inner(wing), vec![wing.clone()]].concat());
    all.map(|path| path.join("src")).filter(|path| path.is_dir()).collect()
}

#[test]
fn no_three_files_use_each_other_in_a_circle() {
    let crates = crates();
    assert!(crates.len() > 10, "{crates:?}");
    let found: Vec<_> = crates.iter().map(|sources| (sources, circles(sources))).collect();
    let found: Vec<_> = found.into_iter().filter(|(_, circles)| !circles.is_empty()).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_circle_is_seen() {
    let sources = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(sources.path().join(name), text).expect(name);
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use c::Third;");
    write("a.rs", "use crate::b::First; pub struct Second;");
    write("b.rs", "use crate::Third; pub struct First;");
    write("c.rs", "pub struct Third; fn third() { super::a::Second; }");
    write("d.rs", "use crate::{a::Second, b::First}; #[cfg(test)] mod tests { use super::*; }");
    let found = circles(sources.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].len(), 3, "{found:?}");
}
