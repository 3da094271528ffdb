//! The rule of folders: within a crate, no folder imports another that imports it back, by whatever way.
//!
//! A folder is a module with files of its own, together with the file that bears its name.  Files beside the folders belong to
//! none, and tests may import what they like.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::sources::{lexer, paths};
use super::tree::File;

/// Who imports whom in one crate, and where.
type Imports = BTreeMap<(String, String), String>;

/// All circles in the crates that `files` are of.
pub fn findings(files: &[File]) -> Vec<Finding> {
    crates(files).values().flat_map(|files| circles(&imports(files))).collect()
}

/// The sources of each crate, by their path within it.
fn crates(files: &[File]) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for file in files {
        let path = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        if let Some((krate, path)) = path {
            crates.entry(krate).or_default().push((path, &file.text));
        }
    }
    crates
}

fn imports(files: &[(&str, &str)]) -> Imports {
    let folders: BTreeSet<&str> = files
        .iter()
        .filter_map(|(path, _)| Some(path.split_once('/')?.0))
        .filter(|name| *name != "bin")
        .collect();
    let mut imports = Imports::new();
    for (path, text) in files {
        let module: Vec<&str> = path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        if !folders.contains(module[0]) || module.contains(&"tests") {
            continue;
        }
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for mention in paths::mentioned(&lexer::code_only(text)) {
            let to = folder_of(&mention.path.to_string(), &module);
            if let Some(to) = to.filter(|to| folders.contains(to.as_str()) && to != module[0]) {
                imports
                    .entry((module[0].to_owned(), to))
                    .or_insert_with(|| format!("{path}:{}", mention.line));
            }
        }
    }
    imports
}

/// The folder that a path leads to from within a module, if it leads into one of this crate.
fn folder_of(path: &str, module: &[&str]) -> Option<String> {
    let mut segments = path.split("::").peekable();
    if segments.next_if_eq(&"crate").is_none() {
        let mut depth = module.len();
        while segments.next_if_eq(&"super").is_some() {
            depth = depth.checked_sub(1)?;
        }
        if depth > 0 {
            return None;
        }
    }
    segments.next().map(|name| name.trim().to_owned())
}

/// One finding for each import that leads back to where it came from.
fn circles(imports: &Imports) -> Vec<Finding> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(folder) = next.pop() {
            let further =
                imports.keys().filter(|(importer, _)| *importer == folder).map(|(_, other)| other.clone());
            next.extend(further.filter(|other| seen.insert(other.clone())));
        }
        seen.contains(to)
    };
    let back = imports.iter().filter(|((from, to), _)| reaches(to, from));
    back.map(|((from, to), place)| {
        Finding::new(
            place.clone(),
            format!("{from} imports {to}, which imports {from} by some way: move what both need below both"),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::{circles, imports};

    #[test]
    fn a_planted_circle_of_three_is_found_and_its_tests_are_not() {
        let straight = [
            ("a/mod.rs", "use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}\n"),
            ("b/x.rs", "use super::super::{c::C, lib};"),
            ("c.rs", "pub struct C; // as crate::a does"),
            ("c/y.rs", "use super::C;"),
        ];
        assert_eq!(circles(&imports(&straight)), []);
        let mut bent = straight;
        bent[3].1 = "fn f() { crate::a::f() }";
        let places: Vec<String> = circles(&imports(&bent)).into_iter().map(|finding| finding.place).collect();
        assert_eq!(places, ["a/mod.rs:1", "b/x.rs:1", "c/y.rs:1"]);
    }
}
