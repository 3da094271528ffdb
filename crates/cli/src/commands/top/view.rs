//! Formats one sample, with the rates since the previous sample.

use super::Sample;
use super::scrape::Scraped;
use crate::bytes::ByteCount;
use crate::commands::status;
use crate::table::{Align, Table};

/// Formats the tables of a sample, one below the other.
pub fn text(sample: &Sample, before: Option<&Sample>) -> String {
    let mut text = status::table(&sample.rows).to_string();
    if let Some(trouble) = &sample.trouble {
        text += &format!("{}\n", crate::table::printable(trouble));
    }
    if !sample.scrapes.is_empty() {
        text += &format!("\n{}", operations(sample, before));
    }
    let peers = peers(sample, before);
    if sample.scrapes.iter().any(|(_, scraped)| !peers_of(scraped).is_empty()) {
        text += &format!("\n{peers}");
    }
    text
}

fn operations(sample: &Sample, before: Option<&Sample>) -> Table {
    let mut table = Table::new(&[
        ("metrics of", Align::Left),
        ("node", Align::Right),
        ("accesses/s", Align::Right),
        ("bytes/s", Align::Right),
        ("calls/s", Align::Right),
        ("served/s", Align::Right),
        ("messages/s", Align::Right),
        ("failed/s", Align::Right),
        ("under way", Align::Right),
        ("waiting", Align::Right),
        ("applications", Align::Right),
        ("", Align::Left),
    ]);
    for (index, (at, scraped)) in sample.scrapes.iter().enumerate() {
        let scraped = match scraped {
            Ok(scraped) => scraped,
            Err(reason) => {
                let mut cells = vec!["-".to_owned(); 12];
                (cells[0], cells[11]) = (at.to_string(), reason.clone());
                table.row(cells);
                continue;
            }
        };
        let rates = Rates::new(sample, before, index);
        let rate = |names: &[&str]| {
            or_dash(rates.rate(|one| names.iter().map(|name| one.sum(name)).sum()).map(rounded))
        };
        let bytes =
            rates.rate(|one| one.sum("halite_access_bytes_total") + one.sum("halite_call_bytes_total"));
        let sum = |names: &[&str]| names.iter().map(|name| scraped.sum(name)).sum::<f64>().to_string();
        table.row(vec![
            at.to_string(),
            or_dash(scraped.label("halite_info", "node")),
            rate(&["halite_accesses_total"]),
            or_dash(bytes.map(|bytes| ByteCount(bytes as u64))),
            rate(&["halite_calls_total"]),
            rate(&["halite_calls_received_total"]),
            rate(&["halite_messages_total"]),
            rate(&[
                "halite_access_failures_total",
                "halite_call_failures_total",
                "halite_message_failures_total",
            ]),
            sum(&["halite_calls_under_way", "halite_posted_under_way", "halite_commands_under_way"]),
            sum(&["halite_service_requests_waiting", "halite_jobs_waiting", "halite_outbox_messages"]),
            sum(&["halite_applications"]),
            String::new(),
        ]);
    }
    table
}

fn peers(sample: &Sample, before: Option<&Sample>) -> Table {
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("peer", Align::Right),
        ("up", Align::Left),
        ("silent", Align::Right),
        ("round trip", Align::Right),
        ("packets/s", Align::Right),
        ("retransmitted", Align::Right),
        ("timeouts/s", Align::Right),
        ("calls", Align::Right),
        ("pairing", Align::Right),
    ]);
    for (index, (_, scraped)) in sample.scrapes.iter().enumerate() {
        let rates = Rates::new(sample, before, index);
        for peer in peers_of(scraped) {
            let Ok(scraped) = scraped else { continue };
            let of = |one: &Scraped, name: &str| one.value(&format!("halite_peer_{name}{{peer=\"{peer}\"}}"));
            let value = |name| of(scraped, name);
            let rate =
                |name| rates.rate(|one| of(one, name).unwrap_or(0.0)).filter(|_| value(name).is_some());
            let (sent, repeated) = (rate("packets_sent_total"), rate("packets_repeated_total"));
            let again = sent.zip(repeated).filter(|(sent, _)| *sent > 0.0);
            table.row(vec![
                or_dash(scraped.label("halite_info", "node")),
                peer.to_string(),
                if value("up") == Some(1.0) { "yes" } else { "no" }.to_owned(),
                or_dash(value("silence_seconds").map(|silent| format!("{:.0} ms", silent * 1e3))),
                or_dash(value("round_trip_seconds").map(|time| format!("{:.1} us", time * 1e6))),
                or_dash(sent.map(rounded)),
                or_dash(again.map(|(sent, repeated)| format!("{:.2} %", 100.0 * repeated / sent))),
                or_dash(rate("timeouts_total").map(rounded)),
                or_dash(value("calls_under_way")),
                or_dash(value("pairing")),
            ]);
        }
    }
    table
}

