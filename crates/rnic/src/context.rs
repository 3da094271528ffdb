//! What a step of either state machine gets to see besides its own state.

use std::collections::VecDeque;

use crate::config::Config;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::work::Event;

/// Borrowed for one step.
pub(crate) struct StepContext<'a> {
    pub now_ns: u64,
    /// When the packet came that is handled, which may have waited since.
    pub arrived_ns: u64,
    pub config: &'a Config,
    pub memory: &'a dyn Memory,
    pub counters: &'a mut Counters,
    pub events: &'a mut VecDeque<Event>,
}
