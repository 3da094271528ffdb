//! Distributed shared memory: one range of pages that all workers load from and store to.
//!
//! ```text
//!  acquire   lock server (worker 0) ── many readers or one writer of a range of pages, in order of arrival
//!  load      absent page ── fault ── one-sided read from the page's home ──> copy, protected against stores
//!  store     protected page ── fault ── noted as dirty, unprotected
//!  release   dirty pages ── one-sided writes ──> homes ── multicast: discard your copies ── lock server (not awaited)
//! ```
//!
//! A *section* is the time from the `acquire` of a range of pages to their `release`. A section that writes excludes
//! all others from its pages.
//!
//! Page `p` lives in the region of worker `p % workers`. A worker keeps copies of the pages that it has touched, until
//! another worker that has changed these pages releases its section. This is release consistency: a worker that has
//! acquired pages reads what all earlier released sections stored in these pages. Loads outside of a section find some
//! earlier state of each page. Sections cover whole pages, so two counters in one page exclude each other.
//!
//! **Costs** over shared memory, on a busy machine with two cores: 6 us to read a page, 11 to 14 us to acquire 10
//! pages, and 29 us to release 10 dirty pages. A release is fast because it works on several pages at once: one system
//! call protects neighbouring pages, one write carries all pages of one home, and one call makes a worker discard all
//! of its copies. With a call and a write per page, and a wait for the lock server, it would take 40 to 45 us.
//!
//! The range has the same offsets in all workers, but its addresses may differ: shared data holds offsets, not
//! pointers. A system call on an absent page fails with EFAULT, because only a program's own accesses fault.
//!
//! Pages are lost with the worker that is their home. When a worker dies, its sections end, and the stores in
//! unreleased sections are lost. If the worker was releasing a section, some pages of that section may have reached
//! their homes. A worker that the lock server considers dead cannot acquire again, because its copies may be stale. The
//! other workers continue with the pages of living homes. An access to a lost page fails, and so do all later accesses
//! of the same worker.

mod error;
mod locks;
mod member;
mod pages;
mod section;
mod service;
mod table;
mod words;

use std::ops::Range;
use std::time::Duration;

use halite::blocking;

pub use error::DsmError;
pub use member::{Held, Member, Services};
pub use section::Section;
pub use table::Access;

use service::Service;

/// Options with which a worker opens a range of shared pages. `name`, `workers` and `pages` are the same for all
/// workers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the range. Its regions, servers and barrier are called `NAME/...`.
    pub name: String,
    /// Number of the worker, from 0 on. Each worker has its own node.
    pub me: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of pages in the range.
    pub pages: usize,
    /// Maximum time for which this worker waits: for other workers at a barrier, for its section in `acquire`, and
    /// until the others have discarded their copies in `release`.
    pub patience: Duration,
}

/// One worker's view of the shared pages. All offsets are bytes from the start of the range. The methods block; tasks
/// use a [`Member`] instead.
///
/// ```
/// # use halite::{Config, Node, NodeId};
/// # use halite_apps::dsm::{Access, Dsm, DsmError, Options};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-dsm-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let patience = std::time::Duration::from_secs(60);
/// let options = Options { name: "board".into(), me: 0, workers: 1, pages: 64, patience };
/// let dsm = match Dsm::open(&node.blocking_session(), options) {
///     Err(DsmError::Pages(_)) => return Ok(()), // the system refuses to report faults
///     dsm => dsm?,
/// };
/// let section = dsm.acquire(0..8192, Access::Write)?;
/// dsm.store_u64(4096, dsm.load_u64(4096)? + 1)?;
/// section.release()?;
/// assert_eq!(dsm.load_u64(4096)?, 1);
/// dsm.close()?;
/// # drop(node);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dsm {
    session: blocking::Session,
    member: Member,
    services: Vec<Service>,
}

impl Dsm {
    /// Opens a range of pages, which are filled with zeros. Blocks until all other workers have opened the range, too.
    pub fn open(session: &blocking::Session, options: Options) -> Result<Dsm, DsmError> {
        let session = session.clone();
        let opening = Member::open_with(session.as_async(), options, Some(session.clone()));
        let (member, Services { pages: (server, pages), locks }) = session.block_on(opening)?;
        // A thread for each, so that invalidations do not wait for sections.
        let mut services =
            vec![Service::spawn(&session, server.clone(), service::serve_pages(server, pages))?];
        if let Some(locks) = locks {
            services.push(Service::spawn(&session, locks.server(), locks.run())?);
        }
        Ok(Dsm { session, member, services })
    }

    /// Closes the range and frees this worker's pages. Blocks until all other workers close the range, too.
    pub fn close(self) -> Result<(), DsmError> {
        let Dsm { session, member, services } = self;
        let closed = session.block_on(member.close());
        drop(services);
        closed
    }

    /// Waits at the barrier of the range until all workers have called this method.
    pub fn meet(&self) -> Result<(), DsmError> {
        self.session.block_on(self.member.meet())
    }

    /// Returns the name of the barrier of a range.
    pub fn barrier(name: &str) -> String {
        format!("{name}/meet")
    }

    /// Returns the length of the range in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.member.pages.len()
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.member.pages.page_bytes()
    }

    /// Begins a section over the pages of a range of bytes: waits until no other section conflicts with it. Sections
    /// are admitted in order of arrival. A thread that acquires a section while it holds a conflicting section waits
    /// for itself, until the patience ends.
    pub fn acquire(&self, bytes: Range<u64>, access: Access) -> Result<Section<'_>, DsmError> {
        Section::acquire(self, bytes, access)
    }
}

/// Accesses to the shared pages. An access to an aligned word is single-copy atomic; a longer copy may tear. The
/// calling thread reads an absent page from its home.
impl Dsm {
    /// Fills `target` with the bytes from `offset` on.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), DsmError> {
        self.member.pages.read(offset, target)
    }

    /// Copies `source` to `offset`. This worker must have acquired all pages of the range for writing.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), DsmError> {
        self.member.pages.write(offset, source)
    }

    /// Returns the word at `offset`.
    pub fn load_u64(&self, offset: u64) -> Result<u64, DsmError> {
        self.member.pages.load_u64(offset)
    }

    /// Stores `value` in the word at `offset`. This worker must have acquired its page for writing.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), DsmError> {
        self.member.pages.store_u64(offset, value)
    }

    /// Reads the absent pages of a range of bytes from their homes, so that later accesses find them present.
    pub fn touch(&self, bytes: Range<u64>) -> Result<(), DsmError> {
        self.session.block_on(self.member.touch(bytes))
    }
}

fn region_name(name: &str, worker: usize) -> String {
    format!("{name}/pages.{worker}")
}

/// Returns the name of a worker's server.
fn service_name(name: &str, worker: usize) -> String {
    format!("{name}/copies.{worker}")
}
