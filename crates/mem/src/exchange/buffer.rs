//! Buffers: memory of a client's program that the server reads and writes in place.
//!
//! The server creates each buffer, so that its size is sealed, and accesses it through a [`Window`]. The client's
//! program has the bytes as a slice. While the program lends a slice to the server, it must hold the borrow that the
//! server's access needs: shared if the server reads, exclusive if it writes. The client trusts the server to access a
//! buffer only then.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::{OpenError, Segment, Window};

/// Creates a buffer of `len` zero bytes. Returns the server's view, and the descriptor that the client passes to
/// [`Buffer::open`]. Fails if `len` is zero, or if the system lacks memory or descriptors.
pub fn create(len: u64) -> io::Result<(Window, OwnedFd)> {
    let (segment, fd) = Segment::create_sealed("halite-buffer", len, SealFlags::empty())?;
    let window = Arc::new(segment).window(0, len).expect("the whole segment");
    Ok((window, fd))
}

/// The client's end of a buffer: its bytes. A fork of the process shares them.
#[derive(Debug)]
pub struct Buffer(Segment);

impl Buffer {
    /// Opens a buffer of `len` bytes with the descriptor that [`create`] returned. Fails if the descriptor is not a
    /// sealed memfd of this length, or if it cannot be mapped.
    pub fn open(fd: OwnedFd, len: u64) -> Result<Buffer, OpenError> {
        Segment::open_inherited(fd, len).map(Buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the segment maps these bytes while `self` lives, and their memfd cannot shrink. Nothing else in this
        // process refers to them; the server writes them only while the client holds an exclusive borrow.
        unsafe { std::slice::from_raw_parts(self.0.base().as_ptr(), self.0.len() as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref(); the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr(), self.0.len() as usize) }
    }
}

/// Exposes bytes of a buffer to the server, which may read them during the borrow. The client calls this before it
/// publishes the request, so that earlier stores to the bytes come before the request.
#[inline]
pub fn expose(bytes: &[u8]) {
    touch(bytes.as_ptr());
}

/// Exposes bytes of a buffer to the server, which may write them during the borrow. The client calls this before it
/// publishes the request, and after it has found the reply, so that later loads return the server's bytes.
#[inline]
pub fn expose_mut(bytes: &mut [u8]) {
    touch(bytes.as_mut_ptr());
}

/// Makes the compiler assume that this call accesses all bytes that the pointer can reach.
#[inline]
fn touch(bytes: *const u8) {
    #[cfg(not(miri))]
    // SAFETY: the assembly is empty.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) bytes, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    std::hint::black_box(bytes);
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn both_ends_see_the_bytes_and_none_can_change_the_length() {
        let (server, fd) = create(5000).unwrap();
        assert_eq!((ftruncate(&fd, 0), ftruncate(&fd, 1 << 20)), (Err(Errno::PERM), Err(Errno::PERM)));
        let other = fd.try_clone().unwrap();
        assert!(Buffer::open(other.try_clone().unwrap(), 5001).is_err());
        let mut client = Buffer::open(fd, 5000).unwrap();
        assert_eq!(*client, [0; 5000]);
        client[4998..].copy_from_slice(b"ab");
        expose(&client);
        let mut bytes = [0; 2];
        server.read(4998, &mut bytes).unwrap();
        assert_eq!(&bytes, b"ab");
        server.write(0, b"salt").unwrap();
        expose_mut(&mut client);
        assert_eq!(&client[..4], b"salt");
        assert!(server.write(4998, b"abc").is_err());

        // A client may punch holes, which read as zero at both ends.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&other, punch, 0, 5000).unwrap();
        server.read(4998, &mut bytes).unwrap();
        assert_eq!((bytes, client[0]), ([0; 2], 0));
    }

    #[test]
    fn a_fork_keeps_the_bytes() {
        let (_server, fd) = create(100).unwrap();
        let mut client = Buffer::open(fd, 100).unwrap();
        client[7] = 7;
        assert_eq!(crate::fork::run_in_fork(|| client[7]).unwrap(), Some(7));
    }
}
