//! Files at either end of a transfer: where `put` takes its bytes from, and where `get` leaves them.
//!
//! A [`Source`] knows its length before the first byte is read, because a region's length is fixed when it is
//! made.  A [`Sink`] shows a file under its name only when it is whole.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};

/// Bytes of one piece of a transfer.
pub const PIECE_BYTES: usize = 1 << 20;

/// A file of known length.
#[derive(Debug)]
pub struct Source {
    file: File,
    len: u64,
    label: String,
}

impl Source {
    /// Opens `path`, or standard input for `-`.  What has no length of its own, as a pipe, is first copied to
    /// an unnamed temporary file.
    pub fn open(path: &Path) -> anyhow::Result<Source> {
        let is_stdin = path == Path::new("-");
        let label = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let opened = if is_stdin { duplicate_stdin() } else { File::open(path) };
        let file = opened.with_context(|| format!("cannot open {label}"))?;
        let metadata = file.metadata().with_context(|| format!("cannot look at {label}"))?;
        if metadata.is_dir() {
            bail!("cannot put {label}: it is a directory");
        }
        // Files that the kernel makes up, as in /proc, have bytes but no length.
        let has_length = metadata.is_file() && metadata.len() > 0;
        if has_length { Source::of_file(file, metadata.len(), label) } else { Source::spool(file, label) }
    }

    /// Bytes that there are to read.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `piece` from where the last call ended.
    pub fn read(&mut self, piece: &mut [u8]) -> anyhow::Result<()> {
        self.file.read_exact(piece).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("{} became shorter while it was read", self.label)
            }
            _ => anyhow::Error::new(error).context(format!("cannot read {}", self.label)),
        })
    }

    /// After the last piece: fails if the file has grown meanwhile.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        let more = self.file.read(&mut [0]).with_context(|| format!("cannot read {}", self.label))?;
        if more > 0 {
            bail!("{} became longer while it was read", self.label);
        }
        Ok(())
    }

    /// Standard input redirected from a file may be past its first bytes already.
    fn of_file(mut file: File, bytes: u64, label: String) -> anyhow::Result<Source> {
        let position = file.stream_position().with_context(|| format!("cannot look at {label}"))?;
        Ok(Source { file, len: bytes.saturating_sub(position), label })
    }

    fn spool(mut pipe: File, label: String) -> anyhow::Result<Source> {
        let dir = std::env::temp_dir();
        let failed = || format!("cannot keep {label} in {} until its length is known", dir.display());
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let spool = rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR);
        let mut spool = File::from(spool.map_err(io::Error::from).with_context(failed)?);
        let len = io::copy(&mut pipe, &mut spool).with_context(failed)?;
        spool.seek(SeekFrom::Start(0)).with_context(failed)?;
        Ok(Source { file: spool, len, label })
    }
}

fn duplicate_stdin() -> io::Result<File> {
    Ok(File::from(rustix::io::dup(io::stdin())?))
}

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

    #[test]
    fn a_source_that_changes_its_length_is_noticed() {
        let scratch = Scratch::new("length");
        let path = scratch.0.join("file");
        fs::write(&path, b"four").unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.len(), 4);
        fs::write(&path, b"fours").unwrap();
        source.read(&mut [0; 4]).unwrap();
        assert!(source.finish().unwrap_err().to_string().ends_with("became longer while it was read"));

        let mut source = Source::open(&path).unwrap();
        fs::write(&path, b"").unwrap();
        assert!(
            source.read(&mut [0; 5]).unwrap_err().to_string().ends_with("became shorter while it was read")
        );
    }

    #[test]
    fn a_source_that_cannot_be_read_is_named() {
        let missing = Source::open(Path::new("/nonexistent/file")).unwrap_err();
        assert!(
            format!("{missing:#}").starts_with("cannot open /nonexistent/file: No such file"),
            "{missing:#}"
        );
        assert_eq!(Source::open(Path::new("/")).unwrap_err().to_string(), "cannot put /: it is a directory");
    }

    #[test]
    fn a_pipe_is_read_to_its_end_to_learn_its_length() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"through a pipe").unwrap();
        drop(writer);
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let mut source = Source::spool(file, "a pipe".into()).unwrap();
        let mut bytes = vec![0; source.len() as usize];
        source.read(&mut bytes).unwrap();
        source.finish().unwrap();
        assert_eq!(bytes, b"through a pipe");
    }
}
