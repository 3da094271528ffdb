//! The session of one client in the node, and the objects that the client has opened.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use halite_mem::Window;
use halite_mem::exchange::buffer;
use halite_tier::qos::Priority;
use halite_tier::quota::{Quota, QuotaExceeded};

use super::buffers::Buffers;
use super::connection::{NOT_RECEIVED, SHARE_BYTES};
use super::direct::{Direct, Received};
use super::in_flight::InFlight;
use crate::error::RegionCause;
use crate::metrics::Account;
use crate::session::calls::{Call, Mailbox, Sender, Server};
use crate::session::watch::{NOTIFICATIONS_MAX, Watch};
use crate::session::{Embedded, Kind, Session};

/// Maximum number of objects of a client: watches, servers, ports, senders, and calls that are not answered.
const OBJECTS_MAX: usize = 65_536;

/// Maximum number of buffers of a client. Each is a mapping of this node, and their number is limited.
const BUFFERS_MAX: usize = 16;
/// Bit of the ids of buffers, which are random.
const RANDOM_ID: u64 = 1 << 63;

/// Memory that the unread notifications of a watch may use, in bytes.
pub(super) const WATCH_BYTES: u64 = NOTIFICATIONS_MAX as u64 * 256;

/// Returns the size in bytes of a buffer of `len` bytes in the account: its pages, and its tables in the kernel.
fn buffer_bytes(len: u64) -> u64 {
    len.saturating_add(2 * 4096 - 1) & !4095
}

pub(super) struct Desk {
    session: Session,
    /// The same session with low priority.
    low: Session,
    /// True if the client runs as the user of the node, and may therefore administrate it.
    pub(super) is_owner: bool,
    /// Resource use of the principal in all its sessions.
    pub(super) account: Arc<Account>,
    pub(super) spares: Buffers,
    /// Number of objects and handles of this session that the account includes.
    counted: Cell<u64>,
    /// Number of buffers of this session, and their size in bytes.
    buffers: Cell<(usize, u64)>,
    /// A descriptor that belongs to the reply that follows, and the number of descriptors so far.
    fd: RefCell<Option<OwnedFd>>,
    fds: Cell<u64>,
    objects: RefCell<BTreeMap<u64, Object>>,
    next: Cell<u64>,
    pub(super) direct: Rc<Direct>,
    /// User id of the client.
    uid: u32,
    pub(super) in_flight: Rc<InFlight>,
}

/// An object that requests refer to by its id. A request in progress keeps its object alive.
#[derive(Clone)]
pub(super) enum Object {
    Buffer(Window),
    Watch(Rc<Counted<Watch>>),
    Server(Rc<Counted<Server>>),
    Mailbox(Rc<Counted<Mailbox>>),
    /// `None` while a request uses the sender.
    Sender(Rc<Cell<Option<Sender>>>),
    Call(Rc<Call>),
    DirectCall(Rc<Received>),
}

impl Object {
    /// Ends the receives in progress of a watch, function or port. Returns `None` if the object is none of these.
    fn close(&self) -> Option<()> {
        match self {
            Object::Watch(watch) => watch.close(),
            Object::Server(server) => server.close(),
            Object::Mailbox(mailbox) => mailbox.close(),
            Object::Buffer(_) | Object::Sender(_) | Object::Call(_) | Object::DirectCall(_) => return None,
        }
        Some(())
    }
}

/// An object that counts in a quota until it is dropped. A request in progress may outlive the entry in the table.
pub(super) struct Counted<T> {
    object: T,
    account: Arc<Account>,
    quota: Quota,
    amount: u64,
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.account.change(self.quota, self.amount, 0);
    }
}

impl Desk {
    pub(super) fn new(
        session: Embedded,
        is_owner: bool,
        account: Arc<Account>,
        (spares, direct): (Buffers, Rc<Direct>),
        (uid, in_flight): (u32, Rc<InFlight>),
    ) -> Desk {
        let (objects, next) = (RefCell::default(), Cell::new(0));
        let counted = Cell::new(0);
        account.change(Quota::Sessions, 0, 1);
        let low = Embedded { priority: Priority::Low, ..session.clone() }.into();
        let session = session.into();
        let (buffers, fd, fds) = (Cell::default(), RefCell::default(), Cell::default());
        Desk {
            session,
            low,
            is_owner,
            account,
            spares,
            counted,
            buffers,
            fd,
            fds,
            objects,
            next,
            direct,
            uid,
            in_flight,
        }
    }

