//! Distinguishes errors of a peer from a shortage of a resource at this process.
//!
//! If this process cannot map a peer's memory because of its own limits, the peer is not at fault.

use std::fmt;
use std::io;

use halite_fabric::ConnectTrouble;
use halite_mem::OpenError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::greeting::BadGreeting;
use super::socket::ReceiveError;

/// The reason why a connection failed or ended.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The peer has gone, sent an invalid message, or refused the connection.
    Peer(String),
    /// This process or system lacks a resource.
    Local(String),
}

impl LinkError {
    pub(super) fn kind(&self) -> ConnectTrouble {
        match self {
            LinkError::Peer(_) => ConnectTrouble::Theirs,
            LinkError::Local(_) => ConnectTrouble::Ours,
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (LinkError::Peer(reason) | LinkError::Local(reason)) = self;
        f.write_str(reason)
    }
}

impl From<String> for LinkError {
    fn from(reason: String) -> LinkError {
        LinkError::Peer(reason)
    }
}

impl From<&str> for LinkError {
    fn from(reason: &str) -> LinkError {
        LinkError::Peer(reason.to_owned())
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        shortage_of(&error).map_or_else(|| LinkError::Peer(error.to_string()), LinkError::Local)
    }
}

impl From<BadGreeting> for LinkError {
    fn from(error: BadGreeting) -> LinkError {
        let shortage = match &error {
            BadGreeting::Mailbox(OpenError::Io(error)) | BadGreeting::Ring(OpenError::Io(error)) => {
                shortage_of(error)
            }
            BadGreeting::Io(error) => shortage_of(error),
            _ => None,
        };
        shortage.map_or_else(|| LinkError::Peer(error.to_string()), LinkError::Local)
    }
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> LinkError {
        match error {
            OpenError::Io(error) => error.into(),
            error => LinkError::Peer(error.to_string()),
        }
    }
}

impl From<ReceiveError> for LinkError {
    fn from(error: ReceiveError) -> LinkError {
        LinkError::Peer(error.to_string())
    }
}

/// Returns a description of the missing resource, if the system call failed because of a limit; otherwise `None`.
fn shortage_of(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::NOMEM => Some(match getrlimit(Resource::As).current {
            Some(bytes) => {
                format!("its address space is used up: its limit (`ulimit -v`) is {} KiB", bytes >> 10)
            }
            None => "the system has no memory or no mappings left (`sysctl vm.max_map_count`)".to_owned(),
        }),
        Errno::FBIG => Some(match getrlimit(Resource::Fsize).current {
            Some(bytes) => format!(
                "it may not create larger segments: its limit on file sizes (`ulimit -f`) is {} KiB",
                bytes >> 10
            ),
            None => "it may not create larger segments".to_owned(),
        }),
        Errno::MFILE => Some(no_descriptors()),
        Errno::NFILE => Some("the system has no descriptors left (`sysctl fs.file-max`)".to_owned()),
        // mmap fails with EAGAIN if it must lock the memory, as in a process that called mlockall.
        Errno::AGAIN => Some(match getrlimit(Resource::Memlock).current {
            Some(bytes) => {
                format!("its limit on locked memory (`ulimit -l`) is {} KiB", bytes >> 10)
            }
            None => "its limit on locked memory is reached".to_owned(),
        }),
        _ => None,
    }
}

/// Returns the text for a process that has reached its limit of descriptors.
pub(super) fn no_descriptors() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => format!("it has no descriptors left: its limit (`ulimit -n`) is {limit}"),
        None => "the system has no descriptors left for it".to_owned(),
    }
}
