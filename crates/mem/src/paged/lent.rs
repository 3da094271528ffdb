//! Absent pages that a program may use as an ordinary buffer.
//!
//! ```text
//!  load or store ── page absent ── the accessing thread sleeps in the kernel
//!                                  thread of this LentPages ── provide() ── the access continues
//! ```
//!
//! Unlike the accesses of a [`Paged`](super::Paged), any code may be the first to touch these pages, so a thread of
//! their own provides them. A system call on an absent page fails with EFAULT here, too.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::{PagedError, lengths, map_private, uffd};

/// Private memory whose pages are absent until the first access.
pub struct LentPages {
    base: NonNull<u8>,
    len: usize,
    /// Closing this socket ends the thread.
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

// SAFETY: `base` names a mapping of the whole process, which any thread may use and, in drop(), unmap.
unsafe impl Send for LentPages {}
// SAFETY: through &LentPages the bytes are only read; the kernel makes a page present before the access sees it.
unsafe impl Sync for LentPages {}

impl LentPages {
    /// Reserves `pages` absent pages. At the first access to a page, a separate thread calls `provide` with the page's
    /// number and a buffer for its bytes. The access waits, so `provide` must return and must not access these pages.
    pub fn new(
        pages: usize,
        provide: impl FnMut(usize, &mut [u8]) + Send + 'static,
    ) -> Result<LentPages, PagedError> {
        let (page_bytes, len) = lengths(pages)?;
        let fd = uffd::open_for_thread()?;
        let base = map_private(len)?;
        let mut lent = LentPages { base, len, end: None, thread: None };
        // SAFETY: the range is our own mapping, and the thread below provides its pages.
        unsafe { uffd::register(&fd, base.addr().get(), len, false) }?;
        let (end, ended) = UnixStream::pair()?;
        let start = base.addr().get();
        let serve = move || serve(&fd, &ended, start, page_bytes, provide);
        lent.thread = Some(std::thread::Builder::new().name("halite-pages".to_owned()).spawn(serve)?);
        lent.end = Some(end);
        Ok(lent)
    }

    /// Makes all pages absent again.
    pub fn discard(&mut self) -> io::Result<()> {
        // SAFETY: the pages belong to our own mapping, and &mut self excludes borrows of their bytes.
        Ok(unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }?)
    }
}

/// Provides pages until the other end of `ended` is closed.
fn serve(
    fd: &OwnedFd,
    ended: &UnixStream,
    start: usize,
    page_bytes: usize,
    mut provide: impl FnMut(usize, &mut [u8]),
) {
    let mut bytes = vec![0; page_bytes];
    loop {
        let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("cannot wait for page faults: {error}"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        while let Some(address) = uffd::next_absent(fd) {
            let page = (address - start) / page_bytes;
            provide(page, &mut bytes);
            // SAFETY: the page belongs to the registered mapping; absent pages hold no bytes that the copy could change.
            match unsafe { uffd::copy(fd, start + page * page_bytes, &bytes, false) } {
                // Two threads may have faulted on the page.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => panic!("cannot provide page {page}: {error}"),
            }
        }
    }
}

impl Deref for LentPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as self; only &mut self permits changes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for LentPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length and lives as long as self, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for LentPages {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for LentPages {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for LentPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentPages").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it occurred.
            let _ = thread.join();
        }
        // SAFETY: we mapped exactly this range, and no access to it outlives a borrow of self.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours could not be unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_access_by_any_code_provides_a_page() {
        let made = LentPages::new(3, |page, bytes| bytes.fill(page as u8 + 1));
        let mut pages = match made {
            Err(why @ (PagedError::Refused | PagedError::Unsupported)) => {
                eprintln!("skipped: {why}");
                return;
            }
            made => made.unwrap(),
        };
        let page_bytes = pages.len() / 3;
        let mut border = [0; 2];
        border.copy_from_slice(&pages[page_bytes - 1..page_bytes + 1]);
        assert_eq!(border, [1, 2]);
        pages[0] = 9;
        assert_eq!(pages[..2], [9, 1]);
        // The kernel itself does not wait for the page.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(rustix::io::write(&writer, &pages[2 * page_bytes..]), Err(Errno::FAULT));
        drop(reader);
        pages.discard().unwrap();
        assert_eq!(pages[0], 1);
    }
}
