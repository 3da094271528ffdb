//! Congestion control of all nodes of this command: in this process, and in the processes that it starts.

use std::sync::OnceLock;

use halite::{Config, Congestion};

/// The value of `--congestion`.
static CHOSEN: OnceLock<Congestion> = OnceLock::new();

/// Sets the algorithm once, before the first node or process starts.
pub fn choose(congestion: Congestion) {
    CHOSEN.get_or_init(|| congestion);
}

/// Returns the default configuration of a node, but with the chosen algorithm.
pub fn config() -> Config {
    let default = Config::default();
    Config { congestion: CHOSEN.get().copied().unwrap_or(default.congestion), ..default }
}

/// Returns the flags by which a process of this program chooses the same algorithm.
pub fn flags() -> [&'static str; 2] {
    ["--congestion", config().congestion.name()]
}
