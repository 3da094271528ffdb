//! Ephemeral node numbers. Each is assigned at most once in the lifetime of a cluster.
//!
//! The file contains the next number as ten digits. One write of all digits replaces the number in place, so a process
//! that is killed has either written the whole number or left the old one. Callers hold the join lock.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::{Mutex, PoisonError};

use halite_providers::private_dir::{Create, PrivateDir};
use halite_tier::ids::{Incarnation, NodeId};

use super::names::{NEXT_MEMBER, NEXT_NUMBER};
use super::{ClusterDir, is_full};
use crate::cluster::config::{EPHEMERAL_NODE_MIN, RANDOM_NODE_BIT};
use crate::error::ClusterDirError;

/// Takes the next ephemeral number. The number counts as used even if the node does not join. If the disk is full, the
/// number is random, as between hosts.
pub(super) fn take_next(dir: &PrivateDir, incarnation: Incarnation) -> Result<NodeId, ClusterDirError> {
    let path = || dir.path().join(NEXT_NUMBER);
    let io = |source| halite_providers::private_dir::DirError::Io { path: path(), source };
    let mut file = dir.file(NEXT_NUMBER, Create::Yes)?;
    let mut text = Vec::new();
    (&mut file).take(32).read_to_end(&mut text).map_err(io)?;
    let next = match &text[..] {
        // A new cluster, or the file was removed while nodes run.
        [] => super::held(dir).last().map_or(0, |last| u64::from(*last) + 1).max(EPHEMERAL_NODE_MIN.into()),
        text => parse(text).ok_or_else(|| ClusterDirError::BadCounter { path: path() })?,
    };
    let number = u32::try_from(next).ok();
    let number = number.ok_or_else(|| ClusterDirError::NumbersExhausted { dir: dir.path().to_owned() })?;
    file.rewind().map_err(io)?;
    match file.write_all(format(next + 1).as_bytes()) {
        Err(error) if is_full(&error) => Ok(NodeId(incarnation.0 as u32 | RANDOM_NODE_BIT)),
        written => Ok(written.map(|()| NodeId(number)).map_err(io)?),
    }
}

/// Formats a number with ten digits, so that a new number overwrites all digits of the old one.
fn format(next: u64) -> String {
    format!("{next:010}\n")
}

fn parse(text: &[u8]) -> Option<u64> {
    let next = std::str::from_utf8(text).ok()?.trim_end().parse().ok()?;
    let is_ours = next >= u64::from(EPHEMERAL_NODE_MIN) && format(next).as_bytes() == text;
    is_ours.then_some(next)
}

/// The used numbers of permanent nodes. In a cluster of several hosts, the first node assigns these numbers, and reads
/// this file after a restart.
#[derive(Debug)]
pub(crate) struct TakenNumbers {
    file: Mutex<File>,
    /// The recorded number when the file was opened; all lower numbers were taken then.
    pub(crate) next: u32,
}

impl TakenNumbers {
    /// Opens the file of used numbers; creates it if necessary. The caller holds the join lock.
    pub(crate) fn open(dir: &ClusterDir) -> Result<TakenNumbers, ClusterDirError> {
        let path = || dir.path().join(NEXT_MEMBER);
        let mut file = dir.dir.file(NEXT_MEMBER, Create::Yes)?;
        let mut text = String::new();
        let io = |source| halite_providers::private_dir::DirError::Io { path: path(), source };
        (&mut file).take(32).read_to_string(&mut text).map_err(io)?;
        let next = match &text[..] {
            "" => Some(0),
            text => text.trim_end().parse().ok().filter(|next| format(u64::from(*next)) == text),
        };
        let next = next.ok_or_else(|| ClusterDirError::BadCounter { path: path() })?;
        Ok(TakenNumbers { file: Mutex::new(file), next })
    }

    /// Records durably that all numbers below `next` are taken.
    pub(crate) fn record(&self, next: u32) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let text = format(next.into());
        if let Err(error) =
            file.rewind().and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_data())
        {
            tracing::warn!(
                "cannot record which node numbers are in use; node 0 forgets them when it ends: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn scratch() -> (TempDir, PrivateDir) {
        let scratch = crate::runtime::scratch();
        let dir = PrivateDir::open(scratch.path()).unwrap();
        (scratch, dir)
    }

    #[test]
    fn a_damaged_counter_issues_no_number() {
        let (_scratch, dir) = scratch();
        let file = dir.path().join(NEXT_NUMBER);
        for text in
            ["0", "0000000999\n", "0000001004", "1004\n", "+000001004\n", "garbage", "99999999999999999999\n"]
        {
            std::fs::write(&file, text).unwrap();
            assert!(
                matches!(take_next(&dir, Incarnation(1)), Err(ClusterDirError::BadCounter { .. })),
                "{text}"
            );
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
