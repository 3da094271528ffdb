//! `halite secret`: creates the secret that authenticates the nodes of several hosts.

use anyhow::Context;
use halite_providers::secure;

use crate::args::Secret;

/// Creates a secret. Does not print it, because other people may see the terminal.
pub fn run(args: &Secret) -> anyhow::Result<()> {
    let Secret::New { file } = args;
    let made = secure::Secret::new().and_then(|secret| secret.write_new(file));
    made.with_context(|| format!("cannot write a new secret to {}", file.display()))
}
