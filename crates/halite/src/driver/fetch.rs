//! Long payloads: read from a peer's memory by the thread that wants them.

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::access::Blocked;
use halite_tier::rpc::Target;

use crate::driver::Driver;
use crate::driver::carry::{Kind, Transfer};
use crate::posted::Cursor;

/// The peer is gone, or never had such memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotFetched;

/// Reads as many bytes as `into` has.
pub(crate) async fn fetch(
    driver: &Driver,
    from: Target,
    address: RemoteAddress,
    into: &mut [u8],
) -> Result<(), NotFetched> {
    let Target::Peer(peer) = from else { return Err(NotFetched) };
    let fabric = &driver.shared.fabric;
    if fabric.capabilities(peer).direct {
        // What cannot be reached that way is gone: to post for it would only cost the memory for the answer.
        let window = fabric.direct(peer, address.key).ok_or(NotFetched)?;
        return window.read(address.offset, into).map_err(|_| NotFetched);
    }
    let mut fetch = Fetch { peer, address, into };
    driver.carry(&mut fetch, Cursor::default()).await.map_err(|_| NotFetched)
}

/// One read, whose place does not change.
struct Fetch<'f> {
    peer: PeerId,
    address: RemoteAddress,
    into: &'f mut [u8],
}

impl Transfer for Fetch<'_> {
    fn count(&self) -> usize {
        1
    }

    fn len(&self, _: usize) -> usize {
        self.into.len()
    }

    fn step(&mut self, at: Cursor) -> Result<usize, Blocked> {
        self.locate(at)
    }

    fn locate(&self, at: Cursor) -> Result<usize, Blocked> {
        let done = at.done as u64;
        let address = RemoteAddress { offset: self.address.offset + done, ..self.address };
        match self.into.len() as u64 - done {
            0 => Ok(0),
            len => Err(Blocked::Post { peer: self.peer, address, len }),
        }
    }

    fn kind(&self) -> Kind {
        Kind::Read
    }

    fn target(&mut self, at: Cursor, len: usize) -> &mut [u8] {
        &mut self.into[at.done..at.done + len]
    }
}
