//! Checks that the simulated costs of operations are those in docs/simulated.md.

#[test]
fn simulated_costs_have_not_changed() {
    let (then, now) = (include_str!("../../../docs/simulated.md"), halite_trials::golden());
    let changed: Vec<_> = then.lines().zip(now.lines()).filter(|(then, now)| then != now).collect();
    assert!(
        changed.is_empty() && then.lines().count() == now.lines().count(),
        "the simulated costs of operations have changed:\n{changed:#?}\nif this is intended, regenerate the table:\n  \
         cargo run --release -p halite-cli -- sim golden > docs/simulated.md",
    );
}
