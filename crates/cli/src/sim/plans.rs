//! Plans, as a command line names them: those of the tree by their names, others by their files.

use std::io;

use halite_trials::{Plan, PlanError};

use crate::shell::quoted;

/// A plan, and what its user calls it.
#[derive(Clone, Debug)]
pub struct Source {
    /// What the user said, and can say again.
    pub said: String,
    /// The hardware that was said to take the place of the plan's.
    pub profile: Option<String>,
    /// The plan.
    pub plan: Plan,
}

/// Why there is no such plan.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read plan {path}: {cause}; `halite sim list` shows the plans that need no file")]
    File {
        /// Which.
        path: String,
        /// What the system says.
        cause: io::Error,
    },
    /// What the file holds, or the name, is no plan's.
    #[error("plan {said}: {cause}")]
    Plan {
        /// What the user said.
        said: String,
        /// What is wrong with it.
        cause: Box<PlanError>,
    },
}

impl Source {
    /// Finds the plan that `said` names, perhaps over other hardware.
    pub fn find(said: &str, profile: Option<&str>) -> Result<Source, SourceError> {
        let plan = if is_name(said) { Plan::named(said) } else { Plan::from_toml(&read(said)?) };
        let plan = plan.and_then(|plan| match profile {
            Some(profile) => plan.over(profile),
            None => Ok(plan),
        });
        match plan {
            Ok(plan) => Ok(Source { said: said.to_owned(), profile: profile.map(str::to_owned), plan }),
            Err(cause) => Err(SourceError::Plan { said: said.to_owned(), cause: Box::new(cause) }),
        }
    }

    /// The command that runs it with a seed.
    pub fn again(&self, seed: u64) -> String {
        let profile = self.profile.as_ref().map(|name| format!(" --profile {name}"));
        format!("halite sim run {} --seed {seed}{}", quoted(&self.said), profile.unwrap_or_default())
    }
}

/// Whether it looks like a name, rather than a path.
fn is_name(said: &str) -> bool {
    !said.contains(['/', '.'])
}

fn read(path: &str) -> Result<String, SourceError> {
    std::fs::read_to_string(path).map_err(|cause| SourceError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_found_by_its_name() {
        let storm = Source::find("storm", None).unwrap();
        assert_eq!(
            (storm.plan.name.as_str(), storm.again(7).as_str()),
            ("storm", "halite sim run storm --seed 7")
        );
    }

    #[test]
    fn a_plan_over_other_hardware_is_repeated_over_that() {
        let storm = Source::find("storm", Some("roce-100g")).unwrap();
        assert_eq!(
            (storm.plan.profile.as_str(), storm.again(7).as_str()),
            ("roce-100g", "halite sim run storm --seed 7 --profile roce-100g")
        );
        // Its nodes stand on hosts, which only adapters connect.
        let refusal = |said, profile| Source::find(said, Some(profile)).unwrap_err().to_string();
        assert!(refusal("mixed", "local").contains("must be of adapters"));
        assert!(refusal("storm", "token-ring").contains("known are local"));
    }

    #[test]
    fn what_is_not_found_is_told_with_a_way_on() {
        let refusal = |said: &str| Source::find(said, None).unwrap_err().to_string();
        assert!(refusal("picnic").contains("known are calm, storm"));
        assert!(refusal("plans/picnic.toml").contains("cannot read plan plans/picnic.toml"));
    }
}
