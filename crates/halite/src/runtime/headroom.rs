//! The memory and the descriptors that this process may use: the maximum, and how much is free now.
//!
//! Several limits apply at once: those of the machine, of each enclosing control group, and of the address space. If
//! the system does not report a limit, this module assumes none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Free memory to leave to the system and other processes, in bytes.
const SPARE_BYTES: u64 = 16 << 20;

/// A limit on memory, and the source of the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) source: String,
}

/// Returns the tightest limit on this process's memory.
pub(crate) fn memory_limit() -> Option<Limit> {
    let machine =
        Meminfo::read().map(|info| Limit { bytes: info.total, source: "this machine has".to_owned() });
    let groups = groups().into_iter().map(|group| Limit {
        bytes: group.limit,
        source: format!("the control group {} may have", group.dir.display()),
    });
    machine.into_iter().chain(groups).min_by_key(|limit| limit.bytes)
}

/// Returns true if `len` bytes of memory are free, so that the system need not kill a process to provide them.
pub(crate) fn has_free(len: u64) -> bool {
    let machine = Meminfo::read().map(|info| info.available);
    let groups = groups().into_iter().map(|group| group.limit.saturating_sub(group.used));
    let least = machine.into_iter().chain(groups).min();
    least.is_none_or(|free| free >= len.saturating_add(SPARE_BYTES))
}

/// Returns true if a segment of `len` bytes leaves half of the address space free for peers' segments and other uses.
pub(crate) fn has_addresses(len: u64) -> bool {
    let Some(limit) = getrlimit(Resource::As).current else { return true };
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let used = pages * rustix::param::page_size() as u64;
    used.saturating_add(len) <= limit / 2
}

/// Number of descriptors of a node without peers: 17 when idle, one for its memory, and three to greet a peer and read
/// `/proc`.
const DESCRIPTORS: u64 = 21;

/// Fails if this process may not open enough descriptors for a node.
pub(crate) fn check_descriptors() -> io::Result<()> {
    // The node raises its soft limit to the hard limit, which is checked here.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else { return Ok(()) };
    // One of the entries is the descriptor that reads this directory.
    let used = fs::read_dir("/proc/self/fd").map_or(0, |open| open.count().saturating_sub(1) as u64);
    match limit.saturating_sub(used) {
        free if free < DESCRIPTORS => Err(io::Error::other(format!(
            "a node needs {DESCRIPTORS} descriptors, and 3 more for each peer, and {used} of {limit} are in use; raise \
             the limit (`ulimit -n`, LimitNOFILE= of the unit)"
        ))),
        _ => Ok(()),
    }
}

/// Total and available memory of the machine, in bytes.
struct Meminfo {
    total: u64,
    available: u64,
}

impl Meminfo {
    fn read() -> Option<Meminfo> {
        Meminfo::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Meminfo> {
        let kib = |key: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse().ok()
        };
        let swap = |key| kib(key).unwrap_or(0);
        Some(Meminfo {
            total: (kib("MemTotal")? + swap("SwapTotal")) << 10,
            available: (kib("MemAvailable")? + swap("SwapFree")) << 10,
        })
    }
}

/// A control group with a limit on memory.
#[derive(Debug)]
struct Group {
    dir: PathBuf,
    limit: u64,
    /// Bytes of memory in use that the system cannot reclaim at once.
    used: u64,
}

fn groups() -> Vec<Group> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups_of(&own, Path::new("/sys/fs/cgroup"))
}

/// Returns the control groups that contain this process. `own` lists the process's group in each hierarchy, one
/// `NUMBER:CONTROLLERS:PATH` per line; a line of version 2 has no controllers.
fn groups_of(own: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (hierarchy, files) = match controllers {
            "" => (root.to_owned(), &V2),
            _ if controllers.split(',').any(|one| one == "memory") => (root.join("memory"), &V1),
            _ => continue,
        };
        // In a container, the path may be that on the host; then only the root exists here.
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            groups.extend(Group::read(hierarchy.join(ancestor), files));
        }
    }
    groups
}

/// Names of a control group's files, in one version of control groups.
struct Files {
    limit: &'static str,
    usage: &'static str,
    reclaimable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Files = Files { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };

impl Group {
    fn read(dir: PathBuf, files: &Files) -> Option<Group> {
        let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        // Without a limit, version 2 reports `max`, and version 1 a number that no machine has.
        let limit = number(files.limit).filter(|limit| *limit < 1 << 62)?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let of_stat = |line: &str| line.strip_prefix(files.reclaimable)?.trim().parse::<u64>().ok();
        let reclaimable = stat.lines().find_map(of_stat).unwrap_or(0);
        let used = number(files.usage).unwrap_or(0).saturating_sub(reclaimable);
        Some(Group { dir, limit, used })
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn free_memory_includes_free_swap() {
        let text =
            "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\nSwapTotal: 24 kB\nSwapFree: 4 kB\n";
        let info = Meminfo::parse(text).unwrap();
        assert_eq!((info.total, info.available), (1024 << 10, 604 << 10));
        assert!(Meminfo::parse("MemTotal: much\n").is_none());
    }

    /// Control groups made of ordinary files.
    struct Groups(TempDir);

    impl Groups {
        fn new(files: &[(&str, &str)]) -> Groups {
            let root = TempDir::new().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Groups(root)
        }

        fn limits(&self, own: &str) -> Vec<(u64, u64)> {
            groups_of(own, self.0.path()).into_iter().map(|group| (group.limit, group.used)).collect()
        }
    }

    #[test]
    fn limits_of_all_control_groups_are_read() {
        let groups = Groups::new(&[
            ("app/web/memory.max", "1000\n"),
            ("app/web/memory.current", "700\n"),
            ("app/web/memory.stat", "anon 500\ninactive_file 150\n"),
            ("app/memory.max", "max\n"),
            ("memory.max", "5000\n"),
            ("memory.current", "10\n"),
        ]);
        assert_eq!(groups.limits("0::/app/web\n"), [(1000, 550), (5000, 10)]);
        assert_eq!(groups.limits("0::/not/to/be/seen\n"), [(5000, 10)]);
    }

    #[test]
    fn limits_of_control_groups_v1_are_read() {
        let groups = Groups::new(&[
            ("memory/job/memory.limit_in_bytes", "1000\n"),
            ("memory/job/memory.usage_in_bytes", "700\n"),
            ("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(groups.limits("5:cpu:/job\n4:memory:/job\n0::/\n"), [(1000, 500)]);
        assert_eq!(groups.limits("garbage\n::\n4:memory\n"), []);
    }
}
