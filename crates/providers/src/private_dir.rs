//! Directories that only one user may read and change, and checked files in such directories.
//!
//! ```text
//!   PrivateDir      opened once, after a check of owner and mode; all accesses to entries use its descriptor;
//!                   other users may at most traverse it, to reach an entry whose name they know
//!     file          a regular file of this user with one hard link; opening follows no symbolic link and never blocks
//!     NameLock      such a file with a flock, which the kernel releases when its holder dies
//!   DirHold         a numbered lock on the directory itself, which the removal of files does not affect
//! ```
//!
//! An entry with the expected name may be of another kind: a FIFO, a link, a device. A call then returns an error that
//! names the entry, and neither opens nor removes the entry.

mod hold;

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::unix_sockets::{BACKLOG, with_address};
pub use hold::DirHold;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Time in ms after which a held lock counts as in use. A process that only tests the lock holds it for microseconds.
const TEST_MS_MAX: u32 = 20;
/// Retries while another process keeps removing and creating a file.
const RACES_MAX: u32 = 1000;

/// Error for a path that is not a directory.
const NOT_A_DIRECTORY: &str = "it is not a directory (a link to one is not followed)";

/// The reason why a directory, or an entry in it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// Other users have access to the directory, or another user owns it.
    #[error("{}", not_private(dir, *mode, *uid, *uid_wanted))]
    NotPrivate {
        /// Path of the directory.
        dir: PathBuf,
        /// Mode bits of the directory.
        mode: u32,
        /// User id of the owner of the directory.
        uid: u32,
        /// User id of this process.
        uid_wanted: u32,
    },
    /// An entry has the name of a Halite file, but Halite did not create this entry.
    #[error("{} is {what}: Halite did not create it and does not touch it; move it elsewhere", path.display())]
    Foreign {
        /// Path of the entry.
        path: PathBuf,
        /// Description of the entry, such as `a FIFO` or `of another user`.
        what: &'static str,
    },
}

/// Returns the text of [`DirError::NotPrivate`].
fn not_private(dir: &Path, mode: u32, uid: u32, uid_wanted: u32) -> String {
    let dir = dir.display();
    if uid != uid_wanted {
        return format!(
            "{dir} belongs to user {uid}, and this process runs as user {uid_wanted}; run it as user {uid}, or choose another directory"
        );
    }
    format!("other users can enter {dir} (its mode is {mode:04o}); run `chmod 700 {dir}`")
}

impl From<DirError> for io::Error {
    fn from(error: DirError) -> io::Error {
        match error {
            DirError::Io { source, .. } => source,
            DirError::NotPrivate { .. } => io::Error::new(io::ErrorKind::PermissionDenied, error),
            DirError::Foreign { .. } => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// The expected kind of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file with one hard link.
    File,
    /// A Unix socket.
    Socket,
}

impl Kind {
    /// Describes the entry if it is not of this kind, or belongs to another user; `None` if it is as expected.
    fn mismatch(self, stat: &Stat, uid_wanted: u32) -> Option<&'static str> {
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let expected = match self {
            Kind::File => FileType::RegularFile,
            Kind::Socket => FileType::Socket,
        };
        match file_type {
            _ if file_type == expected && stat.st_uid != uid_wanted => Some("of another user"),
            FileType::RegularFile if self == Kind::File => {
                // A count of 0 means that the file was removed in between.
                (stat.st_nlink > 1).then_some("a file with several hard links")
            }
            FileType::Socket if self == Kind::Socket => None,
            FileType::RegularFile => Some("a regular file"),
            FileType::Directory => Some("a directory"),
            FileType::Symlink => Some("a symbolic link"),
            FileType::Fifo => Some("a FIFO"),
            FileType::Socket => Some("a socket"),
            FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
            FileType::Unknown => Some("of an unknown kind"),
        }
    }
}

/// The behaviour of a call if the file or directory does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Create {
    /// The call creates the entry: a file with mode 0600, or a directory with mode 0700.
    Yes,
    /// The call fails with an error of the kind `NotFound`.
    No,
}

/// A directory that the user of this process owns. Other users may at most traverse it (mode 0711), unless
/// [`PrivateDir::admit`] permits more.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    fd: OwnedFd,
    uid: u32,
}

impl PrivateDir {
    /// Opens the directory. The last component of `path` must not be a symbolic link, because the owner of a link could
    /// redirect it.
    pub fn open(path: &Path) -> Result<PrivateDir, DirError> {
        // "link/" and "link/." would be followed.
        let path: PathBuf = path.components().collect();
        PrivateDir::open_at(rustix::fs::CWD, &path, path.clone(), 0o011)
    }

