//! Checks of the tree beyond lints: dependencies, import cycles, and names in documents.

mod cycles;

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use cargo_metadata::MetadataCommand;

/// The permitted dependencies of each crate. `halite-testing` and `halite-bench` may use all crates, and no crate
/// depends on them.
const EDGES: [(&str, &[&str]); 10] = [
    ("halite-mem", &[]),
    ("halite-fabric", &["halite-mem"]),
    ("halite-rnic", &[]),
    ("halite-providers", &["halite-rnic", "halite-fabric", "halite-mem"]),
    ("halite-sim", &["halite-rnic", "halite-fabric", "halite-mem"]),
    ("halite-tier", &["halite-fabric", "halite-mem"]),
    ("halite", &["halite-tier", "halite-providers", "halite-fabric", "halite-mem"]),
    ("halite-trials", &["halite", "halite-apps", "halite-sim", "halite-fabric"]),
    ("halite-figures", &["halite-trials", "halite", "halite-sim", "halite-fabric", "halite-mem"]),
    ("halite-apps", &["halite", "halite-mem"]),
];

/// The permitted dependencies of `halite-cli`, the `halite` program.
const PROGRAM: &[&str] = &[
    "halite",
    "halite-apps",
    "halite-trials",
    "halite-figures",
    "halite-sim",
    "halite-tier",
    "halite-providers",
    "halite-rnic",
    "halite-mem",
];

/// Maximum length of a source file, in lines. A longer file holds more than one idea.
const LINES_MAX: usize = 900;

/// A text file, with its path below the root.
struct File {
    path: String,
    text: String,
}

#[test]
fn dependencies_point_one_way() {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec();
    let packages = metadata.expect("cargo metadata succeeds").packages;
    for package in &packages {
        let name = package.name.as_str();
        if ["halite-testing", "halite-bench"].contains(&name) {
            continue;
        }
        let allowed = EDGES.iter().find(|(from, _)| *from == name).map_or(PROGRAM, |(_, to)| to);
        let ours = |to: &&str| packages.iter().any(|package| package.name.as_str() == *to);
        for to in package.dependencies.iter().map(|dependency| dependency.name.as_str()).filter(ours) {
            assert!(allowed.contains(&to), "{name} may not depend on {to}; see EDGES in {}", file!());
        }
    }
}

#[test]
fn folders_have_no_import_cycles() {
    check(cycles::findings(&files(".rs")));
}

#[test]
fn every_crate_inherits_the_lints() {
    let manifests = files("Cargo.toml").into_iter().filter(|file| file.path.starts_with("crates/"));
    let without_lints = manifests.filter(|file| !file.text.contains("[lints]\nworkspace = true\n"));
    check(without_lints.map(|file| format!("{}: lacks `[lints] workspace = true`", file.path)).collect());
}

#[test]
fn no_file_is_too_long() {
    let long = files(".rs").into_iter().filter(|file| file.text.lines().count() > LINES_MAX);
    check(long.map(|file| format!("{}: has more than {LINES_MAX} lines", file.path)).collect());
}

#[test]
fn links_in_documents_have_targets() {
    let mut findings = Vec::new();
    for file in files(".md") {
        let folder = Path::new(&file.path).parent().expect("a file has a parent").to_owned();
        for (number, line) in prose(&file.text) {
            for target in link_targets(line) {
                let path = normalised(&folder.join(target.split('#').next().unwrap_or_default()));
                if !path.is_some_and(|path| root().join(path).exists()) {
                    findings.push(format!(
                        "{}:{number}: the target of the link {target} does not exist",
                        file.path
                    ));
                }
            }
        }
    }
    check(findings);
}

/// Checks `` `crates/PATH` ``, `` `FILE.rs: FUNCTION` `` and `` `CONSTANT` ``.
#[test]
fn names_in_the_architecture_exist() {
    let (sources, text) = (files(".rs"), read(&root().join("ARCHITECTURE.md")));
    let constants: HashSet<&str> = sources.iter().flat_map(|source| declared(&source.text)).collect();
    let mut findings = Vec::new();
    for (number, line) in prose(&text) {
        for code in line.split('`').skip(1).step_by(2).filter(|code| !code.contains("NAME")) {
            let is_there = match code.split_once(".rs: ") {
                Some((file, function)) => sources
                    .iter()
                    .find(|source| source.path == format!("{file}.rs"))
                    .is_some_and(|source| declared(&source.text).contains(function)),
                None if code.starts_with("crates/") => root().join(code).exists(),
                None if is_constant(code) => constants.contains(code),
                None => true,
            };
            if !is_there {
                findings.push(format!("ARCHITECTURE.md:{number}: there is no {code}"));
            }
        }
    }
    check(findings);
}

fn is_constant(code: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    code.contains('_') && code.bytes().all(is_allowed) && !code.starts_with("HALITE_")
}

/// Returns the names of the functions and constants that a source declares.
fn declared(source: &str) -> HashSet<&str> {
    let words = || source.split_whitespace();
    let after_keywords = words().zip(words().skip(1)).filter(|(word, _)| matches!(*word, "fn" | "const"));
    after_keywords
        .map(|(_, name)| {
            let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            &name[..end.unwrap_or(name.len())]
        })
        .collect()
}

/// Returns the numbered lines outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the targets of relative links in Markdown, outside of inline code.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split('`').step_by(2).flat_map(|piece| piece.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim());
    targets.filter(|target| !target.is_empty() && !target.starts_with('#') && !target.contains(':'))
}

/// Resolves `..`; returns `None` if the path leaves the tree.
fn normalised(path: &Path) -> Option<PathBuf> {
    let mut kept = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => kept.push(name),
            Component::ParentDir if kept.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(kept)
}

#[track_caller]
fn check(findings: Vec<String>) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Returns the files of the tree whose names end with `end`, without build outputs.
fn files(end: &str) -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), end, &mut found);
    assert!(found.len() > 5, "found only {} files that end with {end}", found.len());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(directory: &Path, end: &str, found: &mut Vec<File>) {
    for entry in fs::read_dir(directory).expect("the directory is readable") {
        let entry = entry.expect("the directory is readable");
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().expect("entries have a type");
        if kind.is_dir() && !["target", ".git", "corpus", "artifacts"].contains(&name.as_str()) {
            walk(&path, end, found);
        } else if kind.is_file() && name.ends_with(end) {
            let below = path.strip_prefix(root()).expect("the walk begins at the root");
            found.push(File { path: below.display().to_string(), text: read(&path) });
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate is two levels below the root").to_path_buf()
}
