//! The pages of one worker, which are copies of the pages at their homes.
//!
//! Each page has a lock. A thread holds the lock while it reads the page from its home, writes it to its home, or
//! discards it. So a copy that was read before another worker's release cannot appear after that release has discarded
//! the worker's copies.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use halite::{AccessError, Lh, blocking};
use halite_mem::{Fault, Paged};

use super::error::DsmError;

/// State of this worker's copy of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copy {
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

/// The state that the handler of page faults needs.
struct Cache {
    session: blocking::Session,
    /// Regions of all workers, once they are mapped.
    homes: OnceLock<Vec<Lh>>,
    copies: Vec<Mutex<Copy>>,
    /// For each page, true if the page is in a section of this worker that may write.
    writable: Vec<AtomicBool>,
    /// The error of a page that could not be read from its home. The page holds zeros instead, so all later accesses
    /// must fail.
    lost: OnceLock<AccessError>,
}

impl Pages {
    pub(super) fn new(session: blocking::Session, pages: usize) -> Result<Arc<Pages>, DsmError> {
        let cache = Arc::new(Cache {
            session,
            homes: OnceLock::new(),
            copies: (0..pages).map(|_| Mutex::new(Copy::Absent)).collect(),
            writable: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            lost: OnceLock::new(),
        });
        let handler = cache.clone();
        let paged = Paged::new(pages, move |paged, fault| handler.on_fault(paged, fault))?;
        Ok(Arc::new(Pages { paged, cache }))
    }

