//! Where metrics are served: an address, or `none`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// What the flag says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricsAt(pub Option<SocketAddr>);

/// What is said for nowhere, also against a variable or a file.
const NOWHERE: &str = "none";

/// It is neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an address with a port is needed, as 127.0.0.1:9464 or [::1]:9464, or {NOWHERE}")]
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
    /// Where node `id` of several on one host serves them: each at a port of its own, the first at that which is named.
    /// `None` where there are not so many ports.
    pub fn of_node(self, id: u32) -> Option<MetricsAt> {
        let Some(mut address) = self.0.filter(|address| address.port() != 0) else { return Some(self) };
        let port = u32::from(address.port()).checked_add(id)?;
        address.set_port(port.try_into().ok()?);
        Some(MetricsAt(Some(address)))
    }
}
