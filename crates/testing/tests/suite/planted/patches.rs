//! Patches: a bug each, and what must find it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// One bug.
pub struct Patch {
    /// That of its file.
    pub name: String,
    /// What it breaks, from its line `Breaks: `.
    pub breaks: String,
    /// The plan that must show it, from its line `Plan: `, and within how many seeds, from its line `Seeds: `; none if it is
    /// shown by its story alone.
    pub plan: Option<(String, u64)>,
    /// The story that fails with it, if it has one.
    pub story: Option<Story>,
    path: PathBuf,
}

/// A test, from the line `Story: `, or `Model: ` if it explores a model.
pub struct Story {
    /// Package, target and name.
    pub test: String,
    /// Whether it is built with loom.
    pub is_model: bool,
}

/// All, in the order of their names.
pub fn all() -> Vec<Patch> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted");
    let entries = std::fs::read_dir(directory).expect("the directory of this test can be read");
    let paths = entries.map(|entry| entry.expect("it can be read on").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "patch")).collect();
    paths.sort();
    paths.into_iter().map(Patch::read).collect()
}

impl Patch {
    fn read(path: PathBuf) -> Patch {
        let text = std::fs::read_to_string(&path).expect("patches can be read");
        let name = path.file_stem().expect("it has an extension, too").to_string_lossy().into_owned();
        let find = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let named = |start, is_model| find(start).map(|test| Story { test: test.to_owned(), is_model });
        let story = named("Story: ", false).or_else(|| named("Model: ", true));
        let header = |start: &str| {
            let line = find(start);
            line.unwrap_or_else(|| panic!("{name}.patch has no line that begins with {start:?}")).to_owned()
        };
        let plan = find("Plan: ").map(|plan| {
            let seeds = header("Seeds: ").parse();
            (plan.to_owned(), seeds.unwrap_or_else(|error| panic!("the seeds of {name}.patch: {error}")))
        });
        assert!(plan.is_some() || story.is_some(), "nothing shows {name}.patch");
        Patch { breaks: header("Breaks: "), plan, story, name, path }
    }

    /// Applies it to the tree in `root`, or only tries to.
    #[track_caller]
    pub fn apply(&self, root: &Path, try_only: bool) {
        let mut patch = Command::new("patch");
        patch.args(["-p1", "--forward", "--batch", "--reject-file=-", "--no-backup-if-mismatch"]);
        patch.args(try_only.then_some("--dry-run")).arg("-d").arg(root).arg("-i").arg(&self.path);
        let what = format!("plant {}; the code has changed: plant the same bug in what it is now", self.name);
        run(&mut patch, &what);
    }
}
