//! Pages that the program provides at the first access.
//!
//! ```text
//!  load or store ── page absent, or store to a protected page ── SIGBUS ── on_fault of the accessed Paged
//!                                                                             │ fill(), unprotect()
//!  the instruction repeats <── return from the signal ────────────────────────┘
//! ```
//!
//! A [`Paged`] is private memory of this process, registered with userfaultfd. For shared memory, see
//! [`Segment`](crate::Segment). The kernel reports a fault as SIGBUS to the thread that caused the fault, so no other
//! thread takes part. The kernel reports faults of user code only; for this, a process needs no privilege. A system
//! call on an absent page fails with EFAULT.

mod sigbus;
mod uffd;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy;
use crate::fork::Process;
use crate::window::{AccessError, OutOfBounds};

/// A fault: a load or store that cannot continue until the page is present or writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Number of the page, counted from 0.
    pub page: usize,
    /// True for a store, whose page is absent or protected; false for a load, whose page is absent.
    pub is_write: bool,
}

/// Makes the page of a fault present and, if the fault was a store, unprotected.
type OnFault = dyn Fn(&Paged, Fault) + Send + Sync;

/// A range of pages that are absent until [`Paged::fill`] provides them.
///
/// ```
/// # use halite_mem::{Paged, PagedError};
/// let pages = Paged::new(4, |pages, fault| {
///     let bytes = vec![fault.page as u8; pages.page_bytes()];
///     pages.fill(fault.page, &bytes, false).expect("the page can be filled");
/// });
/// let pages = match pages {
///     Err(PagedError::Refused) => return Ok(()), // as containers often do
///     pages => pages?,
/// };
/// let mut bytes = [0; 2];
/// pages.read(3 * pages.page_bytes() as u64 - 1, &mut bytes).expect("in bounds");
/// assert_eq!(bytes, [2, 3]);
/// # Ok::<(), PagedError>(())
/// ```
pub struct Paged {
    base: NonNull<u8>,
    page_bytes: usize,
    pages: usize,
    fd: OwnedFd,
    on_fault: Box<OnFault>,
    process: Process,
}

// SAFETY: `base` names a mapping of the whole process, which any thread may use and, in drop(), unmap.
unsafe impl Send for Paged {}
// SAFETY: all access to the bytes through &Paged uses primitives for concurrently written memory (the copies of
// `crate::copy`, and atomics); no method lends a reference to plain bytes.
unsafe impl Sync for Paged {}

/// The reason why [`Paged::new`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagedError {
    /// This process may not use userfaultfd.
    #[error(
        "this process may not handle page faults (userfaultfd: permission denied); a container's seccomp profile must allow userfaultfd, or the process needs CAP_SYS_PTRACE or the sysctl vm.unprivileged_userfaultfd=1"
    )]
    Refused,
    /// The kernel or the processor does not support fault reports by signals.
    #[error(
        "this system cannot report page faults as signals; this requires Linux 5.11 or newer on x86_64, with CONFIG_USERFAULTFD"
    )]
    Unsupported,
    /// The range is empty or exceeds the address space.
    #[error(
        "cannot map {pages} pages: the number must be at least 1, and the pages must fit into the address space"
    )]
    Length {
        /// Requested number of pages.
        pages: usize,
    },
    /// A system call failed.
    #[error("cannot set up on-demand pages (userfaultfd): {0}")]
    Io(#[from] io::Error),
}