    /// Opens the directory as [`PrivateDir::open`] does. First creates the directory and missing parents, with mode
    /// 0700.
    pub fn open_or_create(path: &Path) -> Result<PrivateDir, DirError> {
        match PrivateDir::open(path) {
            Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        create_all(path).map_err(io_error(path))?;
        PrivateDir::open(path)
    }

    /// Opens a subdirectory of this directory, with the same checks of owner, mode and links.
    pub fn subdirectory(&self, name: &str, create: Create) -> Result<PrivateDir, DirError> {
        let path = self.path.join(name);
        if create == Create::Yes {
            let created = match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
                // The umask may have removed permissions.
                Ok(()) => rustix::fs::chmodat(&self.fd, name, Mode::RWXU, AtFlags::empty()),
                Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(error),
            };
            created.map_err(|error| io_error(&path)(error.into()))?;
        }
        PrivateDir::open_at(self.fd.as_fd(), Path::new(name), path, 0)
    }

    /// Opens a subdirectory as [`PrivateDir::subdirectory`] does, but does not fail if other users may read it (see
    /// [`PrivateDir::admit`]).
    pub fn shared_subdirectory(&self, name: &str, create: Create) -> Result<PrivateDir, DirError> {
        match self.subdirectory(name, create) {
            Err(DirError::NotPrivate { .. }) => {
                PrivateDir::open_at(self.fd.as_fd(), Path::new(name), self.path.join(name), 0o055)
            }
            opened => opened,
        }
    }

    /// Removes a subdirectory if it is empty. Ignores errors.
    pub fn remove_subdirectory(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Sets the mode of the directory: 0700 gives other users no access, 0711 gives access to entries whose names they
    /// know, and 0755 also permits them to list the entries.
    pub fn admit(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    /// Gives an entry the mode 0600.
    pub(crate) fn set_private(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::chmodat(&self.fd, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?)
    }

    /// Creates a Unix socket `name` with these mode bits, and listens at it. Fails if the entry exists.
    pub fn listen(&self, name: &str, mode: u32) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        with_address(&self.path.join(name), |address| rustix::net::bind(&socket, address))?;
        // Set before the socket accepts connections. Fails if another process has moved the directory.
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmodat(&self.fd, name, mode, AtFlags::empty())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(UnixListener::from(socket))
    }

    /// Opens a directory. Fails if other users have more permissions than the mode bits `others`.
    fn open_at(at: BorrowedFd<'_>, name: &Path, path: PathBuf, others: u32) -> Result<PrivateDir, DirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let uid_wanted = rustix::process::geteuid().as_raw();
        let not_private = |dir: &Path, stat: Stat| {
            let (dir, mode, uid) = (dir.to_owned(), stat.st_mode & 0o7777, stat.st_uid);
            (mode & 0o077 & !others != 0 || uid != uid_wanted).then_some(DirError::NotPrivate {
                dir,
                mode,
                uid,
                uid_wanted,
            })
        };
        let fd = rustix::fs::openat(at, name, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                io_error(&path)(io::Error::new(io::ErrorKind::NotADirectory, NOT_A_DIRECTORY))
            }
            // It may be a directory of another user.
            Errno::ACCESS => rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
                .ok()
                .and_then(|stat| not_private(&path, stat))
                .unwrap_or_else(|| io_error(&path)(error.into())),
            error => io_error(&path)(error.into()),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| io_error(&path)(error.into()))?;
        match not_private(&path, stat) {
            Some(error) => Err(error),
            None => Ok(PrivateDir { path, fd, uid: uid_wanted }),
        }
    }

