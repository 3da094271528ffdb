//! Starts threads. If the system refuses a thread or a process, names the limit that was reached.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The system did not start a thread or process.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {what}: {error}; {advice}")]
pub struct Refused {
    what: String,
    error: io::Error,
    /// The limit that was reached, and how to raise it.
    advice: String,
}

impl Refused {
    /// Explains why a process, described by `what`, was not started.
    pub fn new(what: impl Into<String>, error: io::Error) -> Refused {
        Refused { what: what.into(), advice: advice(&error), error }
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::new(refused.error.kind(), refused)
    }
}

/// Starts a thread with this name.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Refused> {
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| Refused::new(format!("thread {name}"), error))
}

/// Closes sockets without waiting for descriptors that peers have sent through them. The thread that closes a descriptor
/// last may wait for as long as the sender chose, as with a TCP socket that lingers; but a thread that ends does not wait.
/// So another thread holds a copy of the table of descriptors meanwhile, and ends. Where the system refuses the copy, this
/// function waits.
pub fn close_without_waiting(sockets: Vec<OwnedFd>) -> Result<(), Refused> {
    let (is_copied, copied) = channel();
    let (closing, closed) = channel::<()>();
    let keeper = spawn("halite-close-end", move || {
        // SAFETY: from here on, this thread uses no descriptor, and drops no owner of one.
        let copy = unsafe { unshare_unsafe(UnshareFlags::FILES) };
        let _ = is_copied.send(copy);
        // Fails when the sockets are closed.
        let _ = closed.recv();
    })?;
    let _ = copied.recv();
    drop(sockets);
    drop(closing);
    let _ = keeper.join();
    Ok(())
}

/// Starts a thread in `scope`.
pub fn spawn_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Refused> {
    Builder::new().spawn_scoped(scope, work).map_err(|error| Refused::new("a thread", error))
}

/// A limit on the number of threads, in which processes count as one thread or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Maximum number of threads.
    pub max: u64,
    /// Number of threads that count towards the limit now; `None` if the system does not report it.
    pub used: Option<u64>,
    /// Name of the limit, with the setting that raises it.
    pub by: String,
}

impl Limit {
    /// Returns the number of threads that can still be started. If `used` is unknown, returns the limit itself.
    pub fn free(&self) -> u64 {
        self.max.saturating_sub(self.used.unwrap_or(0))
    }
}

/// Returns the limits on threads that apply to this process, the tightest first.
pub fn limits() -> Vec<Limit> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = cgroup_limits(&own, Path::new("/sys/fs/cgroup"));
    // The kernel exempts root.
    let max = getrlimit(Resource::Nproc).current.filter(|_| !getuid().is_root());
    found.extend(max.map(|max| {
        let (uid, used) = (getuid().as_raw(), threads_of(getuid().as_raw()));
        let by = format!("RLIMIT_NPROC of user {uid} (`ulimit -u`, LimitNPROC= of the unit)");
        Limit { max, used: Some(used), by }
    }));
    found.sort_by_key(Limit::free);
    found
}

/// A limit with at most this number of free threads counts as reached, because threads may have ended since the
/// refusal.
const FREE_MAX: u64 = 16;

/// Returns the limit that was reached, and how to raise it.
fn advice(error: &io::Error) -> String {
    if let (Some(Errno::MFILE), Some(limit)) =
        (Errno::from_io_error(error), getrlimit(Resource::Nofile).current)
    {
        return format!(
            "the limit of {limit} descriptors (`ulimit -n`, LimitNOFILE= of the unit) is too low"
        );
    }
    if error.kind() != io::ErrorKind::WouldBlock {
        return "the system lacks memory or address space (`ulimit -v`)".to_owned();
    }
    match limits().into_iter().next().filter(|limit| limit.free() <= FREE_MAX) {
        Some(Limit { max, by, .. }) => format!("the maximum of {max} threads is reached; raise {by}"),
        None => "a limit on threads (`ulimit -u`, pids.max of the control group, kernel.threads-max) or \
                 address space (`ulimit -v`) is reached"
            .to_owned(),
    }
}

/// Returns the limits of the control groups that contain this process. `own` is the text of `/proc/self/cgroup`.
fn cgroup_limits(own: &str, root: &Path) -> Vec<Limit> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let hierarchy = match controllers {
            "" => root.to_owned(),
            _ if controllers.split(',').any(|one| one == "pids") => root.join("pids"),
            _ => continue,
        };
        // Inside a container, the path may be that of the host, and only the root is visible.
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            let dir = hierarchy.join(ancestor);
            let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
            // Without a limit, the file contains `max`.
            let Some(max) = number("pids.max") else { continue };
            let by = format!("pids.max of the control group {} (TasksMax= of the unit)", dir.display());
            found.push(Limit { max, used: number("pids.current"), by });
        }
    }
    found
}

/// Counts the threads of all processes of a user.
fn threads_of(uid: u32) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = processes.filter_map(|process| fs::read_to_string(process.path().join("status")).ok());
    let count = |status: String| {
        let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
        let is_of_user = field("Uid:")?.split_whitespace().next()? == uid.to_string();
        field("Threads:")?.trim().parse::<u64>().ok().filter(|_| is_of_user)
    };
    statuses.filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_with_a_limit_on_threads_are_found() {
        let root = tempfile::tempdir().unwrap();
        for (dir, max, used) in [("pids/a", "max", "3"), ("pids/a/b", "40", "38"), ("u", "20", "1")] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join("pids.max"), max).unwrap();
            fs::write(root.path().join(dir).join("pids.current"), used).unwrap();
        }
        let found = cgroup_limits("4:memory:/a\n3:pids:/a/b\n0::/u\n", root.path());
        let free: Vec<(u64, u64)> = found.iter().map(|limit| (limit.max, limit.free())).collect();
        assert_eq!(free, [(40, 2), (20, 19)]);
    }
}