impl Paged {
    /// Reserves `pages` absent pages. `on_fault` runs in a signal handler, on the thread whose access has faulted. It
    /// must make the page present and, for a store, unprotected; otherwise the access faults again.
    ///
    /// The interrupted code is always a copy or an atomic of this type, so `on_fault` may allocate, wait, and take
    /// locks that the accessing code does not hold. `on_fault` must not access absent or protected pages of any
    /// `Paged`, because such an access kills the process. A panic in `on_fault` aborts the process.
    pub fn new(
        pages: usize,
        on_fault: impl Fn(&Paged, Fault) + Send + Sync + 'static,
    ) -> Result<Paged, PagedError> {
        let page_bytes = rustix::param::page_size();
        let len = pages.checked_mul(page_bytes).filter(|len| *len > 0 && *len <= isize::MAX as usize);
        let len = len.ok_or(PagedError::Length { pages })?;
        let fd = uffd::open()?;
        sigbus::install()?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), len, access, flags) }.map_err(io::Error::from)?;
        let base = NonNull::new(base.cast()).expect("mmap never chooses address zero");
        let process = Process::current();
        let paged = Paged { base, page_bytes, pages, fd, on_fault: Box::new(on_fault), process };
        paged.advise(0..pages, Advice::LinuxDontFork)?;
        // SAFETY: the range is our own mapping, and accesses to it expect the signal.
        unsafe { uffd::register(&paged.fd, paged.base.addr().get(), len) }?;
        Ok(paged)
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        (self.pages * self.page_bytes) as u64
    }

    /// Makes an absent page present with these bytes, atomically for all threads. If `is_protected` is true, the next
    /// store to the page faults. Returns false and changes nothing if the page is already present.
    ///
    /// # Panics
    /// Panics if the page does not exist, or if `bytes` does not have the length of a page.
    pub fn fill(&self, page: usize, bytes: &[u8], is_protected: bool) -> io::Result<bool> {
        let target = self.address_of(&(page..page + 1));
        assert_eq!(bytes.len(), self.page_bytes, "fill() needs the bytes of one whole page");
        // SAFETY: the page belongs to our own registered mapping; absent pages hold no bytes that the copy could change.
        match unsafe { uffd::copy(&self.fd, target, bytes, is_protected) } {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Protects each present page of the range: the next store to the page faults. Stores that completed before this
    /// call are visible to later calls of [`read`](Paged::read).
    ///
    /// # Panics
    /// Panics if a page of the range does not exist.
    pub fn protect(&self, pages: Range<usize>) -> io::Result<()> {
        self.set_protected(pages, true)
    }

    /// Removes the protection of each present page of the range, so that stores to the page no longer fault.
    ///
    /// # Panics
    /// Panics if a page of the range does not exist.
    pub fn unprotect(&self, pages: Range<usize>) -> io::Result<()> {
        self.set_protected(pages, false)
    }

    fn set_protected(&self, pages: Range<usize>, is_protected: bool) -> io::Result<()> {
        let (begin, len) = (self.address_of(&pages), pages.len() * self.page_bytes);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the pages belong to our own registered mapping, and accesses to it expect the signal.
        Ok(unsafe { uffd::write_protect(&self.fd, begin, len, is_protected) }?)
    }

    /// Makes the pages of the range absent, and discards their bytes.
    ///
    /// # Panics
    /// Panics if a page of the range does not exist.
    pub fn discard(&self, pages: Range<usize>) -> io::Result<()> {
        self.advise(pages, Advice::LinuxDontNeed)
    }

    fn advise(&self, pages: Range<usize>, advice: Advice) -> io::Result<()> {
        let (begin, len) = (self.address_of(&pages), pages.len() * self.page_bytes);
        // SAFETY: the pages belong to our own mapping, whose bytes may change at any time.
        Ok(unsafe { rustix::mm::madvise(begin as *mut _, len, advice) }?)
    }

    /// Returns the address of the first page of a range. Panics if a page of the range does not exist.
    fn address_of(&self, pages: &Range<usize>) -> usize {
        let is_inside = pages.start <= pages.end && pages.end <= self.pages;
        assert!(is_inside, "pages {pages:?} do not exist; there are {}", self.pages);
        self.base.addr().get() + pages.start * self.page_bytes
    }
}

/// Accesses. A load or store of an absent page faults, and so does a store to a protected page. As in
/// [`Window`](crate::Window), aligned copies of 1, 2, 4 and 8 bytes are single-copy atomic, and longer copies may tear.
impl Paged {
    /// Copies `target.len()` bytes from `offset` to `target`. Fails if the range is out of bounds.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.range(offset, target.len() as u64)?;
        let _access = sigbus::begin_access(self);
        // SAFETY: range() checked the source, and faults there are handled; the target is a slice of the same length.
        unsafe { copy::copy(target.as_mut_ptr(), source.as_ptr(), target.len()) };
        Ok(())
    }

    /// Copies the bytes of `source` to `offset`. Fails if the range is out of bounds.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.range(offset, source.len() as u64)?;
        let _access = sigbus::begin_access(self);
        // SAFETY: range() checked the target, and faults there are handled; the source is a slice of the same length.
        unsafe { copy::copy(target.as_ptr(), source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Returns the aligned 8-byte word at `offset`.
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        let word = self.word(offset)?;
        let _access = sigbus::begin_access(self);
        // Pairs with the Release in store_u64().
        Ok(word.load(Acquire))
    }

    /// Stores `value` in the aligned 8-byte word at `offset`.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        let word = self.word(offset)?;
        let _access = sigbus::begin_access(self);
        // Pairs with the Acquire in load_u64().
        word.store(value, Release);
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        let alignment = size_of::<u64>() as u64;
        let word = self.range(offset, alignment)?;
        if !offset.is_multiple_of(alignment) {
            return Err(AccessError::Misaligned { offset, alignment });
        }
        // SAFETY: bounds and alignment were checked (a page is aligned to more than a word); the bytes stay mapped
        // while &self is borrowed; this process accesses them only by atomics and the copies of `crate::copy`.
        Ok(unsafe { AtomicU64::from_ptr(word.cast().as_ptr()) })
    }

    fn range(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        if offset > self.len() || len > self.len() - offset {
            return Err(OutOfBounds { offset, len, window_len: self.len() });
        }
        // SAFETY: offset <= self.len(), so the result is inside the mapping or one past its end.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    /// Handles a fault at `address`. Returns false if the address is not in these pages.
    fn on_signal(&self, address: usize, is_write: bool) -> bool {
        let offset = address.wrapping_sub(self.base.addr().get());
        let is_inside = offset < self.pages * self.page_bytes;
        if is_inside {
            (self.on_fault)(self, Fault { page: offset / self.page_bytes, is_write });
        }
        is_inside
    }
}

impl fmt::Debug for Paged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged").field("base", &self.base).field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A fork does not inherit the mapping, and may have mapped the addresses anew.
            return;
        }
        // SAFETY: we mapped exactly this range, and no access to it outlives a borrow of self.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.pages * self.page_bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours could not be unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests;
