//! Buffers: memory for the bytes of long reads and writes.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::blocking;
use crate::error::RegionError;
use crate::session::attached::buffers::SharedBuffer;
use crate::session::{Kind, Session};

/// Memory of the application for long reads and writes without an intermediate copy.
///
/// A buffer is a slice of bytes. If a thread reads or writes a region with bytes of a buffer of the same attached
/// session ([`blocking::Session::read`], [`blocking::Session::write`]), the node copies between the region and the
/// buffer; with other memory it copies into memory that it shares with the session, and the session copies from there.
/// Tasks, sessions of low priority, and regions on other hosts gain nothing from a buffer. In a session of this
/// process's node, a buffer is ordinary memory.
///
/// ```
/// # use halite::{Config, Node, NodeId, Permissions, Placement};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-buffer-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// # let session = node.blocking_session();
/// let region = session.alloc(Some("image"), 1 << 20, Placement::Local, Permissions::all())?;
/// let mut buffer = session.buffer(1 << 20)?;
/// buffer[..4].copy_from_slice(b"salt");
/// session.write(region, 0, &buffer)?;
/// session.read(region, 0, &mut buffer[..1000])?;
/// # drop(node);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A session has at most 16 buffers at a time. Their length counts in the quota `memory` of the session's principal.
/// After a fork, parent and child share the bytes of an attached session's buffer.
pub struct Buffer(Memory);

enum Memory {
    Own(Vec<u8>),
    Shared(SharedBuffer),
}

/// Buffers.
impl Session {
    /// Creates a buffer of `len` zero bytes. It is returned to the session when it is dropped.
    ///
    /// Fails if the session has its maximum number of buffers, if the quota of its principal has too little room, or if
    /// the system lacks memory.
    pub async fn buffer(&self, len: usize) -> Result<Buffer, RegionError> {
        Ok(Buffer(match &self.kind {
            Kind::Attached(client) if len > 0 => {
                Memory::Shared(SharedBuffer::open(client, len as u64).await?)
            }
            _ => Memory::Own(vec![0; len]),
        }))
    }
}

/// Buffers for threads.
impl blocking::Session {
    /// Creates a buffer of `len` zero bytes. See [`crate::Session::buffer`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, RegionError> {
        self.block_on(self.as_async().buffer(len))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Shared(shared) => &shared.bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Shared(shared) => &mut shared.bytes,
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}
