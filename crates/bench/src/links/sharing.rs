//! Measures how evenly flows share a link, and how long small operations wait behind large ones.

use std::io;
use std::time::Duration;

use halite_providers::roce::Congestion;

use super::halite::{Ends, Load};
use super::link::Link;
use super::network::Network;
use super::transports::{Transport, controlled_by};
use super::{LinksError, Sizes, failed};
use crate::peers::spread::Spread;

const FLOWS: usize = 8;
const BITS_PER_SECOND: u64 = 1_000_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(1);
/// MTU of a cluster's own network. With smaller packets, the forwarder, which takes time for each packet, would be the
/// bottleneck.
const MTU: u16 = 4200;
const SEED: u64 = 2;

pub(super) fn measure(sizes: Sizes) -> Result<String, LinksError> {
    let mut text = format!(
        "\n{FLOWS} flows that start together over 1 Gb/s with a round trip of 1 ms, packets of at most {MTU} bytes:\n\n\
         | | all, Mb/s | fastest / slowest |\n|---|---|---|\n"
    );
    for transport in Transport::all() {
        let what = format!("{FLOWS} flows, {transport}");
        let [all, uneven] =
            in_rounds(sizes, &what, || flows(transport, sizes)).map_err(failed(what.clone()))?;
        text.push_str(&format!("| {transport} | {all} | {uneven} |\n"));
    }
    text.push_str(
        "\nRound trips of 64 bytes, alone and beside writes between the same two nodes that fill the link, in microseconds:\n\n\
         | | median alone | 99th percentile alone | median beside | 99th percentile beside | 99th percentile, beside / alone |\n|---|---|---|---|---|---|\n",
    );
    for congestion in [Congestion::Grant, Congestion::Delay] {
        let transport = Transport::Halite(congestion);
        let what = format!("pings beside bulk, {transport}");
        let cells: [Spread; 5] =
            in_rounds(sizes, &what, || pings(congestion, sizes)).map_err(failed(what.clone()))?;
        let cells: Vec<String> = cells.iter().map(Spread::to_string).collect();
        text.push_str(&format!("| {transport} | {} |\n", cells.join(" | ")));
    }
    Ok(text)
}

/// Measures in rounds, and returns the spread of each figure.
fn in_rounds<const N: usize>(
    sizes: Sizes,
    what: &str,
    once: impl Fn() -> io::Result<[f64; N]>,
) -> io::Result<[Spread; N]> {
    let mut found = Vec::new();
    for round in 0..sizes.rounds {
        eprintln!("round {} of {}: {what}", round + 1, sizes.rounds);
        found.push(once()?);
    }
    Ok(std::array::from_fn(|at| Spread::of(&found.iter().map(|figures| figures[at]).collect::<Vec<_>>())))
}

/// Returns the goodput of all flows together, and the ratio of the fastest flow to the slowest.
fn flows(transport: Transport, sizes: Sizes) -> io::Result<[f64; 2]> {
    let network = network()?;
    let each = transport.goodput_mbps(&network, FLOWS, sizes.warm_up, sizes.time)?;
    let most = each.iter().copied().fold(f64::MIN, f64::max);
    let least = each.iter().copied().fold(f64::MAX, f64::min);
    Ok([each.iter().sum(), most / least.max(f64::MIN_POSITIVE)])
}

/// Returns the medians and 99th percentiles, alone and beside bulk, and the ratio of the two 99th percentiles.
fn pings(congestion: Congestion, sizes: Sizes) -> io::Result<[f64; 5]> {
    let network = network()?;
    let ends = Ends::connect(&network, controlled_by(congestion))?;
    let Sizes { warm_up, time, .. } = sizes;
    let mut figures = [0.0; 5];
    for (at, has_bulk) in [false, true].into_iter().enumerate() {
        let outcome = ends.run(&network, Load { has_bulk, has_pings: true, warm_up, time })?;
        for (which, percent) in [50, 99].into_iter().enumerate() {
            let trip = outcome.percentile(percent).ok_or_else(|| io::Error::other("no ping came back"))?;
            figures[2 * at + which] = trip.as_secs_f64() * 1e6;
        }
    }
    figures[4] = figures[3] / figures[1];
    Ok(figures)
}

/// Returns a network whose queues hold two milliseconds of data, more than a round trip.
fn network() -> io::Result<Network> {
    let link = Link::new(BITS_PER_SECOND, ROUND_TRIP / 2, BITS_PER_SECOND / 8 / 500);
    Network::new(MTU, [link.clone(), link], SEED)
}
