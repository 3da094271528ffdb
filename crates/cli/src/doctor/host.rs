//! Findings about the machine.

use super::facts::HostFacts;
use super::{Finding, Severity};
use crate::bytes::ByteCount;
use crate::limits::{NODES_MAX, max_nodes};
use crate::threads::Limit;

/// Oldest kernel with all required features.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// Start of 2024. A clock that shows an earlier time was never set.
const TIME_MIN_S: u64 = 1_704_067_200;
/// Clock sources that are read without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

pub fn judge(facts: &HostFacts) -> Vec<Finding> {
    vec![
        kernel(facts),
        feature("pidfd", facts.has_pidfd, Severity::Error, "nodes cannot detect that others have died"),
        feature("memfd", facts.has_memfd, Severity::Error, "shared memory (memfd) is not available"),
        feature("membarrier", facts.has_membarrier, Severity::Note, "each access takes about 10 ns more"),
        clock(facts),
        time(facts),
        descriptors(facts),
        threads(facts),
        locked_memory(facts),
        file_size(facts),
        dev_shm(facts),
        huge_pages(facts),
        arena(facts),
    ]
}

fn kernel(facts: &HostFacts) -> Finding {
    let release = &facts.kernel;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    let found = format!("Linux {release}");
    match version {
        (Some(major), Some(minor)) if (major, minor) < KERNEL_MIN => Finding::new(
            "kernel",
            Severity::Error,
            format!("{found} is older than {}.{}", KERNEL_MIN.0, KERNEL_MIN.1),
            "run a newer kernel",
            "uname -r",
        ),
        _ => Finding::ok("kernel", found, "uname -r"),
    }
}

/// Creates the finding about a feature of the kernel.
fn feature(check: &'static str, is_there: bool, severity: Severity, without: &str) -> Finding {
    let verify = format!("strace -f halite doctor 2>&1 | grep {check}");
    match is_there {
        true => Finding::ok(check, format!("{check} is available"), verify),
        false => Finding::new(
            check,
            severity,
            format!("the kernel or a seccomp filter refuses {check}: {without}"),
            "run a newer kernel, or permit it in the container's seccomp profile",
            verify,
        ),
    }
}

fn clock(facts: &HostFacts) -> Finding {
    let verify = "cat /sys/devices/system/clocksource/clocksource0/current_clocksource";
    match &facts.clocksource {
        Some(name) if FAST_CLOCKS.contains(&name.as_str()) => {
            Finding::ok("clock", format!("the clock source is {name}"), verify)
        }
        Some(name) => Finding::new(
            "clock",
            Severity::Warning,
            format!("the clock source is {name}, which takes a microsecond or more to read: waits end late"),
            "boot with clocksource=tsc if the processor has a constant TSC, or move to a host that has one",
            verify,
        ),
        None => {
            Finding::new("clock", Severity::Note, "the kernel does not report its clock source", "", verify)
        }
    }
}

fn time(facts: &HostFacts) -> Finding {
    match facts.time_s {
        past if past < TIME_MIN_S => Finding::new(
            "time",
            Severity::Warning,
            format!("the system time is {past} s after 1970: it was never set"),
            "set the time (chrony, systemd-timesyncd): fencing tokens and logs use it",
            "date",
        ),
        _ => Finding::ok("time", "the system time is set", "date"),
    }
}

fn descriptors(facts: &HostFacts) -> Finding {
    let Some(limit) = facts.descriptors else {
        return Finding::ok("descriptors", "no limit", "ulimit -Hn");
    };
    let nodes_max = max_nodes(limit);
    let found =
        format!("the hard limit on descriptors is {limit}, enough for clusters of up to {nodes_max} nodes");
    let severity = match nodes_max {
        0..=1 => Severity::Error,
        nodes_max if nodes_max < NODES_MAX as u64 => Severity::Warning,
        _ => return Finding::ok("descriptors", found, "ulimit -Hn"),
    };
    let remedy = "raise the limit: LimitNOFILE= of the unit, or nofile in /etc/security/limits.conf";
    Finding::new("descriptors", severity, found, remedy, "ulimit -Hn")
}

/// Number of threads of a node: five, three more for names in etcd, and some for receivers and the start.
const THREADS_OF_NODE: u64 = 12;
/// Number of threads that leaves room for applications beside a node.
const THREADS_ENOUGH: u64 = 128;

fn threads(facts: &HostFacts) -> Finding {
    let verify = "ulimit -u; cat /proc/self/cgroup";
    let Some(limit) = &facts.threads else { return Finding::ok("threads", "no limit", verify) };
    let Limit { max, by, .. } = limit;
    let free = limit.free();
    let found = format!("{free} more threads may be started: the maximum is {max}, by {by}");
    let severity = match free {
        free if free < THREADS_OF_NODE => Severity::Error,
        free if free < THREADS_ENOUGH => Severity::Warning,
        _ => return Finding::ok("threads", found, verify),
    };
    let remedy =
        format!("raise the limit; a node has up to {THREADS_OF_NODE} threads, and `perf -t` and `run` more");
    Finding::new("threads", severity, found, remedy, verify)
}

fn locked_memory(facts: &HostFacts) -> Finding {
    match facts.locked_bytes {
        Some(limit) if limit < facts.arena_bytes => Finding::new(
            "locked_memory",
            Severity::Note,
            format!(
                "the limit of locked memory is {}, less than the arena: a process that calls mlockall cannot map it",
                ByteCount(limit)
            ),
            "only for applications that call mlockall: raise the limit (LimitMEMLOCK=, memlock)",
            "ulimit -l",
        ),
        _ => Finding::ok("locked_memory", "the limit of locked memory is not below the arena", "ulimit -l"),
    }
}

