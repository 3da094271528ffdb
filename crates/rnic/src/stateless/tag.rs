//! Rights, and the keys and tags that prove them.
//!
//! A key is a keyed BLAKE3 hash of 48 bytes, and a tag is one of 64 bytes; each takes 0.1 us. A packet that exceeds the 64
//! bytes is first compressed by POLYVAL, which takes 0.2 us for 1 KiB, and 0.7 us for 4 KiB.

use core::net::{IpAddr, SocketAddr};

use polyval::Polyval;
use polyval::universal_hash::UniversalHash as _;

use super::wire::BTH_BYTES;
use crate::wire::Qpn;

/// Length of a tag in bytes.
pub(super) const TAG_BYTES: usize = 16;

/// The accesses that a grant permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes.
    ReadWrite,
    /// Reads and writes of the memory of every key that the responder knows. Each packet names its key, and the tag
    /// covers this name.
    AnyKey,
}

impl Rights {
    /// Returns true if reads are permitted.
    pub fn read(self) -> bool {
        self != Rights::Write
    }

    /// Returns true if writes are permitted.
    pub fn write(self) -> bool {
        self != Rights::Read
    }

    pub(super) fn bits(self) -> u8 {
        u8::from(self.read()) | u8::from(self.write()) << 1 | u8::from(self == Rights::AnyKey) << 2
    }

    pub(super) fn from_bits(bits: u8) -> Option<Rights> {
        let all = [Rights::Read, Rights::Write, Rights::ReadWrite, Rights::AnyKey];
        all.into_iter().find(|rights| rights.bits() == bits)
    }
}

/// A requester's permission to access the memory of one key, or of all keys ([`Rights::AnyKey`]), with the secret key
/// that proves it.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    /// Number of the requester's queue pair.
    pub qpn: Qpn,
    /// The remote key of the responder's memory; has no meaning with [`Rights::AnyKey`].
    pub rkey: u32,
    /// The permitted accesses.
    pub rights: Rights,
    /// The responder's T in ns: the maximum age of a request that can still take effect.
    pub effect_life_ns: u64,
    /// Number of the responder's secret from which `key` is derived.
    pub epoch: u32,
    /// Secret key of the packets' tags. Only the requester and the responder may know it.
    pub key: [u8; 32],
}

impl core::fmt::Debug for Grant {
    /// Omits the key.
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Grant { qpn, rkey, rights, epoch, .. } = self;
        write!(formatter, "Grant {{ {qpn:?}, rkey {rkey}, {rights:?}, epoch {epoch} }}")
    }
}

/// Derives the key of a grant. A grant of all keys counts as one of key 0.
// [ROCE-STATELESS-2]
pub(super) fn derive(
    secret: &[u8; 32],
    from: SocketAddr,
    qpn: Qpn,
    rkey: u32,
    rights: Rights,
    epoch: u32,
) -> [u8; 32] {
    let mut input = [0; 48];
    match from.ip().to_canonical() {
        IpAddr::V4(ip) => input[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => input[..16].copy_from_slice(&ip.octets()),
    }
    input[16] = u8::from(from.ip().to_canonical().is_ipv6());
    input[17] = rights.bits();
    input[18..20].copy_from_slice(&from.port().to_be_bytes());
    input[20..24].copy_from_slice(&qpn.value().to_be_bytes());
    let rkey = if rights == Rights::AnyKey { 0 } else { rkey };
    input[24..28].copy_from_slice(&rkey.to_be_bytes());
    input[28..32].copy_from_slice(&epoch.to_be_bytes());
    *blake3::keyed_hash(secret, &input).as_bytes()
}

/// Bytes after the transport header that a tag covers without a digest.
const SHORT_BYTES_MAX: usize = 56;

/// Computes the tag of a packet, given without its tag. The tag covers the opcode, so that requests and answers differ,
/// the queue pair, and all bytes after the transport header. It excludes the header's other bytes, which switches and
/// the ICRC change.
///
/// Only the digest uses the second half of the key, and only BLAKE3 reads the digest. So two packets with the same number
/// and different bytes reveal nothing about the key, unlike with AES-GMAC.
// [ROCE-STATELESS-3]
pub(super) fn tag(key: &[u8; 32], packet: &[u8]) -> [u8; TAG_BYTES] {
    let body = &packet[BTH_BYTES..];
    let mut input = [0; 64];
    if let Some(short) = input.get_mut(..body.len()).filter(|_| body.len() <= SHORT_BYTES_MAX) {
        short.copy_from_slice(body);
    } else {
        let mut digest = Polyval::new(key.last_chunk::<16>().expect("a key is longer").into());
        digest.update_padded(body);
        input[..16].copy_from_slice(&digest.finalize());
    }
    input[56] = packet[0];
    input[57..60].copy_from_slice(&packet[5..8]);
    input[60..].copy_from_slice(&(body.len() as u32).to_be_bytes());
    let mut hash_key = [0; 32];
    hash_key[..16].copy_from_slice(&key[..16]);
    *blake3::keyed_hash(&hash_key, &input).as_bytes().first_chunk().expect("a hash is longer")
}

/// Compares two tags in constant time.
pub(super) fn is_equal(one: &[u8; TAG_BYTES], other: &[u8; TAG_BYTES]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    core::hint::black_box(difference) == 0
}
