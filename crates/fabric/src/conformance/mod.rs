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
                a_hello_has_1024_bytes_at_most
                an_address_of_nobody_is_told_as_such
                who_has_closed_reaches_nobody_and_is_not_reached
                a_dial_is_answered_even_if_who_dialled_closes
                two_that_dial_each_other_at_once_can_talk
                who_comes_back_is_somebody_new
                a_provider_is_one_of_those_that_the_fabric_has
                many_peers_are_told_apart
            }
            one_sided {
                writes_and_reads_reach_the_other_ends_memory
                inline_sources_are_copied_before_the_post_returns
                what_is_posted_to_one_place_is_done_in_its_order
                a_read_sees_what_was_written_before_it
                requests_without_bytes_complete_too
                only_signalled_requests_complete
                each_request_completes_once_under_its_own_name
                loads_and_stores_reach_what_is_said_to_be_direct
            }
            refused {
                a_wrong_key_or_range_is_refused_and_nothing_is_done
                what_is_refused_completes_even_if_nobody_asked
                requests_that_could_never_be_posted_are_malformed
                there_is_no_posting_to_strangers
            }
            atomics {
                they_return_what_the_word_held_before
                none_of_many_is_lost
                where_there_are_none_they_are_malformed
            }
            messages {
                messages_of_all_lengths_arrive_whole
                a_write_with_immediate_has_landed_when_it_is_told
                all_kinds_arrive_in_the_order_of_their_list
                who_talks_without_end_does_not_silence_the_others
            }
            room {
                a_flood_both_ways_loses_nothing
                who_found_a_queue_full_is_woken_when_there_is_room
                nobody_hears_of_room_who_did_not_ask
                there_is_no_more_room_once_the_peer_is_gone
            }
            lanes {
                each_lane_keeps_its_order
                small_requests_overtake_long_ones_of_another_lane_and_none_of_their_own
                what_has_completed_stands_before_what_is_posted_then_in_any_lane
                a_write_with_immediate_is_told_in_every_lane
                a_lane_that_is_full_fills_no_other
                a_connection_ends_with_all_of_its_lanes
            }
            lines {
                a_line_that_is_put_is_found_whole
                the_last_word_of_a_line_is_the_peers
                a_ring_wakes_who_looks_for_lines
                there_are_no_lines_where_nothing_is_registered
                a_line_that_is_posted_is_told_of_when_it_is_whole
            }
            waiting {
                an_unsolicited_message_wakes_nobody_and_is_found_by_the_next_who_polls
                a_doorbell_that_is_not_armed_stays_silent
                what_comes_before_the_last_poll_is_not_slept_over
                waking_rings_even_if_nothing_is_armed
                a_descriptor_has_edges_for_the_sleeper_that_is_armed_and_no_other
            }
            keys {
                keys_count_registrations
                a_key_mentioned_in_a_message_can_be_used_at_once
                memory_registered_while_a_connection_comes_about_is_reached
                hundreds_of_segments_are_reached_at_once
            }
            deregistering {
                a_key_that_was_taken_back_leads_nowhere
                a_key_is_never_given_again_and_others_are_reached_as_before
                what_is_no_key_is_not_taken_back
                the_provider_lets_go_of_memory_that_was_taken_back
                what_was_posted_with_a_key_of_ours_ends_before_its_memory_goes
                who_holds_a_window_of_memory_that_was_taken_back_keeps_it
            }
            ending {
                disconnecting_cuts_both_ends_off
                what_was_posted_before_a_close_arrives_before_the_end
                each_request_completes_once_before_the_end
                who_is_cut_off_writes_nothing_any_more
                who_still_holds_a_window_is_not_cut_off_yet
                what_succeeds_quietly_hides_no_end
                leaving_twice_changes_nothing
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
