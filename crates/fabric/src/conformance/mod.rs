//! The conformance suite of providers: the duties of a fabric to the tier above, as stories.
//!
//! A story is a function named after what it expects. It runs over a [`Harness`], which opens fabrics of one kind and
//! lets time pass. The tests of a provider, or of middleware, run all stories with [`fabric_conformance_suite!`].
//! Stories rely only on the doc comments of [`Fabric`]; if [`crate::Capabilities`] lack something, a story is skipped
//! with a printed reason.
//!
//! All stories run in one thread, so that they also run in virtual time. Each poll also checks the order of
//! [`crate::Event`], see [`node::Node`].
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

/// Opens fabrics of one kind that can reach each other, and lets time pass for them.
pub trait Harness {
    /// Opens a fabric of that name, which sends `hello` to peers.
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric>;

    /// Returns the address of the fabric of that name.
    fn address(&self, name: &str) -> String;

    /// Lets time pass until the doorbell's number differs from `seen`, or less; returns false if that takes too long.
    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool;

    /// Lets work in progress finish, as far as it does by itself and the harness can tell.
    fn settle(&self);

    /// Returns true if a request that the target refuses ends the connection, as on networks.
    fn refusal_ends_connection(&self) -> bool;

    /// Returns true if posted work continues without polls, in threads of the fabrics, and so at unknown times.
    fn moves_by_itself(&self) -> bool {
        false
    }
}

/// Prints the reason why a story is skipped, in whole or in part.
pub(crate) fn leave_out(why: &str) {
    println!("left out: {why}");
}

/// Turns every story into a `#[test]` over the harness that the expression returns.
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
