//! Describes the machine and the versions of the compared programs, and measures processor time.

use std::fs;
use std::time::Duration;

use super::tools::{Program, Tools};
use super::{halite, iperf3, libfabric, redis, ucx};

/// Returns one line `name: value` for each known property.
pub fn describe(tools: &Tools) -> Vec<String> {
    let facts = [
        ("processor", processor()),
        ("memory", memory()),
        ("kernel", kernel()),
        ("Halite", halite::version(&tools.halite)),
        ("UCX", installed(tools, Program::Ucx, ucx::version)),
        ("gRPC", linked_version("tonic").map(|version| format!("tonic {version}"))),
        ("Redis", installed(tools, Program::Redis, redis::version)),
        ("iperf3", installed(tools, Program::Iperf3, iperf3::version)),
        ("libfabric", installed(tools, Program::Libfabric, libfabric::version)),
    ];
    facts.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}: {value}"))).collect()
}

/// Returns the processor time of all children that have ended, and of their children.
pub fn children_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // "PID (NAME) STATE ...": the name may contain any character; only numbers follow it.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let times = after_name.split_whitespace().skip(13).take(2);
    let ticks: u64 = times.filter_map(|time| time.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn installed(tools: &Tools, program: Program, version: fn() -> Option<String>) -> Option<String> {
    if tools.has(program) { version() } else { Some("not installed".to_owned()) }
}

/// Returns the version of a crate that this program is linked with.
fn linked_version(package: &str) -> Option<String> {
    let lock = include_str!("../../../../Cargo.lock");
    let (_, entry) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    entry.split('"').next().map(str::to_owned)
}

fn processor() -> Option<String> {
    let table = fs::read_to_string("/proc/cpuinfo").ok()?;
    let cores = table.lines().filter(|line| line.starts_with("processor")).count();
    let model = field(&table, "model name").unwrap_or("unknown model");
    Some(format!("{model}, {cores} cores"))
}

fn memory() -> Option<String> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: f64 = field(&table, "MemTotal")?.split_whitespace().next()?.parse().ok()?;
    Some(format!("{:.0} GiB", kib / f64::from(1 << 20)))
}

fn kernel() -> Option<String> {
    let name = rustix::system::uname();
    Some(format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()))
}

/// Returns the value of the first line `name : value`.
fn field<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = table.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_an_ended_process_counts() {
        let before = children_cpu();
        let count = ["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"];
        assert!(std::process::Command::new("sh").args(count).status().unwrap().success());
        assert!(children_cpu() > before);
    }

    #[test]
    fn the_version_of_a_crate_is_the_locked_one() {
        let version = linked_version("tonic").expect("the crate is linked");
        assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
        assert_eq!(linked_version("no such crate"), None);
    }
}
