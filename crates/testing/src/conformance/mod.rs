//! The conformance suite of the public API.
//!
//! Each case is a function named after what is expected, over a [`Harness`]; [`conformance_suite!`] instantiates all of them for
//! a way of running nodes (another fabric, middleware in between, virtual time).  The cases know only what
//! applications know: no case looks inside a node, or at which fabric it runs on.
//!
//! A case takes sessions, and lets nodes come and go; who gives out the ones ([`cluster::Sessions`]) need not be who sees to the
//! others ([`cluster::Nodes`]).  It waits, and starts threads, by what is in [`turns`], so that it is told in real time over
//! [`embedded`] and in virtual time over [`sim`].
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
pub mod etcd;
pub mod explain;
pub mod free;
pub mod handles;
pub mod killed;
pub mod locks;
pub mod members;
pub mod memory;
pub mod messages;
pub mod moving;
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

/// Fails unless an operation was refused for the reason that the pattern describes.
macro_rules! refused {
    ($result:expr, $cause:pat) => {
        match $result {
            Ok(_) => panic!("`{}` was not refused", stringify!($result)),
            Err(error) => assert!(
                matches!(error.cause(), $cause),
                "`{}` was refused otherwise than by {}: {error} ({:?})",
                stringify!($result),
                stringify!($cause),
                error.cause(),
            ),
        }
    };
}
pub(crate) use refused;

/// Turns every case into a `#[test]` for the harness that the expression gives.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_cases! { $crate::conformance_tests, $harness }
    };
}

/// One module of tests per area.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr; $($area:ident { $($case:ident)* })*) => {
        $(mod $area {
            #[allow(unused_imports, reason = "the harness may be named in full")]
            use super::*;
            $(#[test]
            fn $case() {
                let harness = $harness;
                match $crate::conformance::Harness::cannot(&harness, stringify!($case)) {
                    Some(why) => println!("not told: {why}"),
                    None => $crate::conformance::$area::$case(&harness),
                }
            })*
        })*
    };
}

