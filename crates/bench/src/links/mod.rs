//! `halite-bench links`: compares Halite with one stream of TCP and QUIC over emulated networks with loss, delay and
//! competing flows.
//!
//! [`link`] decides the fate of packets, [`network`] carries them between real sockets, and the other modules send and
//! receive. Figures depend on the machine, because the emulated network takes processor time; ratios within a round
//! depend on it less.

mod goodput;
pub mod halite;
pub mod link;
mod meter;
pub mod network;
mod plot;
#[cfg(feature = "quic")]
mod quic;
mod sharing;
mod tcp;
pub mod transports;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::markers::{self, MarkersError};

/// Name of the markers in a document.
const TABLE: &str = "links";

/// Options of `halite-bench links`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Number of rounds; each measures every figure once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Time per figure, in milliseconds
    #[arg(long, default_value_t = 2000)]
    pub time_ms: u64,
    /// Bandwidth of the links in the table of goodput by loss rate and round-trip time, in megabits per second
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub mbps: u64,
    /// Run one tiny round, to check that everything works; its figures mean nothing
    #[arg(long)]
    pub smoke: bool,
    /// Omit the table of goodput by loss rate and round-trip time
    #[arg(long, conflicts_with_all = ["markdown", "plot"])]
    pub sharing_only: bool,
    /// Replace the text between the markers `<!-- links:begin -->` and `<!-- links:end -->` of this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Plot goodput by loss rate and round-trip time into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Cause of a failed run.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// The network cannot be created, or a transport failed.
    #[error("cannot measure {what}: {source}")]
    Measure {
        /// The failed measurement.
        what: String,
        /// Error of the operating system or the transport.
        source: io::Error,
    },
    /// The tables cannot be written to their document.
    #[error(transparent)]
    Markers(#[from] MarkersError),
    /// The plot cannot be written.
    #[error("cannot write {path}: {source}")]
    Plot {
        /// Path of the plot.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Number and duration of the measurements.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: u32,
    warm_up: Duration,
    time: Duration,
    bits_per_second: u64,
}

/// Measures and prints the tables, and writes them and the plot to the requested files.
pub fn run(options: &Options) -> Result<(), LinksError> {
    options.markdown.as_deref().map(|path| markers::check(path, TABLE)).transpose()?;
    if !cfg!(feature = "quic") {
        eprintln!(
            "this program was built without QUIC (cargo's --features quic): the rows of QUIC are omitted"
        );
    }
    let (rounds, time) = match options.smoke {
        true => (1, Duration::from_millis(50)),
        false => (options.rounds, Duration::from_millis(options.time_ms)),
    };
    let sizes = Sizes { rounds, warm_up: time / 2, time, bits_per_second: options.mbps * 1_000_000 };
    let table = (!options.sharing_only).then(|| goodput::measure(sizes)).transpose()?;
    let mut text = table.as_ref().map(goodput::Table::markdown).unwrap_or_default();
    text.push_str(&sharing::measure(sizes)?);
    text.push_str(&format!("\nTCP uses the congestion control `{}`", tcp::congestion_control()));
    text.push_str(if cfg!(feature = "quic") { ", QUIC the default of `quinn`.\n" } else { ".\n" });
    print!("{text}");
    if let Some(path) = &options.markdown {
        markers::splice(path, TABLE, &text)?;
    }
    if let (Some(path), Some(table)) = (&options.plot, &table) {
        std::fs::write(path, plot::svg(table))
            .map_err(|source| LinksError::Plot { path: path.clone(), source })?;
    }
    Ok(())
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> LinksError {
    let what = what.into();
    move |source| LinksError::Measure { what, source }
}
