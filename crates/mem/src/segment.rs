//! Segments: memory that several processes map at once.
//!
//! A segment is a memfd that this process maps whole and writable. Callers read and write a segment through a
//! [`Window`], and divide it with an [`Allocator`](crate::Allocator).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::fork::Process;
use crate::window::{OutOfBounds, Window};

/// Shared memory, which this process maps until the value is dropped.
///
/// ```
/// # use halite_mem::{PagePolicy, Segment};
/// let segment = Segment::create("example", 1 << 20, PagePolicy::Normal)?;
/// let window = segment.window(4096, 16).expect("in bounds");
/// window.write(0, b"salt").expect("in bounds");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Segment {
    /// `None` for a peer's segment: a mapping needs no descriptor, and the number of descriptors is limited.
    fd: Option<OwnedFd>,
    base: NonNull<u8>,
    len: usize,
    process: Process,
    /// True if another core reads the bytes that this process stores, so that long stores bypass the caches.
    streams: bool,
}

// SAFETY: `base` is the only field that is not Send. It names a mapping of the whole process, which any thread may use
// and, in drop(), unmap.
unsafe impl Send for Segment {}
// SAFETY: no method of &Segment touches the mapped bytes except through `Window`, which argues for itself.
unsafe impl Sync for Segment {}

/// The page size to request for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagePolicy {
    /// Huge pages if the kernel has free huge pages, otherwise normal pages.
    ///
    /// The segment uses transparent huge pages. It does not use `MFD_HUGETLB`: if the reserve of hugetlb pages is
    /// empty, the first access to a page kills the process with SIGBUS.
    Huge,
    /// Pages of the default size.
    Normal,
}

/// The reason why [`Segment::open`] refused a peer's descriptor.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The descriptor is not a memfd, so its size is not guaranteed.
    #[error("cannot open a segment: the descriptor is not a memfd")]
    NotMemfd,
    /// The memfd is not sealed against shrinking. If its owner truncated such a memfd, the next access would kill this
    /// process.
    #[error("cannot open a segment: the memfd is not sealed against shrinking")]
    CanShrink,
    /// The memfd uses hugetlb pages. If the reserve of these pages were empty, the first access to a page would kill
    /// this process.
    #[error("cannot open a segment: the memfd uses hugetlb pages")]
    HugeTlb,
    /// The memfd is shorter than the caller requested, or the requested length is zero.
    #[error("cannot open a segment: the memfd has {actual} bytes instead of at least {wanted}")]
    TooShort {
        /// Length of the memfd, in bytes.
        actual: u64,
        /// Length that the caller requested, in bytes.
        wanted: u64,
    },
    /// A system call failed.
    #[error("cannot open a segment: {0}")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for OpenError {
    fn from(errno: rustix::io::Errno) -> OpenError {
        OpenError::Io(errno.into())
    }
}

impl Segment {
    /// Creates a segment of `len` zero bytes; `name` appears in `/proc/PID/maps`.
    ///
    /// The system provides memory on first access. The size is sealed, so a peer that receives [`Segment::fd`] cannot
    /// truncate the segment. Fails if `len` is zero or exceeds the file size limit of the process (`ulimit -f`), or if
    /// the system refuses.
    pub fn create(name: &str, len: u64, pages: PagePolicy) -> io::Result<Arc<Segment>> {
        let (mut segment, fd) = Segment::create_sealed(name, len, SealFlags::empty())?;
        segment.fd = Some(fd);
        if pages == PagePolicy::Huge {
            // Optional: a kernel without transparent huge pages refuses, and normal pages work, too.
            let _ = segment.advise(Advice::LinuxHugepage);
        }
        Ok(Arc::new(segment))
    }

