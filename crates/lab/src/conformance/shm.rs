//! Nodes over shared memory, for whoever runs cases on them.

use std::sync::Arc;

use halite::{Config, JoinError, Node};
use halite_fabric::fault::{FaultInjector, FaultPlan};
use halite_fabric::trace::Tracer;

use super::Harness;

/// Nodes reach each other's memory by loads and stores, as embedded nodes do by default.
pub struct Direct;

impl Harness for Direct {
    fn start(&self, config: Config) -> Result<Node, JoinError> {
        Node::embedded(config)
    }
}

/// Middleware hides that, so that every access is posted and completed as on a network.
pub struct Posted;

impl Harness for Posted {
    fn start(&self, config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| Arc::new(Tracer::new(fabric, TRACE_RECORDS_MAX)))
    }
}

/// As [`Posted`], on a fabric that has no atomics.
pub struct ByCall;

impl Harness for ByCall {
    fn start(&self, config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| Arc::new(FaultInjector::new(fabric, FaultPlan::new(0)).without_atomics()))
    }
}

/// Nobody reads the trace here.
const TRACE_RECORDS_MAX: usize = 16;
