//! What an operator sees and does: inspect, list, forced release, more handles, close.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;

use super::{
    Subject,
    actor::{Actor, LONG, SHORT, key, until},
};
use crate::{FencingToken, HoldId, LockKey, Page, Release, Renewal, Severity, StoreErrorKind};

/// Everybody sees who holds a lock, since when, for how long, and who waits. Clauses 3 and 8; B59.
pub async fn inspect_tells_who_holds_and_who_waits(subject: &dyn Subject) {
    let key = key("inspect");
    let viewer = Actor::open(subject, &key, "viewer").await;
    let holder = Actor::open(subject, &key, "holder").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    assert_eq!(viewer.looks().await, None);
    let grant = holder.enters().await;
    holder.second_hold("second").enters().await;
    waiter.queues_at(1).await;
    // Long enough to be seen in whole milliseconds.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let info = viewer.sees().await;
    assert_eq!(info.key, key);
    let held = info.holder.expect("a holder");
    assert_eq!(
        (held.owner, held.token, held.holds),
        (holder.claim.owner, grant.token, 2)
    );
    assert_eq!(held.asker, holder.claim.asker);
    assert!(
        !held.held_for.is_zero() && held.held_for < LONG,
        "{:?}",
        held.held_for
    );
    let remaining = held.remaining;
    assert!(
        !remaining.is_zero() && remaining <= grant.ttl.as_duration(),
        "{remaining:?}"
    );
    assert_eq!(info.waiters.len(), 1);
    let waiting = &info.waiters[0];
    assert_eq!(
        (waiting.owner, &waiting.asker),
        (waiter.claim.owner, &waiter.claim.asker)
    );
    assert!(!waiting.waiting_for.is_zero() && waiting.waiting_for <= held.held_for);
    let listed = viewer
        .store
        .list(key.as_str(), Page::default())
        .await
        .expect("a list");
    assert_eq!(listed.locks.len(), 1);
    assert_eq!(
        listed.locks[0].holder.as_ref().expect("a holder").token,
        grant.token
    );
    assert_eq!(listed.locks[0].waiters.len(), 1);
    waiter.release().await;
    assert!(holder.force(None).await);
    assert_eq!(viewer.looks().await, None);
}

/// Looking at a lock neither takes nor prolongs nor creates it. B59.
pub async fn inspect_changes_nothing(subject: &dyn Subject) {
    let viewer = Actor::open(subject, &key("unused"), "viewer").await;
    for _ in 0..3 {
        assert_eq!(viewer.looks().await, None);
    }
    let listed = viewer
        .store
        .list(viewer.claim.key.as_str(), Page::default())
        .await;
    assert_eq!(listed.expect("a list").locks, []);
    viewer.rival("holder").enters().await;

    let key = key("watched");
    let holder = Actor::open(subject, &key, "holder").await.with_ttl(SHORT);
    holder.enters().await;
    until("the lease ends under the eyes of all", || async {
        let listed = viewer
            .store
            .list(key.as_str(), Page::default())
            .await
            .expect("a list");
        holder.looks().await.is_none() && listed.locks.is_empty()
    })
    .await;
    holder.rival("next").enters().await;
}

