//! The part of the userfaultfd interface that [`Paged`](super::Paged) uses, from `linux/userfaultfd.h`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater};
use rustix::mm::UserfaultfdFlags;

use super::PagedError;

/// Reports faults of user code only; since Linux 5.11, this needs no privilege.
const UFFD_USER_MODE_ONLY: u32 = 1;

const UFFD_API: u64 = 0xaa;
/// Faults of stores to protected pages.
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
/// Reports faults as signals, without a thread that reads the descriptor.
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURES: u64 = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS;

const UFFDIO_REGISTER_MODE_MISSING: u64 = 1 << 0;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_COPY_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1 << 0;

/// `struct uffdio_api`
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`
#[repr(C)]
struct Copy {
    target: u64,
    source: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_writeprotect`
#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const UFFDIO: u8 = 0xaa;
const UFFDIO_API: Opcode = ioctl::opcode::read_write::<Api>(UFFDIO, 0x3f);
const UFFDIO_REGISTER: Opcode = ioctl::opcode::read_write::<Register>(UFFDIO, 0x00);
const UFFDIO_COPY: Opcode = ioctl::opcode::read_write::<Copy>(UFFDIO, 0x03);
const UFFDIO_WRITEPROTECT: Opcode = ioctl::opcode::read_write::<WriteProtect>(UFFDIO, 0x06);

/// Opens a descriptor whose faults arrive as SIGBUS.
pub(super) fn open() -> Result<OwnedFd, PagedError> {
    if !cfg!(target_arch = "x86_64") {
        // On other processors, the handler cannot distinguish stores from loads; see sigbus::is_write().
        return Err(PagedError::Unsupported);
    }
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: a new descriptor changes no memory.
    let fd = unsafe { rustix::mm::userfaultfd(flags) }.map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => PagedError::Refused,
        Errno::NOSYS | Errno::INVAL => PagedError::Unsupported,
        error => PagedError::Io(error.into()),
    })?;
    let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
    // SAFETY: the handshake changes only its argument.
    match unsafe { update::<UFFDIO_API, _>(&fd, &mut api) } {
        Ok(()) => Ok(fd),
        Err(Errno::INVAL) => Err(PagedError::Unsupported),
        Err(error) => Err(PagedError::Io(error.into())),
    }
}

/// Registers a mapping for faults on absent and on protected pages.
///
/// # Safety
/// The mapping belongs to the caller, which handles every fault in it.
pub(super) unsafe fn register(fd: &OwnedFd, start: usize, len: usize) -> io::Result<()> {
    let mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
    let mut register = Register { start: start as u64, len: len as u64, mode, ioctls: 0 };
    // SAFETY: per the caller.
    Ok(unsafe { update::<UFFDIO_REGISTER, _>(fd, &mut register) }?)
}

/// Makes an absent page present with the bytes of `source`.
///
/// # Safety
/// The page of `source.len()` bytes at `target` belongs to the caller.
pub(super) unsafe fn copy(
    fd: &OwnedFd,
    target: usize,
    source: &[u8],
    is_protected: bool,
) -> Result<(), Errno> {
    let mode = if is_protected { UFFDIO_COPY_MODE_WP } else { 0 };
    let (len, source) = (source.len() as u64, source.as_ptr() as u64);
    let mut copy = Copy { target: target as u64, source, len, mode, copied: 0 };
    // SAFETY: per the caller; the source is a slice that outlives the call.
    unsafe { update::<UFFDIO_COPY, _>(fd, &mut copy) }
}

/// Protects a range, so that stores to it fault, or removes the protection.
///
/// # Safety
/// The conditions of [`register`] hold.
pub(super) unsafe fn write_protect(
    fd: &OwnedFd,
    start: usize,
    len: usize,
    is_protected: bool,
) -> Result<(), Errno> {
    let mode = if is_protected { UFFDIO_WRITEPROTECT_MODE_WP } else { 0 };
    let mut write_protect = WriteProtect { start: start as u64, len: len as u64, mode };
    // SAFETY: per the caller.
    unsafe { update::<UFFDIO_WRITEPROTECT, _>(fd, &mut write_protect) }
}

/// Executes a request, and repeats it while the kernel changes the mappings of this process.
///
/// # Safety
/// `argument` is of the type that `OPCODE` expects, and names only memory that the request may change.
unsafe fn update<const OPCODE: Opcode, T>(fd: &OwnedFd, argument: &mut T) -> Result<(), Errno> {
    loop {
        // SAFETY: per the caller.
        let request = unsafe { Updater::<OPCODE, T>::new(argument) };
        // SAFETY: per the caller.
        match unsafe { ioctl::ioctl(fd.as_fd(), request) } {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
}
