//! The test suite that every store has to pass.
//!
//! Each behaviour is one public async function, named after what it checks; its documentation
//! names the clause of the contract and the field cases it covers. A store runs all of them with
//! one line in a test file of its own:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use lock_core::{DistributedLock, MemoryLock, conformance::Subject};
//!
//! struct Memory(MemoryLock);
//!
//! #[async_trait]
//! impl Subject for Memory {
//!     async fn open(&self) -> Arc<dyn DistributedLock> {
//!         Arc::new(self.0.handle())
//!     }
//! }
//!
//! // A function that starts or finds the server, once for all tests.
//! async fn memory() -> Memory {
//!     Memory(MemoryLock::new())
//! }
//!
//! lock_core::conformance_tests!(memory().await);
//! # fn main() {}
//! ```
//!
//! The macro makes a module `conformance` with one `#[test]` for each behaviour, every one on a
//! runtime of its own with two worker threads. All of them may run at the same time on one
//! server: their keys end in random digits. No test depends on the speed of the machine: what must
//! never happen is asserted exactly, what must happen in the end gets [`PATIENCE`], and all times
//! derive from the ttl that the store granted.
//!
//! # The clauses
//!
//! | clause | what it says | modules |
//! | --- | --- | --- |
//! | 1 | exclusion | [`exclusion`] |
//! | 2, 3 | idempotence, re-entry | [`holds`], [`reentry`] |
//! | 4 | tokens grow | [`tokens`] |
//! | 5 | the store's clock ends a lease | [`lease`] |
//! | 6 | the client's monotonic clock ends trust | [`guard`] |
//! | 7 | only owner and hold | [`ownership`] |
//! | 8, 9, 11 | first come, first served; wake-ups are advice; no connection per waiter | [`queue`], [`client`] |
//! | 10 | names are exact | [`names`] |
//! | 12 | drop anything, any time | [`cancel`], [`guard`] |
//! | 13 | errors keep their kinds | [`errors`] |
//! |  | what an operator sees and does | [`operator`] |

mod actor;
pub mod cancel;
pub mod client;
pub mod errors;
pub mod exclusion;
pub mod guard;
pub mod holds;
pub mod lease;
pub mod names;
pub mod operator;
pub mod ownership;
pub mod queue;
pub mod reentry;
mod spy;
pub mod tokens;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;

use crate::DistributedLock;

/// How long something that has to happen may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The store under test.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// A new handle on the same store, as another process would open it.
    async fn open(&self) -> Arc<dyn DistributedLock>;
}

