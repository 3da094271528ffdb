//! Groups of processes that share a limit on memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A group with a limit; removed when dropped.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` where this user cannot make one.
    pub fn limited(name: &str, bytes: u64) -> Option<Cgroup> {
        let groups = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        groups.into_iter().find_map(|(root, limit, usage)| {
            let group = Cgroup(Path::new(root).join(format!("halite-test-{}-{name}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            // Where memory is not counted, there are no such files; the group is removed again.
            fs::metadata(group.0.join(usage)).ok()?;
            fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }

    /// The same command, inside of the group from its first instruction on.
    pub fn wrap(&self, command: &Command) -> Command {
        super::support::after(&format!("echo $$ >{}", self.0.join("cgroup.procs").display()), command)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that are just ending keep it for a moment.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10))
                }
                _ => return,
            }
        }
    }
}
