//! Checks that the simulated costs of operations are those in docs/simulated.md.

#[test]
fn simulated_costs_have_not_changed() {
    let (expected, actual) = (include_str!("../../../docs/simulated.md"), halite_trials::golden());
    let changed: Vec<_> = expected.lines().zip(actual.lines()).filter(|(old, new)| old != new).collect();
    assert!(
        changed.is_empty() && expected.lines().count() == actual.lines().count(),
        "the simulated costs of operations have changed:\n{changed:#?}\nif this is intended, regenerate the table:\n  \
         cargo run --release -p halite-cli -- sim golden > docs/simulated.md",
    );
}
