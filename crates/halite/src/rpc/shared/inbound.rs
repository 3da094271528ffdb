//! The inbound side of a link: the memory to which the peer writes, and the parameters of the peer.

use std::collections::BTreeMap;
use std::sync::Arc;

use halite_fabric::RemoteAddress;
use halite_tier::ids::Principal;
use halite_tier::rpc::{LineReader, RingReader, SlotId, Violation};

use super::lines::LINE_HEAD_OFFSET;
use super::link::{Link, LinkMemory};
use super::memory::Block;
use super::parameters::PeerParameters;
use crate::runtime::locks::ranked;

ranked! {
    Inbound => Inbound;
}

#[derive(Debug)]
pub(crate) struct Inbound {
    /// The word in which the peer writes the position up to which it has read this node's requests.
    pub(crate) head: Option<Block>,
    /// This node's ring, into which the peer writes.
    pub(crate) ring: Option<(RingReader, Block)>,
    /// The peer's handshake, once it has arrived.
    pub(crate) parameters: Option<PeerParameters>,
    /// This node's row of lines, into which the peer writes short requests.
    pub(in crate::rpc) lines: Option<Arc<Block>>,
    /// The callers, by the numbers that lines use.
    callers: Vec<Option<Arc<Caller>>>,
    /// Outputs that this node keeps until the peer has read them, by slot.
    pub(crate) kept: BTreeMap<SlotId, Block>,
    /// The last caller, because most requests come from one principal. It refers to this link, and is dropped with it.
    caller: Option<Arc<Caller>>,
}

/// A principal at the other end of a link. Its requests share this value; each holds one reference.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) link: Arc<Link>,
    pub(crate) principal: Principal,
}

impl Inbound {
    pub(super) fn new(memory: Option<LinkMemory>) -> Inbound {
        let (ring, head, lines) = match memory {
            Some(LinkMemory { ring, head, lines }) => (Some(ring), Some(head), Some(Arc::new(lines))),
            None => (None, None, None),
        };
        let (callers, kept) = (Vec::new(), BTreeMap::new());
        Inbound { head, ring, parameters: None, lines, callers, kept, caller: None }
    }

    /// Drops the callers, which refer to the link itself.
    pub(super) fn drop_callers(&mut self) {
        self.caller = None;
        self.callers = Vec::new();
    }

    /// Returns the caller with this name at the other end of `link`; this value is the inbound side of `link`.
    pub(crate) fn caller(&mut self, link: &Arc<Link>, name: &[u8]) -> Result<Arc<Caller>, Violation> {
        match &self.caller {
            Some(caller) if caller.principal.0.as_bytes() == name => Ok(caller.clone()),
            _ => {
                let name = std::str::from_utf8(name)
                    .map_err(|_| Violation("the name of a principal is not valid UTF-8"))?;
                let caller = Arc::new(Caller { link: link.clone(), principal: Principal(name.into()) });
                Ok(self.caller.insert(caller).clone())
            }
        }
    }

    /// Assigns the number that lines use to `caller`.
    pub(in crate::rpc) fn introduce(
        &mut self,
        principal: u16,
        caller: &Arc<Caller>,
    ) -> Result<(), Violation> {
        let place = usize::from(principal);
        if self.callers.len() <= place {
            self.callers.resize(place + 1, None);
        }
        match &self.callers[place] {
            Some(known) if known.principal != caller.principal => {
                Err(Violation("a number is assigned to two principals"))
            }
            // The polling thread may have cached the caller.
            Some(_) => Ok(()),
            None => {
                self.callers[place] = Some(caller.clone());
                Ok(())
            }
        }
    }

    /// Returns the caller with this number.
    #[inline]
    pub(in crate::rpc) fn introduced(&self, principal: u16) -> Option<&Arc<Caller>> {
        self.callers.get(usize::from(principal))?.as_ref()
    }

    /// Returns all introduced callers, by number.
    pub(in crate::rpc) fn all_introduced(&self) -> &[Option<Arc<Caller>>] {
        &self.callers
    }

    /// Returns the head of the ring and its address in the peer's memory, if the peer should learn the head now.
    pub(crate) fn poll_head(&mut self) -> Option<(RemoteAddress, u64)> {
        let (reader, _) = self.ring.as_mut()?;
        reader.poll_head()?;
        self.published_head()
    }

    /// Returns the head that the peer learned last, and its address in the peer's memory.
    pub(crate) fn published_head(&self) -> Option<(RemoteAddress, u64)> {
        let (reader, _) = self.ring.as_ref()?;
        self.parameters.map(|parameters| (parameters.head, reader.told()))
    }

    /// Returns the head of the lines of `reader` that the peer learned last, and its address in the peer's memory.
    pub(in crate::rpc) fn published_line_head(&self, reader: &LineReader) -> Option<(RemoteAddress, u64)> {
        self.lines.as_ref()?;
        let at = self.parameters?.head;
        Some((RemoteAddress { offset: at.offset + LINE_HEAD_OFFSET, ..at }, reader.told()))
    }
}
