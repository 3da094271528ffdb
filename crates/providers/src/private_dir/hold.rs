//! Locks on a directory itself, which remain held even if all files in the directory are removed.
//!
//! A running process holds a number, such as its node number, by two locks on one open file description of the
//! directory. The kernel releases both locks when the process ends.
//!
//! ```text
//!   OFD read lock of byte N      shows that number N is in use; a directory cannot be opened for write locks
//!   shared flock                 makes systemd-tmpfiles, which removes old files, skip the directory
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::PrivateDir;

/// A number that this process holds in a directory until it drops the value or dies.
#[derive(Debug)]
pub struct DirHold(#[allow(dead_code, reason = "the open descriptor holds the locks")] OwnedFd);

impl PrivateDir {
    /// Holds `number` in this directory. Several holders may hold the same number.
    pub fn hold(&self, number: u32) -> io::Result<DirHold> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.fd.as_fd(), ".", flags, Mode::empty())?;
        fcntl(fd.as_fd(), libc::F_OFD_SETLK, lock(libc::F_RDLCK, number, number))?;
        // Fails while systemd-tmpfiles reads the directory. The number is then held, but old files may be removed.
        let _ = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared);
        Ok(DirHold(fd))
    }

    /// Returns the numbers that running processes hold, in ascending order.
    pub fn held(&self) -> io::Result<Vec<u32>> {
        let (mut numbers, mut ranges) = (Vec::new(), vec![(0, u32::MAX)]);
        while let Some((first, last)) = ranges.pop() {
            // The kernel returns any lock in the range, not the first.
            let Some(number) = self.holder_between(first, last)? else { continue };
            numbers.push(number);
            ranges.extend(number.checked_sub(1).filter(|end| *end >= first).map(|end| (first, end)));
            ranges.extend(number.checked_add(1).filter(|begin| *begin <= last).map(|begin| (begin, last)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Returns true if a running process holds `number`.
    pub fn is_held(&self, number: u32) -> io::Result<bool> {
        Ok(self.holder_between(number, number)?.is_some())
    }

    fn holder_between(&self, first: u32, last: u32) -> io::Result<Option<u32>> {
        let found = fcntl(self.fd.as_fd(), libc::F_OFD_GETLK, lock(libc::F_WRLCK, first, last))?;
        let is_free = found.l_type == libc::F_UNLCK as libc::c_short;
        // A lock of another program may begin before the range.
        Ok((!is_free).then(|| u32::try_from(found.l_start).unwrap_or(first).clamp(first, last)))
    }
}

fn lock(kind: libc::c_int, first: u32, last: u32) -> libc::flock64 {
    libc::flock64 {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first.into(),
        l_len: i64::from(last) - i64::from(first) + 1,
        l_pid: 0,
    }
}

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, mut lock: libc::flock64) -> io::Result<libc::flock64> {
    // SAFETY: the kernel reads and writes only `lock`, which outlives the call; `fd` is open.
    let failed = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) };
    if failed < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_held_until_dropped() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("dir");
        let dir = PrivateDir::open_or_create(&path).unwrap();
        let holds = [7, 0, u32::MAX, 8].map(|number| dir.hold(number).unwrap());
        let twice = dir.hold(7).unwrap();
        assert_eq!(PrivateDir::open(&path).unwrap().held().unwrap(), [0, 7, 8, u32::MAX]);
        drop(holds);
        assert!(dir.is_held(7).unwrap() && !dir.is_held(8).unwrap());
        drop(twice);
        assert_eq!(dir.held().unwrap(), []);
    }
}
