//! The pages of one worker, which are copies of the pages at their homes.
//!
//! Each page has a lock. A thread holds the lock while it reads the page from its home for a fault, takes its bytes, or
//! discards it. So a copy that was read before another worker's release cannot appear after that release has discarded
//! the worker's copies. A task can't hold locks while it waits, so it reads a page again if the page has changed
//! meanwhile.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use halite::{AccessError, Lh, Session, blocking};
use halite_mem::{Fault, Paged};

use super::error::DsmError;

/// This worker's copy of a page.
struct Copy {
    state: State,
    /// Number of times that another worker has changed the page. A copy that was read meanwhile may be old.
    changes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    /// The copy is unchanged, and protected against stores.
    Clean,
    /// This worker has stored to the copy since it read the page.
    Dirty,
}

pub(super) struct Pages {
    paged: Paged,
    cache: Arc<Cache>,
}

/// State that the page fault handler shares with [`Pages`].
struct Cache {
    session: Session,
    /// Session with which a faulting thread reads an absent page; `None` for tasks, which must not block.
    faults: Option<blocking::Session>,
    /// Regions of all workers, once they are mapped.
    homes: OnceLock<Vec<Lh>>,
    copies: Vec<Mutex<Copy>>,
    /// For each page, true if the page is in a section of this worker that may write.
    writable: Vec<AtomicBool>,
    /// The first failure to read or write a page. The page holds zeros or old bytes, so all later accesses must fail.
    lost: OnceLock<Lost>,
}

/// The reason why a page does not hold its bytes.
#[derive(Clone, Debug)]
enum Lost {
    /// The page could not be read from its home, or written to it.
    Access(AccessError),
    /// A task accessed this page while it was absent.
    Untouched(usize),
}

/// Bytes of neighbouring pages of one home: its region, their offset there, and the bytes.
type HomeWrite = (Lh, u64, Vec<u8>);

/// Maximum number of pages that are read, written or discarded in one batch: 256 KiB, far below what may be under way
/// to one node. A thread that locks several pages locks them in ascending order.
const BATCH_PAGES_MAX: usize = 64;

impl Pages {
    pub(super) fn new(
        session: Session,
        faults: Option<blocking::Session>,
        pages: usize,
    ) -> Result<Arc<Pages>, DsmError> {
        let cache = Arc::new(Cache {
            session,
            faults,
            homes: OnceLock::new(),
            copies: (0..pages).map(|_| Mutex::new(Copy { state: State::Absent, changes: 0 })).collect(),
            writable: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            lost: OnceLock::new(),
        });
        let handler = cache.clone();
        let paged = Paged::new(pages, move |paged, fault| handler.on_fault(paged, fault))?;
        Ok(Arc::new(Pages { paged, cache }))
    }

    /// Sets the regions of all workers, before any access.
    pub(super) fn set_homes(&self, homes: Vec<Lh>) {
        self.cache.homes.set(homes).expect("homes are set once");
    }

    pub(super) fn homes(&self) -> &[Lh] {
        self.cache.homes()
    }

    pub(super) fn len(&self) -> u64 {
        self.paged.len()
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.paged.page_bytes() as u64
    }

    /// Returns the pages of a range of bytes.
    pub(super) fn pages_of(&self, bytes: &Range<u64>) -> Result<Range<usize>, DsmError> {
        if bytes.start > bytes.end || bytes.end > self.len() {
            return Err(self.out_of_bounds(bytes.start, bytes.end));
        }
        let begin = (bytes.start / self.page_bytes()) as usize;
        Ok(begin..(bytes.end.div_ceil(self.page_bytes()) as usize).max(begin))
    }

    fn out_of_bounds(&self, begin: u64, end: u64) -> DsmError {
        DsmError::OutOfBounds { begin, end, len: self.len() }
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), DsmError> {
        let end = offset.saturating_add(target.len() as u64);
        self.paged.read(offset, target).map_err(|_| self.out_of_bounds(offset, end))?;
        self.check_intact()
    }

    pub(super) fn write(&self, offset: u64, source: &[u8]) -> Result<(), DsmError> {
        let end = offset.saturating_add(source.len() as u64);
        self.check_writable(offset..end)?;
        self.paged.write(offset, source).map_err(|_| self.out_of_bounds(offset, end))?;
        self.check_intact()
    }

