//! Goodput of one flow by loss and round trip.

use std::time::Duration;

use super::link::Link;
use super::network::Network;
use super::transports::Transport;
use super::{LinksError, Sizes, failed};
use crate::peers::spread::Spread;

/// Round trips without any queue, in microseconds.
const TRIPS_US: [u64; 3] = [200, 1_000, 10_000];
/// What most networks carry.
const MTU: u16 = 1500;
const SEED: u64 = 1;

/// What is lost, in both directions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Loss {
    pub(super) name: &'static str,
    of_million: u32,
    in_trains: bool,
}

pub(super) const LOSSES: [Loss; 6] = [
    Loss { name: "none", of_million: 0, in_trains: false },
    Loss { name: "0.1 %", of_million: 1_000, in_trains: false },
    Loss { name: "1 %", of_million: 10_000, in_trains: false },
    Loss { name: "5 %", of_million: 50_000, in_trains: false },
    Loss { name: "1 % in trains", of_million: 10_000, in_trains: true },
    Loss { name: "5 % in trains", of_million: 50_000, in_trains: true },
];

/// The figures of one transport over one round trip, by loss.
pub(super) struct Row {
    pub(super) transport: Transport,
    pub(super) trip_us: u64,
    pub(super) mbps: Vec<Spread>,
}

/// All of them.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) link_mbps: u64,
    rounds: u32,
}

pub(super) fn measure(sizes: Sizes) -> Result<Table, LinksError> {
    let mut rows = Vec::new();
    for trip_us in TRIPS_US {
        let transports = Transport::all();
        // By transport, then by loss, then by round.
        let mut found = vec![vec![Vec::new(); LOSSES.len()]; transports.len()];
        for round in 0..sizes.rounds {
            for (at, loss) in LOSSES.iter().enumerate() {
                for (which, transport) in transports.iter().enumerate() {
                    let what = format!("{transport} over {trip_us} us, lost: {}", loss.name);
                    eprintln!("round {} of {}: {what}", round + 1, sizes.rounds);
                    let mbps = one(*transport, *loss, trip_us, sizes).map_err(failed(what))?;
                    found[which][at].push(mbps);
                }
            }
        }
        for (transport, found) in transports.into_iter().zip(found) {
            let mbps = found.iter().map(|rounds| Spread::of(rounds)).collect();
            rows.push(Row { transport, trip_us, mbps });
        }
    }
    Ok(Table { rows, link_mbps: sizes.bits_per_second / 1_000_000, rounds: sizes.rounds })
}

/// A network of its own for each figure, so that none finds what another has left in queues and caches.
fn one(transport: Transport, loss: Loss, trip_us: u64, sizes: Sizes) -> std::io::Result<f64> {
    let network = Network::new(MTU, [(); 2].map(|()| link(loss, trip_us, sizes.bits_per_second)), SEED)?;
    // Some round trips are needed to find a pace.
    let warm_up = sizes.warm_up.max(20 * Duration::from_micros(trip_us));
    Ok(transport.goodput_mbps(&network, 1, warm_up, sizes.time)?[0])
}

/// With a queue of a millisecond, or of a round trip if that is longer.
fn link(loss: Loss, trip_us: u64, bits_per_second: u64) -> Link {
    let queue_bytes = bits_per_second / 8 * trip_us.max(1_000) / 1_000_000;
    let link = Link::new(bits_per_second, Duration::from_micros(trip_us / 2), queue_bytes);
    match loss.in_trains {
        true => link.losing_trains(loss.of_million),
        false => Link { lost: loss.of_million, ..link },
    }
}

impl Table {
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "Goodput of one flow in Mb/s through links of {} Mb/s that both lose, packets of at most {MTU} bytes; medians of {} rounds and their range. \
             The last column is the goodput with 1 % lost to that without loss, of the medians.\n\n",
            self.link_mbps, self.rounds
        );
        let losses: Vec<&str> = LOSSES.iter().map(|loss| loss.name).collect();
        text.push_str(&format!("| | round trip, us | {} | 1 % to none |\n", losses.join(" | ")));
        text.push_str(&format!("|{}\n", "---|".repeat(LOSSES.len() + 3)));
        for row in &self.rows {
            let cells: Vec<String> = row.mbps.iter().map(Spread::to_string).collect();
            let kept = row.mbps[2].median / row.mbps[0].median;
            let (transport, trip_us) = (row.transport, row.trip_us);
            text.push_str(&format!("| {transport} | {trip_us} | {} | {kept:.2} |\n", cells.join(" | ")));
        }
        text
    }
}
