//! Whatever a peer answers and cancels, no slot is reused while the peer may write to it, and none is lost.

use std::collections::BTreeSet;

use halite_fabric::PeerId;
use halite_tier::rpc::{Abandoned, Arrival, ReplySlots, ReplyState, SlotId, Target};
use proptest::prelude::*;

const PEER: PeerId = PeerId(1);
const OTHER: Target = Target::Peer(PeerId(2));
const SLOTS: u16 = 4;

/// A step; the peer names any slot.
#[derive(Clone, Copy, Debug)]
enum Step {
    Call,
    Take,
    GiveUp,
    Reply(SlotId),
    Cancelled(SlotId),
    /// Another peer tries the same.
    Foreign(SlotId),
}

fn slot() -> impl Strategy<Value = SlotId> {
    (0..SLOTS + 1, 0..6_u16).prop_map(|(index, generation)| SlotId { index, generation })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Call),
        2 => Just(Step::Take),
        2 => Just(Step::GiveUp),
        4 => slot().prop_map(Step::Reply),
        3 => slot().prop_map(Step::Cancelled),
        1 => slot().prop_map(Step::Foreign),
    ]
}

proptest! {
    #[test]
    fn random_replies_reach_open_slots_only(steps in prop::collection::vec(step(), 1..200)) {
        let server = Target::Peer(PEER);
        let mut slots: ReplySlots<()> = ReplySlots::new(1, usize::from(SLOTS));
        // Slots with a waiter, and slots that the peer may still write to.
        let (mut waiting, mut open) = (Vec::new(), BTreeSet::new());
        for step in steps {
            match step {
                Step::Call => {
                    let Some(slot) = slots.open(server) else {
                        prop_assert!(open.len() + waiting.len() >= usize::from(SLOTS));
                        continue;
                    };
                    prop_assert!(!open.iter().any(|other: &SlotId| other.index == slot.index));
                    open.insert(slot);
                    waiting.push(slot);
                }
                Step::Take => {
                    let Some(slot) = waiting.pop() else { continue };
                    match slots.look(slot, 0) {
                        ReplyState::Replied => slots.free(slot),
                        _ => { waiting.insert(0, slot); None }
                    };
                }
                Step::GiveUp => {
                    let Some(slot) = waiting.pop() else { continue };
                    if let Abandoned::Replied = slots.abandon(slot) {
                        slots.free(slot);
                    }
                }
                Step::Reply(slot) => match slots.handle_reply(server, slot) {
                    Ok(arrival) => {
                        prop_assert!(open.remove(&slot), "an unexpected reply");
                        if let Arrival::Late = arrival {
                            slots.free(slot);
                        }
                    }
                    Err(_) => prop_assert!(!open.contains(&slot)),
                },
                Step::Cancelled(slot) => {
                    let before = slots.used();
                    slots.handle_cancelled(server, slot);
                    if slots.used() < before {
                        prop_assert!(open.remove(&slot) && !waiting.contains(&slot));
                    }
                }
                Step::Foreign(slot) => {
                    let before = slots.used();
                    prop_assert!(slots.handle_reply(OTHER, slot).is_err());
                    slots.handle_cancelled(OTHER, slot);
                    prop_assert_eq!(slots.used(), before);
                }
            }
        }
        slots.handle_down(PEER);
        for slot in waiting {
            if let Abandoned::Replied = slots.abandon(slot) {
                slots.free(slot);
            }
        }
        slots.handle_cut_off(PEER);
        prop_assert_eq!(slots.used(), 0, "slots are lost");
    }
}
