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
