//! Reads the tree: files by their path below its root, and the edges between its crates.

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand};

use super::edges::Edge;

/// A text file of the tree.
pub struct File {
    /// Below the root, with forward slashes.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// The files whose path below the root `wanted` accepts, ordered by path.  What builds leave behind is not looked at.
pub fn files(wanted: impl Fn(&str) -> bool) -> Vec<File> {
    let mut paths = Vec::new();
    walk(&root(), &mut paths);
    paths.sort();
    let below = |path: &Path| path.strip_prefix(root()).expect("walked from the root").display().to_string();
    let kept = paths.into_iter().map(|path| (below(&path), path)).filter(|(name, _)| wanted(name));
    kept.map(|(name, path)| File { path: name, text: read(&path) }).collect()
}

/// Whether a path below the root is there.
pub fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// What cargo knows about the workspace.  Looks only at manifests, so that it needs no network.
pub fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command.exec().expect("cargo metadata answers")
}

/// Who names whom among the crates of the workspace, in any kind of dependency.
pub fn edges(metadata: &Metadata) -> Vec<Edge> {
    let ours: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut edges = Vec::new();
    for package in &metadata.packages {
        let known = package.dependencies.iter().filter(|dependency| ours.contains(&dependency.name.as_str()));
        edges.extend(known.map(|dependency| Edge::new(&package.name, &dependency.name)));
    }
    assert!(edges.len() > 5, "cargo metadata shows only {} edges", edges.len());
    edges
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/testing stands two levels below the root").to_path_buf()
}

fn walk(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("directories of the tree can be read") {
        let entry = entry.expect("directories of the tree can be read");
        let kind = entry.file_type().expect("entries have a type");
        if kind.is_file() {
            paths.push(entry.path());
        } else if kind.is_dir() && !is_residue(&entry.file_name().to_string_lossy()) {
            walk(&entry.path(), paths);
        }
    }
}

fn is_residue(directory: &str) -> bool {
    matches!(directory, "target" | ".git" | "corpus" | "artifacts")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}
