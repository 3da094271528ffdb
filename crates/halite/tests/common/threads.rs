//! The threads of this process, as the kernel reports them.

use super::until;

/// Returns the calling thread's id in the kernel.
pub fn this_thread_id() -> String {
    let link = std::fs::read_link("/proc/thread-self").expect("the thread runs");
    link.file_name().expect("the link ends with the number").to_str().expect("digits").to_owned()
}

/// Waits until the thread sleeps.
pub fn wait_until_asleep(thread: &str) {
    until(|| {
        let status =
            std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("the thread runs");
        status.lines().any(|line| line.starts_with("State:\tS")).then_some(())
    });
}
