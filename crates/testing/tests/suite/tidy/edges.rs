//! The rule of edges: which crate of the workspace may depend on which.

use super::Finding;

/// `from` depends on `to`, be it in its code, its build or its tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    from: String,
    to: String,
}

impl Edge {
    /// An edge between two packages.
    pub fn new(from: &str, to: &str) -> Edge {
        Edge { from: from.to_owned(), to: to.to_owned() }
    }
}

/// Nothing depends on these, and they may depend on all.
const OUTSIDE: [&str; 2] = ["halite-testing", "halite-bench"];

/// What each other package names, and may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("halite-fabric", &["halite-mem"]),
    ("halite-providers", &["halite-rnic", "halite-fabric", "halite-mem"]),
    ("halite-sim", &["halite-rnic", "halite-fabric", "halite-mem"]),
    ("halite-tier", &["halite-fabric", "halite-mem"]),
    ("halite", &["halite-tier", "halite-providers", "halite-fabric", "halite-mem"]),
    ("halite-trials", &["halite", "halite-apps", "halite-sim", "halite-fabric"]),
    ("halite-apps", &["halite"]),
    (
        "halite-cli",
        &[
            "halite",
            "halite-apps",
            "halite-trials",
            "halite-sim",
            "halite-tier",
            "halite-providers",
            "halite-mem",
        ],
    ),
];

/// The edges that the list does not have.
pub fn findings(edges: &[Edge]) -> Vec<Finding> {
    edges.iter().filter(|edge| !is_allowed(edge)).map(explain).collect()
}

/// The edges of the list that there are not, be it because nobody needs them or because there is no such crate.
pub fn unused(edges: &[Edge]) -> Vec<Finding> {
    let listed = ALLOWED.iter().flat_map(|(from, to)| to.iter().map(|to| Edge::new(from, to)));
    let unused = listed.filter(|edge| !edges.contains(edge));
    unused
        .map(|edge| {
            Finding::new(format!("crate {}", edge.from), format!("does not depend on {} any more", edge.to))
        })
        .collect()
}

/// The lines of the list that a document does not say: `sim → fabric, mem`, say.
pub fn undocumented(path: &str, text: &str) -> Vec<Finding> {
    let short = |name: &str| name.trim_start_matches("halite-").to_owned();
    let line = |(from, to): &(&str, &[&str])| {
        format!("`{} → {}`", short(from), to.iter().map(|to| short(to)).collect::<Vec<_>>().join(", "))
    };
    let missing = ALLOWED.iter().map(line).filter(|line| !text.contains(line.as_str()));
    missing.map(|line| Finding::new(path, format!("does not say {line}"))).collect()
}

fn is_allowed(edge: &Edge) -> bool {
    if OUTSIDE.contains(&edge.to.as_str()) {
        return false;
    }
    OUTSIDE.contains(&edge.from.as_str())
        || ALLOWED.iter().any(|(from, to)| *from == edge.from && to.contains(&edge.to.as_str()))
}

fn explain(edge: &Edge) -> Finding {
    let place = format!("crate {}", edge.from);
    Finding::new(
        place,
        format!("may not depend on {}: it is not in the list of tests/tidy/edges.rs", edge.to),
    )
}

#[test]
fn a_planted_edge_against_the_direction_is_found() {
    let edges = [Edge::new("halite", "halite-tier"), Edge::new("halite-tier", "halite-providers")];
    let found = findings(&edges);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].place, "crate halite-tier");
    assert!(found[0].what.contains("halite-providers"));
}

#[test]
fn an_edge_that_nobody_needs_is_found_and_one_that_no_document_has() {
    let edges: Vec<Edge> =
        ALLOWED.iter().flat_map(|(from, to)| to.iter().map(|to| Edge::new(from, to))).collect();
    assert_eq!(unused(&edges), []);
    assert_eq!(unused(&edges[1..]).len(), 1);
    assert_eq!(undocumented("a.md", "`fabric → mem`").len(), ALLOWED.len() - 1);
}

#[test]
fn an_unknown_crate_must_first_be_put_on_the_list() {
    assert_eq!(findings(&[Edge::new("halite-new", "halite-mem")]).len(), 1);
}

#[test]
fn nothing_depends_on_tests_and_benchmarks() {
    assert_eq!(
        findings(&[Edge::new("halite-bench", "halite-tier"), Edge::new("halite-cli", "halite-bench")]).len(),
        1
    );
}
