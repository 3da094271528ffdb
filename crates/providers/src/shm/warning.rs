//! Writes a line to the standard error of a process that is about to be killed.
//!
//! The user may have stopped that process with ctrl-Z or in a debugger, and sees the line at its terminal. This process
//! writes the line only to a terminal, a pipe or the end of a regular file, and only if the stopped process belongs to
//! the same user.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, open, stat};
use rustix::termios::{LocalModes, tcgetattr};

use super::peer::Process;

/// Time limit of the write. Only a write to a hanging file system takes longer.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// Writes a line to the standard error of `process`, if possible. Returns after at most 100 ms.
pub(super) fn write_line(process: &Arc<Process>, text: &str) {
    let (process, line) = (process.clone(), format!("{text}\n"));
    let (done, is_done) = mpsc::channel();
    // A separate thread writes, because a write to a file may block despite O_NONBLOCK.
    let spawned = std::thread::Builder::new().name("halite-shm-warn".to_owned()).spawn(move || {
        if let Some(stderr) = standard_error_of(&process) {
            // Processes that inherited the same file share its offset. A write by another way would not move the offset,
            // and their next lines would overwrite this one.
            let _ = match is_own(&stderr) {
                true => rustix::io::write(std::io::stderr(), line.as_bytes()),
                false => rustix::io::write(&stderr, line.as_bytes()),
            };
        }
        let _ = done.send(());
    });
    if spawned.is_ok() {
        let _ = is_done.recv_timeout(WRITE_TIMEOUT);
    }
}

/// Opens the standard error of `process`; `None` if a write to it could have other effects.
fn standard_error_of(process: &Process) -> Option<OwnedFd> {
    let dir = PathBuf::from(format!("/proc/{}", process.pid?));
    let is_ours = std::fs::metadata(&dir).ok()?.uid() == rustix::process::geteuid().as_raw();
    let opened = if is_ours { open_if_safe(&dir.join("fd/2"))? } else { return None };
    // The process is still alive, so its process id was not reused before the file was opened.
    is_alive(process).then_some(opened)
}

/// Returns true if this process's standard error is the same regular file.
fn is_own(opened: &OwnedFd) -> bool {
    let (Ok(theirs), Ok(own)) = (fstat(opened), fstat(std::io::stderr())) else { return false };
    FileType::from_raw_mode(own.st_mode) == FileType::RegularFile
        && (theirs.st_dev, theirs.st_ino) == (own.st_dev, own.st_ino)
}

fn is_alive(process: &Process) -> bool {
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], Some(&no_wait)), Ok(0))
}

fn open_if_safe(path: &Path) -> Option<OwnedFd> {
    // Checked before the open, because opening some devices has effects.
    is_safe(&stat(path).ok()?).then_some(())?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::empty()).ok()?;
    let status = fstat(&opened).ok()?;
    is_safe(&status).then_some(())?;
    if FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice {
        // A terminal with TOSTOP stops background processes that write to it.
        let modes = tcgetattr(&opened).ok()?.local_modes;
        (!modes.contains(LocalModes::TOSTOP)).then_some(())?;
    }
    Some(opened)
}

fn is_safe(status: &rustix::fs::Stat) -> bool {
    match FileType::from_raw_mode(status.st_mode) {
        FileType::Fifo | FileType::RegularFile => true,
        FileType::CharacterDevice => TERMINALS.contains(&major(status.st_rdev)),
        _ => false,
    }
}

/// Major numbers of terminals: virtual consoles and serial lines, the controlling terminal, and pseudo-terminals.
const TERMINALS: [u32; 10] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143];
