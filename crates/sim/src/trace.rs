//! Readable trace lines of one run.

use std::collections::VecDeque;

/// The trace lines that a world keeps. Formatting a line costs much more than simulating the event that it describes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Trace {
    /// The world keeps no lines.
    #[default]
    Off,
    /// The world keeps the last lines, up to this number.
    Last(usize),
    /// The world keeps all lines.
    All,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    mode: Trace,
    lines: VecDeque<String>,
}

impl Log {
    pub(crate) fn set(&mut self, mode: Trace) {
        self.mode = mode;
        self.trim();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.mode != Trace::Off
    }

    /// Adds a line; `host` is `None` for tasks without a host.
    pub(crate) fn add(&mut self, now_ns: u64, host: Option<u32>, what: &str) {
        let (us, ns) = (now_ns / 1000, now_ns % 1000);
        let host = host.map_or_else(|| "story".to_owned(), |host| format!("host-{host}"));
        self.lines.push_back(format!("{us:>9}.{ns:03} us  {host:<8} {what}"));
        self.trim();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    fn trim(&mut self) {
        let lines_max = match self.mode {
            Trace::Off => 0,
            Trace::Last(count) => count,
            Trace::All => usize::MAX,
        };
        let excess = self.lines.len().saturating_sub(lines_max);
        self.lines.drain(..excess);
    }
}
