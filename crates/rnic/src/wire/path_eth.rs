//! The header of path probes and their answers (PathETH): 4 bytes, followed by zeros up to the probed size.
//!
//! ```text
//!   0 size u8 | 1 found u8 | 2 grant u8 | 3 zero u8          sizes: positions in `Mtu::ALL`
//! ```

use super::{ICRC_BYTES, WireError, header};
use crate::config::Mtu;
use crate::wire::HEADER_BYTES_MAX;
use crate::wire::bth::BTH_BYTES;

/// Length of the header in bytes.
pub const PATH_ETH_BYTES: usize = 4;

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEthRepr {
    /// The probed size: the probe is as long as the longest packet with a payload of this size.
    pub size: Mtu,
    /// The path MTU that the sender of this packet has found.
    pub found: Mtu,
    /// In an answer: the number of packets that the receiver of the answer may have in flight. In a probe: 0.
    pub grant: u8,
}

impl PathEthRepr {
    /// Parses the header at the start of `bytes`. Fails if `bytes` is shorter than the header, or if a size is unknown.
    pub fn parse(bytes: &[u8]) -> Result<PathEthRepr, WireError> {
        let [size, found, grant, _] = *header::<PATH_ETH_BYTES>(bytes)?;
        let mtu = |code| Mtu::ALL.get(usize::from(code)).copied().ok_or(WireError::Size(code));
        Ok(PathEthRepr { size: mtu(size)?, found: mtu(found)?, grant })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..PATH_ETH_BYTES].copy_from_slice(&[self.size as u8, self.found as u8, self.grant, 0]);
    }

    /// Returns the length in bytes of the payload, which consists of zeros.
    // [ROCE-PATH-1]
    pub fn zeros(&self) -> usize {
        packet_bytes_max(self.size) - BTH_BYTES - PATH_ETH_BYTES - ICRC_BYTES
    }
}

/// Returns the length in bytes of the longest packet whose payload has the size `mtu`.
pub fn packet_bytes_max(mtu: Mtu) -> usize {
    HEADER_BYTES_MAX + mtu.bytes() as usize + ICRC_BYTES
}
