//! Published measurements of RDMA adapters, each beside a simulated value.
//!
//! ```text
//!   data/ID.toml ── published points ────────────┐
//!   experiments ── one simulated world per point ┴─> SimulatedFigure ── points with errors ──> plot (SVG), page (HTML, Markdown)
//!       │ verbs: requests on the simulated fabric    tier: Halite's own sessions    sockets: a formula
//!       └── profiles of crate `sim`
//! ```
//!
//! All results follow from the data, the profiles and a fixed seed. The crate measures nothing on this machine and
//! writes no files.

#![forbid(unsafe_code)]

mod data;
mod experiments;
mod fitted;
mod page;
pub mod plot;
mod simulated;
mod sockets;
mod tier;
mod verbs;

pub use data::{Figure, Line, Panel};
pub use page::{Section, counts, html, markdown, page};
pub use simulated::{Point, SimulatedFigure, Summary, simulate, summary};
