//! Buffers of an attached session: memory of this program that the node reads and writes in place.
//!
//! The node creates the memory of a buffer, and sends its descriptor with the reply to the request for the buffer. An
//! access finds the buffer of its bytes by their address. The locks here are held for no other lock or waker.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use halite_mem::exchange::buffer::Buffer;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::remote::Remote;
use super::wire::{self, Request};
use super::{Answer, Client, Undo};
use crate::error::{Gone, RegionCause, RegionError};

/// The buffers of a connection.
#[derive(Default)]
pub(super) struct Buffers {
    /// Length and id of each buffer, by the address of its bytes.
    places: RwLock<BTreeMap<usize, (usize, u64)>>,
    descriptors: Mutex<Descriptors>,
    /// True once the session has requested a buffer.
    is_used: AtomicBool,
}

/// Descriptors that have arrived, by number, until their requests take them.
#[derive(Default)]
struct Descriptors {
    arrived: u64,
    fds: BTreeMap<u64, OwnedFd>,
}

/// Bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Id of the buffer in the node.
    pub(crate) id: u64,
    /// Offset in the buffer, in bytes.
    pub(crate) at: usize,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl Buffers {
    /// Returns true if the session may have buffers.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        // The lock of `places` orders everything else.
        self.is_used.load(Relaxed)
    }

    /// Returns true if descriptors may come over the socket.
    pub(super) fn expects_descriptors(&self) -> bool {
        // The reply comes after the request, which comes after the store.
        self.is_used()
    }

    /// Returns the place of bytes that are in a buffer.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Place> {
        let address = bytes.as_ptr().addr();
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let (begin, (len, id)) = places.range(..=address).next_back()?;
        let at = address - begin;
        // No allocation crosses the end of a buffer.
        (at < *len).then_some(Place { id: *id, at, len: bytes.len() })
    }

    fn insert(&self, bytes: &[u8], id: u64) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.insert(bytes.as_ptr().addr(), (bytes.len(), id));
    }

    fn remove(&self, bytes: &[u8]) {
        self.places.write().unwrap_or_else(PoisonError::into_inner).remove(&bytes.as_ptr().addr());
    }

    fn take_descriptor(&self, number: u64) -> Option<OwnedFd> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner).fds.remove(&number)
    }

    /// Receives bytes from the socket into the spare capacity of `input`, and the descriptors that come with them.
    pub(super) fn receive(&self, socket: &UnixStream, input: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let len = input.len();
        input.resize(input.capacity(), 0);
        let parts = &mut [IoSliceMut::new(&mut input[len..])];
        let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        input.truncate(len + received.as_ref().map_or(0, |received| received.bytes));
        let received = received?;
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_descriptor = received.flags.contains(rustix::net::ReturnFlags::CTRUNC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                has_descriptor = true;
                let number = descriptors.arrived;
                descriptors.fds.extend(rights.next().map(|fd| (number, fd)));
            }
        }
        // Without room for it in this process, a descriptor is lost, and its number stays unused.
        descriptors.arrived += u64::from(has_descriptor);
        Ok(received.bytes)
    }
}

/// A buffer whose memory is shared with the node. Dropping it ends the buffer in the node too.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    pub(crate) bytes: Buffer,
    /// Dropped after `bytes`, so that this process uses no memory that the quota does not count.
    remote: Remote,
}

impl SharedBuffer {
    /// Requests a buffer of `len` bytes, which must not be 0.
    pub(crate) async fn open(client: &Arc<Client>, len: u64) -> Result<SharedBuffer, RegionError> {
        let failed = |cause| RegionError { operation: "allocate", object: object(len), cause };
        let buffers = client.line.buffers.clone();
        buffers.is_used.store(true, Relaxed);
        let undo: Undo = Box::new({
            let buffers = buffers.clone();
            move |reply| match wire::decode::<(u8, (u64, u64))>(reply)? {
                // The first byte shows that the result is a value.
                ((0, (id, number)), _) => {
                    drop(buffers.take_descriptor(number));
                    Some(wire::message(0, &Request::End(id), &[]))
                }
                _ => None,
            }
        });
        let lost = |gone: Gone| failed(gone.into());
        let answer: Answer<(u64, u64)> =
            client.ask_with(&Request::Buffer(len), &[], Some(undo), lost).await?;
        let (id, number) = answer.value;
        let remote = Remote::new(client, id);
        let opened = buffers.take_descriptor(number).map(|fd| Buffer::open(fd, len));
        let Some(Ok(bytes)) = opened else {
            return Err(failed(RegionCause::TableFull(
                "this process lacks address space or descriptors; raise its limits (`ulimit -v`, `ulimit -n`)",
            )));
        };
        buffers.insert(&bytes, id);
        Ok(SharedBuffer { bytes, remote })
    }
}

/// Returns the text by which errors name a buffer.
pub(crate) fn object(len: u64) -> String {
    format!("a buffer of {len} bytes")
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        self.remote.client().line.buffers.remove(&self.bytes);
    }
}