    /// Sets the regions of all workers, before any access.
    pub(super) fn set_homes(&self, homes: Vec<Lh>) {
        self.cache.homes.set(homes).expect("they are set once");
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
    pub(super) fn covering(&self, bytes: &Range<u64>) -> Result<Range<usize>, DsmError> {
        if bytes.start > bytes.end || bytes.end > self.len() {
            return Err(self.outside(bytes.start, bytes.end));
        }
        let begin = (bytes.start / self.page_bytes()) as usize;
        Ok(begin..(bytes.end.div_ceil(self.page_bytes()) as usize).max(begin))
    }

    fn outside(&self, begin: u64, end: u64) -> DsmError {
        DsmError::OutOfBounds { begin, end, len: self.len() }
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), DsmError> {
        let end = offset.saturating_add(target.len() as u64);
        self.paged.read(offset, target).map_err(|_| self.outside(offset, end))?;
        self.check()
    }

    pub(super) fn write(&self, offset: u64, source: &[u8]) -> Result<(), DsmError> {
        let end = offset.saturating_add(source.len() as u64);
        self.check_writable(offset..end)?;
        self.paged.write(offset, source).map_err(|_| self.outside(offset, end))?;
        self.check()
    }

    pub(super) fn load_u64(&self, offset: u64) -> Result<u64, DsmError> {
        self.check_word(offset)?;
        let word = self.paged.load_u64(offset).map_err(|_| self.outside(offset, offset.saturating_add(8)))?;
        self.check()?;
        Ok(word)
    }

    pub(super) fn store_u64(&self, offset: u64, value: u64) -> Result<(), DsmError> {
        self.check_word(offset)?;
        let end = offset.saturating_add(8);
        self.check_writable(offset..end)?;
        self.paged.store_u64(offset, value).map_err(|_| self.outside(offset, end))?;
        self.check()
    }

    fn check_word(&self, offset: u64) -> Result<(), DsmError> {
        if offset.is_multiple_of(8) { Ok(()) } else { Err(DsmError::Misaligned { offset }) }
    }

    fn check_writable(&self, bytes: Range<u64>) -> Result<(), DsmError> {
        let mut pages = self.covering(&bytes)?;
        // A section is of one thread, which has set the flags itself.
        match pages.find(|page| !self.cache.writable[*page].load(Relaxed)) {
            Some(page) => Err(DsmError::NotAcquired { page }),
            None => Ok(()),
        }
    }

    /// Fails if a page may hold zeros because it could not be read. The faulting thread records the error before it
    /// fills the page with zeros.
    pub(super) fn check(&self) -> Result<(), DsmError> {
        self.cache.lost.get().map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// Begins a section over `pages`. Discards the copies that were stored to outside of a section.
    pub(super) fn begin(&self, pages: Range<usize>, may_write: bool) {
        for page in pages {
            let mut copy = self.cache.lock(page);
            if *copy == Copy::Dirty {
                self.discard(page, &mut copy);
            }
            self.cache.writable[page].store(may_write, Relaxed);
        }
    }

    /// Prevents further stores to a section, and writes its dirty pages to their homes. Returns the runs of these pages
    /// once all writes have completed.
    pub(super) fn push(&self, pages: Range<usize>) -> Result<Vec<Range<usize>>, DsmError> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut posted = Vec::new();
        for page in pages {
            self.cache.writable[page].store(false, Relaxed);
            let Some(bytes) = self.take_dirty(page) else { continue };
            let (home, offset) = self.cache.place_of(page, self.page_bytes());
            posted.push(self.cache.session.post_write(home, offset, bytes));
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        for write in posted {
            write.wait().1.inspect_err(|error| self.cache.lose(error))?;
        }
        Ok(runs)
    }

    /// Makes a dirty page clean, and returns its bytes.
    fn take_dirty(&self, page: usize) -> Option<Vec<u8>> {
        let mut copy = self.cache.lock(page);
        if *copy != Copy::Dirty {
            return None;
        }
        self.paged.protect(page..page + 1).expect("a page of ours can be protected");
        *copy = Copy::Clean;
        let mut bytes = vec![0; self.paged.page_bytes()];
        self.paged.read(page as u64 * self.page_bytes(), &mut bytes).expect("the page exists");
        Some(bytes)
    }

    /// Discards the copies of pages that another worker has changed. Ignores numbers of pages that do not exist.
    pub(super) fn invalidate(&self, pages: Range<usize>) {
        for page in pages.start..pages.end.min(self.paged.pages()) {
            let mut copy = self.cache.lock(page);
            if *copy != Copy::Absent {
                self.discard(page, &mut copy);
            }
        }
    }

    fn discard(&self, page: usize, copy: &mut Copy) {
        self.paged.discard(page..page + 1).expect("a page of ours can be discarded");
        *copy = Copy::Absent;
    }
}

impl Cache {
    /// Handles a fault, on the thread whose access waits for it.
    fn on_fault(&self, paged: &Paged, fault: Fault) {
        let page = fault.page;
        let mut copy = self.lock(page);
        match (*copy, fault.is_write) {
            (Copy::Absent, is_write) => {
                let bytes = self.fetch(page, paged.page_bytes());
                paged.fill(page, &bytes, !is_write).expect("no memory for a shared page");
                *copy = if is_write { Copy::Dirty } else { Copy::Clean };
            }
            (Copy::Clean, true) => {
                paged.unprotect(page..page + 1).expect("a page of ours can be unprotected");
                *copy = Copy::Dirty;
            }
            // Another thread was first.
            (Copy::Clean, false) | (Copy::Dirty, _) => {}
        }
    }

    /// Reads a page from its home. Returns zeros if the read fails.
    fn fetch(&self, page: usize, page_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; page_bytes];
        let (home, offset) = self.place_of(page, page_bytes as u64);
        if let Err(error) = self.session.read(home, offset, &mut bytes) {
            self.lose(&error);
            bytes.fill(0);
        }
        bytes
    }

    /// Returns the region of a page, and its offset there.
    fn place_of(&self, page: usize, page_bytes: u64) -> (Lh, u64) {
        let homes = self.homes();
        (homes[page % homes.len()], (page / homes.len()) as u64 * page_bytes)
    }

    fn homes(&self) -> &[Lh] {
        self.homes.get().expect("they are set before any access")
    }

    fn lose(&self, error: &AccessError) {
        // The first error is the cause.
        let _ = self.lost.set(error.clone());
    }

    fn lock(&self, page: usize) -> MutexGuard<'_, Copy> {
        // A panic of another thread left the page in one of its states.
        self.copies[page].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
