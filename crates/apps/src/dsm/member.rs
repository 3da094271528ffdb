//! One worker's view of the shared pages, for tasks.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use halite::{Permissions, Placement, ServeOptions, Server, Session, blocking};

use super::locks::{self, Locks};
use super::pages::Pages;
use super::section::invalidate;
use super::{Access, Dsm, DsmError, Options, region_name, service, service_name};

/// One worker's view of the shared pages, for tasks that must not block. All offsets are bytes from the start of the
/// range.
///
/// A [`Dsm`] reads an absent page when a load or store faults, on the thread of that access. A task can't wait there,
/// so it [touches](Member::touch) pages before it accesses them. A task's access to an absent page fails, and so do all
/// later accesses of the worker.
pub struct Member {
    pub(super) session: Session,
    pub(super) options: Options,
    pub(super) pages: Arc<Pages>,
    own: halite::Lh,
    locks: Locks,
    next_section: AtomicU64,
    servers: Vec<Server>,
}

/// The servers of a worker. Other workers wait until these servers run.
pub struct Services {
    pub(super) pages: (Server, Arc<Pages>),
    pub(super) locks: Option<locks::Service>,
}

impl Services {
    /// Serves until the worker closes the range.
    pub async fn run(self) {
        let (server, pages) = self.pages;
        let mut both = [
            Some(Box::pin(service::serve_pages(server, pages)) as Pin<Box<dyn Future<Output = ()> + Send>>),
            self.locks.map(|locks| Box::pin(locks.run()) as _),
        ];
        std::future::poll_fn(|context| {
            for service in &mut both {
                if let Some(running) = service
                    && running.as_mut().poll(context).is_ready()
                {
                    *service = None;
                }
            }
            if both.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Pages that a worker has acquired. They stay acquired until [`Member::release`] or the end of the worker.
#[must_use = "the pages stay acquired until they are released"]
pub struct Held {
    pub(super) id: u64,
    pub(super) pages: Range<usize>,
    pub(super) access: Access,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("pages", &self.pages).field("access", &self.access).finish()
    }
}

impl Member {
    /// Opens a range of pages, which are filled with zeros. Waits until all other workers have opened the range, too.
    /// The caller runs the [`Services`] until this worker has closed the range.
    pub async fn open(session: &Session, options: Options) -> Result<(Member, Services), DsmError> {
        Member::open_with(session, options, None).await
    }

    /// Opens a range. If `faults` is given, an access to an absent page reads the page by that session; otherwise it
    /// fails.
    pub(super) async fn open_with(
        session: &Session,
        options: Options,
        faults: Option<blocking::Session>,
    ) -> Result<(Member, Services), DsmError> {
        let Options { name, me, workers, pages: count, patience } = &options;
        let session = session.clone();
        // First, because the system may refuse to report page faults.
        let pages = Pages::new(session.clone(), faults, *count)?;
        let own_bytes = count.div_ceil(*workers) as u64 * pages.page_bytes();
        let region = region_name(name, *me);
        let own = session.alloc(Some(&region), own_bytes, Placement::Anywhere, Permissions::empty()).await?;
        let page_server = session.serve_named(&service_name(name, *me), ServeOptions::default()).await?;
        let mut servers = vec![page_server.clone()];
        let mut lock_service = None;
        if *me == 0 {
            let server = session.serve_named(&locks::server_name(name), ServeOptions::default()).await?;
            servers.push(server.clone());
            lock_service = Some(locks::Service::open(&session, server, name, *workers)?);
        }
        meet(&session, &options).await?;
        let mut homes = Vec::with_capacity(*workers);
        for worker in 0..*workers {
            homes
                .push(session.map(&region_name(name, worker), Permissions::READ | Permissions::WRITE).await?);
        }
        pages.set_homes(homes);
        let services = Services { pages: (page_server, pages.clone()), locks: lock_service };
        let locks = Locks::open(session.clone(), name, *me, *patience).await?;
        // After this, the calls of a section do not wait for a worker that is still opening the range.
        meet(&session, &options).await?;
        let next_section = AtomicU64::new(0);
        Ok((Member { session, options, pages, own, locks, next_section, servers }, services))
    }

    /// Closes the range and frees this worker's pages. Waits until all other workers close the range, too.
    pub async fn close(self) -> Result<(), DsmError> {
        self.meet().await?;
        self.close_servers();
        for (worker, home) in self.pages.homes().iter().enumerate() {
            if worker != self.options.me {
                self.session.unmap(*home).await?;
            }
        }
        self.meet().await?;
        self.session.free(self.own).await?;
        if self.options.me == 0 {
            self.session.free_barrier(&Dsm::barrier(&self.options.name)).await?;
        }
        Ok(())
    }

    fn close_servers(&self) {
        self.servers.iter().for_each(Server::close);
    }

    /// Waits at the barrier of the range until all workers have called this method.
    pub async fn meet(&self) -> Result<(), DsmError> {
        self.locks.check_answers().await?;
        meet(&self.session, &self.options).await
    }

    /// Returns the length of the range in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.pages.len()
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.pages.page_bytes()
    }

    /// Waits until no other section conflicts with the pages of a range of bytes, as [`Dsm::acquire`] does.
    pub async fn acquire(&self, bytes: Range<u64>, access: Access) -> Result<Held, DsmError> {
        self.pages.check_intact()?;
        let pages = self.pages.pages_of(&bytes)?;
        let id = self.next_section.fetch_add(1, Relaxed);
        self.locks.acquire(id, &pages, access).await?;
        self.pages.begin_section(pages.clone(), access == Access::Write);
        Ok(Held { id, pages, access })
    }

    /// Reads the absent pages of a range of bytes from their homes. The pages then stay present until another worker
    /// that has changed them releases its section.
    pub async fn touch(&self, bytes: Range<u64>) -> Result<(), DsmError> {
        let pages = self.pages.pages_of(&bytes)?;
        self.pages.touch(pages).await?;
        self.pages.check_intact()
    }

    /// Makes the stores to acquired pages visible to later sections of all workers, and releases the pages. After an
    /// error, other workers may wait for these pages until this worker ends.
    pub async fn release(&self, held: Held) -> Result<(), DsmError> {
        let lost = match held.access {
            Access::Read => Vec::new(),
            Access::Write => {
                let runs = self.pages.write_back(held.pages).await?;
                self.pages.check_intact()?;
                invalidate(self, &runs).await?
            }
        };
        self.locks.release(held.id, &lost).await
    }

    /// Returns the word at `offset`.
    pub fn load_u64(&self, offset: u64) -> Result<u64, DsmError> {
        self.pages.load_u64(offset)
    }

    /// Stores `value` in the word at `offset`. This worker must have acquired its page for writing.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), DsmError> {
        self.pages.store_u64(offset, value)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Ends the services even if the worker could not close the range because another worker has died.
        self.close_servers();
    }
}

async fn meet(session: &Session, options: &Options) -> Result<(), DsmError> {
    session.barrier(&Dsm::barrier(&options.name), options.workers as u32, options.patience).await?;
    Ok(())
}
