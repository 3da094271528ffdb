//! The conformance suite of the public API.
//!
//! Each case is a function over a [`Harness`], and its name states the expectation. [`conformance_suite!`] instantiates
//! all cases for one harness: for example with another fabric, with middleware, or in virtual time. Cases use only the
//! public API, and depend neither on the internals of a node nor on its fabric.
//!
//! A case starts and ends nodes, and opens sessions, through [`Cluster`]. A case waits and starts threads with the
//! functions of [`turns`], so it runs in real time over [`embedded`], and in virtual time over [`sim`].
//!
//! [`conformance_suite!`]: crate::conformance_suite

pub mod access;
pub mod alloc;
pub mod atomics;
pub mod barriers;
pub mod batch;
pub mod batches;
pub mod calls;
pub mod chunks;
pub mod cluster;
pub mod directory;
pub mod dropped;
pub mod embedded;
pub mod explain;
pub mod free;
pub mod handles;
pub mod killed;
pub mod locks;
pub mod members;
pub mod memory;
pub mod messages;
pub mod moving;
pub mod named;
pub mod names;
pub mod permissions;
pub mod posted;
pub mod seal;
pub mod senders;
pub mod session;
pub mod sharing;
pub mod sim;
pub mod turns;
pub mod waiting;
pub mod watching;

pub use cluster::{Cluster, Harness};
pub use session::Session;

/// Asserts that the operation was refused with a cause that matches the pattern.
macro_rules! refused {
    ($result:expr, $cause:pat) => {
        match $result {
            Ok(_) => panic!("`{}` was not refused", stringify!($result)),
            Err(error) => assert!(
                matches!(error.cause(), $cause),
                "`{}` was refused by {error} ({:?}), expected {}",
                stringify!($result),
                error.cause(),
                stringify!($cause),
            ),
        }
    };
}
pub(crate) use refused;

/// Repeats the operation until it is refused with a cause that matches the pattern.
macro_rules! eventually_refused {
    ($result:expr, $cause:pat) => {
        $crate::conformance::cluster::eventually(stringify!($result), || match $result {
            Err(error) if matches!(error.cause(), $cause) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
}
pub(crate) use eventually_refused;

/// A pattern of the causes of an access that fails because the node has left or died.
macro_rules! node_lost {
    ($node:pat) => {
        halite::AccessCause::PeerDown($node)
            | halite::AccessCause::LinkLost($node)
            | halite::AccessCause::Stale
    };
}
pub(crate) use node_lost;

/// Defines a `#[test]` for every case, over the harness that the expression returns.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_cases! { $crate::conformance_tests, $harness }
    };
}

/// Defines one module of tests per subject, with a `#[test]` for each listed case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr; $($area:ident { $($case:ident)* })*) => {
        $(mod $area {
            #[allow(unused_imports, reason = "the expression may name the harness by its full path")]
            use super::*;
            $(#[test]
            fn $case() {
                let harness = $harness;
                match $crate::conformance::Harness::cannot(&harness, stringify!($area), stringify!($case)) {
                    Some(reason) => println!("skipped: {reason}"),
                    None => $crate::conformance::$area::$case(&harness),
                }
            })*
        })*
    };
}

