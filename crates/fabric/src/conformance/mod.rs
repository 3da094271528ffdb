//! The conformance suite of providers: one case for each guarantee that a fabric gives to the tier above.
//!
//! A case is a function whose name states the expectation. A case runs over a [`Harness`], which opens fabrics of one
//! kind and lets time pass. The tests of a provider, or of middleware, run all cases with
//! [`fabric_conformance_suite!`]. Cases rely only on the doc comments of [`Fabric`]. If the provider lacks a capability
//! ([`crate::Capabilities`]) that a case needs, the case prints the reason and does nothing else.
//!
//! Each case runs in one thread, so that it also runs in virtual time. Each poll also checks the order of the events
//! ([`crate::Event`]), see [`node::Node`].
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

/// Opens fabrics of one kind that can reach each other, and lets time pass for these fabrics.
pub trait Harness {
    /// Opens a fabric named `name`, which sends `hello` to peers.
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric>;

    /// Returns the address of the fabric named `name`.
    fn address(&self, name: &str) -> String;

    /// Lets time pass until the number of the fabric's doorbell differs from `seen`; may return earlier. Returns false
    /// if the number does not change in time.
    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool;

    /// Lets time pass until work in progress has finished, as far as the harness can detect this and the work needs no
    /// poll.
    fn settle(&self);

    /// Returns true if a request that the target refuses ends the connection, as on networks.
    fn refusal_ends_connection(&self) -> bool;

    /// Returns true if the fabrics have threads of their own that process posted requests at any time, without polls.
    fn moves_by_itself(&self) -> bool {
        false
    }
}

/// Prints the reason for skipping a case, in whole or in part.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}

/// Defines a `#[test]` for every case. The test runs over the harness that the given expression returns.
#[macro_export]
macro_rules! fabric_conformance_suite {
    ($harness:expr) => {
        $crate::fabric_conformance_suite! { @cases $harness;
            connecting {
                both_ends_receive_each_others_hello
                a_closed_fabric_neither_dials_nor_answers
                simultaneous_dials_connect
            }
            one_sided {
                writes_and_reads_reach_the_peers_memory
                inline_sources_are_copied_before_the_post_returns
                only_signalled_requests_complete
                loads_and_stores_reach_direct_memory
            }
            refused {
                a_wrong_key_or_range_is_refused
                malformed_requests_are_refused
            }
            atomics {
                atomics_return_the_previous_value
                no_concurrent_atomic_is_lost
            }
            messages {
                messages_of_all_lengths_arrive_whole
                an_immediate_is_reported_after_its_bytes
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
                a_full_lane_blocks_no_other
                a_connection_ends_with_all_of_its_lanes
            }
            lines {
                a_line_arrives_whole
                a_ring_wakes_a_sleeper_that_polls_lines
            }
            waiting {
                an_unsolicited_message_wakes_no_sleeper
                arrivals_before_the_last_poll_are_not_missed
                only_the_armed_sleeper_has_edges
            }
            keys {
                a_key_in_a_message_can_be_used_at_once
                memory_registered_while_connecting_is_reached
                hundreds_of_segments_are_reached_at_once
            }
            deregistering {
                requests_with_a_deregistered_key_are_refused
                keys_are_never_reused
                deregistered_memory_is_released
                posted_work_completes_before_its_memory_is_released
            }
            ending {
                disconnecting_cuts_both_ends_off
                posted_work_arrives_before_a_close
                a_peer_that_is_cut_off_writes_nothing
                a_held_window_delays_the_cut_off
            }
        }
    };
    (@cases $harness:expr; $($area:ident { $($case:ident)* })*) => {
        $(mod $area {
            #[allow(unused_imports, reason = "the expression may name the harness by its full path")]
            use super::*;
            $(#[test]
            fn $case() {
                $crate::conformance::$area::$case(&$harness);
            })*
        })*
    };
}
