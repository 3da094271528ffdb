//! Posted accesses: reads and writes that start at once, and whose results the caller awaits later.
//!
//! An access by loads and stores has ended when the posting method returns. An access of a single part is one request
//! in the fabric's queue, which completes whether or not the caller awaits it. A longer access is a future: posting it
//! puts as many parts in flight as one access may have, and awaiting it sends the rest.

use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::{Reads, Writes};
use crate::driver::transfer::{DetachedPart, SinglePart};
use crate::error::AccessError;
use crate::posted::OperationResult;
use crate::session::{Embedded, Kind, Lh, ReadOp, Session, WriteOp};

/// A posted read or write. Await it, or call [`Posted::wait`], to get its buffer and its outcome. Like a clone of the
/// session, it keeps the session open.
///
/// If it is dropped, the access may take place fully, in part, or not at all. A dropped read changes no memory of the
/// caller.
#[must_use = "only awaiting a posted access returns its outcome"]
pub struct Posted<B> {
    state: State<B>,
}

/// State of a posted access. Small, because a direct access consists of its buffer only.
enum State<B> {
    Single(Box<Single<B>>),
    Long(Box<LongAccess<B>>),
    Done(B),
    Failed(B, Box<AccessError>),
    Taken,
}

/// An access of several parts, or one that must wait before it can be posted.
struct LongAccess<B> {
    session: Session,
    access: Pin<Box<dyn Future<Output = Outcome<B>> + Send>>,
}

/// The buffer of an access, and how the access ended.
type Outcome<B> = (B, Result<(), AccessError>);

/// A request in the fabric's queue.
struct Single<B> {
    session: Embedded,
    /// The posted part; `None` once it has ended.
    part: Option<DetachedPart>,
    lh: Lh,
    offset: u64,
    buffer: Option<B>,
    land: Land<B>,
}

/// Function that completes a read or a write whose part has ended.
type Land<B> = fn(&Embedded, Lh, u64, &mut B, &SinglePart<'_>, OperationResult) -> Result<(), AccessError>;

impl Session {
    /// Posts a write of `from` at `offset`. Returns errors in the outcome of [`Posted`].
    ///
    /// Writes to one node take effect in the order in which they were posted, if none of them exceeds 120 KiB, fewer than
    /// 1,024 are in flight, their regions do not move, and no policy limits the session's priority
    /// ([`Session::set_qos`]). At most 32 MiB of reads and long writes may be in flight to
    /// one node; an access beyond that fails with [`NoStaging`](crate::AccessCause::NoStaging).
    ///
    /// Over UDP, a polling target sees the bytes before it acknowledges them: it acknowledges with its next poll or
    /// packet, at most 2.5 ms later. [`Session::write`] requests the acknowledgement at once.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-post-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let board = session.alloc(Some("board"), 4096, Placement::Local, Permissions::all())?;
    /// let writes: Vec<_> = (0..8u64).map(|line| session.post_write(board, 64 * line, line.to_le_bytes())).collect();
    /// for write in writes {
    ///     let (_, outcome) = write.wait();
    ///     outcome?;
    /// }
    /// let (bytes, outcome) = session.post_read(board, 7 * 64, [0; 8]).wait();
    /// outcome?;
    /// assert_eq!(u64::from_le_bytes(bytes), 7);
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn post_write<B: AsRef<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, from: B) -> Posted<B> {
        let Kind::Embedded(session) = &self.kind else {
            let session = self.clone();
            return Posted::long(self, async move {
                let outcome = session.write(lh, offset, from.as_ref()).await;
                (from, outcome)
            });
        };
        let priority = session.priority;
        let (inner, bytes) = (&*session.inner, from.as_ref());
        let reached = match inner.write_now(lh, offset, bytes) {
            Ok(done) if done == bytes.len() => return Posted { state: State::Done(from) },
            reached => reached,
        };
        let access = Writes { inner, priority, ops: &[WriteOp { lh, offset, from: bytes }] };
        if let Some(part) = inner.driver.post_single(&access, &reached, false) {
            let part = part.detach();
            return Posted::single(
                session,
                part,
                lh,
                offset,
                from,
                |Embedded { inner, priority }, lh, offset, from, part, ended| {
                    let ops = &[WriteOp { lh, offset, from: from.as_ref() }];
                    inner.land_single(&mut Writes { inner, priority: *priority, ops }, part, ended)
                },
            );
        }
        let session = session.clone();
        Posted::long(self, async move {
            let outcome = session.inner.write(priority, lh, offset, from.as_ref(), reached).await;
            (from, outcome)
        })
    }

    /// Posts a read of `into.len()` bytes from `offset`. Limits, order and errors are those of [`Session::post_write`].
    #[inline]
    pub fn post_read<B: AsMut<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, mut into: B) -> Posted<B> {
        let Kind::Embedded(session) = &self.kind else {
            let session = self.clone();
            return Posted::long(self, async move {
                let outcome = session.read(lh, offset, into.as_mut()).await;
                (into, outcome)
            });
        };
        let priority = session.priority;
        let (inner, bytes) = (&*session.inner, into.as_mut());
        let reached = match inner.read_now(lh, offset, bytes) {
            Ok(done) if done == bytes.len() => return Posted { state: State::Done(into) },
            reached => reached,
        };
        let access = Reads { inner, priority, ops: &mut [ReadOp { lh, offset, into: bytes }] };
        if let Some(part) = inner.driver.post_single(&access, &reached, false) {
            let part = part.detach();
            return Posted::single(
                session,
                part,
                lh,
                offset,
                into,
                |Embedded { inner, priority }, lh, offset, into, part, ended| {
                    let ops = &mut [ReadOp { lh, offset, into: into.as_mut() }];
                    inner.land_single(&mut Reads { inner, priority: *priority, ops }, part, ended)
                },
            );
        }
        let session = session.clone();
        Posted::long(self, async move {
            let outcome = session.inner.read(priority, lh, offset, into.as_mut(), reached).await;
            (into, outcome)
        })
    }
}

