//! How all nodes of this command use the network: those in this process, and those in the processes that it starts.

use std::sync::OnceLock;

use halite::{Config, Congestion, ResponderMode};

/// The values of `--congestion`, `--lanes` and `--responder`.
static OPTIONS: OnceLock<(Congestion, u32, ResponderMode)> = OnceLock::new();

/// Sets the options once, before the first node or process starts.
pub fn set_options(congestion: Congestion, lanes: u32, responder: ResponderMode) {
    OPTIONS.get_or_init(|| (congestion, lanes, responder));
}

/// Returns the default configuration of a node, but with the options of this command.
pub fn config() -> Config {
    let default = Config::default();
    match OPTIONS.get() {
        Some((congestion, lanes, responder)) => {
            Config { congestion: *congestion, lanes: *lanes as usize, responder: *responder, ..default }
        }
        None => default,
    }
}

/// Returns the flags that give another process of the command the same options.
pub fn flags() -> Vec<String> {
    let Config { congestion, lanes, responder, .. } = config();
    let lanes = lanes.to_string();
    let flags = ["--congestion", congestion.name(), "--lanes", &lanes, "--responder", responder.name()];
    flags.map(str::to_owned).to_vec()
}