    /// Creates a segment with `seals` in addition to the seals that fix its size. Returns the segment and its
    /// descriptor, which the caller may close once a peer has a copy.
    pub(crate) fn create_sealed(name: &str, len: u64, seals: SealFlags) -> io::Result<(Segment, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Beyond the limit, the system would kill the process by a signal instead of returning an error.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit) {
            return Err(Errno::FBIG.into());
        }
        let fd = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&fd, len)?;
        let segment = Segment::map(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        // After the mapping, which F_SEAL_FUTURE_WRITE leaves writable.
        rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((segment, fd))
    }

    /// Opens a peer's segment: checks that the peer cannot shrink the segment, and maps the first `len` bytes. The
    /// caller may close the descriptor afterwards.
    ///
    /// The descriptor is untrusted. The peer can still write to the memory at any time.
    pub fn open(fd: impl AsFd, len: u64) -> Result<Arc<Segment>, OpenError> {
        Ok(Arc::new(Segment::open_with_access(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// Opens a peer's segment for reading: a store to it kills this process.
    pub(crate) fn open_read_only(fd: impl AsFd, len: u64) -> Result<Arc<Segment>, OpenError> {
        Ok(Arc::new(Segment::open_with_access(fd.as_fd(), len, ProtFlags::READ)?))
    }

    /// Opens a peer's segment through which two cores pass bytes to each other; see [`Segment::streaming`].
    pub(crate) fn open_streaming(fd: impl AsFd, len: u64) -> Result<Arc<Segment>, OpenError> {
        let segment = Segment::open_with_access(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Arc::new(segment.streaming()))
    }

    /// Opens a peer's segment that forks of this process inherit.
    pub(crate) fn open_inherited(fd: impl AsFd, len: u64) -> Result<Segment, OpenError> {
        let segment = Segment::open_with_access(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        segment.advise(Advice::LinuxDoFork)?;
        Ok(segment)
    }

    /// Makes long copies into this segment bypass the caches of the copying core, because another core reads the bytes
    /// next.
    pub(crate) fn streaming(mut self) -> Segment {
        self.streams = true;
        self
    }

    /// Returns true if long copies into this segment bypass the caches.
    pub(crate) fn streams(&self) -> bool {
        self.streams
    }

    fn open_with_access(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Segment, OpenError> {
        // Only memfds report more than F_SEAL_SEAL.
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| OpenError::NotMemfd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(OpenError::CanShrink);
        }
        if rustix::fs::fstatfs(fd)?.f_type as u64 == HUGETLBFS_MAGIC {
            return Err(OpenError::HugeTlb);
        }
        // Read after the seals, since a sealed size can only grow.
        let actual = rustix::fs::fstat(fd)?.st_size as u64;
        if actual < len || len == 0 {
            return Err(OpenError::TooShort { actual, wanted: len });
        }
        Ok(Segment::map(fd, len, access)?)
    }

    /// Returns the descriptor to pass to peers; `None` for a peer's segment, which needs no descriptor once it is
    /// mapped.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Returns the address of the mapping in this process.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns a view of `len` bytes from `offset`; `None` if the range is not inside the segment.
    pub fn window(self: &Arc<Segment>, offset: u64, len: u64) -> Option<Window> {
        let end = offset.checked_add(len)?;
        if end > self.len() {
            return None;
        }
        // SAFETY: offset <= end <= self.len, so the result stays within the mapping or one past its end.
        let base = unsafe { self.base.add(offset as usize) };
        // SAFETY: `base` and the `len` bytes after it lie within the mapping of this very segment.
        Some(unsafe { Window::new(self.clone(), base, len) })
    }

    /// Makes `len` bytes from `offset` read as zero, and returns the whole pages among them to the system.
    ///
    /// Every process that maps the segment sees the zeros. A concurrent write to the same bytes may be lost or take
    /// effect. Fails if the range is not inside the segment, or if it contains whole pages of a peer's segment.
    pub fn discard(self: &Arc<Segment>, offset: u64, len: u64) -> Result<(), DiscardError> {
        let window = self.window(offset, len);
        let window = window.ok_or(OutOfBounds { offset, len, window_len: self.len() })?;
        let page_bytes = rustix::param::page_size() as u64;
        let whole_pages_end = (offset + len) / page_bytes;
        if offset.div_ceil(page_bytes) >= whole_pages_end {
            // Without a whole page, plain stores are cheaper than a system call.
            window.fill(0, len, 0)?;
            return Ok(());
        }
        let fd = self.fd().ok_or(DiscardError::NotOwned)?;
        if is_hole(fd, offset, len) {
            return Ok(());
        }
        // Punching also zeroes the parts of pages at both ends, without making them resident first.
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(fd, mode, offset, len).map_err(io::Error::from)?;
        Ok(())
    }

    /// Allocates the pages of `len` bytes from `offset` now and charges them to this process, without changing their
    /// content. The system charges a page that is not populated to the process that first accesses the page.
    ///
    /// Other threads and processes may use the same bytes meanwhile. After a failure, some of the pages may be
    /// allocated.
    pub fn populate(self: &Arc<Segment>, offset: u64, len: u64) -> io::Result<()> {
        let (begin, len) = self.pages_around(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        match self.populate_by_fault(begin, len) {
            // The system is older than Linux 5.14.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.populate_by_touch(begin, len)
            }
            populated => populated,
        }
    }

    /// Returns the whole pages that contain `len` bytes from `offset`.
    fn pages_around(&self, offset: u64, len: u64) -> io::Result<(u64, u64)> {
        let page_bytes = rustix::param::page_size() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::InvalidInput)?.next_multiple_of(page_bytes);
        let begin = offset - offset % page_bytes;
        Ok((begin, if len == 0 { 0 } else { end - begin }))
    }

    fn populate_by_fault(&self, begin: u64, len: u64) -> io::Result<()> {
        // SAFETY: `begin` lies within the mapping, whose last page is mapped whole.
        let base = unsafe { self.base.add(begin as usize) };
        loop {
            // SAFETY: the pages belong to our own mapping, and their content does not change.
            match unsafe {
                rustix::mm::madvise(base.as_ptr().cast(), len as usize, Advice::LinuxPopulateWrite)
            } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                populated => return Ok(populated?),
            }
        }
    }

    /// Reserves the pages, so that accesses cannot fail, and then accesses them, since pages that are only reserved
    /// still count as a hole.
    fn populate_by_touch(self: &Arc<Segment>, begin: u64, len: u64) -> io::Result<()> {
        let len = len.min(self.len() - begin);
        let fd = self.fd().ok_or(io::ErrorKind::Unsupported)?;
        rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, begin, len)?;
        let window = self.window(begin, len).expect("whole pages of the segment");
        let page_bytes = rustix::param::page_size() as u64;
        for offset in (0..len).step_by(page_bytes as usize) {
            // Fails only for a last page of less than a word, which its first access allocates.
            let _ = window.fetch_add_u64(offset, 0);
        }
        Ok(())
    }

    /// For simulations: hides later writes through this mapping from all other processes, as if this process had been
    /// killed. After a simulated kill, destructors still run and may write to the segment. `owned` is the owner's value
    /// of the same segment. Fails if `owned` belongs to a peer or is shorter.
    pub fn make_private(&self, owned: &Segment) -> io::Result<()> {
        let fd = owned.fd().ok_or(io::ErrorKind::Unsupported)?;
        if owned.len < self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: this atomically replaces a whole mapping of ours by one of the same length and access; windows expect
        // its bytes to change at any time.
        unsafe { rustix::mm::mmap(self.base.as_ptr().cast(), self.len, access, flags, fd, 0) }?;
        Ok(())
    }

    /// Returns the memory that the segment currently takes from the system, in bytes. Fails unless this process created
    /// the segment.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let fd = self.fd().ok_or(io::ErrorKind::Unsupported)?;
        Ok(rustix::fs::fstat(fd)?.st_blocks as u64 * 512)
    }

    fn map(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> io::Result<Segment> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { rustix::mm::mmap(null_mut(), len, access, flags, fd, 0) }?;
        let base = NonNull::new(base.cast()).expect("mmap never chooses address zero");
        let segment = Segment { fd: None, base, len, process: Process::current(), streams: false };
        // A forked child must not write to an arena that its parent has released.
        segment.advise(Advice::LinuxDontFork)?;
        // Otherwise core files would contain gigabytes of other users' data.
        segment.advise(Advice::LinuxDontDump)?;
        Ok(segment)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is our own mapping, and no advice of the callers changes its content.
        Ok(unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }?)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A fork does not inherit the mapping, and may have mapped the addresses anew.
            return;
        }
        // SAFETY: we mapped exactly this range; every Window holds an Arc of self, so no Window exists any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours could not be unmapped: {unmapped:?}");
    }
}

