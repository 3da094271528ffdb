//! `halite secret`: what the nodes of a cluster on several hosts know each other by.

use anyhow::Context;
use halite_providers::secure;

use crate::args::Secret;

/// Nothing is printed: what stands on a terminal is not secret.
pub fn run(args: &Secret) -> anyhow::Result<()> {
    let Secret::New { file } = args;
    let made = secure::Secret::new().and_then(|secret| secret.write_new(file));
    made.with_context(|| format!("cannot write a new secret to {}", file.display()))
}
