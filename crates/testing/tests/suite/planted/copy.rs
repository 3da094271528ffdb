//! A copy of the tree in which bugs are planted, and its program.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::patches::Story;
use super::run;

/// What the program is built from.
const PARTS: [&str; 5] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "crates", "plans"];

/// See the header of this file.
pub struct Copy {
    /// Where it is.
    pub source: PathBuf,
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// A place for a copy of `tree`; [`Copy::restore`] makes it one.
    pub fn new(tree: &Path) -> Copy {
        let targets = std::env::var_os("CARGO_TARGET_DIR").map_or(tree.join("target"), |dir| tree.join(dir));
        let home = targets.join("planted");
        Copy { source: home.join("src"), tree: tree.to_owned(), target: home.join("target") }
    }

    /// Makes all files as they are in the tree; touches only those that differ, so that little is built again.
    pub fn restore(&self) {
        PARTS.iter().for_each(|part| restore(&self.tree.join(part), &self.source.join(part)));
    }

    /// Builds the program.
    pub fn build(&self, what: &str) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--profile", "planted", "-p", "halite-cli"]);
        cargo.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        run(&mut cargo, &format!("build {what}"));
    }

    /// Runs a story, as its patch names it: package, target and name of the test.
    pub fn run_story(&self, story: &Story) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--quiet", "--profile", "planted", "-p"]).args(story.test.split(' '));
        let target = if story.is_model { self.target.join("loom") } else { self.target.clone() };
        if story.is_model {
            cargo.env("RUSTFLAGS", "--cfg loom");
        }
        cargo.current_dir(&self.source).env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "1");
        cargo.output().expect("cargo runs")
    }

    /// Walks the first seeds of a plan of the program or of the tree.
    pub fn soak(&self, plan: &str, seeds: u64) -> Output {
        let mut halite = Command::new(self.target.join("planted/halite"));
        halite.args(["sim", "soak", "--plan", plan, "--seeds", &format!("0..{seeds}")]);
        halite.current_dir(&self.source);
        halite.env("RUST_BACKTRACE", "0").output().expect("it was built just before")
    }
}

fn restore(from: &Path, to: &Path) {
    if from.is_file() {
        let wanted = fs::read(from).expect("files of the tree can be read");
        if fs::read(to).ok().as_ref() != Some(&wanted) {
            write(to, &wanted);
        }
        return;
    }
    if from.file_name() == Some(OsStr::new("target")) {
        return;
    }
    forget_what_is_gone(from, to);
    for entry in fs::read_dir(from).expect("directories of the tree can be read") {
        let name = entry.expect("they can be read on").file_name();
        restore(&from.join(&name), &to.join(&name));
    }
}

/// Removes what the tree has no more.
fn forget_what_is_gone(from: &Path, to: &Path) {
    for entry in fs::read_dir(to).into_iter().flatten().flatten() {
        let (path, is_gone) = (entry.path(), !from.join(entry.file_name()).exists());
        let removed = match (is_gone, path.is_dir()) {
            (false, _) => Ok(()),
            (true, true) => fs::remove_dir_all(&path),
            (true, false) => fs::remove_file(&path),
        };
        removed.unwrap_or_else(|error| panic!("cannot remove {}: {error}", path.display()));
    }
}

fn write(path: &Path, bytes: &[u8]) {
    let directory = path.parent().expect("files of the tree are in it");
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(path, bytes));
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}