/// Hands the list of all behaviours, as `group::behaviour`, to another macro.
///
/// The only list there is: what is added here is a test of every store.
#[doc(hidden)]
#[macro_export]
macro_rules! __with_behaviours {
    ($then:ident $(, $subject:expr)?) => {
        $crate::$then! {
            $($subject,)?
            exclusion::a_held_lock_is_refused_to_others,
            exclusion::a_released_lock_is_free_at_once,
            exclusion::of_many_rivals_one_wins,
            exclusion::a_counter_under_the_lock_is_exact,
            exclusion::renewing_never_lets_a_rival_in,
            exclusion::an_attempt_that_does_not_queue_leaves_nothing_behind,

            holds::the_same_hold_again_is_the_same_grant,
            holds::simultaneous_repeats_count_once,
            holds::a_repeat_starts_the_lease_anew,
            holds::a_queued_claim_again_keeps_its_place,
            holds::another_hold_of_the_owner_enters_once_more,
            holds::holds_may_leave_in_any_order,
            holds::a_second_hold_never_shortens_the_lease,
            holds::a_second_hold_prolongs_the_lease,
            holds::re_entry_does_not_wait_behind_the_queue,
            holds::queued_claims_of_one_owner_enter_together,
            holds::a_release_counts_once,
            holds::all_holds_end_with_the_lease,

            tokens::every_new_grant_has_a_larger_token,
            tokens::re_entry_and_renewal_keep_the_token,
            tokens::a_forgotten_key_does_not_repeat_a_token,

            lease::a_lease_ends_by_itself_and_never_early,
            lease::a_granted_ttl_is_never_shorter_than_asked,
            lease::a_renewal_starts_the_lease_anew,
            lease::a_renewal_never_shortens_the_lease,
            lease::a_renewal_takes_its_own_ttl,
            lease::a_renewal_after_the_end_is_gone,
            lease::an_unwatched_lease_ends_as_well,
            lease::a_renewal_that_races_the_end_is_decided_once,
            lease::renewals_in_a_batch_are_answered_in_order,

            ownership::a_stranger_cannot_release,
            ownership::a_stranger_cannot_renew,
            ownership::an_unknown_hold_of_the_owner_changes_nothing,
            ownership::a_known_hold_of_another_owner_changes_nothing,
            ownership::a_late_release_leaves_the_next_owner_alone,
            ownership::a_claim_is_about_one_key_only,
            ownership::only_the_waiter_withdraws_its_claim,
            ownership::releasing_what_nobody_holds_changes_nothing,

            queue::waiters_see_their_place,
            queue::waiters_are_served_in_the_order_of_arrival,
            queue::nobody_overtakes_a_waiter,
            queue::waiters_that_wake_up_for_nothing_keep_their_order,
            queue::a_release_wakes_the_first_waiter,
            queue::a_release_does_not_wake_everybody,
            queue::a_withdrawn_waiter_leaves_no_trace,
            queue::a_waiter_that_gives_up_its_turn_passes_it_on,
            queue::a_dead_waiter_does_not_block_the_queue,
            queue::a_waiter_gets_a_lock_whose_lease_ends,
            queue::a_waiter_may_wait_longer_than_its_ttl,
            queue::many_locks_and_waiters_share_one_handle,

            names::different_names_are_different_locks,
            names::long_names_differ_in_their_last_byte,
            names::random_names_never_meet,
            names::a_prefix_lists_what_starts_with_it,
            names::a_prefix_is_taken_literally,
            names::waiters_are_woken_under_any_name,

            operator::inspect_tells_who_holds_and_who_waits,
            operator::inspect_changes_nothing,
            operator::an_examination_changes_nothing,
            operator::a_list_comes_in_pages,
            operator::a_forced_release_ends_the_grant_with_all_its_holds,
            operator::a_forced_release_with_a_token_acts_on_that_grant_only,
            operator::a_forced_release_serves_the_queue,
            operator::a_dedicated_handle_works_on_another_runtime,
            operator::closing_a_handle_closes_nothing_else,
            operator::capabilities_are_what_is_granted,

            client::who_does_not_wait_is_told_who_holds_the_lock,
            client::a_wait_ends_at_its_limit,
            client::a_wait_without_limit_outlasts_every_ttl,
            client::clients_are_served_in_the_order_of_arrival,
            client::garbage_wake_ups_are_harmless,
            client::a_waiter_that_hears_nothing_gets_its_turn,
            client::a_client_takes_over_when_a_lease_ends,
            client::clients_that_give_up_leave_no_trace,
            client::a_counter_over_clients_is_exact,
            client::opposite_orders_end_in_a_time_out,
            client::a_shutdown_releases_everything,
            client::a_drain_lets_work_end_under_its_lock,

            guard::renewals_keep_a_lock_for_many_ttls,
            guard::a_lock_is_lost_before_anybody_else_gets_it,
            guard::the_deadline_counts_from_before_the_request,
            guard::a_guard_renews_by_hand,
            guard::a_forced_release_is_noticed,
            guard::a_taken_lock_is_left_alone,
            guard::max_hold_ends_a_hold,
            guard::min_hold_outlasts_the_guard,
            guard::min_hold_is_leased_after_a_wait,
            guard::work_stops_when_its_lock_is_lost,
            guard::a_dropped_guard_is_released,
            guard::a_guard_outlives_its_runtime,
            guard::no_renewal_outlives_its_guard,
            guard::a_lock_is_handed_over,
            guard::a_lost_lock_can_be_acquired_again,

            reentry::an_owner_enters_again_without_a_request,
            reentry::processes_share_an_owner,
            reentry::tasks_of_one_client_are_strangers,
            reentry::simultaneous_entries_share_a_hold,
            reentry::too_many_holds_are_refused,
            reentry::re_entry_of_a_lost_lock_is_refused,

            cancel::a_dropped_attempt_can_be_withdrawn,
            cancel::a_dropped_wait_keeps_the_place,
            cancel::an_acquire_dropped_at_any_poll_leaves_nothing,
            cancel::a_cancelled_waiter_passes_the_lock_on,
            cancel::an_outer_time_out_leaves_nothing,

            errors::a_closed_handle_says_so,
            errors::impossible_requests_are_not_sent,
            errors::the_longest_of_all_is_possible,
            errors::every_outcome_has_its_own_error,
        }
    };
}

/// Makes a module `conformance` with a test for each behaviour of the suite.
///
/// The argument is an expression that gives the [`Subject`](crate::conformance::Subject); it is
/// evaluated inside each test's runtime and may `.await`.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        mod conformance {
            #[allow(unused_imports)]
            use super::*;
            $crate::__with_behaviours!(__conformance_tests, $subject);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($subject:expr, $($group:ident::$behaviour:ident,)*) => {
        $(
            #[test]
            fn $behaviour() {
                $crate::conformance::run(async {
                    let subject = $subject;
                    $crate::conformance::$group::$behaviour(&subject).await
                });
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __behaviour_names {
    ($($group:ident::$behaviour:ident,)*) => {
        &[$(stringify!($behaviour)),*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __behaviours {
    ($($group:ident::$behaviour:ident,)*) => {
        &[$((
            stringify!($behaviour),
            |subject| Box::pin($crate::conformance::$group::$behaviour(subject)),
        )),*]
    };
}

/// The names of all behaviours, in the order of the clauses.
pub const BEHAVIOURS: &[&str] = crate::__with_behaviours!(__behaviour_names);

/// A behaviour by its name, for those who run it otherwise than with
/// [`conformance_tests!`](crate::conformance_tests); [`run`] gives it a runtime.
pub type Behaviour = (
    &'static str,
    for<'a> fn(&'a dyn Subject) -> LocalBoxFuture<'a, ()>,
);

/// All behaviours, in the order of the clauses.
pub const ALL: &[Behaviour] = crate::__with_behaviours!(__behaviours);

/// Runs one behaviour to its end on a runtime of its own; a test that calls a behaviour itself
/// may use it.
pub fn run(behaviour: impl Future<Output = ()>) {
    const LIMIT: Duration = Duration::from_secs(600);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime
        .block_on(async { tokio::time::timeout(LIMIT, behaviour).await })
        .unwrap_or_else(|_| panic!("the behaviour did not come to an end within {LIMIT:?}"));
}
