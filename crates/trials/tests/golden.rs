//! The golden table in the tree is the one that this code makes.

#[test]
fn simulated_costs_are_as_the_document_has_them() {
    let (now, then) = (halite_trials::golden(), include_str!("../../../docs/simulated.md"));
    let changed: Vec<String> = diff(then, &now);
    assert!(
        changed.is_empty(),
        "operations cost something else in simulated time:\n{}\nif that is meant, renew the table:\n  \
         cargo run --release -p halite-cli -- sim golden > docs/simulated.md",
        changed.join("\n"),
    );
}

/// Lines that differ, of texts whose lines are mostly the same ones in the same places.
fn diff(then: &str, now: &str) -> Vec<String> {
    let missing = |lines: &str, sign: &str, other: &str| -> Vec<String> {
        let others: Vec<&str> = other.lines().collect();
        let at = lines.lines().enumerate().filter(|(at, line)| others.get(*at) != Some(line));
        at.map(|(at, line)| format!("{:>4} {sign} {line}", at + 1)).collect()
    };
    let mut changed = [missing(then, "-", now), missing(now, "+", then)].concat();
    changed.sort();
    changed
}

#[test]
fn a_change_is_shown_with_what_was_there() {
    assert_eq!(diff("a\nb\n", "a\nc\n"), ["   2 + c", "   2 - b"]);
    assert_eq!(diff("a\n", "a\nb\n"), ["   2 + b"]);
    assert!(diff("a\n", "a\n").is_empty());
}
