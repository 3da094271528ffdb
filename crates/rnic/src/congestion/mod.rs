//! Congestion control: limits the packets in flight in the network.
//!
//! The peer's grant limits the packets in its socket. A [`Controller`] limits the packets in the network, by measured
//! delays and losses. [`pacer`] spaces packets evenly.

mod delay;
mod loss;
pub(crate) mod pacer;

use std::fmt::Debug;

/// The congestion control algorithm of one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// No congestion control: only the peer's grant (the room in its receive buffer) limits the packets in flight. For
    /// processes on one host.
    Grant,
    /// Delay-based: keeps queues in the network short. Follows Swift (SIGCOMM 2020).
    Delay,
    /// Loss-based: adds one packet per round trip and halves the window after a loss, as TCP Reno does.
    Loss,
}

/// Measurements from one response, as input of a [`Controller`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Feedback {
    /// Round-trip time in ns, of the newest acknowledged packet that permits a measurement; `None` if no packet permits
    /// one.
    pub trip_ns: Option<u64>,
    /// Network delay in ns: [`Feedback::trip_ns`] without the known waits at both ends.
    pub network_ns: Option<u64>,
    /// Longest round trip in ns of the recent packets that others have overtaken; 0 if there are none. A queue does not
    /// reorder, so a delay up to this one need not be a queue.
    pub overtaken_ns: u64,
    /// Number of packets that this response newly reports as arrived.
    pub arrived: u32,
    /// Number of packets that were newly found lost in the network. A lost read request counts as one loss.
    pub lost: u32,
    /// Number of packets in flight before the response.
    pub in_flight: u32,
}

/// A congestion control algorithm: computes the congestion window of a queue pair, which is the maximum number of its
/// packets in flight.
pub trait Controller: Debug + Send {
    /// Returns the congestion window in packets. With a window below 1, less than one packet leaves per round trip.
    fn window_packets(&self) -> f64;

    /// Adjusts the window after a response, or after newly detected losses.
    fn handle_feedback(&mut self, now_ns: u64, feedback: Feedback);

    /// Adjusts the window after a silence: several consecutive timeouts without a response.
    fn handle_silence(&mut self);
}

impl Congestion {
    /// All algorithms.
    pub const ALL: [Congestion; 3] = [Congestion::Grant, Congestion::Delay, Congestion::Loss];

    /// Returns the algorithm's name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Grant => "grant",
            Congestion::Delay => "delay",
            Congestion::Loss => "loss",
        }
    }

    /// Returns a one-line description for users.
    pub fn summary(self) -> &'static str {
        match self {
            Congestion::Grant => "limits packets in flight only by the receiver's grant",
            Congestion::Delay => {
                "limits packets in flight also by network delay: queues stay short, and flows share the bandwidth"
            }
            Congestion::Loss => "limits packets in flight also by losses: halves the limit after a loss",
        }
    }

    /// Returns a controller for a new queue pair; `None` for [`Congestion::Grant`].
    pub(crate) fn controller(self) -> Option<Box<dyn Controller>> {
        match self {
            Congestion::Grant => None,
            Congestion::Delay => Some(Box::<delay::Delay>::default()),
            Congestion::Loss => Some(Box::<loss::Loss>::default()),
        }
    }
}

/// Initial window in packets, that of TCP (RFC 6928).
const WINDOW_FIRST: f64 = 10.0;
/// Maximum window in packets: larger than any grant.
const WINDOW_MAX: f64 = 4096.0;

/// Returns true if the packets in flight used the window, to within one packet and a quarter of the window: a long read
/// waits until a quarter of the window is free.
fn is_window_used(window: f64, in_flight: u32) -> bool {
    is_window_full(0.75 * window, in_flight)
}

/// Returns true if the packets in flight filled the window, to within one packet.
fn is_window_full(window: f64, in_flight: u32) -> bool {
    f64::from(in_flight) + 1.0 >= window
}
