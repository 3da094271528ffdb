//! The conformance suite of providers: what each of them owes to the tier above, as stories.
//!
//! A story is a function named after what is expected, over a [`Harness`]: the way in which fabrics of one kind are opened,
//! and in which things happen to them.  The tests of a provider, or of middleware around one, tell them all with
//! [`fabric_conformance_suite!`].  Stories know what the doc comments of [`Fabric`] promise and nothing else; what a
//! provider says it cannot do ([`crate::Capabilities`]), they leave out with a printed reason.
//!
//! All run in one thread, so that they can be told in virtual time.  Whatever is polled is also checked for the order that
//! [`crate::Event`] promises, see [`node::Node`].
//!
//! [`fabric_conformance_suite!`]: crate::fabric_conformance_suite

pub mod atomics;
pub mod connecting;
pub mod deregistering;
pub mod ending;
pub mod keys;
pub mod lanes;
pub mod lines;
pub mod messages;
pub mod node;
pub mod one_sided;
pub mod refused;
pub mod room;
pub mod waiting;

use std::sync::Arc;

use crate::Fabric;

/// How fabrics of one kind are opened that can reach each other, and how things happen to them.
pub trait Harness {
    /// Opens a fabric of that name, which shows `hello` to those who connect to it.
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric>;

    /// What others connect to, to reach the fabric of that name.
    fn address(&self, name: &str) -> String;

    /// Lets things happen until the doorbell of `fabric` is no longer at `seen`, or earlier.  `false` if that is never going
    /// to be, or takes too long.
    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool;

    /// Lets what is under way come to its end, as far as it does so by itself and the harness can know.
    fn settle(&self);

    /// Whether a request that the target refuses ends the connection, as on networks.
    fn refusal_ends_connection(&self) -> bool;

    /// Whether what is posted goes on while nobody polls, in threads of the fabrics' own: then nothing says when.
    fn moves_by_itself(&self) -> bool {
        false
    }
}

/// Says why a story is not told, or not whole.
pub(crate) fn leave_out(why: &str) {
    println!("left out: {why}");
}

/// Turns every story into a `#[test]` for the harness that the expression gives.
#[macro_export]
macro_rules! fabric_conformance_suite {
    ($harness:expr) => {
        $crate::fabric_conformance_suite! { @stories $harness;
            connecting {
                both_ends_hear_who_the_other_is
                a_closed_fabric_neither_dials_nor_answers
                two_that_dial_each_other_at_once_can_talk
            }
            one_sided {
                writes_and_reads_reach_the_other_ends_memory
                inline_sources_are_copied_before_the_post_returns
                only_signalled_requests_complete
                loads_and_stores_reach_what_is_said_to_be_direct
            }
            refused {
                a_wrong_key_or_range_is_refused
                requests_that_could_never_be_posted_are_malformed
            }
            atomics {
                atomics_return_the_previous_value
                concurrent_atomics_are_all_done
            }
            messages {
                messages_of_all_lengths_arrive_whole
                a_write_with_immediate_has_landed_when_it_is_told
                an_endless_sender_does_not_starve_others
            }
            room {
                a_flood_both_ways_loses_nothing
                room_in_a_full_queue_wakes_the_poster
            }
            lanes {
                each_lane_keeps_its_order
                small_requests_overtake_only_other_lanes
                completed_work_precedes_later_posts_in_any_lane
                a_lane_that_is_full_fills_no_other
                a_connection_ends_with_all_of_its_lanes
            }
            lines {
                a_line_that_is_put_is_found_whole
                a_ring_wakes_who_looks_for_lines
            }
            waiting {
                an_unsolicited_message_wakes_nobody
                arrivals_before_the_last_poll_are_not_missed
                only_the_armed_sleeper_has_edges
            }
            keys {
                a_key_mentioned_in_a_message_can_be_used_at_once
                memory_registered_while_connecting_is_reached
                hundreds_of_segments_are_reached_at_once
            }
            deregistering {
                a_withdrawn_key_leads_nowhere
                keys_are_never_reused
                withdrawn_memory_is_released
                posted_work_ends_before_its_memory_goes
            }
            ending {
                disconnecting_cuts_both_ends_off
                posted_work_arrives_before_a_close
                a_peer_that_is_cut_off_writes_nothing
                a_held_window_delays_the_cut_off
            }
        }
    };
    (@stories $harness:expr; $($area:ident { $($story:ident)* })*) => {
        $(mod $area {
            #[allow(unused_imports, reason = "the harness may be named in full")]
            use super::*;
            $(#[test]
            fn $story() {
                $crate::conformance::$area::$story(&$harness);
            })*
        })*
    };
}
