//! Checks that the specification and the code name the same requirements: each has a row, and is cited where it is implemented.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All ids of the form ROCE-WORD-NUMBER in `text` between `before` and `after`.
fn ids(text: &str, before: &str, after: &str) -> BTreeSet<String> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| rest.split_once(after))
        .map(|(id, _)| id.to_owned())
        .filter(|id| id.starts_with("ROCE-") && !id.contains(' '))
        .collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { sources(&path, found) } else { found.push(path) }
    }
}

#[test]
fn requirements_and_citations_match() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("../../docs/protocol.md")).expect("the specification");
    let specified = ids(&document, "\n| ", " |");
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let cited: BTreeSet<String> = files
        .iter()
        .flat_map(|file| ids(&fs::read_to_string(file).expect("a source"), "// [", "]"))
        .collect();
    assert!(specified.len() > 20, "docs/protocol.md has no table of requirements");
    assert_eq!(specified, cited);
}
