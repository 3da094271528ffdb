//! Threads of this process, as the kernel sees them.

use std::collections::BTreeMap;

use super::until;

/// Threads of this process: their number, and what the kernel says of them.
pub fn threads() -> BTreeMap<String, String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is at least this thread");
    let tasks = tasks.map(|task| task.expect("it is listed").path());
    let status = tasks.filter_map(|task| {
        let number = task.file_name()?.to_str()?.to_owned();
        // It may have ended meanwhile.
        Some((number, std::fs::read_to_string(task.join("status")).ok()?))
    });
    status.collect()
}

/// What the kernel says of one of them.  A list of all can lack it while others end.
fn status_of(thread: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("it runs")
}

pub fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("the kernel tells it").trim()
}

/// The progress thread of the only node of this process, which may be about to begin.
pub fn progress_thread() -> String {
    let is_it = |(_, status): &(String, String)| field(status, "Name") == "halite-progress";
    until(|| threads().into_iter().find(is_it)).0
}

/// How often a thread has gone to sleep.
pub fn sleeps(thread: &str) -> u64 {
    field(&status_of(thread), "voluntary_ctxt_switches").parse().expect("a number")
}

/// As the kernel has it.
pub fn number_of_this_thread() -> String {
    let link = std::fs::read_link("/proc/thread-self").expect("it runs");
    link.file_name().expect("it ends with the number").to_str().expect("digits").to_owned()
}

/// Returns when that thread sleeps.
pub fn wait_until_asleep(thread: &str) {
    until(|| field(&status_of(thread), "State").starts_with('S').then_some(()));
}
