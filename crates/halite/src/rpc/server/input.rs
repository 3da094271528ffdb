//! The input of a request, on its way to a handler.

use halite_fabric::RemoteAddress;

/// Length up to which inputs are kept in place, in bytes: a cache line minus a header and a short name.
const SHORT_BYTES_MAX: usize = 40;

/// Location of an input's bytes.
#[derive(Debug)]
pub(crate) enum Payload {
    Local(Bytes),
    /// The input is in the memory of the client's node.
    Remote {
        address: RemoteAddress,
        len: u32,
    },
}

/// The bytes of an input.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// Length, and the bytes in place, without an allocation.
    Short(u8, [u8; SHORT_BYTES_MAX]),
    Long(Vec<u8>),
}

const NOT_LOCAL: &str = "a handler gets a request only when its input is here";

impl Payload {
    /// Returns how many bytes of this node's memory the input occupies.
    pub(super) fn local_bytes(&self) -> usize {
        match self {
            Payload::Local(bytes) => bytes.as_slice().len(),
            Payload::Remote { .. } => 0,
        }
    }

    /// Returns the input, which must be on this node.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Local(bytes) => bytes.as_slice(),
            Payload::Remote { .. } => unreachable!("{NOT_LOCAL}"),
        }
    }

    /// Returns the input, which must be on this node, as a vector. Leaves a long input empty.
    pub(crate) fn take_vec(&mut self) -> Vec<u8> {
        match self {
            Payload::Local(Bytes::Long(bytes)) => std::mem::take(bytes),
            Payload::Local(short) => short.as_slice().to_vec(),
            Payload::Remote { .. } => unreachable!("{NOT_LOCAL}"),
        }
    }
}

impl Bytes {
    /// Returns `len` zero bytes, which the caller overwrites.
    #[inline]
    pub(super) fn zeroed(len: usize) -> Bytes {
        match u8::try_from(len) {
            Ok(short) if len <= SHORT_BYTES_MAX => Bytes::Short(short, [0; SHORT_BYTES_MAX]),
            _ => Bytes::Long(vec![0; len]),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Short(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Bytes::Short(len, bytes) => &mut bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Bytes {
    #[inline]
    fn from(source: &[u8]) -> Bytes {
        let mut bytes = Bytes::zeroed(source.len());
        bytes.as_mut_slice().copy_from_slice(source);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_keep_their_bytes_at_any_length() {
        for len in [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 255, 256, 1000] {
            let source: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut input = Payload::Local(Bytes::from(source.as_slice()));
            assert_eq!((input.local_bytes(), input.as_slice()), (len, source.as_slice()));
            assert_eq!(input.take_vec(), source);
        }
    }
}
