//! The conformance suite over each fabric: all cases over shared memory, and over the other fabrics a sample with a case
//! or more per subject, because packets and deaths of hosts take longer. The feature `deep` adds all other combinations.

#[cfg(not(feature = "deep"))]
macro_rules! sample {
    ($harness:expr) => {
        halite_testing::conformance_tests! { $harness;
            alloc { a_fresh_region_reads_as_zero freed_memory_can_always_be_reused }
            named { calls_find_the_server_of_a_name calls_alternate_between_servers_that_share }
            names { one_of_many_claims_of_a_name_succeeds }
            sharing { nodes_read_each_others_writes an_aligned_word_never_tears }
            access { every_alignment_is_exact }
            atomics { no_addition_is_lost_among_many no_addition_is_lost_while_the_region_moves }
            memory { a_copy_works_between_all_nodes }
            locks { no_update_is_lost_under_a_lock a_lock_kept_until_the_session_ends_is_recovered }
            barriers { no_participant_passes_before_all_have_arrived }
            watching { every_watcher_is_notified_once }
            posted { posted_writes_land_in_order }
            waiting {
                a_wait_continues_while_its_region_moves
                a_progress_loop_sees_posted_writes_in_order
                progress_may_be_called_from_anywhere
            }
            batch { a_batch_reaches_many_regions_in_order }
            chunks { every_border_between_chunks_is_seamless }
            permissions { open_handles_lose_a_revoked_permission }
            moving { writes_during_a_move_are_kept }
            free { reused_memory_reads_as_zero }
            members { a_returned_node_is_a_new_one }
            killed {
                only_accesses_to_a_killed_node_fail
                a_wait_for_a_word_of_a_killed_node_fails
                calls_to_a_killed_node_may_have_run
                the_lock_of_a_killed_node_is_recovered
                a_killed_node_returns_as_a_new_one
            }
            calls { payloads_of_any_length_arrive_whole a_full_function_refuses_calls }
            batches { calls_in_a_batch_get_their_answers }
            messages { a_slow_receiver_loses_no_message }
            senders { published_messages_arrive_in_order }
            dropped { an_abandoned_call_leaks_nothing }
        }
    };
}
#[cfg(feature = "deep")]
macro_rules! sample {
    ($harness:expr) => {
        halite_testing::conformance_suite!($harness);
    };
}

mod shm {
    halite_testing::conformance_suite!(halite_testing::conformance::embedded::DIRECT);
}

mod attached {
    halite_testing::conformance_suite!(halite_testing::conformance::embedded::ATTACHED);
}

mod roce {
    sample!(halite_testing::conformance::embedded::ROCE);
}

mod attached_over_roce {
    sample!(crate::scenarios::hosts::Hosts);
}

mod sim {
    sample!(halite_testing::conformance::sim::Simulated::profile("rnic-100g"));
}

#[cfg(feature = "deep")]
mod shm_by_call {
    halite_testing::conformance_suite!(halite_testing::conformance::embedded::BY_CALL);
}

#[cfg(feature = "deep")]
mod shm_posted {
    halite_testing::conformance_suite!(halite_testing::conformance::embedded::POSTED);
}

#[cfg(feature = "deep")]
mod sim_local {
    halite_testing::conformance_suite!(halite_testing::conformance::sim::Simulated::profile("local"));
}
