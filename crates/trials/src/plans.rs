//! The built-in plans.

use crate::plan::{Plan, PlanError};

const PLANS: [(&str, &str); 11] = [
    ("calm", include_str!("../../../plans/calm.toml")),
    ("storm", include_str!("../../../plans/storm.toml")),
    ("regions", include_str!("../../../plans/regions.toml")),
    ("torn", include_str!("../../../plans/torn.toml")),
    ("links", include_str!("../../../plans/links.toml")),
    ("adapters", include_str!("../../../plans/adapters.toml")),
    ("mixed", include_str!("../../../plans/mixed.toml")),
    ("priorities", include_str!("../../../plans/priorities.toml")),
    ("batches", include_str!("../../../plans/batches.toml")),
    ("frantic", include_str!("../../../plans/frantic.toml")),
    ("big", include_str!("../../../plans/big.toml")),
];

impl Plan {
    /// Names of the plans whose trials take some milliseconds, so that thousands of seeds can run.
    pub const SMALL: [&str; 8] =
        ["calm", "storm", "regions", "links", "adapters", "mixed", "priorities", "torn"];

    /// Returns the names of the built-in plans.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PLANS.iter().map(|(name, _)| *name)
    }

    /// Returns the built-in plan of that name.
    pub fn named(name: &str) -> Result<Plan, PlanError> {
        let found = PLANS.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| PlanError::Unknown { name: name.to_owned() })?;
        Plan::from_toml(text)
    }
}
