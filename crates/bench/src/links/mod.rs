//! Halite, one stream of TCP and QUIC over emulated networks that lose, delay and share: what `halite-bench links` measures and prints.
//!
//! [`link`] decides what becomes of packets, [`network`] carries them between real sockets, the others send and receive.  Figures depend on the
//! machine, on which the network itself takes processor time; ratios within a round do so less.

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

/// The markers of the tables in a document.
const TABLE: &str = "links";

/// What `halite-bench links` is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many rounds; each measures everything once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How long each figure is measured, in milliseconds
    #[arg(long, default_value_t = 2000)]
    pub time_ms: u64,
    /// What the links of the table by loss and round trip carry, in megabits a second
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub mbps: u64,
    /// One tiny round: shows that everything runs, not how fast it is
    #[arg(long)]
    pub smoke: bool,
    /// Leaves out the table by loss and round trip
    #[arg(long, conflicts_with_all = ["markdown", "plot"])]
    pub sharing_only: bool,
    /// Replaces what stands between the markers `<!-- links:begin -->` and `<!-- links:end -->` of this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Draws the table by loss and round trip into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Why no table came about.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// There is no network, or what was sent over one failed.
    #[error("cannot measure {what}: {source}")]
    Measure {
        /// What was to be measured.
        what: String,
        /// What the operating system, or the transport, said.
        source: io::Error,
    },
    /// The tables could not be put into their document.
    #[error(transparent)]
    Markers(#[from] MarkersError),
    /// The plot could not be written.
    #[error("cannot write {path}: {source}")]
    Plot {
        /// Where to.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: u32,
    warm_up: Duration,
    time: Duration,
    bits_per_second: u64,
}

/// Measures, prints the tables, and writes them and the plot where asked.
pub fn run(options: &Options) -> Result<(), LinksError> {
    options.markdown.as_deref().map(|path| markers::check(path, TABLE)).transpose()?;
    if !cfg!(feature = "quic") {
        eprintln!("built without QUIC (cargo's --features quic): its rows are left out");
    }
    let (rounds, time) = match options.smoke {
        true => (1, Duration::from_millis(50)),
        false => (options.rounds, Duration::from_millis(options.time_ms)),
    };
    let sizes = Sizes { rounds, warm_up: time / 2, time, bits_per_second: options.mbps * 1_000_000 };
    let table = (!options.sharing_only).then(|| goodput::measure(sizes)).transpose()?;
    let mut text = table.as_ref().map(goodput::Table::markdown).unwrap_or_default();
    text.push_str(&sharing::measure(sizes)?);
    text.push_str(&format!("\nTCP controls its congestion by `{}`", tcp::congestion_control()));
    text.push_str(if cfg!(feature = "quic") { ", QUIC as `quinn` comes.\n" } else { ".\n" });
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
