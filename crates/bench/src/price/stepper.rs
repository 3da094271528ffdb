//! Single-steps another process.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::instruction::{BYTES_MAX, Class, classify};
use super::work::{MARK, WORD_BYTES};

/// A process that is single-stepped. It ends when this process ends.
pub(super) struct Stepper {
    pid: Pid,
    /// Addresses of the allocation functions.
    allocators: Vec<u64>,
    /// Classes of the instructions so far, by address.
    classes: HashMap<u64, Class>,
    mappings: Vec<Mapping>,
}

/// Counts of executed instructions.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) instructions: u64,
    pub(super) locked: u64,
    pub(super) allocations: u64,
    pub(super) system_calls: u64,
    pub(super) addresses: BTreeMap<Place, u64>,
}

/// Location of an instruction in the file of a program or library.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) offset: u64,
}

/// A mapped range of a file.
#[derive(Debug)]
struct Mapping {
    from: u64,
    to: u64,
    /// Address of the file's first mapping. Offsets are relative to it.
    base: u64,
    file: String,
}

impl Stepper {
    /// Stops the first thread of a child process.
    pub(super) fn attach(child: u32, allocators: Vec<u64>) -> io::Result<Stepper> {
        let pid = Pid::from_raw(child as i32);
        ptrace::attach(pid)?;
        waitpid(pid, None)?;
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        let mappings = mappings(&fs::read_to_string(format!("/proc/{child}/maps"))?);
        Ok(Stepper { pid, allocators, classes: HashMap::new(), mappings })
    }

    /// Counts the instructions between the next two marks. Returns `None` if the process ends first.
    pub(super) fn count_between_marks(&mut self) -> io::Result<Option<Count>> {
        if !self.run_to_mark(|_, _, _| ())? {
            return Ok(None);
        }
        let mut count = Count::default();
        let mut executed: HashMap<u64, u64> = HashMap::new();
        let is_whole = self.run_to_mark(|stepper, address, class| {
            count.instructions += 1;
            count.locked += u64::from(class == Class::Locked);
            count.system_calls += u64::from(class == Class::SystemCall);
            count.allocations += u64::from(stepper.allocators.contains(&address));
            *executed.entry(address).or_default() += 1;
        })?;
        count.addresses = executed.into_iter().map(|(address, times)| (self.place(address), times)).collect();
        Ok(is_whole.then_some(count))
    }

    /// Single-steps the process to its next mark, and reports each instruction before the mark. Returns false if the
    /// process ends first.
    fn run_to_mark(&mut self, mut report: impl FnMut(&Stepper, u64, Class)) -> io::Result<bool> {
        let mut before = None;
        loop {
            let registers = ptrace::getregs(self.pid)?;
            let address = registers.rip;
            let class = self.class_at(address)?;
            let is_mark = class == Class::SystemCall && registers.rax == MARK;
            // An instruction with a repeat prefix takes several steps, but counts once.
            if !is_mark && before != Some(address) {
                report(self, address, class);
            }
            before = Some(address);
            if !self.step()? {
                return Ok(false);
            }
            if is_mark {
                return Ok(true);
            }
        }
    }

    /// Executes one instruction, and delivers pending signals. Returns false if the process ends.
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

    fn class_at(&mut self, address: u64) -> io::Result<Class> {
        if let Some(class) = self.classes.get(&address) {
            return Ok(*class);
        }
        let words = BYTES_MAX.div_ceil(WORD_BYTES) as u64;
        let mut bytes = Vec::new();
        for word in 0..words {
            match ptrace::read(self.pid, (address + word * WORD_BYTES as u64) as ptrace::AddressType) {
                Ok(word) => bytes.extend(word.to_ne_bytes()),
                // The mapping ends within the window, so the instruction is shorter.
                Err(_) if word > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        let class = classify(&bytes);
        self.classes.insert(address, class);
        Ok(class)
    }

    fn place(&self, address: u64) -> Place {
        match self.mappings.iter().find(|mapping| mapping.from <= address && address < mapping.to) {
            Some(mapping) => Place { file: mapping.file.clone(), offset: address - mapping.base },
            None => Place { file: "?".to_owned(), offset: address },
        }
    }

    /// Lets the process run freely.
    pub(super) fn detach(self) -> io::Result<()> {
        Ok(ptrace::detach(self.pid, None)?)
    }
}

/// Parses the mapped files in `/proc/PID/maps`.
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