    pub(super) fn load_u64(&self, offset: u64) -> Result<u64, DsmError> {
        self.check_word(offset)?;
        let word =
            self.paged.load_u64(offset).map_err(|_| self.out_of_bounds(offset, offset.saturating_add(8)))?;
        self.check_intact()?;
        Ok(word)
    }

    pub(super) fn store_u64(&self, offset: u64, value: u64) -> Result<(), DsmError> {
        self.check_word(offset)?;
        let end = offset.saturating_add(8);
        self.check_writable(offset..end)?;
        self.paged.store_u64(offset, value).map_err(|_| self.out_of_bounds(offset, end))?;
        self.check_intact()
    }

    fn check_word(&self, offset: u64) -> Result<(), DsmError> {
        if offset.is_multiple_of(8) { Ok(()) } else { Err(DsmError::Misaligned { offset }) }
    }

    fn check_writable(&self, bytes: Range<u64>) -> Result<(), DsmError> {
        let mut pages = self.pages_of(&bytes)?;
        // Relaxed suffices, because the thread of a section has set the flags itself.
        match pages.find(|page| !self.cache.writable[*page].load(Relaxed)) {
            Some(page) => Err(DsmError::NotAcquired { page }),
            None => Ok(()),
        }
    }

    /// Fails if a page may hold zeros because it could not be read. The faulting thread records the error before it
    /// fills the page with zeros.
    pub(super) fn check_intact(&self) -> Result<(), DsmError> {
        match self.cache.lost.get() {
            None => Ok(()),
            Some(Lost::Access(error)) => Err(error.clone().into()),
            Some(Lost::Untouched(page)) => Err(DsmError::Untouched { page: *page }),
        }
    }

    /// Begins a section over `pages`. Discards the copies that were stored to outside of a section.
    pub(super) fn begin_section(&self, pages: Range<usize>, may_write: bool) {
        for page in pages {
            let mut copy = self.cache.lock(page);
            if copy.state == State::Dirty {
                self.discard(page, &mut copy);
            }
            self.cache.writable[page].store(may_write, Relaxed);
        }
    }

    /// Ends the right of a section to store, and writes its dirty pages to their homes. Returns the runs of these pages
    /// when all writes have completed.
    pub(super) async fn write_back(&self, pages: Range<usize>) -> Result<Vec<Range<usize>>, DsmError> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut posted = Vec::new();
        let mut remaining = pages;
        for page in remaining.clone() {
            self.cache.writable[page].store(false, Relaxed);
        }
        while let Some((run, writes)) = self.clean_dirty(remaining.clone()) {
            for (home, offset, bytes) in writes {
                posted.push(self.cache.session.post_write(home, offset, bytes));
            }
            remaining.start = run.end;
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        for write in posted {
            write.await.1.inspect_err(|error| self.cache.record_failure(error))?;
        }
        Ok(runs)
    }

    /// Reads the absent pages from their homes.
    pub(super) async fn touch(&self, pages: Range<usize>) -> Result<(), DsmError> {
        for begin in pages.clone().step_by(BATCH_PAGES_MAX) {
            let mut remaining: Vec<usize> = (begin..pages.end.min(begin + BATCH_PAGES_MAX)).collect();
            while !remaining.is_empty() {
                remaining = self.read_absent(&remaining).await?;
            }
        }
        Ok(())
    }

    /// Reads those of the pages that are absent, at the same time. Returns the pages that another worker changed during
    /// the read, which must be read again.
    async fn read_absent(&self, pages: &[usize]) -> Result<Vec<usize>, DsmError> {
        let mut reads = Vec::new();
        for page in pages {
            let changes = {
                let copy = self.cache.lock(*page);
                if copy.state != State::Absent {
                    continue;
                }
                copy.changes
            };
            let (home, offset) = self.cache.location_of(*page, self.page_bytes());
            let bytes = vec![0; self.paged.page_bytes()];
            reads.push((*page, changes, self.cache.session.post_read(home, offset, bytes)));
        }
        let mut changed = Vec::new();
        for (page, changes, read) in reads {
            let (bytes, read) = read.await;
            read.inspect_err(|error| self.cache.record_failure(error))?;
            let mut copy = self.cache.lock(page);
            if copy.changes != changes {
                changed.push(page);
            } else if copy.state == State::Absent {
                self.paged.fill(page, &bytes, true).expect("no memory for a shared page");
                copy.state = State::Clean;
            }
        }
        Ok(changed)
    }