    /// Reserves room in a quota for the object that a request creates, until the request ends.
    pub(super) fn reserve(&self, quota: Quota, amount: u64) -> Result<Reserved<'_>, QuotaExceeded> {
        if quota == Quota::Objects && self.account.admit(quota, amount).is_err() {
            // Handles also end with their regions.
            self.recount();
        }
        self.account.admit(quota, amount)?;
        self.account.change(quota, 0, amount);
        Ok(Reserved { desk: self, quota, amount, recounts: quota == Quota::Objects })
    }

    /// Counts an object in a quota until it is dropped.
    pub(super) fn counted<T>(&self, object: T, quota: Quota, amount: u64) -> Rc<Counted<T>> {
        self.account.change(quota, 0, amount);
        Rc::new(Counted { object, account: self.account.clone(), quota, amount })
    }

    /// Checks that the principal's quotas allow this node to keep an answer of `len` bytes until the client receives
    /// it.
    pub(super) fn admit_answer(&self, len: usize) -> Result<(), QuotaExceeded> {
        match len <= SHARE_BYTES {
            true => Ok(()),
            false => self.account.admit(Quota::Memory, len as u64),
        }
    }

    /// Updates the number of objects and handles in the account.
    pub(super) fn recount(&self) {
        let inner = &self.embedded(Priority::High).inner;
        let handles =
            inner.driver.look(|runner| runner.engine().map_or(0, |engine| engine.handle_count_of(inner.id)));
        let count = handles + self.objects.borrow().len() as u64;
        self.account.change(Quota::Objects, self.counted.replace(count), count);
    }

    pub(super) fn session(&self, priority: Priority) -> &Session {
        if priority == Priority::Low { &self.low } else { &self.session }
    }

    pub(super) fn embedded(&self, priority: Priority) -> &Embedded {
        match &self.session(priority).kind {
            Kind::Embedded(session) => session,
            Kind::Attached(_) => unreachable!("the node's own session"),
        }
    }

    pub(super) fn principal(&self) -> &str {
        &self.embedded(Priority::High).inner.principal.0
    }

    /// Stores an object and returns its id. Returns `None` if the client has too many objects.
    pub(super) fn keep(&self, object: Object) -> Option<u64> {
        let id = self.next.get();
        self.next.set(id + 1);
        self.keep_as(id, object)
    }

    /// Creates a buffer. Returns its id, and the number of its descriptor, which goes with the reply.
    ///
    /// The id is random, so that the client can end a buffer only after it has received the reply.
    pub(super) fn open_buffer(&self, len: u64) -> Result<(u64, u64), RegionCause> {
        if self.buffers.get().0 >= BUFFERS_MAX {
            return Err(RegionCause::TableFull(
                "the session already has 16 buffers, the maximum; drop one, or use parts of a longer one",
            ));
        }
        self.account.admit(Quota::Memory, buffer_bytes(len)).map_err(RegionCause::Quota)?;
        if !self.in_flight.admits(self.uid, 1) {
            return Err(RegionCause::TableFull(NOT_RECEIVED));
        }
        let inner = &self.embedded(Priority::High).inner;
        let memory =
            |_| RegionCause::OutOfMemory { node: self.session(Priority::High).node(), wanted: len, given: 0 };
        let (window, fd) = buffer::create(len).map_err(memory)?;
        let id = inner.driver.env().random() | RANDOM_ID;
        self.keep_as(id, Object::Buffer(window))
            .ok_or(RegionCause::TableFull("the session has too many objects"))?;
        *self.fd.borrow_mut() = Some(fd);
        Ok((id, self.fds.replace(self.fds.get() + 1)))
    }

    /// Takes the descriptor that belongs to the reply that was just made.
    pub(super) fn take_fd(&self) -> Option<OwnedFd> {
        self.fd.borrow_mut().take()
    }

    fn change_buffers(&self, add: i8, len: u64) {
        let ((count, bytes), len) = (self.buffers.get(), buffer_bytes(len));
        let (count, total) = if add > 0 { (count + 1, bytes + len) } else { (count - 1, bytes - len) };
        self.account.change(Quota::Memory, bytes, total);
        self.buffers.set((count, total));
    }

    fn keep_as(&self, id: u64, object: Object) -> Option<u64> {
        let mut objects = self.objects.borrow_mut();
        if objects.len() >= OBJECTS_MAX || objects.contains_key(&id) {
            return None;
        }
        if let Object::Buffer(window) = &object {
            self.change_buffers(1, window.len());
        }
        objects.insert(id, object);
        Some(id)
    }

    /// Ends an object; does nothing if it has ended.
    pub(super) fn end(&self, id: u64) {
        // The object is dropped after the borrow of the table ends.
        let ended = self.objects.borrow_mut().remove(&id);
        match &ended {
            Some(Object::Buffer(window)) => self.change_buffers(-1, window.len()),
            // Otherwise its receives in progress would keep it.
            Some(object) => _ = object.close(),
            None => {}
        }
        drop(ended);
    }

    /// Ends an object. Returns false if there is none.
    pub(super) fn end_one(&self) -> bool {
        let id = self.objects.borrow().first_key_value().map(|(id, _)| *id);
        id.inspect(|id| self.end(*id)).is_some()
    }

    pub(super) fn buffer(&self, id: u64) -> Option<Window> {
        match self.objects.borrow().get(&id)? {
            Object::Buffer(window) => Some(window.clone()),
            _ => None,
        }
    }

    pub(super) fn watch(&self, id: u64) -> Option<Rc<Counted<Watch>>> {
        match self.objects.borrow().get(&id)? {
            Object::Watch(watch) => Some(watch.clone()),
            _ => None,
        }
    }

    pub(super) fn server(&self, id: u64) -> Option<Rc<Counted<Server>>> {
        match self.objects.borrow().get(&id)? {
            Object::Server(server) => Some(server.clone()),
            _ => None,
        }
    }

    pub(super) fn mailbox(&self, id: u64) -> Option<Rc<Counted<Mailbox>>> {
        match self.objects.borrow().get(&id)? {
            Object::Mailbox(mailbox) => Some(mailbox.clone()),
            _ => None,
        }
    }

    /// Borrows a sender for one request; `None` if another request uses it.
    pub(super) fn sender(&self, id: u64) -> Option<Borrowed> {
        match self.objects.borrow().get(&id)? {
            Object::Sender(place) => {
                let sender = place.take()?;
                Some(Borrowed { place: place.clone(), sender: Some(sender) })
            }
            _ => None,
        }
    }

    /// Closes an object; `None` if there is nothing to receive from it.
    pub(super) fn close(&self, id: u64) -> Option<()> {
        let object = self.objects.borrow().get(&id).cloned()?;
        object.close()
    }

    /// Removes a call from the table, so that it can be answered.
    pub(super) fn take_call(&self, id: u64) -> Option<Call> {
        let mut objects = self.objects.borrow_mut();
        match objects.remove(&id)? {
            // No request keeps a call.
            Object::Call(call) => Rc::into_inner(call),
            other => {
                objects.insert(id, other);
                None
            }
        }
    }

    /// Stores a direct call and counts it. Returns `None` if the client has too many objects.
    pub(super) fn keep_direct(&self, call: Rc<Received>) -> Option<u64> {
        let id = self.keep(Object::DirectCall(call))?;
        self.counted.set(self.counted.get() + 1);
        self.account.change(Quota::Objects, 0, 1);
        Some(id)
    }

    /// Removes a direct call from the table, so that it can be answered; `None` if the object is no direct call.
    pub(super) fn take_direct(&self, id: u64) -> Option<Rc<Received>> {
        let mut objects = self.objects.borrow_mut();
        let Object::DirectCall(call) = objects.get(&id)? else { return None };
        let call = call.clone();
        objects.remove(&id);
        self.counted.set(self.counted.get() - 1);
        self.account.change(Quota::Objects, 1, 0);
        Some(call)
    }

    /// Returns true if the caller of a call still waits.
    pub(super) fn is_wanted(&self, id: u64) -> Option<bool> {
        match self.objects.borrow().get(&id)? {
            Object::Call(call) => Some(call.is_wanted()),
            Object::DirectCall(call) => Some(call.is_wanted()),
            _ => None,
        }
    }
}

/// A sender that one request uses. Dropping it gives the sender back.
pub(super) struct Borrowed {
    place: Rc<Cell<Option<Sender>>>,
    sender: Option<Sender>,
}

impl Borrowed {
    pub(super) fn sender(&mut self) -> &mut Sender {
        self.sender.as_mut().expect("it is given back at the end")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.place.set(self.sender.take());
    }
}

/// Room in a quota that a request holds until it ends.
pub(super) struct Reserved<'d> {
    desk: &'d Desk,
    quota: Quota,
    amount: u64,
    /// True if the number of objects may have changed at the end.
    recounts: bool,
}

impl Reserved<'_> {
    /// Leaves the count of objects to the caller.
    pub(super) fn without_recount(mut self) -> Self {
        self.recounts = false;
        self
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.desk.account.change(self.quota, self.amount, 0);
        if self.recounts {
            self.desk.recount();
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.account.change(Quota::Sessions, 1, 0);
        self.account.change(Quota::Objects, self.counted.get(), 0);
        self.account.change(Quota::Memory, self.buffers.get().1, 0);
    }
}
