//! Reply slots that are lent to links. A short request takes a free slot among those that its link has borrowed; if
//! none is free, the link borrows more. The link returns its slots when it ends.

use halite_tier::rpc::SlotId;

use super::Client;
use super::reply_lines::Take;
use crate::rpc::shared::{Link, OutboundLines};
use crate::runtime::locks::lock;

/// Number of slots that a link borrows at a time, and maximum number of borrowed slots per link.
const BORROWED: (usize, usize) = (8, 128);

impl Client {
    /// Takes a free lent slot. Tries the first slot first, because its line is in the cache while requests come one by
    /// one.
    #[inline]
    pub(super) fn take_lent(&self, lines: &mut OutboundLines) -> Option<SlotId> {
        let first = *lines.slots.first()?;
        match self.reply_lines.take(first, lines.borrower) {
            Take::Taken(slot) => {
                lines.next = 1;
                Some(slot)
            }
            Take::Busy | Take::Gone => self.take_next(lines),
        }
    }

    /// Takes the next free lent slot behind the last one taken, because concurrent requests mostly end in order.
    fn take_next(&self, lines: &mut OutboundLines) -> Option<SlotId> {
        for place in (lines.next..lines.slots.len()).chain(0..lines.next) {
            let Some(index) = lines.slots.get(place) else { continue };
            match self.reply_lines.take(*index, lines.borrower) {
                Take::Taken(slot) => {
                    lines.next = place + 1;
                    return Some(slot);
                }
                Take::Busy => {}
                Take::Gone => {
                    lines.slots.swap_remove(place);
                    return self.take_next(lines);
                }
            }
        }
        None
    }

    /// Borrows slots for the link and takes one of them. Returns `None` if no slot can be borrowed.
    #[cold]
    pub(super) fn borrow(&self, link: &Link, lines: &mut OutboundLines) -> Option<SlotId> {
        self.collect_orphans();
        {
            let mut slots = lock(&self.slots);
            for _ in 0..BORROWED.0.min(BORROWED.1.saturating_sub(lines.slots.len())) {
                let Some(slot) = slots.lend(link.target) else { break };
                // The slot may have been lent to this link before.
                lines.slots.retain(|known| *known != slot.index);
                lines.slots.push(slot.index);
                self.reply_lines.lend(slot, lines.borrower);
            }
        }
        self.take_lent(lines)
    }

    /// Takes back the slots of a link that has ended: free slots now, and used slots later.
    pub(in crate::rpc) fn end_lines(&self, lines: OutboundLines) {
        lock(&self.orphans).extend(lines.slots.iter().map(|index| (*index, lines.borrower)));
        self.collect_orphans();
    }

    /// Takes back the unused slots of links that have ended.
    fn collect_orphans(&self) {
        let mut orphans = lock(&self.orphans);
        if orphans.is_empty() {
            return;
        }
        let mut slots = lock(&self.slots);
        orphans.retain(|(index, borrower)| match self.reply_lines.take(*index, *borrower) {
            Take::Taken(slot) => {
                self.reply_lines.hand_back(slot);
                slots.take_back(slot);
                false
            }
            Take::Busy => true,
            Take::Gone => false,
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use halite_fabric::{Key, RemoteAddress};
    use halite_providers::{ShmConfig, ShmFabric};

    use super::*;
    use crate::posted::InFlight;
    use crate::rpc::shared::{Poster, Row};

    #[test]
    fn serial_requests_reuse_one_slot() {
        // No peer connects through the fabric, so its directory may be removed.
        let dir = crate::runtime::scratch();
        let fabric = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
        let client = Client::new(&Poster::new(fabric, Arc::new(InFlight::new(1)))).unwrap();
        let row = Row { at: RemoteAddress { key: Key(0), offset: 0 }, direct: None };
        let mut lines = OutboundLines::new(row, 5);
        for index in 0..4 {
            lines.slots.push(index);
            client.reply_lines.lend(SlotId { index, generation: 0 }, 5);
        }
        let take = |lines: &mut OutboundLines| client.take_lent(lines).map(|slot| slot.index);
        let free = |index, generation| client.reply_lines.free(SlotId { index, generation });
        assert_eq!(take(&mut lines), Some(0));
        free(0, 0);
        assert_eq!([(); 3].map(|()| take(&mut lines)), [Some(0), Some(1), Some(2)]);
        free(1, 0);
        assert_eq!(take(&mut lines), Some(3), "the search continues behind the last slot");
        assert_eq!(take(&mut lines), Some(1), "the search continues at the front");
        assert_eq!(take(&mut lines), None);
        // A slot that the table has taken back is dropped, and the others are found.
        client.reply_lines.hand_back(SlotId { index: 2, generation: 0 });
        free(3, 0);
        assert_eq!((take(&mut lines), lines.slots.len()), (Some(3), 3));
    }
}
