//! `halite sim`: a failure repeats with the same seed, and correct runs succeed.

use crate::support;

use serde_json::Value;
use support::Scratch;

/// Plans that are short enough for a debug build.
const PLANS: [&str; 4] = ["calm", "storm", "regions", "adapters"];

fn run(scratch: &Scratch, line: &str) -> Value {
    scratch.json(&format!("sim {line} --json")).remove(0)
}

#[test]
fn small_plans_are_deterministic() {
    let scratch = Scratch::new("sim-twice");
    for plan in PLANS {
        let line = format!("run {plan} --seed 1");
        let (first, second) = (run(&scratch, &line), run(&scratch, &line));
        assert_eq!(first, second, "{plan}");
        assert_eq!(first["violation"], Value::Null, "{plan}");
        assert!(first["operations"].as_object().is_some_and(|kinds| kinds.len() > 5), "{first}");
    }
}

#[test]
fn trace_changes_no_result() {
    let scratch = Scratch::new("sim-trace");
    let plan = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans/storm.toml");
    let trace = scratch.file("trace");
    let watched = run(&scratch, &format!("run {plan} --seed 1 --trace {}", trace.display()));
    assert_eq!(watched, run(&scratch, "run storm --seed 1"));
    let lines = std::fs::read_to_string(trace).unwrap();
    assert!(lines.lines().count() > 1000 && lines.contains("host-0"), "{} bytes", lines.len());
}

#[test]
fn invalid_plans_seeds_and_profiles_are_refused() {
    let scratch = Scratch::new("sim-refused");
    let bad = scratch.write("bad.toml", b"name = 'bad'\nnodes = 3\nspeed = 7\n");
    let none = scratch.write("none.toml", b"name = 'none'\nnodes = 0\n");
    let profile = scratch.write("profile.toml", b"name = 'p'\nnodes = 1\nprofile = 'abacus'\n");
    let refused = |line: &str, status, reason: &str| {
        let complaint = scratch.fails(&format!("sim {line}"), status);
        assert!(complaint.contains(reason), "{line}: {complaint}");
    };
    refused("run picnic", 1, "the plans are calm");
    refused("run picnic.toml", 1, "cannot read plan picnic.toml");
    refused(&format!("run {}", bad.display()), 1, "speed");
    refused(&format!("run {}", none.display()), 1, "nodes must be");
    refused(&format!("run {}", profile.display()), 1, "the profiles are local");
    refused("run calm --seed minus", 2, "minus");
    refused("run calm --trace /nowhere/at/all", 1, "/nowhere/at/all");
    refused("soak", 2, "--seconds");
    refused("soak --seeds 7..7", 2, "the range 7..7 is empty");
    refused("soak --seeds 0..1 --threads 0", 2, "threads");
}
