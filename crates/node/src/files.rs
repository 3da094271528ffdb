//! Where `get` leaves its bytes: a [`Sink`] shows a file under its name only when it is whole.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Bytes of one piece of a transfer.
pub const PIECE_BYTES: usize = 1 << 20;

/// Where bytes end up.  Unless [`Sink::finish`] is called, a file leaves no trace.
#[derive(Debug)]
pub struct Sink {
    target: Target,
    label: String,
}

#[derive(Debug)]
enum Target {
    /// A pipe, a terminal, a device: written to as it is.
    Stream(File),
    /// A file that gets its name in the end.
    File { file: File, partial: PathBuf, path: PathBuf, is_finished: bool },
}

impl Sink {
    /// Standard output, or the file `path`.
    pub fn create(path: Option<&Path>) -> anyhow::Result<Sink> {
        let Some(path) = path else {
            let stdout = rustix::io::dup(io::stdout()).map_err(io::Error::from);
            let stdout = File::from(stdout.context("cannot write to standard output")?);
            return Ok(Sink { target: Target::Stream(stdout), label: "standard output".to_owned() });
        };
        let label = path.display().to_string();
        let failed = || format!("cannot write to {label}");
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("cannot write to {label}: it is a directory"),
            // A device or a pipe must not be replaced by a file.
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(path).with_context(failed)?;
                Ok(Sink { target: Target::Stream(file), label })
            }
            existing => {
                let path = behind_links(path);
                let (file, partial) = create_beside(&path).with_context(failed)?;
                // From here on, whatever fails removes the file.
                let target = Target::File { file, partial, path, is_finished: false };
                let sink = Sink { target, label: label.clone() };
                if let (Ok(existing), Target::File { file, .. }) = (existing, &sink.target) {
                    let mode = Permissions::from_mode(existing.mode() & 0o777);
                    file.set_permissions(mode).with_context(failed)?;
                }
                Ok(sink)
            }
        }
    }

    /// Appends `piece`.
    pub fn write(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        let (Target::Stream(file) | Target::File { file, .. }) = &mut self.target;
        file.write_all(piece).with_context(|| format!("cannot write to {}", self.label))
    }

    /// All bytes are there: the file gets its name.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if let Target::File { partial, path, is_finished, .. } = &mut self.target {
            let renamed = fs::rename(&*partial, &*path);
            renamed.with_context(|| format!("cannot rename {} to {}", partial.display(), self.label))?;
            *is_finished = true;
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Target::File { partial, is_finished: false, .. } = &self.target {
            // If it cannot be removed there is nobody left to tell who could do better.
            let _ = fs::remove_file(partial);
        }
    }
}

/// Where `path` leads: a link is to stay one, also if there is nothing yet at its end.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many as the kernel follows; what is left of a longer chain is replaced as if it were a file.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// Makes a file in the directory of `path`, so that it can be renamed to it, under a name that nobody has.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    // Independent of the file's own name, which may be as long as names can be.
    let partial = path.with_file_name(format!(".halite-{:016x}.partial", u64::from_ne_bytes(random)));
    let file = File::options().write(true).create_new(true).open(&partial)?;
    Ok((file, partial))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// A directory of its own for each test, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("halite-files-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        fn entries(&self) -> Vec<OsString> {
            let mut entries: Vec<_> =
                fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            entries.sort();
            entries
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_appears_under_its_name_only_when_it_is_whole() {
        let scratch = Scratch::new("whole");
        let path = scratch.0.join("file");
        fs::write(&path, b"old").unwrap();
        let mut sink = Sink::create(Some(&path)).unwrap();
        sink.write(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(scratch.entries(), ["file"]);
    }

    #[test]
    fn a_sink_that_is_given_up_leaves_no_trace() {
        let scratch = Scratch::new("trace");
        let mut sink = Sink::create(Some(&scratch.0.join("file"))).unwrap();
        sink.write(b"half").unwrap();
        drop(sink);
        assert!(scratch.entries().is_empty());
    }

    #[test]
    fn only_the_file_at_the_end_of_a_link_is_replaced_and_its_mode_stays() {
        let scratch = Scratch::new("link");
        let (file, link, own) =
            (scratch.0.join("file"), scratch.0.join("link"), scratch.0.join("file.partial"));
        fs::write(&own, b"the user's").unwrap();
        fs::write(&file, b"old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let mut sink = Sink::create(Some(&link)).unwrap();
        sink.write(b"new").unwrap();
        sink.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
        assert_eq!(fs::read(&own).unwrap(), b"the user's");

        fs::remove_file(&file).unwrap();
        Sink::create(Some(&link)).unwrap().finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"");
        assert_eq!(scratch.entries(), ["file", "file.partial", "link"]);
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_device_is_not_replaced() {
        let mut sink = Sink::create(Some(Path::new("/dev/full"))).unwrap();
        let error = sink.write(b"bytes").unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write to /dev/full: No space left"), "{error:#}");
        sink.finish().unwrap();
        assert!(!fs::metadata("/dev/full").unwrap().is_file());
        assert!(Sink::create(Some(Path::new("/"))).is_err());
    }
}
