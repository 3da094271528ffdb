//! Models TCP sockets by a formula: a fixed latency, a bandwidth, and processor cycles for each window of bytes. The
//! costs are those of a kernel, which this crate does not simulate.

use serde::Deserialize;

/// Costs of TCP sockets over one network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sockets {
    /// Half of the round-trip time of a short message.
    latency_ns: u64,
    /// Processing time per message of a stream, at the slower side.
    message_ns: u64,
    bandwidth_bytes_per_us: u64,
    /// Processor cycles per window of a message, the sum of both sides. A short message costs one window.
    cycles_per_window: u64,
    window_bytes: u64,
}

impl Sockets {
    /// Returns the built-in profile of this name.
    pub(crate) fn named(name: &str) -> Option<Sockets> {
        Some(toml::from_str(Sockets::toml(name)?).expect("a test reads it"))
    }

    /// Returns the file of the built-in profile of this name.
    pub(crate) fn toml(name: &str) -> Option<&'static str> {
        match name {
            "ipoib" => Some(include_str!("../profiles/ipoib.toml")),
            "ethernet-1g" => Some(include_str!("../profiles/ethernet-1g.toml")),
            _ => None,
        }
    }

    /// Returns half of the round-trip time of a message, in us.
    pub(crate) fn latency_us(&self, bytes: f64) -> f64 {
        self.latency_ns as f64 / 1e3 + bytes / self.bandwidth_bytes_per_us as f64
    }

    /// Returns the throughput of a stream of messages, in GB/s.
    pub(crate) fn throughput_gb_s(&self, bytes: f64) -> f64 {
        let wire_ns = bytes * 1e3 / self.bandwidth_bytes_per_us as f64;
        bytes / wire_ns.max(self.message_ns as f64)
    }

    /// Returns the processor cycles for a message, the sum of both sides.
    pub(crate) fn cycles(&self, bytes: f64) -> f64 {
        self.cycles_per_window as f64 * (bytes / self.window_bytes as f64).max(1.0)
    }
}
