//! The address at which a node serves metrics, or `none`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// An address at which a node serves metrics; with `None`, the node serves no metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricsAt(pub Option<SocketAddr>);

/// Value that overrides an address from a variable or file.
const NOWHERE: &str = "none";

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected an address with a port, for example 127.0.0.1:9464 or [::1]:9464, or {NOWHERE}")]
pub struct MetricsAtError;

impl FromStr for MetricsAt {
    type Err = MetricsAtError;

    fn from_str(text: &str) -> Result<MetricsAt, MetricsAtError> {
        match text {
            NOWHERE => Ok(MetricsAt(None)),
            text => text.parse().map(|address| MetricsAt(Some(address))).map_err(|_| MetricsAtError),
        }
    }
}

impl fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str(NOWHERE),
        }
    }
}

impl MetricsAt {
    /// Returns the address for node `id` if several nodes run on one host: node 0 uses the given port, each further
    /// node the next port. `None` if there are too few ports.
    pub fn of_node(self, id: u32) -> Option<MetricsAt> {
        let Some(mut address) = self.0.filter(|address| address.port() != 0) else { return Some(self) };
        let port = u32::from(address.port()).checked_add(id)?;
        address.set_port(port.try_into().ok()?);
        Some(MetricsAt(Some(address)))
    }
}
