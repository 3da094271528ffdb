//! Plots goodput by loss rate and round-trip time as bars: one panel per round-trip time, one group per loss rate.

use std::fmt::Write;

use super::goodput::{LOSSES, Row, Table};
use super::transports::Transport;

const PANEL_WIDTH: f64 = 860.0;
const PANEL_HEIGHT: f64 = 190.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 64.0;
const GAP: f64 = 64.0;
const COLOURS: [&str; 4] = ["#7aa6c2", "#1f5a85", "#c2a35a", "#8a8a8a"];

/// Returns a drawing that needs neither scripts nor fonts.
pub(super) fn svg(table: &Table) -> String {
    let mut trips: Vec<u64> = table.rows.iter().map(|row| row.trip_us).collect();
    trips.dedup();
    let width = LEFT + PANEL_WIDTH + 20.0;
    let height = TOP + trips.len() as f64 * (PANEL_HEIGHT + GAP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Goodput of one flow through {} Mb/s, by loss in both directions (Mb/s)</text>\n",
        table.link_mbps
    );
    for (at, transport) in Transport::all().into_iter().enumerate() {
        let x = LEFT + 190.0 * at as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"45\">{transport}</text>",
            COLOURS[at],
            x + 18.0
        );
    }
    for (at, trip_us) in trips.into_iter().enumerate() {
        let rows: Vec<&Row> = table.rows.iter().filter(|row| row.trip_us == trip_us).collect();
        panel(&mut text, TOP + at as f64 * (PANEL_HEIGHT + GAP), trip_us, &rows, table.link_mbps as f64);
    }
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, top: f64, trip_us: u64, rows: &[&Row], most: f64) {
    let base = top + 24.0 + PANEL_HEIGHT;
    let scale = PANEL_HEIGHT / most;
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{}\">round trip {} ms</text>",
        top + 14.0,
        trip_us as f64 / 1000.0
    );
    for part in 0..=4 {
        let value = most * f64::from(part) / 4.0;
        let y = base - value * scale;
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
            LEFT + PANEL_WIDTH,
            LEFT - 8.0,
            y + 4.0
        );
    }
    let group = PANEL_WIDTH / LOSSES.len() as f64;
    let bar = (group - 30.0) / rows.len() as f64;
    for (loss_index, loss) in LOSSES.iter().enumerate() {
        let x = LEFT + loss_index as f64 * group;
        for (at, row) in rows.iter().enumerate() {
            let (x, spread) = (x + 15.0 + at as f64 * bar, row.mbps[loss_index]);
            let height = spread.median * scale;
            let middle = x + bar / 2.0 - 1.0;
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/><line x1=\"{middle:.1}\" y1=\"{:.1}\" x2=\"{middle:.1}\" y2=\"{:.1}\" stroke=\"black\"/>",
                base - height,
                bar - 2.0,
                COLOURS[at % COLOURS.len()],
                base - spread.min * scale,
                base - spread.max * scale
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x + group / 2.0,
            base + 17.0,
            loss.name
        );
    }
}
