//! Finds plans: built-in ones by name, others by file.

use std::io;

use halite_trials::{Plan, PlanError};

use crate::shell::quoted;

/// A plan, and its name on the command line.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name or path as the user gave it.
    pub name: String,
    /// Name of a profile that replaces the plan's.
    pub profile: Option<String>,
    pub plan: Plan,
}

/// The reason why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read plan {path}: {cause}; `halite sim list` shows the plans that need no file")]
    File {
        path: String,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The plan is invalid or unknown.
    #[error("plan {name}: {cause}")]
    Plan {
        /// Name or path of the plan, as the user gave it.
        name: String,
        /// The reason why the plan cannot be used.
        cause: Box<PlanError>,
    },
}

impl Source {
    /// Finds the plan with this name or path, with another profile if one is given.
    pub fn find(name: &str, profile: Option<&str>) -> Result<Source, SourceError> {
        let plan = if is_name(name) { Plan::named(name) } else { Plan::from_toml(&read(name)?) };
        let plan = plan.and_then(|plan| match profile {
            Some(profile) => plan.over(profile),
            None => Ok(plan),
        });
        match plan {
            Ok(plan) => Ok(Source { name: name.to_owned(), profile: profile.map(str::to_owned), plan }),
            Err(cause) => Err(SourceError::Plan { name: name.to_owned(), cause: Box::new(cause) }),
        }
    }

    /// Returns the command that runs the plan with a seed.
    pub fn repeat_command(&self, seed: u64) -> String {
        let profile = self.profile.as_ref().map(|name| format!(" --profile {name}"));
        format!("halite sim run {} --seed {seed}{}", quoted(&self.name), profile.unwrap_or_default())
    }
}

/// Returns true for a name, false for a path.
fn is_name(text: &str) -> bool {
    !text.contains(['/', '.'])
}

fn read(path: &str) -> Result<String, SourceError> {
    std::fs::read_to_string(path).map_err(|cause| SourceError::File { path: path.to_owned(), cause })
}
