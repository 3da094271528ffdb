//! Checks that folders of a crate have no import cycles, direct or indirect.
//!
//! A folder is a module with several files, together with the file of the same name. Tests may import anything.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use super::File;

/// Imports among the folders within a folder: importer and imported folder, with the first file that has the import.
type Imports = BTreeMap<(String, String), String>;

/// Returns a finding for each import between folders that is part of a cycle.
pub fn findings(files: &[File]) -> Vec<String> {
    let mut imports: BTreeMap<Vec<String>, Imports> = BTreeMap::new();
    let folders: BTreeSet<Vec<String>> = files.iter().flat_map(|file| ancestors(&file.path)).collect();
    for file in files.iter().filter(|file| file.path.contains("/src/") && !file.path.ends_with("/tests.rs")) {
        let syntax = syn::parse_file(&file.text).expect("the source is valid");
        let here = module(&file.path);
        let mut mentions = Mentions { module: here.clone(), found: Vec::new() };
        mentions.visit_file(&syntax);
        for there in mentions.found {
            let shared = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (here.get(shared), there.get(shared)) {
                let is_folder =
                    |name: &String| folders.contains(&[&here[..shared], std::slice::from_ref(name)].concat());
                if is_folder(from) && is_folder(to) {
                    let within = imports.entry(here[..shared].to_vec()).or_default();
                    within.entry((from.clone(), to.clone())).or_insert_with(|| file.path.clone());
                }
            }
        }
    }
    imports.values().flat_map(cycles).collect()
}

/// Returns the path of a file's module, beginning with the crate.
fn module(path: &str) -> Vec<String> {
    let (krate, path) = path.split_once("/src/").expect("the path is that of a source");
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    std::iter::once(krate).chain(path.split('/')).filter(|name| *name != "lib").map(str::to_owned).collect()
}

/// Returns the folders that contain a file.
fn ancestors(path: &str) -> Vec<Vec<String>> {
    let Some((krate, inner)) = path.split_once("/src/") else { return Vec::new() };
    let parts: Vec<String> = std::iter::once(krate).chain(inner.split('/')).map(str::to_owned).collect();
    (2..parts.len()).map(|len| parts[..len].to_vec()).collect()
}

/// Collects the paths that start with `crate`, `super` or `self`, in `use` items and in other code.
struct Mentions {
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Mentions {
    fn add(&mut self, segments: &[String]) {
        let mut path = match segments.first().map(String::as_str) {
            Some("crate") => vec![self.module[0].clone()],
            Some("super" | "self") => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "super" => drop(path.pop()),
                "crate" | "self" => {}
                name => path.push(name.to_owned()),
            }
        }
        self.found.push(path);
    }

    fn unfold(&mut self, before: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                self.unfold(&[before, &[path.ident.to_string()]].concat(), &path.tree)
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.unfold(before, tree)),
            syn::UseTree::Name(name) => self.add(&[before, &[name.ident.to_string()]].concat()),
            syn::UseTree::Rename(name) => self.add(&[before, &[name.ident.to_string()]].concat()),
            syn::UseTree::Glob(_) => self.add(before),
        }
    }
}

impl<'a> Visit<'a> for Mentions {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.unfold(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.ident != "tests" {
            self.module.push(item.ident.to_string());
            syn::visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }
}

/// Returns a finding for each of the imports that is part of a cycle.
fn cycles(imports: &Imports) -> Vec<String> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(folder) = next.pop() {
            let further =
                imports.keys().filter(|(importer, _)| *importer == folder).map(|(_, to)| to.clone());
            next.extend(further.filter(|other| seen.insert(other.clone())));
        }
        seen.contains(to)
    };
    let back = imports.iter().filter(|((from, to), _)| reaches(to, from));
    back.map(|((from, to), path)| {
        format!("{path}: {from} imports {to}, which imports {from} back: move the shared code below both")
    })
    .collect()
}