/// Passes the list of all cases to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:path, $harness:expr) => {
        $then! { $harness;
            alloc {
                a_fresh_region_reads_as_zero
                a_populated_region_behaves_like_any_other
                a_region_reads_back_what_was_written
                a_region_needs_no_name
                a_region_has_the_requested_length
                an_empty_region_is_refused
                a_region_larger_than_the_memory_is_refused
                an_absurd_length_is_refused
                regions_do_not_overlap
                a_region_goes_to_the_named_node
                an_unknown_node_is_refused
                anywhere_prefers_local_memory
                anywhere_finds_memory_for_a_node_without_memory
                local_placement_needs_local_memory
                freed_memory_can_always_be_reused
            }
            named {
                calls_find_the_server_of_a_name
                a_name_has_one_server_unless_shared
                calls_alternate_between_servers_that_share
                invalid_server_names_are_refused
            }
            names {
                a_name_is_unique
                a_freed_region_releases_its_name
                one_of_many_claims_of_a_name_succeeds
                the_empty_name_is_refused
                a_name_has_at_most_255_bytes
                any_text_is_a_name
                only_the_whole_name_matches
                a_region_can_be_named_later
                a_region_cannot_take_a_used_name
                a_region_cannot_be_renamed
                only_masters_name_regions
            }
            sharing {
                nodes_read_each_others_writes
                an_unknown_name_cannot_be_mapped
                each_mapping_has_its_own_handle
                a_region_lists_its_mappers
                threads_share_a_session
                an_aligned_word_never_tears
                many_regions_keep_their_contents
            }
            access {
                no_access_reaches_beyond_the_end
                an_offset_that_overflows_is_refused
                empty_accesses_succeed_up_to_the_end
                a_region_behaves_like_an_array
                every_alignment_is_exact
                an_error_names_the_operation_and_the_region
            }
            atomics {
                atomics_return_the_previous_value
                an_addition_wraps_around
                a_word_is_eight_bytes_in_native_order
                no_addition_is_lost_among_many
                one_swap_wins_among_many
                swaps_run_until_one_fails
                swaps_stop_at_an_error
                atomics_need_their_permission
                a_word_must_be_aligned
                a_word_must_be_inside
                a_sealed_region_refuses_atomics
                no_addition_is_lost_while_the_region_moves
            }
            memory {
                a_fill_changes_only_its_bytes
                a_copy_works_between_all_nodes
                source_and_target_of_a_copy_may_overlap
                copies_match_arrays
                long_copies_overlap_in_both_directions
                a_refused_memory_operation_changes_nothing
                empty_memory_operations_succeed_up_to_the_end
                memory_operations_during_a_move_are_kept
                memory_operations_on_lost_bytes_fail
            }
            locks {
                a_lock_is_held_by_one_session
                a_dropped_guard_releases_the_lock
                a_lock_released_before_the_end_is_not_recovered
                a_session_takes_a_lock_once
                only_a_held_lock_can_be_released
                a_wait_for_a_held_lock_times_out
                waiters_get_the_lock_in_order
                no_update_is_lost_under_a_lock
                tokens_rise_from_holder_to_holder
                an_abandoned_wait_for_a_lock_blocks_no_other
                a_lock_kept_until_the_session_ends_is_recovered
                the_lock_of_a_node_that_left_is_recovered
                a_lock_may_be_restricted_to_principals
                locks_are_hidden_from_lists_and_names
                a_holder_learns_that_it_lost_the_lock
                a_freed_lock_is_created_again
                a_lock_is_created_again_after_its_home_left
            }
            barriers {
                no_participant_passes_before_all_have_arrived
                a_barrier_is_reusable
                a_missing_participant_is_a_timeout_for_all
                another_number_of_participants_is_refused
                an_abandoned_arrival_is_not_counted
                a_participant_that_left_is_not_counted
                a_barrier_may_be_restricted_to_principals
            }
            watching {
                notifications_arrive_in_order_after_their_bytes
                every_watcher_is_notified_once
                a_slow_watcher_delays_only_the_writer
                a_dropped_watch_delays_no_writer
                an_abandoned_watch_leaks_nothing
                watches_and_notifications_need_permissions
                a_watch_survives_moves_of_its_region
                a_watch_ends_with_its_handle
                a_watch_ends_with_the_read_permission
                a_watcher_that_left_delays_no_writer
                a_writer_whose_node_leaves_may_have_notified
                a_watch_ends_with_its_home
                ports_of_watches_are_reserved
            }
            posted {
                posted_accesses_complete_with_their_bytes
                posted_writes_land_in_order
                polling_completes_a_posted_access
                a_refused_access_returns_its_buffer
                dropped_accesses_leak_nothing
            }
            waiting {
                a_wait_ends_after_earlier_writes_are_visible
                a_wait_ends_with_its_region
                a_wait_continues_while_its_region_moves
                a_wait_ends_with_the_read_permission
                a_wait_needs_an_aligned_word_inside
                a_progress_loop_sees_posted_writes_in_order
                progress_may_be_called_from_anywhere
            }
            batch {
                a_vectored_write_joins_its_pieces
                a_vectored_read_fills_its_pieces_in_order
                a_vectored_operation_is_refused_whole
                empty_lists_do_nothing
                a_batch_reaches_many_regions_in_order
                a_batch_stops_at_its_first_error
                an_owned_buffer_is_always_returned
                a_buffer_works_like_other_memory
            }
            chunks {
                every_border_between_chunks_is_seamless
                one_access_covers_many_chunks
                a_spread_region_is_one_region
                a_spread_region_may_end_within_a_chunk
                a_spread_region_is_freed_on_all_nodes
                a_refused_spread_region_leaves_nothing
            }
            permissions {
                the_creator_has_all_permissions
                others_have_the_permissions_of_everyone
                a_handle_has_only_the_requested_permissions
                a_grant_affects_only_its_principal
                everyone_can_be_granted_and_revoked
                open_handles_lose_a_revoked_permission
                only_masters_give_commands
                a_handle_commands_only_with_its_permissions
                a_handle_gains_no_permissions
                every_master_gives_commands
                grants_are_idempotent
                a_nameless_region_has_permissions_too
            }
            seal {
                a_sealed_region_refuses_writes
                sealing_again_changes_nothing
                a_sealed_region_can_be_moved
                a_sealed_region_can_be_freed
            }
            moving {
                a_moved_region_keeps_its_bytes
                handles_survive_a_move
                writes_during_a_move_are_kept
                a_move_to_the_same_node_has_no_effect
                a_move_to_an_unknown_node_is_refused
                a_move_that_does_not_fit_changes_nothing
                a_move_gathers_a_spread_region
                a_moved_region_is_found_by_its_name
            }
            free {
                every_handle_is_stale_after_free
                freed_memory_is_returned
                reused_memory_reads_as_zero
                reused_small_regions_read_as_zero
                a_region_is_freed_once
                a_master_may_free_from_any_node
            }
            handles {
                a_handle_is_invalid_in_other_sessions
                a_clone_of_a_session_shares_its_handles
                a_handle_ends_with_unmap
                an_old_handle_never_reaches_a_later_region
                a_region_outlives_its_handles
                a_dropped_session_leaves_no_mappings
            }
            directory {
                the_list_is_ordered_by_name
                a_description_matches_the_allocation
                the_epoch_counts_changes
                an_unknown_name_has_no_description
            }
            members {
                the_status_lists_every_node
                a_number_is_taken_while_its_node_lives
                other_nodes_continue_when_a_node_leaves
                regions_end_with_their_node
                names_of_a_node_that_left_are_lost
                a_returned_node_is_a_new_one
                a_node_that_joins_later_sees_all_regions
            }
            killed {
                only_accesses_to_a_killed_node_fail
                posted_accesses_to_a_killed_node_fail
                a_wait_for_a_word_of_a_killed_node_fails
                names_of_a_killed_node_are_lost_with_its_exit
                calls_to_a_killed_node_may_have_run
                messages_to_a_killed_node_fail
                the_lock_of_a_killed_node_is_recovered
                a_barrier_does_not_wait_for_a_killed_node
                a_killed_node_returns_as_a_new_one
                memory_mapped_by_a_killed_node_is_returned
                every_owner_reports_a_killed_node_as_cut_off
            }
            explain {
                an_explanation_covers_every_byte
                an_explanation_shows_missing_permissions
                only_valid_handles_are_explained
                lost_bytes_are_explained
                a_peer_is_explained
                calls_in_flight_are_explained
            }
            calls {
                payloads_of_any_length_arrive_whole
                an_answer_fills_the_buffer_from_its_start
                an_answer_longer_than_the_buffer_is_refused
                an_answer_taken_into_a_smaller_buffer_is_lost
                an_input_longer_than_a_gibibyte_is_refused
                calls_of_unserved_functions_fail
                a_function_is_served_once_per_node
                only_listed_principals_may_call
                a_full_function_refuses_calls
                an_unanswered_call_times_out
                a_dropped_call_fails_at_once
                calls_fail_when_their_function_ends
                threads_and_tasks_of_all_nodes_call_concurrently
                receivers_of_one_function_share_its_calls
                a_node_serves_thousands_of_functions
                an_unserved_function_blocks_only_itself
                many_nodes_are_called_with_one_input
                requests_wrap_around_a_small_ring
                thousands_of_calls_wait_at_once
                abandoned_calls_leak_nothing
                calls_end_with_the_servers_node
                a_handler_survives_its_callers_node
            }
            batches {
                calls_in_a_batch_get_their_answers
                a_batch_may_have_calls_of_all_lengths
                batches_and_single_calls_mix
                batches_wait_for_room_in_a_small_ring
                a_receiver_gets_at_most_the_requested_calls
                each_call_of_a_batch_fails_alone
                batches_without_a_server_fail
                batches_end_with_either_node
                an_abandoned_batch_leaks_nothing
            }
            messages {
                messages_of_one_sender_arrive_in_order
                every_message_is_received_once
                a_slow_receiver_loses_no_message
                try_send_fails_while_the_port_is_full
                waiting_senders_are_not_overtaken
                an_abandoned_send_leaves_its_room_to_others
                messages_to_closed_ports_fail
                only_listed_principals_may_send
                waiting_senders_fail_when_the_port_closes
                waiting_senders_fail_when_the_node_leaves
                long_messages_stay_in_order
            }
            senders {
                published_messages_arrive_in_order
                messages_of_a_dropped_sender_arrive
                a_slow_receiver_delays_publishers
                many_senders_publish_to_one_port
                publishers_learn_of_refused_messages
                a_full_port_limits_the_messages_of_a_node
                only_listed_principals_may_publish
            }
            dropped {
                an_abandoned_nameless_alloc_is_undone
                an_abandoned_alloc_is_whole_or_undone
                an_abandoned_map_leaves_no_mapping
                an_abandoned_unmap_leaks_nothing
                an_abandoned_free_is_done_or_not
                an_abandoned_grant_is_done_or_not
                an_abandoned_seal_is_done_or_not
                an_abandoned_move_loses_nothing
                an_abandoned_access_leaks_nothing
                an_abandoned_atomic_leaks_nothing
                an_abandoned_batch_leaks_nothing
                an_abandoned_memory_operation_leaks_nothing
                an_abandoned_query_leaks_nothing
                an_abandoned_call_leaks_nothing
                an_abandoned_send_leaks_nothing
                an_abandoned_recv_leaves_its_call_to_others
            }
        }
    };
}
