//! The inputs of one step of the requester or the responder.

use std::collections::VecDeque;

use crate::config::Config;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::work::Event;

/// The environment of one step, borrowed from the queue pair.
pub(crate) struct StepContext<'a> {
    pub now_ns: u64,
    /// Arrival time of the packet being handled, in ns. It may be earlier than `now_ns`, because the packet may have
    /// waited in a queue.
    pub arrived_ns: u64,
    pub config: &'a Config,
    pub memory: &'a dyn Memory,
    pub counters: &'a mut Counters,
    pub events: &'a mut VecDeque<Event>,
}