impl<B> Posted<B> {
    fn single(
        session: &Embedded,
        part: DetachedPart,
        lh: Lh,
        offset: u64,
        buffer: B,
        land: Land<B>,
    ) -> Posted<B> {
        let (session, part, buffer) = (session.clone(), Some(part), Some(buffer));
        Posted { state: State::Single(Box::new(Single { session, part, lh, offset, buffer, land })) }
    }

    fn long(session: &Session, access: impl Future<Output = Outcome<B>> + Send + 'static) -> Posted<B> {
        let long = LongAccess { session: session.clone(), access: Box::pin(access) };
        let mut posted = Posted { state: State::Long(Box::new(long)) };
        // The first poll puts the first parts in flight.
        let _ = posted.poll_end(&mut Context::from_waker(Waker::noop()));
        posted
    }

    /// Returns true if the access has ended. Polls the node once if it has not.
    #[inline]
    pub fn is_ended(&mut self) -> bool {
        if self.session().is_none() {
            return true;
        }
        let context = &mut Context::from_waker(Waker::noop());
        if self.poll_end(context).is_ready() {
            return true;
        }
        if let Some(session) = self.session() {
            session.progress();
        }
        self.poll_end(context).is_ready()
    }

    /// Waits on this thread until the access has ended. Returns the buffer and the outcome.
    #[inline]
    pub fn wait(mut self) -> (B, Result<(), AccessError>)
    where
        B: Unpin,
    {
        match self.session() {
            None => self.take_ended(),
            Some(session) => session.block_on(pin!(self)),
        }
    }

    /// Returns the session, unless the access has ended.
    #[inline]
    fn session(&self) -> Option<Session> {
        match &self.state {
            State::Single(single) => Some(single.session.clone().into()),
            State::Long(long) => Some(long.session.clone()),
            State::Done(_) | State::Failed(..) | State::Taken => None,
        }
    }

    #[inline]
    fn take_ended(&mut self) -> Outcome<B> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Done(buffer) => (buffer, Ok(())),
            State::Failed(buffer, error) => (buffer, Err(*error)),
            _ => panic!("a posted access is awaited once"),
        }
    }

    /// Stores the result if the access has ended.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (buffer, outcome) = match &mut self.state {
            State::Single(single) => std::task::ready!(single.poll(context)),
            State::Long(long) => std::task::ready!(long.access.as_mut().poll(context)),
            State::Done(_) | State::Failed(..) | State::Taken => return Poll::Ready(()),
        };
        self.state = match outcome {
            Ok(()) => State::Done(buffer),
            Err(error) => State::Failed(buffer, Box::new(error)),
        };
        Poll::Ready(())
    }
}

impl<B> Single<B> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome<B>> {
        let inner = &*self.session.inner;
        let mut part = inner.driver.attach(self.part.take().expect("a request ends once"));
        let ended = pin!(part.ended()).poll(context);
        let Poll::Ready(ended) = ended else {
            self.part = Some(part.detach());
            return Poll::Pending;
        };
        let mut buffer = self.buffer.take().expect("a request ends once");
        let outcome = (self.land)(&self.session, self.lh, self.offset, &mut buffer, &part, ended);
        Poll::Ready((buffer, outcome))
    }
}

impl<B> Drop for Single<B> {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            drop(self.session.inner.driver.attach(part));
        }
    }
}

impl<B: Unpin> Future for Posted<B> {
    type Output = (B, Result<(), AccessError>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let posted = self.get_mut();
        std::task::ready!(posted.poll_end(context));
        Poll::Ready(posted.take_ended())
    }
}

impl<B> fmt::Debug for Posted<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_ended = self.session().is_none();
        f.debug_struct("Posted").field("is_ended", &is_ended).finish_non_exhaustive()
    }
}
