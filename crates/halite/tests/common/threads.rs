//! Threads of this process, as the kernel sees them.

use super::until;

/// The number by which the kernel knows the calling thread.
pub fn number_of_this_thread() -> String {
    let link = std::fs::read_link("/proc/thread-self").expect("it runs");
    link.file_name().expect("it ends with the number").to_str().expect("digits").to_owned()
}

/// Returns when that thread sleeps.
pub fn wait_until_asleep(thread: &str) {
    until(|| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("it runs");
        status.lines().any(|line| line.starts_with("State:\tS")).then_some(())
    });
}