/// A list longer than a page is read page by page, with every lock in it once. B116.
pub async fn a_list_comes_in_pages(subject: &dyn Subject) {
    let prefix = format!("conformance/pages/{}/", HoldId::random());
    let handle = subject.open().await;
    let held: Vec<_> = (0..25)
        .map(|number| {
            let key = LockKey::new(format!("{prefix}{number}")).expect("a valid key");
            Actor::on(&handle, &key, "holder")
        })
        .collect();
    join_all(held.iter().map(Actor::enters)).await;
    let expected: BTreeSet<_> = held.iter().map(|actor| actor.claim.key.clone()).collect();
    for limit in [1, 4, 25, 1000] {
        let mut page = Page {
            limit,
            cursor: None,
        };
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let part = handle.list(&prefix, page.clone()).await.expect("a list");
            found.extend(part.locks.into_iter().map(|info| info.key));
            pages += 1;
            assert!(pages < 1000, "the list has no end");
            match part.next {
                Some(next) => page.cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(found.len(), expected.len(), "in pages of {limit}");
        assert_eq!(BTreeSet::from_iter(found), expected);
    }
}

/// An operator ends a grant whatever its holds; the old owner learns it, and the next token is
/// larger. Clauses 4 and 7; B51, B67.
pub async fn a_forced_release_ends_the_grant_with_all_its_holds(subject: &dyn Subject) {
    let key = key("forced");
    let outer = Actor::open(subject, &key, "outer").await;
    let inner = outer.second_hold("inner");
    let operator = Actor::open(subject, &key, "operator").await;
    assert!(!operator.force(None).await, "nobody holds it");
    let grant = outer.enters().await;
    inner.enters().await;
    assert!(operator.force(None).await);
    assert!(!operator.force(None).await, "it is free by now");
    assert_eq!(operator.looks().await, None);
    for actor in [&outer, &inner] {
        assert_eq!(actor.renew().await, Renewal::Gone { taken_over: false });
        assert_eq!(actor.release().await, Release::NotHeld);
    }
    let next = operator.enters().await;
    assert!(next.token > grant.token && next.holds == 1);
    assert_eq!(outer.renew().await, Renewal::Gone { taken_over: true });
    assert_eq!(outer.release().await, Release::NotHeld);
    operator.renews().await;
}

/// With a token, a forced release ends that grant and no other. Clause 4; B51.
pub async fn a_forced_release_with_a_token_acts_on_that_grant_only(subject: &dyn Subject) {
    let key = key("forced-token");
    let holder = Actor::open(subject, &key, "holder").await;
    let operator = Actor::open(subject, &key, "operator").await;
    let old = holder.enters().await.token;
    holder.leaves().await;
    assert!(!operator.force(Some(old)).await, "it is free");
    let token = holder.enters().await.token;
    let beside = |by: i64| FencingToken::new(token.as_u64().strict_add_signed(by));
    for wrong in [
        Some(old),
        beside(1),
        beside(-1),
        FencingToken::new(u64::MAX),
    ] {
        assert!(!operator.force(wrong).await, "{wrong:?} is not its token");
        operator.is_refused().await;
    }
    holder.renews().await;
    assert!(operator.force(Some(token)).await);
    assert!(!operator.force(Some(token)).await);
    assert!(operator.enters().await.token > token);
}

/// The lock goes to the first waiter, as after a release. Clauses 8 and 9; B51.
pub async fn a_forced_release_serves_the_queue(subject: &dyn Subject) {
    let key = key("forced-queue");
    let holder = Actor::open(subject, &key, "holder").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    holder.enters().await;
    waiter.queues_at(1).await;
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.waits_with(super::PATIENCE * 10).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(holder.force(None).await);
    let woken = tokio::time::timeout(super::PATIENCE, waiting).await;
    woken.expect("the waiter is woken").expect("a grant");
    holder.is_refused().await;
}

/// A dedicated handle is made and used on another thread and runtime, and outlives the first
/// one. Clause 12; A20, A23.
pub async fn a_dedicated_handle_works_on_another_runtime(subject: &dyn Subject) {
    let key = key("dedicated");
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let there = holder.clone();
    let thread = std::thread::spawn(move || {
        super::run(async {
            let dedicated = Actor {
                store: there.store.dedicated().await.expect("a handle"),
                ..there.clone()
            };
            dedicated.renews().await;
            dedicated.rival("rival").is_refused().await;
            there.store.close().await.expect("the first handle closes");
            dedicated.renews().await;
            assert_eq!(dedicated.leaves().await, 0);
            dedicated
                .store
                .close()
                .await
                .expect("the dedicated handle closes");
        });
    });
    // A thread that nobody waits for on this runtime.
    until("the other thread is done", || async {
        thread.is_finished()
    })
    .await;
    thread.join().expect("the other thread succeeds");
    Actor::open(subject, &key, "next").await.enters().await;
}

/// Closing a handle ends neither locks nor other handles. Clauses 12 and 13; B113.
pub async fn closing_a_handle_closes_nothing_else(subject: &dyn Subject) {
    let key = key("close");
    let holder = Actor::open(subject, &key, "holder").await;
    let other = Actor::open(subject, &key, "other").await;
    let elsewhere = holder.elsewhere(subject).await;
    holder.enters().await;
    holder.store.close().await.expect("the handle closes");
    let refused = holder.store.try_acquire(&holder.claim).await;
    assert_eq!(
        refused.expect_err("it is closed").kind(),
        StoreErrorKind::Closed
    );
    other.is_refused().await;
    elsewhere.renews().await;
    assert_eq!(elsewhere.leaves().await, 0);
    other.enters().await;
}

/// An examination finds nothing that keeps a sound store from locking, and changes nothing.
/// Clause 8.
pub async fn an_examination_changes_nothing(subject: &dyn Subject) {
    let key = key("examined");
    let holder = Actor::open(subject, &key, "holder").await;
    let grant = holder.enters().await;
    let viewer = Actor::open(subject, &key, "viewer").await;
    let findings = viewer.store.examine().await.expect("findings");
    assert!(!findings.is_empty());
    for finding in findings {
        assert!(finding.severity < Severity::Failure, "{finding:?}");
        assert!(!finding.subject.is_empty() && !finding.what.is_empty());
    }
    let held = viewer.sees().await.holder.expect("a holder");
    assert_eq!((held.token, held.holds), (grant.token, 1));
    holder.renews().await;
}

/// What a store says of itself is what it does. Clause 5; B76.
pub async fn capabilities_are_what_is_granted(subject: &dyn Subject) {
    let actor = Actor::open(subject, &key("capabilities"), "actor").await;
    let says = actor.capabilities();
    assert!(!says.store.is_empty());
    assert!(
        says.min_ttl.as_duration() <= Duration::from_secs(5),
        "{}",
        says.min_ttl
    );
    let shortest = actor.clone().with_ttl(Duration::from_millis(1));
    let granted = shortest.enters().await.ttl;
    assert_eq!(
        granted, says.min_ttl,
        "what the shortest ttl is rounded up to"
    );
    assert_eq!(subject.open().await.capabilities().min_ttl, says.min_ttl);
}
