//! Reads long payloads from a peer's memory, on the thread that needs the payload.

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::access::Blocked;
use halite_tier::rpc::Target;

use crate::driver::Driver;
use crate::driver::transfer::{Kind, Transfer};
use crate::posted::Cursor;

/// The peer is gone, or has no memory at that address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotFetched;

/// Fills `into` with bytes from the memory of `target` at `address`.
pub(crate) async fn fetch(
    driver: &Driver,
    from: Target,
    address: RemoteAddress,
    into: &mut [u8],
) -> Result<(), NotFetched> {
    let Target::Peer(peer) = from else { return Err(NotFetched) };
    let fabric = &driver.shared.fabric;
    if fabric.capabilities(peer).direct {
        // A direct peer's memory that has no window is gone; a posted read could only fail.
        let window = fabric.direct(peer, address.key).ok_or(NotFetched)?;
        return window.read(address.offset, into).map_err(|_| NotFetched);
    }
    let mut fetch = Fetch { peer, address, into };
    driver.run_transfer(&mut fetch, Cursor::default()).await.map_err(|_| NotFetched)
}

/// A single read at a fixed address.
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
