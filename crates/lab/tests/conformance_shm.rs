//! The public API over shared memory.

use std::sync::Arc;

use halite::{Config, JoinError, Node};
use halite_fabric::trace::Tracer;
use lab::conformance::Harness;

/// Nodes reach each other's memory by loads and stores, as embedded nodes do by default.
struct Direct;

impl Harness for Direct {
    fn start(&self, config: Config) -> Result<Node, JoinError> {
        Node::embedded(config)
    }
}

mod direct {
    use super::Direct;

    lab::conformance_suite!(Direct);
}

/// Middleware hides that, so that every access is posted and completed as on a network.
struct Posted;

impl Harness for Posted {
    fn start(&self, config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| Arc::new(Tracer::new(fabric, TRACE_RECORDS_MAX)))
    }
}

/// Nobody reads the trace here.
const TRACE_RECORDS_MAX: usize = 16;

mod posted {
    use super::Posted;

    lab::conformance_suite!(Posted);
}
