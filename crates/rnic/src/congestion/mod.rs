//! How much may be under way in the network, which tells nobody what it has room for.
//!
//! The peer's grant says what its socket takes; what is between is found out by a [`Controller`], from how long packets take and how many
//! are lost.  [`pacer`] has them leave evenly.

mod delay;
mod loss;
pub(crate) mod pacer;

use std::fmt::Debug;

/// What decides how much may be under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// The peer's grant alone: nothing is shared with others, as between processes of one host.
    Grant,
    /// How long packets take: a queue on the way is kept short.  After Swift (SIGCOMM 2020).
    Delay,
    /// What is lost: a queue on the way is filled until that happens.  One packet more in each round trip, half as many after a loss.
    Loss,
}

/// What was heard at a time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Heard {
    /// How long the newest packet took that says so, there and back, in nanoseconds.
    pub trip_ns: Option<u64>,
    /// And how much of that it was in the network, as far as it is known what it has waited for at both ends.
    pub network_ns: Option<u64>,
    /// Packets that are known to have arrived since the last time.
    pub arrived: u32,
    /// Packets that are known to be lost since the last time.
    pub lost: u32,
    /// Packets that were under way before that.
    pub under_way: u32,
}

/// Decides how many packets of a queue pair may be under way.
pub trait Controller: Debug + Send {
    /// That many.  Below one, packets leave one by one, so much more rarely than each round trip.
    fn window_packets(&self) -> f64;

    /// The peer has said something.
    fn handle_heard(&mut self, now_ns: u64, heard: Heard);

    /// Nothing was heard for long.
    fn handle_silence(&mut self);
}

impl Congestion {
    /// All of them.
    pub const ALL: [Congestion; 3] = [Congestion::Grant, Congestion::Delay, Congestion::Loss];

    /// As users call it.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Grant => "grant",
            Congestion::Delay => "delay",
            Congestion::Loss => "loss",
        }
    }

    /// What it goes by, for users.
    pub fn summary(self) -> &'static str {
        match self {
            Congestion::Grant => "what the receiver has room for, alone",
            Congestion::Delay => {
                "how long packets take as well: queues on the way stay short, and flows share them"
            }
            Congestion::Loss => "what is lost as well: half as much after a loss",
        }
    }

    /// One for a new queue pair, if any is needed.
    pub(crate) fn controller(self) -> Option<Box<dyn Controller>> {
        match self {
            Congestion::Grant => None,
            Congestion::Delay => Some(Box::<delay::Delay>::default()),
            Congestion::Loss => Some(Box::<loss::Loss>::default()),
        }
    }
}

/// The first window: what other transports begin with (RFC 6928).
const WINDOW_FIRST: f64 = 10.0;
/// More than any grant.
const WINDOW_MAX: f64 = 4096.0;

/// Whether the window was what kept packets back, within one packet.
fn was_full(window: f64, under_way: u32) -> bool {
    f64::from(under_way) + 1.0 >= window
}
