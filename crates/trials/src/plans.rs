//! The plans of the tree, which the program carries with it.

use crate::plan::{Plan, PlanError};

const PLANS: [(&str, &str); 14] = [
    ("calm", include_str!("../../../plans/calm.toml")),
    ("storm", include_str!("../../../plans/storm.toml")),
    ("crashes", include_str!("../../../plans/crashes.toml")),
    ("pauses", include_str!("../../../plans/pauses.toml")),
    ("regions", include_str!("../../../plans/regions.toml")),
    ("torn", include_str!("../../../plans/torn.toml")),
    ("partitions", include_str!("../../../plans/partitions.toml")),
    ("links", include_str!("../../../plans/links.toml")),
    ("adapters", include_str!("../../../plans/adapters.toml")),
    ("mixed", include_str!("../../../plans/mixed.toml")),
    ("rings", include_str!("../../../plans/rings.toml")),
    ("batches", include_str!("../../../plans/batches.toml")),
    ("frantic", include_str!("../../../plans/frantic.toml")),
    ("big", include_str!("../../../plans/big.toml")),
];

/// The plans of the tree.
impl Plan {
    /// Those of which thousands of seeds are walked: a trial takes some milliseconds.
    pub const SMALL: [&str; 11] = [
        "calm",
        "storm",
        "crashes",
        "pauses",
        "regions",
        "partitions",
        "links",
        "adapters",
        "mixed",
        "torn",
        "rings",
    ];

    /// The names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PLANS.iter().map(|(name, _)| *name)
    }

    /// The plan of that name.
    pub fn named(name: &str) -> Result<Plan, PlanError> {
        let found = PLANS.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| PlanError::Unknown { name: name.to_owned() })?;
        Plan::from_toml(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_of_the_tree_can_be_used_and_bears_the_name_of_its_file() {
        for name in Plan::names() {
            assert_eq!(Plan::named(name).unwrap().name, name);
        }
        let refusal = Plan::named("picnic").unwrap_err().to_string();
        assert!(refusal.contains("picnic") && refusal.contains("storm"), "{refusal}");
    }

    #[test]
    fn every_small_plan_is_of_the_tree_and_small() {
        assert!(Plan::SMALL.iter().all(|name| Plan::named(name).unwrap().nodes <= 5));
    }
}