    /// Returns the path under which the directory was opened. Another process may have moved the directory since.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all entries, in no particular order.
    pub fn entries(&self) -> Result<Vec<OsString>, DirError> {
        let failed = |error: Errno| io_error(&self.path)(error.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let name = OsString::from_vec(CString::from(entry.map_err(failed)?.file_name()).into_bytes());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Returns true if an entry `name` of this `kind` exists. Fails with [`DirError::Foreign`] if the entry is of
    /// another kind.
    pub fn has(&self, name: &str, kind: Kind) -> Result<bool, DirError> {
        Ok(self.find(name, kind)?.is_some())
    }

    /// Opens a regular file of this user for reading and writing. Fails with [`DirError::Foreign`] if the entry is of
    /// another kind.
    pub fn file(&self, name: &str, create: Create) -> Result<File, DirError> {
        let open_flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        for _ in 0..RACES_MAX {
            // Checked before the open, because opening a device can have effects.
            let found = self.find(name, Kind::File)?;
            let flags = match (found, create) {
                (Some(_), _) => open_flags,
                (None, Create::Yes) => open_flags | OFlags::CREATE | OFlags::EXCL,
                (None, Create::No) => return Err(self.failed(name, Errno::NOENT)),
            };
            match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd).map_err(|error| self.failed(name, error))?;
                    self.check(name, Kind::File, &stat)?;
                    if found.is_none() {
                        // The umask may have removed permissions.
                        let private = Mode::RUSR | Mode::WUSR;
                        rustix::fs::fchmod(&fd, private).map_err(|error| self.failed(name, error))?;
                    }
                    return Ok(File::from(fd));
                }
                // Another process created or removed the file in between.
                Err(Errno::EXIST | Errno::NOENT) => {}
                Err(error) => return Err(self.failed(name, error)),
            }
        }
        Err(self.failed(name, Errno::BUSY))
    }

    /// Creates an empty file, or replaces an existing file by an empty one. Processes that have opened the old file
    /// continue to use the old file.
    pub fn replace(&self, name: &str) -> Result<File, DirError> {
        self.remove(name, Kind::File)?;
        self.file(name, Create::Yes)
    }

    /// Removes the entry `name` of this `kind`. Fails with [`DirError::Foreign`] if the entry is of another kind.
    pub fn remove(&self, name: &str, kind: Kind) -> Result<(), DirError> {
        if self.find(name, kind)?.is_none() {
            return Ok(());
        }
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed(name, error)),
        }
    }

    fn find(&self, name: &str, kind: Kind) -> Result<Option<Stat>, DirError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.check(name, kind, &stat).map(|()| Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed(name, error)),
        }
    }

    fn check(&self, name: &str, kind: Kind, stat: &Stat) -> Result<(), DirError> {
        match kind.mismatch(stat, self.uid) {
            None => Ok(()),
            Some(what) => Err(DirError::Foreign { path: self.path.join(name), what }),
        }
    }

    fn failed(&self, name: &str, error: Errno) -> DirError {
        io_error(&self.path.join(name))(error.into())
    }
}

/// Creates a directory and missing parents, with mode 0700 independent of the umask.
fn create_all(path: &Path) -> io::Result<()> {
    let create = || match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    match (create(), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            if !parent.as_os_str().is_empty() {
                create_all(parent)?;
            }
            create()
        }
        (created, _) => created,
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DirError {
    let path = path.to_owned();
    move |source| DirError::Io { path, source }
}

/// A file of a [`PrivateDir`] whose flock this process holds until it drops the value or dies.
#[derive(Debug)]
pub struct NameLock {
    dir: Arc<PrivateDir>,
    name: String,
    file: File,
}

impl NameLock {
    /// Acquires the lock without waiting; returns `None` if a running process holds the lock.
    pub fn take(dir: &Arc<PrivateDir>, name: &str, create: Create) -> Result<Option<NameLock>, DirError> {
        for _ in 0..RACES_MAX {
            let file = dir.file(name, create)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                locked => locked.map_err(|error| dir.failed(name, error))?,
            }
            let lock = NameLock { dir: dir.clone(), name: name.to_owned(), file };
            // The previous holder may have removed the file between the open and the lock.
            if lock.is_in_place()? {
                return Ok(Some(lock));
            }
        }
        Err(dir.failed(name, Errno::BUSY))
    }

    /// Acquires the lock as [`NameLock::take`] does, but creates the file if it is absent, and retries for up to 20 ms,
    /// because another process may hold the lock briefly in [`NameLock::is_held`].
    pub fn take_patiently(dir: &Arc<PrivateDir>, name: &str) -> Result<Option<NameLock>, DirError> {
        for _ in 0..TEST_MS_MAX {
            if let Some(lock) = NameLock::take(dir, name, Create::Yes)? {
                return Ok(Some(lock));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    /// Returns true if a running process holds the lock. Acquires the lock briefly to test this. Returns false if the
    /// file does not exist.
    pub fn is_held(dir: &PrivateDir, name: &str) -> Result<bool, DirError> {
        match dir.file(name, Create::No) {
            Ok(file) => is_held(&file).map_err(|error| dir.failed(name, error)),
            Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the locked file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Removes the file from the directory, unless another file has replaced it.
    pub fn remove(&self) {
        if self.is_in_place().unwrap_or(false) {
            // Ignores a failure: the next process with this name removes the file.
            let _ = self.dir.remove(&self.name, Kind::File);
        }
    }

    fn is_in_place(&self) -> Result<bool, DirError> {
        let Some(found) = self.dir.find(&self.name, Kind::File)? else { return Ok(false) };
        let locked = rustix::fs::fstat(&self.file).map_err(|error| self.dir.failed(&self.name, error))?;
        Ok((locked.st_dev, locked.st_ino) == (found.st_dev, found.st_ino))
    }
}

/// Returns true if a running process holds the flock of the file. Acquires the flock briefly to test this.
pub fn is_held(file: &File) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error),
        Ok(()) => {
            rustix::fs::flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
    }
}
