//! The socket of a client, from which no descriptor enters this process.
//!
//! A client may send descriptors with its bytes, although no message has any. The process that receives or discards a
//! descriptor last also closes it, and closing may block for as long as the sender chose: a TCP socket that lingers, or
//! a file in user space. So the node looks at bytes before it takes them, and leaves a socket with descriptors to a
//! thread that closes it without waiting where the system permits that, and may block elsewhere.

use std::cell::Cell;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};

use halite_providers::threads;
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::connection::Over;

/// Bytes of one look while the node discards what a client has sent.
const DISCARD_BYTES: usize = 16 << 10;

/// A client's socket. Dropping it never blocks.
pub(super) struct Socket {
    /// `None` only while it is dropped.
    stream: Option<UnixStream>,
    closer: Closer,
    /// Number of descriptors that were sent or wait to be sent, and that the client may not have received yet.
    descriptors: Cell<usize>,
    /// Number of those that wait to be sent.
    queued: Cell<usize>,
}

/// Passes sockets to the thread that closes them.
#[derive(Clone)]
pub(super) struct Closer(Sender<UnixStream>);

impl Closer {
    /// Starts the thread, which ends when the last closer and socket are dropped.
    pub(super) fn start() -> std::io::Result<Closer> {
        let (sender, streams) = channel::<UnixStream>();
        threads::spawn("halite-close", move || {
            while let Ok(first) = streams.recv() {
                let all = std::iter::once(first).chain(streams.try_iter()).map(OwnedFd::from).collect();
                // Without another thread, this one has closed them.
                let _ = threads::close_without_waiting(all);
            }
        })?;
        Ok(Closer(sender))
    }
}

impl Socket {
    pub(super) fn new(stream: UnixStream, closer: Closer) -> Socket {
        let (descriptors, queued) = Default::default();
        Socket { stream: Some(stream), closer, descriptors, queued }
    }

    /// Counts descriptors that wait to be sent.
    pub(super) fn queue_descriptors(&self, count: usize) {
        self.descriptors.set(self.descriptors.get() + count);
        self.queued.set(self.queued.get() + count);
    }

    /// Counts queued descriptors that were sent.
    pub(super) fn count_sent(&self, count: usize) {
        self.queued.set(self.queued.get() - count);
    }

    /// Returns the number of descriptors that the client had not received when [`Socket::has_descriptors`] last looked.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors.get()
    }

    /// Returns true if the client has not received all descriptors.
    pub(super) fn has_descriptors(&self) -> bool {
        // Bytes that the client has not received may have descriptors.
        if self.queued.get() == 0
            && halite_providers::unreceived_bytes(self.as_fd()).is_ok_and(|bytes| bytes == 0)
        {
            self.descriptors.set(0);
        }
        self.descriptors.get() > 0
    }

    /// Ends the connection. The client learns of it at once, and can send no more.
    pub(super) fn end(&self) {
        // These will not be sent.
        self.queued.set(0);
        let _ = self.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
    }

    /// Receives bytes into `slice`, and returns their number; 0 if the client has closed its socket, `None` if there are none
    /// now. Fails if descriptors come with the next bytes.
    pub(super) fn receive(&self, slice: &mut [u8]) -> Result<Option<usize>, Over> {
        let seen = match recvmsg(
            self.as_fd(),
            &mut [IoSliceMut::new(slice)],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::PEEK,
        ) {
            Ok(seen) if !seen.flags.contains(ReturnFlags::CTRUNC) => seen.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // The client has not received all replies.
            Err(Errno::CONNRESET) => 0,
            _ => return Err(Over),
        };
        if seen == 0 {
            return Ok(Some(0));
        }
        // The bytes stay in the socket until this thread, the only one that receives, takes them.
        match rustix::net::recv(self.as_fd(), &mut slice[..seen], RecvFlags::empty()) {
            Ok((count, _)) => Ok(Some(count)),
            Err(_) => Err(Over),
        }
    }

    /// Discards all bytes that the client has sent. Returns false if descriptors came with some of them.
    fn discard(&self) -> bool {
        let mut bytes = [0; DISCARD_BYTES];
        loop {
            let seen = recvmsg(
                self.as_fd(),
                &mut [IoSliceMut::new(&mut bytes)],
                &mut RecvAncillaryBuffer::default(),
                RecvFlags::PEEK,
            );
            match seen {
                Ok(seen) if seen.flags.contains(ReturnFlags::CTRUNC) => return false,
                Ok(seen) if seen.bytes > 0 => {
                    let _ = rustix::net::recv(self.as_fd(), &mut bytes[..seen.bytes], RecvFlags::empty());
                }
                Err(Errno::INTR) => {}
                _ => return true,
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_ref().expect("only drop() takes it").as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
        if !self.discard()
            && let Some(stream) = self.stream.take()
        {
            // Without the thread, which ends last, the socket is closed here.
            let _ = self.closer.0.send(stream);
        }
    }
}
