//! Control groups with a limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group with a limit; removed when dropped.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a control group whose memory limit is `bytes`. Returns `None` if this user cannot create a control
    /// group.
    pub fn limited(name: &str, bytes: u64) -> Option<Cgroup> {
        let groups = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        groups.into_iter().find_map(|(root, limit, usage)| {
            let group = Cgroup(Path::new(root).join(format!("halite-test-{}-{name}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            // Without a memory controller, these files do not exist; the group is removed again.
            fs::metadata(group.0.join(usage)).ok()?;
            fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }

    /// Creates a control group that may have at most `threads` threads. Returns `None` if this user cannot create one.
    pub fn of_threads(name: &str, threads: u32) -> Option<Cgroup> {
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|root| {
            let group = Cgroup(Path::new(root).join(format!("halite-test-{}-{name}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join("pids.max"), threads.to_string()).ok()?;
            Some(group)
        })
    }

    /// Returns a command that runs `command` inside the group from its first instruction on.
    pub fn wrap(&self, command: &Command) -> Command {
        super::support::after(&format!("echo $$ >{}", self.0.join("cgroup.procs").display()), command)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Exiting processes keep the group for a moment.
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