/// The list of all cases, handed to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:path, $harness:expr) => {
        $then! { $harness;
            alloc {
                a_fresh_region_reads_as_zero
                a_populated_region_is_as_any_other
                a_region_reads_back_what_was_written
                a_region_needs_no_name
                a_region_has_the_length_that_was_asked_for
                a_region_of_no_bytes_is_refused
                a_region_larger_than_the_memory_is_refused_and_leaves_nothing
                an_absurd_length_is_refused
                regions_do_not_overlap
                a_region_goes_to_the_node_that_was_named
                an_unknown_node_is_refused
                anywhere_means_here_where_there_is_memory
                anywhere_finds_room_for_a_node_without_memory
                here_is_refused_where_there_is_no_memory
                memory_does_not_wear_out
            }
            names {
                a_name_is_given_once
                a_name_is_free_after_its_region
                a_name_that_many_want_goes_to_one
                the_empty_name_is_refused
                a_name_has_at_most_255_bytes
                any_text_is_a_name
                a_name_is_found_only_whole
                a_region_may_be_named_when_it_is_ready
                a_name_that_is_taken_is_not_given_late
                a_region_keeps_its_name
                only_masters_give_names
            }
            sharing {
                what_one_node_writes_another_reads
                an_unknown_name_cannot_be_mapped
                each_mapping_is_a_handle_of_its_own
                a_region_knows_who_maps_it
                threads_share_a_session
                an_aligned_word_never_tears
                many_regions_live_side_by_side
            }
            access {
                nothing_behind_the_end_is_reached
                an_offset_that_overflows_is_refused
                nothing_can_be_moved_to_the_very_end
                a_region_behaves_like_an_array
                every_alignment_is_exact
                an_error_names_the_operation_and_the_region
            }
            atomics {
                atomics_return_what_the_word_held
                an_addition_wraps_around
                a_word_is_eight_bytes_in_the_order_of_the_machine
                no_addition_is_lost_among_many
                one_swap_wins_among_many
                swaps_go_on_as_long_as_each_finds_what_it_expects
                swaps_stop_where_one_cannot_be_made
                atomics_need_their_permission
                a_word_must_be_aligned
                a_word_must_be_inside
                a_sealed_region_takes_no_atomics
                no_addition_is_lost_while_the_region_moves
            }
            memory {
                a_fill_sets_just_its_bytes
                a_copy_goes_from_region_to_region
                a_copy_may_overlap_itself
                copies_agree_with_arrays
                a_long_copy_moves_up_and_down
                nothing_is_touched_unless_all_is_permitted
                nothing_can_be_filled_and_copied
                memory_operations_during_a_move_are_kept
                what_is_gone_is_neither_filled_nor_copied
            }
            locks {
                a_lock_is_held_by_one_session
                a_dropped_guard_gives_the_lock_up
                a_session_takes_a_lock_once
                what_is_not_held_is_not_given_up
                a_lock_that_stays_held_is_waited_for_no_longer_than_told
                who_waits_gets_the_lock_in_order
                nothing_is_lost_under_a_lock
                tokens_rise_from_holder_to_holder
                an_abandoned_wait_for_a_lock_holds_up_nobody
                a_lock_kept_until_the_session_ends_is_recovered
                the_lock_of_a_node_that_left_is_recovered
                a_lock_may_be_for_some_only
                locks_hide_from_lists_and_names
                who_holds_a_lock_is_told_when_it_may_be_another_ones
                a_freed_lock_is_made_anew
                a_lock_is_made_anew_after_its_home_left
            }
            barriers {
                nobody_passes_before_all_are_there
                a_barrier_is_used_again_and_again
                a_missing_participant_is_a_timeout_for_all
                another_number_of_participants_is_refused
                who_gave_up_waiting_is_not_counted
                who_left_is_not_counted
            }
            watching {
                a_watcher_hears_in_order_of_what_it_can_read
                every_watcher_hears_everything_once
                a_slow_watcher_holds_up_the_writer_and_nobody_else
                a_dropped_watch_holds_up_nobody
                an_abandoned_watch_leaves_nothing
                watching_is_reading_and_telling_is_writing
                a_watch_goes_on_while_its_region_moves
                a_watch_ends_with_its_handle
                a_watch_ends_with_the_right_to_read
                a_watcher_that_left_is_no_error
                a_writer_whose_node_leaves_may_have_told
                a_watch_ends_with_its_home
                ports_of_watches_are_reserved
            }
            posted {
                posted_accesses_end_with_their_bytes
                posted_writes_land_in_order
                a_posted_access_ends_while_it_is_polled
                a_refused_access_returns_its_buffer
                dropped_accesses_leave_nothing_behind
            }
            waiting {
                a_wait_ends_with_the_word_and_shows_what_came_before
                a_wait_ends_with_its_region
                a_wait_ends_with_the_right_to_read
                only_aligned_words_inside_are_waited_for
            }
            batch {
                a_vectored_write_lays_its_pieces_end_to_end
                a_vectored_read_fills_its_pieces_in_order
                a_vectored_operation_is_refused_whole
                empty_lists_do_nothing
                a_batch_reaches_many_regions_in_order
                a_batch_stops_at_its_first_error_and_names_it
                an_owned_buffer_always_comes_back
            }
            chunks {
                every_border_between_chunks_is_seamless
                one_access_covers_many_chunks
                a_spread_region_is_one_region
                a_spread_region_may_end_within_a_chunk
                a_spread_region_is_given_back_everywhere
                a_spread_that_does_not_fit_leaves_nothing
            }
            permissions {
                the_maker_has_all_permissions
                others_have_what_everyone_was_given
                a_handle_allows_only_what_was_asked_for
                a_grant_is_for_the_one_who_is_named
                everyone_can_be_granted_and_revoked
                a_revoked_permission_is_gone_from_open_handles
                who_is_no_master_commands_nothing
                a_handle_commands_only_if_it_was_mapped_for_that
                a_handle_does_not_grow_with_its_principal
                a_second_master_commands_too
                grants_are_idempotent
                a_nameless_region_has_permissions_too
            }
            seal {
                a_sealed_region_takes_no_writes
                sealing_again_changes_nothing
                a_sealed_region_can_be_moved
                a_sealed_region_can_be_freed
            }
            moving {
                a_moved_region_keeps_its_bytes
                handles_survive_a_move
                writes_during_a_move_are_kept
                a_move_to_the_same_place_is_nothing
                a_move_to_an_unknown_node_is_refused
                a_move_that_does_not_fit_changes_nothing
                a_spread_region_can_be_gathered
                a_moved_region_is_found_by_its_name
            }
            free {
                every_handle_is_stale_after_free
                freed_memory_is_given_back
                reused_memory_reads_as_zero
                reused_crumbs_read_as_zero
                a_region_is_freed_once
                a_master_may_free_from_any_node
            }
            handles {
                a_handle_means_nothing_elsewhere
                a_clone_of_a_session_shares_its_handles
                a_handle_ends_with_unmap
                an_old_handle_never_reaches_a_younger_region
                a_region_outlives_its_handles
                a_dropped_session_leaves_no_mappings
            }
            directory {
                the_list_is_ordered_by_name
                a_description_is_true
                the_epoch_counts_changes
                an_unknown_name_has_no_description
            }
            members {
                the_status_lists_every_node
                a_number_is_taken_while_its_node_lives
                the_others_go_on_when_a_node_leaves
                regions_end_with_their_node
                names_of_a_node_that_left_are_told_as_lost
                a_returned_node_is_a_new_one
                who_joins_later_sees_everything
            }
            killed {
                accesses_on_a_killed_node_fail_and_others_go_on
                posted_accesses_to_a_killed_node_fail
                names_of_a_killed_node_are_kept_until_its_end_is_known
                calls_on_a_killed_node_are_told_that_they_may_have_run
                messages_to_a_killed_node_are_told_to_be_lost
                the_lock_of_a_killed_node_is_recovered
                a_barrier_does_not_wait_for_a_killed_node
                a_killed_node_comes_back_as_a_new_one
                the_owner_takes_back_what_a_killed_node_had_mapped
                each_owner_says_that_a_killed_node_is_cut_off_from_its_memory
            }
            explain {
                an_explanation_accounts_for_every_byte
                an_explanation_tells_what_a_handle_lacks
                only_handles_that_lead_somewhere_are_explained
                bytes_that_are_gone_are_explained
                a_peer_is_explained
                calls_under_way_are_explained
            }
            calls {
                payloads_of_any_length_arrive_whole
                an_answer_fills_the_buffer_from_its_start
                an_answer_longer_than_the_buffer_is_refused
                an_answer_longer_than_the_room_for_it_is_lost
                an_input_longer_than_a_gibibyte_is_refused
                whom_nobody_serves_cannot_be_called
                a_function_is_served_once_at_a_node
                only_those_on_the_list_may_call
                a_full_function_refuses_calls
                a_handler_that_never_answers_costs_a_deadline
                a_call_that_its_handler_drops_is_told_at_once
                callers_are_told_when_a_function_ends
                threads_and_tasks_of_all_nodes_call_at_once
                receivers_of_one_function_share_its_calls
                a_node_serves_thousands_of_functions
                an_unserved_function_blocks_only_itself
                many_nodes_are_called_with_one_input
                a_small_ring_goes_round_and_round
                thousands_of_calls_wait_side_by_side
                calls_that_are_given_up_cost_nothing_for_long
                calls_end_with_the_server_s_node
                a_handler_goes_on_when_its_caller_s_node_leaves
            }
            batches {
                calls_in_a_batch_get_their_answers
                a_batch_may_have_calls_of_all_lengths
                batches_and_single_calls_mix
                batches_wait_for_room_in_a_small_ring
                a_receiver_takes_no_more_than_it_asked_for
                each_call_of_a_batch_fails_for_itself
                batches_that_lead_nowhere_fail
                batches_end_with_either_node
                an_abandoned_batch_leaks_nothing
            }
            messages {
                messages_of_one_sender_arrive_in_order
                every_message_of_many_goes_to_one_receiver
                a_slow_receiver_holds_up_its_senders_and_loses_nothing
                a_full_port_takes_no_more_from_those_who_do_not_wait
                those_that_wait_for_room_are_not_overtaken
                a_sender_that_gives_up_leaves_its_room_to_others
                whom_nobody_listens_to_cannot_be_sent_to
                only_those_on_the_list_may_send
                senders_that_wait_are_told_when_the_port_closes
                senders_that_wait_are_told_when_the_node_leaves
                long_messages_keep_their_turn
            }
            senders {
                published_messages_arrive_in_order
                what_was_published_is_received_though_its_sender_does_nothing_more
                a_slow_receiver_holds_up_who_publishes
                many_publish_to_one_port
                who_publishes_is_told_what_was_not_received
                a_full_port_keeps_no_more_than_so_much_of_what_is_published
                only_those_on_the_list_may_publish
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
                an_abandoned_question_leaks_nothing
                an_abandoned_call_leaks_nothing
                an_abandoned_send_leaks_nothing
                an_abandoned_recv_leaves_its_call_to_others
            }
        }
    };
}
