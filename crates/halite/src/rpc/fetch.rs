//! Long payloads: read from a peer's memory by whoever wants them, on its own thread.

use halite_fabric::{Operation, PeerId, PostCause, RemoteAddress, Status, WorkRequest};
use halite_tier::rpc::{Address, Target};

use crate::driver::Core;
use crate::posted::SLICE_BYTES_MAX;

/// The peer is gone, or never had such memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotFetched;

/// Reads as many bytes as `into` has.
pub(crate) async fn fetch(
    core: &Core,
    from: Target,
    address: Address,
    into: &mut [u8],
) -> Result<(), NotFetched> {
    let Target::Peer(peer) = from else { return Err(NotFetched) };
    let fabric = &core.ground.fabric;
    if fabric.capabilities().direct {
        // What cannot be reached that way is gone: to post for it would only cost the memory for the answer.
        let window = fabric.direct(peer, address.key).ok_or(NotFetched)?;
        return window.read(address.offset, into).map_err(|_| NotFetched);
    }
    let mut offset = address.offset;
    for slice in into.chunks_mut(SLICE_BYTES_MAX) {
        fetch_slice(core, peer, RemoteAddress { key: address.key, offset }, slice).await?;
        offset += slice.len() as u64;
    }
    Ok(())
}

async fn fetch_slice(
    core: &Core,
    peer: PeerId,
    remote: RemoteAddress,
    into: &mut [u8],
) -> Result<(), NotFetched> {
    let ground = &core.ground;
    loop {
        let staged = ground.posted.stage(&*ground.fabric, into.len()).await.map_err(|_| NotFetched)?;
        let seen = ground.posted.progress_count();
        let operation = ground.posted.begin();
        let read = Operation::Read { local: staged.local(into.len() as u64), remote };
        match ground.fabric.post(
            peer,
            &[WorkRequest { id: operation.id(), operation: read, signalled: true, solicited: true }],
        ) {
            Ok(()) => {
                let (ended, staged) = operation.posted(Some(staged)).await;
                let staged = staged.filter(|_| ended.status == Status::Success).ok_or(NotFetched)?;
                return staged.window().read(0, into).map_err(|_| NotFetched);
            }
            Err(error) if error.cause == PostCause::QueueFull && !core.is_closed() => {
                drop((operation, staged));
                core.with(|machine, now| machine.note_full(now));
                ground.posted.progress_after(seen).await;
            }
            Err(_) => return Err(NotFetched),
        }
    }
}
