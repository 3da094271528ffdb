//! The destination of `get`.
//!
//! A [`Sink`] gives a file its name only when it is complete. Until then the file has no name at all, if the file
//! system supports that, so a killed command leaves no file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::output;

/// A destination. If [`Sink::finish`] is not called, no file remains.
#[derive(Debug)]
pub struct Sink {
    target: Target,
    label: String,
}

#[derive(Debug)]
enum Target {
    /// A pipe, a terminal or a device.
    Stream(File),
    /// A file that gets its name at the end.
    File(Unnamed),
}

impl Sink {
    /// Returns true if `path` would become a file; false for standard output, a pipe or a device.
    pub fn is_file(path: Option<&Path>) -> bool {
        path.is_some_and(|path| fs::metadata(path).map_or(true, |metadata| metadata.is_file()))
    }

    /// Opens standard output, or creates the file `path`.
    pub fn create(path: Option<&Path>) -> anyhow::Result<Sink> {
        let Some(path) = path else {
            let stdout = output::standard_output().and_then(|stdout| Ok(rustix::io::dup(stdout)?));
            let stdout = File::from(stdout.context("cannot write to standard output")?);
            return Ok(Sink { target: Target::Stream(stdout), label: "standard output".to_owned() });
        };
        let label = path.display().to_string();
        let failed = || format!("cannot write to {label}");
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("cannot write to {label}: it is a directory"),
            // The file must not replace a device or pipe.
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(path).with_context(failed)?;
                Ok(Sink { target: Target::Stream(file), label })
            }
            // An existing file without write permission must not be replaced either.
            existing => {
                let existing = match existing {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    existing => Some(existing.with_context(failed)?),
                };
                if existing.is_some() {
                    rustix::fs::access(path, Access::WRITE_OK).with_context(failed)?;
                }
                let unnamed = Unnamed::create(&resolve_links(path)).with_context(failed)?;
                if let Some(existing) = existing {
                    let mode = Permissions::from_mode(existing.mode() & 0o777);
                    unnamed.file.set_permissions(mode).with_context(failed)?;
                }
                Ok(Sink { target: Target::File(unnamed), label })
            }
        }
    }

    /// Appends `piece`.
    pub fn write(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        let file = match &mut self.target {
            Target::Stream(file) => file,
            Target::File(unnamed) => &mut unnamed.file,
        };
        file.write_all(piece).with_context(|| format!("cannot write to {}", self.label))
    }

    /// Gives the complete file its name.
    pub fn finish(self) -> anyhow::Result<()> {
        match self.target {
            Target::Stream(_) => Ok(()),
            Target::File(unnamed) => {
                unnamed.publish().with_context(|| format!("cannot write to {}", self.label))
            }
        }
    }
}

/// If `path` is a symbolic link, returns its target, which need not exist. Otherwise returns `path`. So a download
/// replaces the target, not the link.
fn resolve_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // Same limit as the kernel's for chains of links.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// A file that does not have its name yet.
#[derive(Debug)]
struct Unnamed {
    file: File,
    /// Directory of the file.
    dir: OwnedFd,
    name: OsString,
    /// Temporary name, if the file system requires one. Dropping removes the file of that name.
    temporary: Option<OsString>,
}

impl Unnamed {
    fn create(path: &Path) -> io::Result<Unnamed> {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&dir, ".", flags, MODE) {
            Ok(file) if can_be_named(&file) => {
                Ok(Unnamed { file: File::from(file), dir, name, temporary: None })
            }
            // The file system does not support unnamed files, or /proc is not mounted.
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                Unnamed::create_named(dir, name)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn create_named(dir: OwnedFd, name: OsString) -> io::Result<Unnamed> {
        let temporary = temporary_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&dir, &temporary, flags, MODE)?);
        Ok(Unnamed { file, dir, name, temporary: Some(temporary) })
    }

    /// Gives the file its name, atomically replacing a file that has it.
    fn publish(mut self) -> io::Result<()> {
        if self.temporary.is_none() {
            match self.link(&self.name) {
                Err(Errno::EXIST) => {}
                linked => return Ok(linked?),
            }
            // A link cannot replace a file, and a rename needs a first name.
            let temporary = temporary_name()?;
            self.link(&temporary)?;
            self.temporary = Some(temporary);
        }
        let temporary = self.temporary.as_ref().expect("it has been given one");
        rustix::fs::renameat(&self.dir, temporary, &self.dir, &self.name)?;
        self.temporary = None;
        Ok(())
    }

    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let path = own_descriptor(self.file.as_raw_fd());
        rustix::fs::linkat(CWD, path, &self.dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Errors cannot be reported in drop.
            let _ = rustix::fs::unlinkat(&self.dir, temporary, AtFlags::empty());
        }
    }
}

/// Mode of a new file, before the user's mask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Returns a random name, independent of the file's own name, which may already have the maximum length.
fn temporary_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".halite-{:016x}.partial", u64::from_ne_bytes(random)).into())
}

fn own_descriptor(fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}

/// Returns true if this process can name the file, which ordinary users can only do through /proc.
fn can_be_named(file: &OwnedFd) -> bool {
    own_descriptor(file.as_raw_fd()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> Vec<OsString> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn incomplete_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"old").unwrap();
        let mut sink = Sink::create(Some(&path)).unwrap();
        sink.write(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(dir.path()), ["file"], "nothing shows that it is being written");
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(entries(dir.path()), ["file"]);
    }

    #[test]
    fn temporary_name_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let create = || {
            let dir = File::open(&dir).unwrap().into();
            Unnamed::create_named(dir, "file".into()).unwrap()
        };
        drop(create());
        assert!(entries(dir.path()).is_empty());
        let unnamed = create();
        (&unnamed.file).write_all(b"new").unwrap();
        unnamed.publish().unwrap();
        assert_eq!(entries(dir.path()), ["file"]);
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"new");
    }
}