    /// Makes the first run of dirty pages in a range clean, at most `BATCH_PAGES_MAX` pages. Returns the run, and one
    /// write for each home: neighbouring pages of one home are neighbours in its region, too.
    fn clean_dirty(&self, pages: Range<usize>) -> Option<(Range<usize>, Vec<HomeWrite>)> {
        let mut dirty = Vec::new();
        let mut begin = pages.start;
        for page in pages {
            let copy = self.cache.lock(page);
            if copy.state == State::Dirty {
                begin = page - dirty.len();
                dirty.push(copy);
            } else if !dirty.is_empty() {
                break;
            }
            if dirty.len() == BATCH_PAGES_MAX {
                break;
            }
        }
        if dirty.is_empty() {
            return None;
        }
        let run = begin..begin + dirty.len();
        // One system call for all pages, because the call itself takes longer than the protection of a page.
        self.paged.protect(run.clone()).expect("pages of ours can be protected");
        dirty.iter_mut().for_each(|copy| copy.state = State::Clean);
        let (page_bytes, workers) = (self.paged.page_bytes(), self.homes().len());
        let of_home = |first: usize| {
            let pages = (first..run.end).step_by(workers);
            let mut bytes = vec![0; pages.len() * page_bytes];
            for (page, bytes) in pages.zip(bytes.chunks_exact_mut(page_bytes)) {
                self.paged.read((page * page_bytes) as u64, bytes).expect("the page exists");
            }
            let (home, offset) = self.cache.location_of(first, page_bytes as u64);
            (home, offset, bytes)
        };
        let writes = run.clone().take(workers).map(of_home).collect();
        Some((run, writes))
    }

    /// Discards the copies of pages that another worker has changed. Ignores numbers of pages that do not exist.
    pub(super) fn invalidate(&self, pages: Range<usize>) {
        let end = pages.end.min(self.paged.pages());
        for begin in (pages.start..end).step_by(BATCH_PAGES_MAX) {
            let part = begin..end.min(begin + BATCH_PAGES_MAX);
            let mut copies: Vec<_> = part.clone().map(|page| self.cache.lock(page)).collect();
            copies.iter_mut().for_each(|copy| copy.changes += 1);
            if copies.iter().all(|copy| copy.state == State::Absent) {
                continue;
            }
            self.paged.discard(part).expect("pages of ours can be discarded");
            copies.iter_mut().for_each(|copy| copy.state = State::Absent);
        }
    }

    fn discard(&self, page: usize, copy: &mut Copy) {
        self.paged.discard(page..page + 1).expect("a page of ours can be discarded");
        copy.state = State::Absent;
    }
}

impl Cache {
    /// Handles a fault, on the thread whose access waits for it.
    fn on_fault(&self, paged: &Paged, fault: Fault) {
        let page = fault.page;
        let mut copy = self.lock(page);
        match (copy.state, fault.is_write) {
            (State::Absent, is_write) => {
                let bytes = self.fetch(page, paged.page_bytes());
                paged.fill(page, &bytes, !is_write).expect("no memory for a shared page");
                copy.state = if is_write { State::Dirty } else { State::Clean };
            }
            (State::Clean, true) => {
                paged.unprotect(page..page + 1).expect("a page of ours can be unprotected");
                copy.state = State::Dirty;
            }
            // Another thread has handled the fault.
            (State::Clean, false) | (State::Dirty, _) => {}
        }
    }

    /// Reads a page from its home. Returns zeros if this thread must not wait or the read fails.
    fn fetch(&self, page: usize, page_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; page_bytes];
        let (home, offset) = self.location_of(page, page_bytes as u64);
        let Some(session) = &self.faults else {
            let _ = self.lost.set(Lost::Untouched(page));
            return bytes;
        };
        if let Err(error) = session.read(home, offset, &mut bytes) {
            self.record_failure(&error);
            bytes.fill(0);
        }
        bytes
    }

    /// Returns the region of a page, and its offset there.
    fn location_of(&self, page: usize, page_bytes: u64) -> (Lh, u64) {
        let homes = self.homes();
        (homes[page % homes.len()], (page / homes.len()) as u64 * page_bytes)
    }

    fn homes(&self) -> &[Lh] {
        self.homes.get().expect("homes are set before any access")
    }

    fn record_failure(&self, error: &AccessError) {
        // Keeps the first error, which is the cause of later ones.
        let _ = self.lost.set(Lost::Access(error.clone()));
    }

    fn lock(&self, page: usize) -> MutexGuard<'_, Copy> {
        // A panic of another thread leaves the page in a valid state.
        self.copies[page].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