fn file_size(facts: &HostFacts) -> Finding {
    match facts.file_bytes {
        Some(limit) if limit < facts.arena_bytes => Finding::new(
            "file_size",
            Severity::Warning,
            format!(
                "the limit of file sizes is {}, less than the arena: the arena grows in smaller pieces, and `get -o` of larger regions fails",
                ByteCount(limit)
            ),
            "raise the limit: ulimit -f unlimited, or LimitFSIZE= of the unit",
            "ulimit -f",
        ),
        _ => Finding::ok("file_size", "the limit of file sizes is not below the arena", "ulimit -f"),
    }
}

fn dev_shm(facts: &HostFacts) -> Finding {
    let verify = "df -h /dev/shm";
    match facts.dev_shm_bytes {
        Some(bytes) if bytes >= facts.arena_bytes => Finding::ok(
            "dev_shm",
            format!("/dev/shm has {}; Halite does not use it", ByteCount(bytes)),
            verify,
        ),
        found => {
            let size = found.map_or("does not exist".to_owned(), |bytes| format!("has {}", ByteCount(bytes)));
            Finding::new(
                "dev_shm",
                Severity::Note,
                format!("/dev/shm {size}, less than the arena; Halite does not need it (it uses memfds)"),
                "nothing for Halite, whose memory counts against the memory limit of its control group",
                verify,
            )
        }
    }
}

fn huge_pages(facts: &HostFacts) -> Finding {
    let verify = "cat /sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let chosen = facts.huge_pages.as_deref().and_then(|text| text.split_once('[')?.1.split_once(']'));
    match chosen.map(|(chosen, _)| chosen) {
        Some(chosen @ ("always" | "within_size" | "advise" | "force")) => {
            Finding::ok("huge_pages", format!("enabled for shared memory ({chosen})"), verify)
        }
        chosen => Finding::new(
            "huge_pages",
            Severity::Note,
            format!(
                "shared memory gets small pages ({}): random accesses to large regions are slower",
                chosen.unwrap_or("setting unknown")
            ),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, as root, before nodes start",
            verify,
        ),
    }
}

fn arena(facts: &HostFacts) -> Finding {
    match &facts.arena_refused {
        Some(reason) => Finding::new("arena", Severity::Error, reason, "choose a smaller --arena", "free -b"),
        None => Finding::ok("arena", format!("{} are available", ByteCount(facts.arena_bytes)), "free -b"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> HostFacts {
        HostFacts {
            kernel: "6.1.0-21-amd64".into(),
            has_pidfd: true,
            has_memfd: true,
            has_membarrier: true,
            clocksource: Some("tsc".into()),
            time_s: TIME_MIN_S,
            descriptors: Some(1 << 20),
            threads: None,
            locked_bytes: None,
            file_bytes: None,
            dev_shm_bytes: Some(1 << 34),
            huge_pages: Some("always within_size [advise] never deny force".into()),
            arena_bytes: 1 << 30,
            arena_refused: None,
        }
    }

    /// Returns the findings after a change of the facts, and their severities.
    fn found(change: impl FnOnce(&mut HostFacts)) -> Vec<(&'static str, Severity)> {
        let mut facts = healthy();
        change(&mut facts);
        let wrong = judge(&facts).into_iter().filter(|finding| finding.severity > Severity::Ok);
        let wrong = wrong.inspect(|finding| assert!(!finding.found.is_empty() && !finding.verify.is_empty()));
        wrong.map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn each_fault_of_a_host_is_found() {
        assert_eq!(found(|_| ()), []);
        assert_eq!(found(|host| host.kernel = "10.0".into()), []);
        assert_eq!(found(|host| host.kernel = "5.9.16".into()), [("kernel", Severity::Error)]);
        assert_eq!(found(|host| host.has_pidfd = false), [("pidfd", Severity::Error)]);
        assert_eq!(found(|host| host.has_memfd = false), [("memfd", Severity::Error)]);
        assert_eq!(found(|host| host.has_membarrier = false), [("membarrier", Severity::Note)]);
        assert_eq!(found(|host| host.clocksource = Some("hpet".into())), [("clock", Severity::Warning)]);
        assert_eq!(found(|host| host.time_s = 30), [("time", Severity::Warning)]);
        assert_eq!(found(|host| host.descriptors = Some(256)), [("descriptors", Severity::Warning)]);
        assert_eq!(found(|host| host.descriptors = Some(64)), [("descriptors", Severity::Error)]);
        for (free, severity) in [(127, Severity::Warning), (11, Severity::Error)] {
            let limit = Limit { max: 1000, used: Some(1000 - free), by: "a control group".into() };
            assert_eq!(found(|host| host.threads = Some(limit)), [("threads", severity)]);
        }
        assert_eq!(found(|host| host.locked_bytes = Some(8 << 20)), [("locked_memory", Severity::Note)]);
        assert_eq!(found(|host| host.file_bytes = Some(1 << 20)), [("file_size", Severity::Warning)]);
        assert_eq!(found(|host| host.dev_shm_bytes = Some(64 << 20)), [("dev_shm", Severity::Note)]);
        assert_eq!(found(|host| host.huge_pages = None), [("huge_pages", Severity::Note)]);
        assert_eq!(found(|host| host.arena_refused = Some("too large".into())), [("arena", Severity::Error)]);
    }
}
