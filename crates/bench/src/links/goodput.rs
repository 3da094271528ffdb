//! Goodput of one flow for several loss rates and round-trip times.

use std::time::Duration;

use super::link::Link;
use super::network::Network;
use super::transports::Transport;
use super::{LinksError, Sizes, failed};
use crate::peers::spread::Spread;

/// Round trips without queueing, in microseconds.
const ROUND_TRIPS_US: [u64; 3] = [200, 1_000, 10_000];
/// MTU of most networks.
const MTU: u16 = 1500;
const SEED: u64 = 1;

/// Loss rate in both directions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Loss {
    pub(super) name: &'static str,
    per_million: u32,
    in_trains: bool,
}

pub(super) const LOSSES: [Loss; 6] = [
    Loss { name: "none", per_million: 0, in_trains: false },
    Loss { name: "0.1 %", per_million: 1_000, in_trains: false },
    Loss { name: "1 %", per_million: 10_000, in_trains: false },
    Loss { name: "5 %", per_million: 50_000, in_trains: false },
    Loss { name: "1 % in trains", per_million: 10_000, in_trains: true },
    Loss { name: "5 % in trains", per_million: 50_000, in_trains: true },
];

/// Goodput of one transport at one round trip, for each loss rate.
pub(super) struct Row {
    pub(super) transport: Transport,
    pub(super) trip_us: u64,
    pub(super) mbps: Vec<Spread>,
}

/// All rows.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) link_mbps: u64,
    rounds: u32,
}

pub(super) fn measure(sizes: Sizes) -> Result<Table, LinksError> {
    let mut rows = Vec::new();
    for trip_us in ROUND_TRIPS_US {
        let transports = Transport::all();
        // Indexed by transport, loss rate and round.
        let mut results = vec![vec![Vec::new(); LOSSES.len()]; transports.len()];
        for round in 0..sizes.rounds {
            for (loss_index, loss) in LOSSES.iter().enumerate() {
                for (transport_index, transport) in transports.iter().enumerate() {
                    let what = format!("{transport} over {trip_us} us, lost: {}", loss.name);
                    eprintln!("round {} of {}: {what}", round + 1, sizes.rounds);
                    let mbps = measure_one(*transport, *loss, trip_us, sizes).map_err(failed(what))?;
                    results[transport_index][loss_index].push(mbps);
                }
            }
        }
        for (transport, results) in transports.into_iter().zip(results) {
            let mbps = results.iter().map(|rounds| Spread::of(rounds)).collect();
            rows.push(Row { transport, trip_us, mbps });
        }
    }
    Ok(Table { rows, link_mbps: sizes.bits_per_second / 1_000_000, rounds: sizes.rounds })
}

/// Measures one figure on a network of its own, so that no figure depends on the queues and caches that another
/// measurement has filled.
fn measure_one(transport: Transport, loss: Loss, trip_us: u64, sizes: Sizes) -> std::io::Result<f64> {
    let network = Network::new(MTU, [(); 2].map(|()| link(loss, trip_us, sizes.bits_per_second)), SEED)?;
    // Congestion control needs some round trips to reach a steady rate.
    let warm_up = sizes.warm_up.max(20 * Duration::from_micros(trip_us));
    Ok(transport.goodput_mbps(&network, 1, warm_up, sizes.time)?[0])
}

/// Returns a link whose queue holds a millisecond or a round trip of data, whichever is longer.
fn link(loss: Loss, trip_us: u64, bits_per_second: u64) -> Link {
    let queue_bytes = bits_per_second / 8 * trip_us.max(1_000) / 1_000_000;
    let link = Link::new(bits_per_second, Duration::from_micros(trip_us / 2), queue_bytes);
    match loss.in_trains {
        true => link.losing_trains(loss.per_million),
        false => Link { lost: loss.per_million, ..link },
    }
}

impl Table {
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "Goodput of one flow in Mb/s through links of {} Mb/s with loss in both directions, packets of at most {MTU} bytes; medians of {} rounds and their range. \
             The last column is the median goodput with 1 % loss divided by that without loss.\n\n",
            self.link_mbps, self.rounds
        );
        let losses: Vec<&str> = LOSSES.iter().map(|loss| loss.name).collect();
        text.push_str(&format!("| | round trip, us | {} | 1 % / none |\n", losses.join(" | ")));
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
