//! Clause 3 through an [`Owner`](crate::Owner): free in the process, counted between processes.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{
    PATIENCE, Subject,
    actor::{Actor, LONG, SHORT, client, key, until},
    spy::Spy,
};
use crate::{Error, LockClient, OwnerId, Wait};

/// An owner enters a lock it holds again without asking anybody, and the last one to leave
/// releases it. Clause 3; A26, B44, B60.
pub async fn an_owner_enters_again_without_a_request(subject: &dyn Subject) {
    let key = key("owner");
    let spy = Spy::on(subject.open().await);
    let client = LockClient::new(spy.store());
    let viewer = Actor::open(subject, &key, "viewer").await;
    let owner = client.owner();
    let outer = owner
        .lock(&key)
        .ttl(LONG)
        .acquire()
        .await
        .expect("the lock");
    let before = spy.seen.requests();
    let mut inner = Vec::new();
    for holds in 2..5 {
        let owner = owner.clone();
        let key = key.clone();
        let entering = tokio::spawn(async move { owner.lock(key).try_acquire().await });
        let guard = entering
            .await
            .expect("no panic")
            .expect("it is held by its owner");
        assert_eq!((guard.token(), guard.holds()), (outer.token(), holds));
        inner.push(guard);
    }
    assert_eq!(spy.seen.requests(), before, "re-entry asks nobody");
    assert_eq!(viewer.sees().await.holder.expect("a holder").holds, 1);
    outer.release().await.expect("it was held");
    for guard in inner {
        viewer.is_refused().await;
        assert!(guard.is_held());
        guard.release().await.expect("it was held");
    }
    viewer.enters().await;
}

/// Two processes that share an owner's id are in the lock at the same time, with the same token,
/// and leave in any order. Clause 3; A26, B44, B92.
pub async fn processes_share_an_owner(subject: &dyn Subject) {
    let key = key("shared-owner");
    let clients = [client(subject).await, client(subject).await];
    let viewer = Actor::open(subject, &key, "viewer").await;
    for first_leaves in [true, false] {
        let id = OwnerId::random();
        let [first, second] = [0, 1].map(|place| clients[place].owner_from(id));
        let outer = first
            .lock(&key)
            .ttl(LONG)
            .acquire()
            .await
            .expect("the lock");
        let inner = second
            .lock(&key)
            .ttl(LONG)
            .try_acquire()
            .await
            .expect("the same owner");
        assert_eq!(
            (inner.token(), inner.owner(), inner.holds()),
            (outer.token(), id, 2)
        );
        assert_eq!(viewer.sees().await.holder.expect("a holder").holds, 2);
        let (goes, stays) = if first_leaves {
            (outer, inner)
        } else {
            (inner, outer)
        };
        goes.release().await.expect("it was held");
        viewer.is_refused().await;
        assert!(stays.is_held());
        stays.release().await.expect("it was held");
        assert_eq!(viewer.looks().await, None);
    }
}

/// Tasks of one client are strangers to each other unless they share an owner. Clauses 1 and 3;
/// B17, B92.
pub async fn tasks_of_one_client_are_strangers(subject: &dyn Subject) {
    let key = key("strangers");
    let client = client(subject).await;
    let guard = client.acquire(&key).await.expect("the lock");
    let attempts = [
        client.lock(&key).try_acquire().await,
        client.owner().lock(&key).try_acquire().await,
        client.clone().try_acquire(&key).await,
    ];
    for refused in attempts {
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    }
    let owner = client.owner();
    let wait = Duration::from_millis(200);
    let refused = owner.lock(&key).wait(wait).acquire().await;
    assert!(
        matches!(refused, Err(Error::Timeout { .. })),
        "no endless wait: {refused:?}"
    );
    guard.release().await.expect("it was held");
}

/// Tasks of one owner that come at the same time, in two processes, share one hold in each.
/// Clauses 2 and 3; A26, B44.
pub async fn simultaneous_entries_share_a_hold(subject: &dyn Subject) {
    let key = key("simultaneous");
    let clients = [client(subject).await, client(subject).await];
    let viewer = Actor::open(subject, &key, "viewer").await;
    let id = OwnerId::random();
    let entering = (0..8).map(|task| {
        let owner = clients[task % 2].owner_from(id);
        owner.lock(&key).ttl(LONG).wait(PATIENCE).acquire()
    });
    let guards: Vec<_> = join_all(entering)
        .await
        .into_iter()
        .map(|g| g.expect("it is ours"))
        .collect();
    assert!(
        guards
            .iter()
            .all(|guard| guard.token() == guards[0].token())
    );
    assert_eq!(viewer.sees().await.holder.expect("a holder").holds, 2);
    for guard in guards {
        viewer.is_refused().await;
        guard.release().await.expect("it was held");
    }
    viewer.enters().await;
}

/// The limit of holds is an error of its own, over processes too, and changes nothing. Clauses 3
/// and 13; A28.
pub async fn too_many_holds_are_refused(subject: &dyn Subject) {
    let key = key("too-many");
    let viewer = Actor::open(subject, &key, "viewer").await;
    let id = OwnerId::random();
    let mut guards = Vec::new();
    for place in 0..3 {
        let builder = LockClient::builder(subject.open().await)
            .ttl(LONG)
            .max_holds(2);
        let owner = builder.build().expect("a client").owner_from(id);
        let entered = owner.lock(&key).try_acquire().await;
        match entered {
            Ok(guard) if place < 2 => guards.push(guard),
            Err(Error::TooManyHolds { limit: 2, .. }) if place == 2 => {}
            other => panic!("entry {place}: {other:?}"),
        }
    }
    until("the refused hold is taken back", || async {
        viewer.sees().await.holder.expect("a holder").holds == 2
    })
    .await;
    for guard in guards {
        viewer.is_refused().await;
        guard.release().await.expect("it was held");
    }
    viewer.enters().await;
}

/// An owner whose lock is lost is told so when it enters again, until its guards are gone.
/// Clauses 3 and 6; A27, B19.
pub async fn re_entry_of_a_lost_lock_is_refused(subject: &dyn Subject) {
    let key = key("lost-re-entry");
    let owner = client(subject).await.owner();
    let outer = owner
        .lock(&key)
        .ttl(SHORT)
        .manual_renewal()
        .acquire()
        .await
        .expect("the lock");
    timeout(PATIENCE, outer.lost())
        .await
        .expect("the lease ends");
    let refused = owner.lock(&key).try_acquire().await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    let token = outer.token();
    drop(outer);
    // Local trust ends a little before the lease.
    let viewer = Actor::open(subject, &key, "viewer").await;
    until("the lease ends", || async {
        viewer.looks().await.is_none()
    })
    .await;
    let again = owner
        .lock(&key)
        .wait(Wait::AtMost(PATIENCE))
        .acquire()
        .await;
    let again = again.expect("a fresh start");
    assert!(again.token() > token);
    again.release().await.expect("it was held");
}