/// Returns true if the range has no allocated page: all bytes read as zero, and no page needs to be freed. The check
/// takes a tenth of the time of punching a large hole again.
fn is_hole(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    match rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(offset)) {
        Ok(next_data) => next_data >= offset + len,
        Err(errno) => errno == rustix::io::Errno::NXIO,
    }
}

/// The reason why [`Segment::discard`] failed.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// The range is not inside the segment. Nothing was changed.
    #[error("cannot discard: {0}")]
    OutOfBounds(#[from] OutOfBounds),
    /// The segment belongs to a peer, and only the owner of a segment can discard its memory.
    #[error("cannot discard: the segment belongs to a peer")]
    NotOwned,
    /// A system call failed.
    #[error("cannot discard: {0}")]
    Io(#[from] io::Error),
}

/// `f_type` of hugetlbfs, from `linux/magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn create(len: u64) -> Arc<Segment> {
        Segment::create("test", len, PagePolicy::Normal).unwrap()
    }

    fn reopened(segment: &Segment, len: u64) -> Result<Arc<Segment>, OpenError> {
        Segment::open(segment.fd().unwrap().try_clone_to_owned().unwrap(), len)
    }

    #[test]
    fn windows_never_reach_outside() {
        let segment = create(5000);
        assert!(segment.window(0, 5000).is_some());
        assert!(segment.window(5000, 0).is_some());
        assert!(segment.window(0, 5001).is_none());
        assert!(segment.window(5001, 0).is_none());
        assert!(segment.window(u64::MAX, 2).is_none());
        assert!(segment.window(2, u64::MAX).is_none());
    }

    #[test]
    fn no_peer_can_change_the_size() {
        let segment = create(MIB);
        assert!(rustix::fs::ftruncate(segment.fd().unwrap(), 0).is_err());
        assert!(rustix::fs::ftruncate(segment.fd().unwrap(), 2 * MIB).is_err());
        assert!(rustix::fs::fcntl_add_seals(segment.fd().unwrap(), SealFlags::WRITE).is_err());
    }

    #[test]
    fn unsafe_descriptors_are_refused() {
        let file = rustix::fs::open("/proc/self/exe", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        assert!(matches!(Segment::open(file.unwrap(), 1), Err(OpenError::NotMemfd)));

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, MIB).unwrap();
        assert!(matches!(Segment::open(unsealed, MIB), Err(OpenError::CanShrink)));

        let short = create(MIB);
        let refused = reopened(&short, MIB + 1);
        assert!(matches!(refused, Err(OpenError::TooShort { actual: MIB, .. })));
        assert!(matches!(reopened(&short, 0), Err(OpenError::TooShort { .. })));
        assert!(matches!(reopened(&short, u64::MAX), Err(OpenError::TooShort { .. })));
    }

    #[test]
    fn discarded_memory_is_released() {
        let segment = create(64 * MIB);
        assert_eq!(segment.resident_bytes().unwrap(), 0);
        let window = segment.window(0, 64 * MIB).unwrap();
        window.fill(0, MIB, 0xAA).unwrap();
        let used = segment.resident_bytes().unwrap();
        assert!(used >= MIB);

        // The range is not aligned: 100 bytes stay at either end.
        segment.discard(100, MIB - 200).unwrap();
        assert!(segment.resident_bytes().unwrap() < used);
        let mut all = vec![0; MIB as usize];
        window.read(0, &mut all).unwrap();
        assert!(all[..100].iter().all(|byte| *byte == 0xAA));
        assert!(all[100..all.len() - 100].iter().all(|byte| *byte == 0));
        assert!(all[all.len() - 100..].iter().all(|byte| *byte == 0xAA));
    }

    #[test]
    fn populated_memory_keeps_its_bytes() {
        // Covers the system call and the fallback for old kernels.
        for is_old_kernel in [false, true] {
            let segment = create(8 * MIB);
            let window = segment.window(0, 8 * MIB).unwrap();
            window.write(MIB, b"kept").unwrap();
            match is_old_kernel {
                false => segment.populate(MIB / 2, 2 * MIB),
                true => segment.populate_by_touch(MIB / 2, 2 * MIB),
            }
            .unwrap();
            let resident = segment.resident_bytes().unwrap();
            assert!((2 * MIB..4 * MIB).contains(&resident), "{resident} bytes are resident");
            let mut kept = [0; 4];
            window.read(MIB, &mut kept).unwrap();
            assert_eq!(&kept, b"kept");
            segment.discard(MIB / 2, 2 * MIB).unwrap();
            assert_eq!(segment.resident_bytes().unwrap(), 0);
        }
    }
}
