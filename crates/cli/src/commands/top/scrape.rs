//! Fetches the metrics of one node, as Prometheus does.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a response in bytes; a cluster of hundreds of nodes needs a tenth.
const RESPONSE_BYTES_MAX: u64 = 4 << 20;

/// Samples of metrics by name and labels.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Scraped(BTreeMap<String, f64>);

impl Scraped {
    /// Fetches the metrics of a node. The error is a text for users.
    pub fn fetch(at: SocketAddr) -> Result<Scraped, String> {
        let text = get(at).map_err(|error| error.to_string())?;
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => {
                let scraped = Scraped::parse(body);
                let is_halite = scraped.label("halite_info", "version").is_some();
                is_halite.then_some(scraped).ok_or_else(|| "not the metrics of a node".to_owned())
            }
            _ => Err(format!("no metrics: {}", text.lines().next().unwrap_or("empty answer"))),
        }
    }

    /// Parses Prometheus' text format; ignores lines that are not samples.
    pub fn parse(text: &str) -> Scraped {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        Scraped(
            samples.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect(),
        )
    }

    pub fn value(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// Returns the sum of all samples of the metric `name`.
    pub fn sum(&self, name: &str) -> f64 {
        let has_name = |series: &str| series.split('{').next() == Some(name);
        self.0.iter().filter(|(series, _)| has_name(series)).map(|(_, value)| value).sum()
    }

    /// Returns the value of `label` in the first sample of the metric `name`, or `None` if there is none.
    pub fn label(&self, name: &str, label: &str) -> Option<&str> {
        let (series, _) = self.0.range(format!("{name}{{")..).next()?;
        let rest = series.strip_prefix(name)?.split_once(&format!("{label}=\""))?.1;
        rest.split('"').next()
    }

    /// Returns the peers for which the metric `name` has samples, in order.
    pub fn peers(&self, name: &str) -> Vec<u32> {
        let begin = format!("{name}{{peer=\"");
        let found =
            self.0.keys().filter_map(|series| series.strip_prefix(&begin)?.split('"').next()?.parse().ok());
        let mut peers: Vec<u32> = found.collect();
        peers.sort_unstable();
        peers
    }
}

fn get(at: SocketAddr) -> io::Result<String> {
    let deadline = Instant::now() + FETCH_TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&at, FETCH_TIMEOUT)?;
    stream.set_write_timeout(Some(FETCH_TIMEOUT))?;
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let (mut text, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(remaining))?;
        let len = match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            read => read?,
        };
        if len == 0 {
            return String::from_utf8(text).map_err(|_| ErrorKind::InvalidData.into());
        }
        text.extend_from_slice(&buffer[..len]);
        if text.len() as u64 > RESPONSE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "the answer is too long"));
        }
    }
}