fn peers_of(scraped: &Result<Scraped, String>) -> Vec<u32> {
    scraped.as_ref().map_or_else(|_| Vec::new(), |scraped| scraped.peers("halite_peer_up"))
}

/// Changes per second between two samples of one node.
struct Rates<'l> {
    now: Option<&'l Scraped>,
    before: Option<&'l Scraped>,
    seconds: f64,
}

impl<'l> Rates<'l> {
    fn new(sample: &'l Sample, before: Option<&'l Sample>, index: usize) -> Rates<'l> {
        let scraped =
            |sample: &'l Sample| sample.scrapes.get(index).and_then(|(_, scraped)| scraped.as_ref().ok());
        let seconds =
            before.map_or(0.0, |before| sample.at.saturating_duration_since(before.at).as_secs_f64());
        Rates { now: scraped(sample), before: before.and_then(scraped), seconds }
    }

    /// Returns the change of a value per second; `None` without an earlier sample, or after a restart of the node.
    fn rate(&self, value: impl Fn(&Scraped) -> f64) -> Option<f64> {
        let change = value(self.now?) - value(self.before?);
        (self.seconds > 0.0 && change >= 0.0).then(|| change / self.seconds)
    }
}

fn rounded(value: f64) -> String {
    format!("{value:.0}")
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn sample(at: Instant, reads: u32, packets: u32) -> Sample {
        let text = format!(
            "halite_info{{node=\"3\",version=\"1\"}} 1\n\
             halite_accesses_total{{kind=\"read\",path=\"direct\"}} {reads}\n\
             halite_peer_up{{peer=\"0\"}} 1\n\
             halite_peer_round_trip_seconds{{peer=\"0\"}} 0.000025\n\
             halite_peer_packets_sent_total{{peer=\"0\"}} {packets}\n\
             halite_peer_packets_repeated_total{{peer=\"0\"}} {}\n",
            packets / 100
        );
        let scrapes = vec![
            ("127.0.0.1:9464".parse().unwrap(), Ok(Scraped::parse(&text))),
            ("127.0.0.1:9465".parse().unwrap(), Err("Connection refused".to_owned())),
        ];
        Sample { at, rows: Vec::new(), trouble: None, scrapes }
    }

    #[test]
    fn rates_are_changes_per_second() {
        let begin = Instant::now();
        let (first, next) = (sample(begin, 100, 1000), sample(begin + Duration::from_secs(2), 700, 3000));
        let once = text(&first, None);
        assert!(once.contains("127.0.0.1:9464     3           -"), "{once}");
        let again = text(&next, Some(&first));
        assert!(again.contains("127.0.0.1:9464     3         300"), "{again}");
        assert!(again.contains("Connection refused"), "{again}");
        let peer: Vec<&str> = again.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(peer, ["3", "0", "yes", "-", "25.0", "us", "1000", "1.00", "%", "-", "-", "-"]);
        // Counters of a restarted node start again, so there is no rate.
        let restarted = text(&sample(begin + Duration::from_secs(4), 5, 10), Some(&next));
        assert!(restarted.contains("127.0.0.1:9464     3           -"), "{restarted}");
    }
}
