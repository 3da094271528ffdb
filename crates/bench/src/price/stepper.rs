//! Taking another process through its instructions, one by one.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::instruction::{BYTES_MAX, Class, classify};
use super::work::{MARK, WORD_BYTES};

/// A process that goes on only step by step; it ends with this one.
pub(super) struct Stepper {
    pid: Pid,
    /// Where allocations begin.
    allocators: Vec<u64>,
    classes: HashMap<u64, Class>,
    mappings: Vec<Mapping>,
}

/// What was executed.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) instructions: u64,
    pub(super) locked: u64,
    pub(super) allocations: u64,
    pub(super) system_calls: u64,
    pub(super) addresses: BTreeMap<Place, u64>,
}

/// Where an instruction stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) file: String,
    /// As the file has it.
    pub(super) offset: u64,
}

#[derive(Debug)]
struct Mapping {
    from: u64,
    to: u64,
    /// Where the file as a whole would begin.
    base: u64,
    file: String,
}

impl Stepper {
    /// Stops the first thread of a child of this process.
    pub(super) fn attach(child: u32, allocators: Vec<u64>) -> io::Result<Stepper> {
        let pid = Pid::from_raw(child as i32);
        ptrace::attach(pid)?;
        waitpid(pid, None)?;
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        let mappings = mappings(&fs::read_to_string(format!("/proc/{child}/maps"))?);
        Ok(Stepper { pid, allocators, classes: HashMap::new(), mappings })
    }

    /// Counts from the next mark to the one after it.  `None` if the process has ended before.
    pub(super) fn count_between_marks(&mut self) -> io::Result<Option<Count>> {
        if !self.run_to_mark(|_, _, _| ())? {
            return Ok(None);
        }
        let mut count = Count::default();
        let mut executed: HashMap<u64, u64> = HashMap::new();
        let is_whole = self.run_to_mark(|stepper, at, class| {
            count.instructions += 1;
            count.locked += u64::from(class == Class::Locked);
            count.system_calls += u64::from(class == Class::SystemCall);
            count.allocations += u64::from(stepper.allocators.contains(&at));
            *executed.entry(at).or_default() += 1;
        })?;
        count.addresses = executed.into_iter().map(|(at, times)| (self.place(at), times)).collect();
        Ok(is_whole.then_some(count))
    }

    /// Single-steps the process until it reaches its marker, and reports each instruction before that.  `false` if it has ended.
    fn run_to_mark(&mut self, mut told: impl FnMut(&Stepper, u64, Class)) -> io::Result<bool> {
        let mut before = None;
        loop {
            let registers = ptrace::getregs(self.pid)?;
            let at = registers.rip;
            let class = self.class_at(at)?;
            let is_mark = class == Class::SystemCall && registers.rax == MARK;
            // Each round of a repeated instruction is a step.
            if !is_mark && before != Some(at) {
                told(self, at, class);
            }
            before = Some(at);
            if !self.step()? {
                return Ok(false);
            }
            if is_mark {
                return Ok(true);
            }
        }
    }

    fn step(&self) -> io::Result<bool> {
        let mut signal: Option<Signal> = None;
        loop {
            ptrace::step(self.pid, signal)?;
            match waitpid(self.pid, None)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => return Ok(true),
                WaitStatus::Stopped(_, other) => signal = Some(other),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(false),
                _ => {}
            }
        }
    }

    fn class_at(&mut self, at: u64) -> io::Result<Class> {
        if let Some(class) = self.classes.get(&at) {
            return Ok(*class);
        }
        let words = BYTES_MAX.div_ceil(WORD_BYTES) as u64;
        let mut bytes = Vec::new();
        for word in 0..words {
            match ptrace::read(self.pid, (at + word * WORD_BYTES as u64) as ptrace::AddressType) {
                Ok(word) => bytes.extend(word.to_ne_bytes()),
                // The instruction ends with its mapping.
                Err(_) if word > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        let class = classify(&bytes);
        self.classes.insert(at, class);
        Ok(class)
    }

    fn place(&self, at: u64) -> Place {
        match self.mappings.iter().find(|mapping| mapping.from <= at && at < mapping.to) {
            Some(mapping) => Place { file: mapping.file.clone(), offset: at - mapping.base },
            None => Place { file: "?".to_owned(), offset: at },
        }
    }

    /// Lets the process go on by itself.
    pub(super) fn detach(self) -> io::Result<()> {
        Ok(ptrace::detach(self.pid, None)?)
    }
}

/// What `/proc/PID/maps` says of files.
fn mappings(maps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(_), Some(_), _, _, Some(file)) =
            (words.next(), words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        let base = found.iter().find(|mapping| mapping.file == file).map_or(from, |mapping| mapping.base);
        found.push(Mapping { from, to, base, file: file.to_owned() });
    }
    found
}
