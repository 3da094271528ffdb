//! The transports to compare. Each moves bytes from side 0 to side 1 as fast as it can.

use std::fmt;
use std::io;
use std::time::Duration;

use halite_providers::RoceConfig;
use halite_providers::roce::Congestion;

use super::halite::{Ends, Load};
use super::network::Network;
use super::tcp;

/// A transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Halite over UDP, with this congestion control in addition to the limit that the peer's grant sets.
    Halite(Congestion),
    /// One stream of TCP.
    Tcp,
    /// One stream of QUIC.
    Quic,
}

impl Transport {
    /// Returns the transports that this program was built with.
    pub fn all() -> Vec<Transport> {
        let mut all =
            vec![Transport::Halite(Congestion::Grant), Transport::Halite(Congestion::Delay), Transport::Tcp];
        if cfg!(feature = "quic") {
            all.push(Transport::Quic);
        }
        all
    }

    /// Returns the goodput of each of `flows` flows, in megabits per second, measured after `warm_up`.
    pub fn goodput_mbps(
        self,
        network: &Network,
        flows: usize,
        warm_up: Duration,
        time: Duration,
    ) -> io::Result<Vec<f64>> {
        match self {
            Transport::Halite(congestion) => of_halite(network, congestion, flows, warm_up, time),
            Transport::Tcp => tcp::goodput_mbps(network, flows, warm_up, time),
            #[cfg(feature = "quic")]
            Transport::Quic => super::quic::goodput_mbps(network, flows, warm_up, time),
            #[cfg(not(feature = "quic"))]
            Transport::Quic => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Halite(Congestion::Grant) => "Halite, by grant",
            Transport::Halite(Congestion::Delay) => "Halite, by delay",
            Transport::Halite(Congestion::Loss) => "Halite, by loss",
            Transport::Tcp => "TCP",
            Transport::Quic => "QUIC",
        })
    }
}

/// Returns a function that sets the congestion control of a configuration.
pub fn controlled_by(congestion: Congestion) -> impl Fn(RoceConfig) -> RoceConfig {
    move |config| RoceConfig { congestion, ..config }
}

/// Runs flows that start together once all are connected.
fn of_halite(
    network: &Network,
    congestion: Congestion,
    flows: usize,
    warm_up: Duration,
    time: Duration,
) -> io::Result<Vec<f64>> {
    let connect = |_| Ends::connect(network, controlled_by(congestion));
    let all: Vec<Ends> = (0..flows).map(connect).collect::<io::Result<_>>()?;
    let load = Load { has_bulk: true, has_pings: false, warm_up, time };
    std::thread::scope(|scope| {
        let start = |ends| scope.spawn(move || Ends::run(ends, network, load));
        let threads: Vec<_> = all.iter().map(start).collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().expect("the thread does not panic"));
        outcomes.map(|outcome| outcome.map(|outcome| outcome.goodput_mbps)).collect()
    })
}
