//! Congestion control and lanes of all nodes of this command: in this process, and in the processes that it starts.

use std::sync::OnceLock;

use halite::{Config, Congestion};

/// The values of `--congestion` and `--lanes`.
static OPTIONS: OnceLock<(Congestion, u32)> = OnceLock::new();

/// Sets the options once, before the first node or process starts.
pub fn set_options(congestion: Congestion, lanes: u32) {
    OPTIONS.get_or_init(|| (congestion, lanes));
}

/// Returns the default configuration of a node, but with the options of this command.
pub fn config() -> Config {
    let default = Config::default();
    match OPTIONS.get() {
        Some((congestion, lanes)) => Config { congestion: *congestion, lanes: *lanes as usize, ..default },
        None => default,
    }
}

/// Returns the flags that give another process of the command the same options.
pub fn flags() -> [String; 4] {
    let Config { congestion, lanes, .. } = config();
    ["--congestion".to_owned(), congestion.name().to_owned(), "--lanes".to_owned(), lanes.to_string()]
}
