//! Checks of the tree itself: which crate may know which, what sources may mention, whether documents hold together.
//!
//! Each rule is a function from text to findings, so that every one of them has a test in which a planted violation
//! is caught; the tests in this file then apply the rules to the tree.  Not a linter: style beyond these rules is
//! left to rustfmt, clippy and reviewers.

mod circles;
mod deploy;
mod documents;
mod edges;
mod sources;
mod tree;

use std::fmt;

/// One violation of one rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// The file, with a line where there is one, or the crate.
    pub place: String,
    /// What is wrong there and what to do about it.
    pub what: String,
}

impl Finding {
    /// A finding at `place`.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Fails the calling test with one line per finding.
#[track_caller]
fn check(findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn dependencies_point_one_way() {
    let edges = tree::edges(&tree::metadata());
    check(edges::findings(&edges));
    check(edges::unused(&edges));
    let architecture = tree::files(|path| path == "ARCHITECTURE.md").pop().expect("it is there");
    check(edges::undocumented(&architecture.path, &architecture.text));
}

#[test]
fn folders_of_a_crate_import_each_other_in_no_circle() {
    check(circles::findings(&rust_files()));
}

#[test]
fn every_crate_inherits_the_lints_of_the_workspace() {
    let manifests = tree::files(|path| path.ends_with("Cargo.toml") && path.starts_with("crates/"));
    assert!(manifests.len() > 5, "the walk found only {} manifests", manifests.len());
    check(manifests.iter().flat_map(|file| sources::lints_are_inherited(&file.path, &file.text)).collect());
}

#[test]
fn unsafe_stands_only_where_it_may() {
    check(rust_files().iter().flat_map(|file| sources::unsafe_is_confined(&file.path, &file.text)).collect());
}

#[test]
fn state_machines_know_no_socket_thread_clock_environment_or_global() {
    check(
        rust_files().iter().flat_map(|file| sources::pure_crates_stay_pure(&file.path, &file.text)).collect(),
    );
}

#[test]
fn no_file_holds_more_than_one_idea_could_need() {
    check(rust_files().iter().flat_map(|file| sources::length_is_bounded(&file.path, &file.text)).collect());
}

#[test]
fn links_in_documents_lead_somewhere() {
    let documents = tree::files(|path| path.ends_with(".md"));
    assert!(!documents.is_empty(), "the walk found no documents");
    check(
        documents
            .iter()
            .flat_map(|file| documents::broken_links(&file.path, &file.text, tree::exists))
            .collect(),
    );
}

#[test]
fn manifests_are_yaml_and_give_halite_flags_that_it_has() {
    let manifests = tree::files(|path| path.starts_with("deploy/") && path.ends_with(".yaml"));
    assert!(manifests.len() >= 2, "the walk found only {} manifests", manifests.len());
    let arguments = tree::files(|path| path == "crates/cli/src/args.rs").pop().expect("it is there").text;
    check(manifests.iter().flat_map(|file| deploy::findings(&file.path, &file.text, &arguments)).collect());
}

#[test]
fn architecture_names_what_is_there() {
    let architecture = tree::files(|path| path == "ARCHITECTURE.md").pop().expect("it is there").text;
    let files = tree::files(|path| path.starts_with("crates/"));
    check(documents::missing_names("ARCHITECTURE.md", &architecture, &files));
}

#[test]
fn the_glossary_can_be_read_in_one_go() {
    let architecture = tree::files(|path| path == "ARCHITECTURE.md").pop().expect("it is there").text;
    let terms = documents::glossary(&architecture);
    assert!((1..=30).contains(&terms.len()), "{} terms: {terms:?}", terms.len());
}

#[test]
fn the_newcomers_walk_leads_along_functions_that_exist() {
    let architecture = tree::files(|path| path == "ARCHITECTURE.md").pop().expect("it is there").text;
    let source = |path: &str| tree::files(|other| other == path).pop().map(|file| file.text);
    let (found, missing) = documents::missing_functions("ARCHITECTURE.md", &architecture, source);
    check(missing);
    assert!(found >= 32, "the walk has lost its steps: {found}");
}

#[test]
fn the_changelog_has_a_place_for_what_comes_next() {
    let changelog =
        tree::files(|path| path == "CHANGELOG.md").pop().map(|file| file.text).unwrap_or_default();
    check(documents::changelog_is_open(&changelog));
}

/// All Rust sources of the tree, tests and examples included.
fn rust_files() -> Vec<tree::File> {
    let files = tree::files(|path| path.ends_with(".rs"));
    assert!(files.len() > 10, "the walk found only {} sources", files.len());
    files
}
