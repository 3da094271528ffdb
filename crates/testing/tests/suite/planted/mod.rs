//! Planted bugs: the soak of simulated clusters finds each of them, and nothing in the tree as it is.
//!
//! A soak that finds nothing proves little unless it can find something.  Each `*.patch` beside this file breaks one
//! promise; its first lines say which, how many seeds of which plan must suffice to show it, and which story, or model, fails with it.  The patches are
//! applied one at a time to a copy of the tree below `target/planted`.
//!
//! That they all apply is tested every day; building and walking takes a quarter of an hour:
//! `.ci/deep planted`.

mod copy;
mod patches;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use copy::Copy;
use patches::{Patch, all};

#[test]
fn every_planted_bug_can_still_be_planted() {
    let patches = all();
    assert!(patches.len() >= 8, "only {} bugs are planted", patches.len());
    patches.iter().for_each(|patch| patch.apply(&root(), true));
}

/// What people read is what is checked.
#[test]
fn the_table_of_planted_bugs_says_what_the_patches_say() {
    let path = root().join("docs/planted-bugs.md");
    let text = std::fs::read_to_string(&path).expect("it can be read");
    let rows: String = all().iter().map(row).collect();
    assert!(text.ends_with(&rows), "{} should end with:\n{rows}", path.display());
}

fn row(patch: &Patch) -> String {
    let (plan, seeds) = match &patch.plan {
        Some((plan, seeds)) => {
            let plan = Path::new(plan).with_extension("");
            (format!("`{}`", plan.strip_prefix("plans").unwrap_or(&plan).display()), seeds.to_string())
        }
        None => ("none".to_owned(), String::new()),
    };
    // The name of the test is the last word.
    let story = patch.story.as_ref().and_then(|story| story.test.rsplit(' ').next()).unwrap_or_default();
    let story = if story.is_empty() { String::new() } else { format!("`{story}`") };
    format!("| {} | {plan} | {seeds} | {story} |\n", patch.breaks)
}

#[test]
#[ignore = "slow: .ci/deep planted"]
fn the_story_of_every_planted_bug_fails_with_it() {
    let copy = Copy::new(&root());
    let mut wrong = Vec::new();
    for (patch, story) in due().iter().filter_map(|patch| Some((patch, patch.story.as_ref()?))) {
        copy.restore();
        patch.apply(&copy.source, false);
        let with = text(&copy.run_story(story));
        // One that does not build says nothing of tests.  Without the bug it passes: it is one of the workspace's tests.
        if !with.contains("test result: FAILED") {
            wrong.push(format!("{}: {with}", patch.name));
        }
    }
    copy.restore();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "slow: .ci/deep planted"]
fn every_planted_bug_is_found_within_its_seeds_and_nothing_else_is() {
    let patches = due();
    let copy = Copy::new(&root());
    copy.restore();
    copy.build("the tree as it is");
    for (plan, seeds) in longest(&patches) {
        let said = copy.soak(plan, seeds);
        assert!(said.status.success(), "plan {plan} fails without any bug planted:\n{}", text(&said));
        println!("nothing is found by {seeds} seeds of plan {plan} in the tree as it is");
    }
    let missed: Vec<&str> =
        patches.iter().filter(|patch| !is_found(&copy, patch)).map(|p| p.name.as_str()).collect();
    copy.restore();
    assert!(
        missed.is_empty(),
        "not found, each of which is a gap in what trials look at: {}",
        missed.join(", ")
    );
}

/// Those whose turn it is: all, or, as `PLANTED_PART` says, one of so many equal parts (`2/4` is the third quarter), or those of
/// these names (`lock_overtaken,bounds_unchecked`).
fn due() -> Vec<Patch> {
    let Ok(part) = std::env::var("PLANTED_PART") else { return all() };
    let Some((part, parts)) = part.split_once('/') else {
        let named: Vec<Patch> =
            all().into_iter().filter(|patch| part.split(',').any(|name| name == patch.name)).collect();
        assert_eq!(named.len(), part.split(',').count(), "a bug of PLANTED_PART {part:?} is not planted");
        return named;
    };
    let (part, parts) = match (part.parse(), parts.parse()) {
        (Ok(part), Ok(parts)) if part < parts => (part, parts),
        _ => panic!("PLANTED_PART is {part}/{parts}, and should be as 2/4 is"),
    };
    all().into_iter().skip(part).step_by(parts).collect()
}

/// How many seeds of each plan are walked at most.
fn longest(patches: &[Patch]) -> BTreeMap<&str, u64> {
    let mut longest = BTreeMap::new();
    for (plan, seeds) in patches.iter().filter_map(|patch| patch.plan.as_ref()) {
        let most: &mut u64 = longest.entry(plan.as_str()).or_default();
        *most = (*most).max(*seeds);
    }
    longest
}

fn is_found(copy: &Copy, patch: &Patch) -> bool {
    let Some((plan, seeds)) = &patch.plan else { return true };
    copy.restore();
    patch.apply(&copy.source, false);
    copy.build(&patch.name);
    let said = copy.soak(plan, *seeds);
    let text = text(&said);
    // A panic while another one unwinds ends the program before it can tell more.
    let is_told = ["VIOLATION", "panic in"].iter().any(|sign| text.contains(sign));
    let is_found = !said.status.success() && is_told;
    let verdict = if is_found { "found" } else { "NOT FOUND" };
    let last = text.lines().rfind(|line| line.contains("again with")).unwrap_or_default();
    println!("{verdict}: {}: {}\n  {last}", patch.name, patch.breaks);
    is_found
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout))
}

/// Runs a command that must succeed.
#[track_caller]
fn run(command: &mut Command, what: &str) {
    let output = command.output().unwrap_or_else(|error| panic!("cannot {what}: {error}"));
    assert!(output.status.success(), "cannot {what}:\n{}", text(&output));
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/testing stands two levels below the root").to_path_buf()
}
