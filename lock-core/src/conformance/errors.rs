//! Clause 13: errors keep their kinds.

use std::time::Duration;

use super::{
    Subject,
    actor::{Actor, LONG, client, key},
    spy::Spy,
};
use crate::{Error, LockClient, LockKey, LostReason, Page, StoreErrorKind, Ttl};

/// Every verb of a closed handle fails as closed, and closing again is fine. Clause 13; B126.
pub async fn a_closed_handle_says_so(subject: &dyn Subject) {
    let actor = Actor::open(subject, &key("closed"), "actor")
        .await
        .queueing();
    actor.enters().await;
    let store = &actor.store;
    store.close().await.expect("the handle closes");
    let claim = &actor.claim;
    let mut errors = vec![
        store.try_acquire(claim).await.map(drop),
        store.renew(claim).await.map(drop),
        store.release(claim).await.map(drop),
        store.inspect(&claim.key).await.map(drop),
        store.list("", Page::default()).await.map(drop),
        store.examine().await.map(drop),
        store.force_release(&claim.key, None).await.map(drop),
    ];
    errors.extend(
        store
            .renew_all(std::slice::from_ref(claim))
            .await
            .into_iter()
            .map(|r| r.map(drop)),
    );
    assert_eq!(errors.len(), 8);
    for (verb, error) in errors.into_iter().enumerate() {
        let error = error.expect_err("the handle is closed");
        assert_eq!(error.kind(), StoreErrorKind::Closed, "verb {verb}: {error}");
    }
    // Advice may come or not; it must not break.
    let busy = crate::Busy::default();
    tokio::time::timeout(Duration::from_millis(50), store.wait(claim, &busy))
        .await
        .ok();
    store.close().await.expect("closing again is fine");
    let next = Actor::open(subject, &claim.key, "next").await;
    next.is_refused().await;
}

/// What cannot be is refused before anything is sent. Clause 13; A38, A39, B76, B91, B126.
pub async fn impossible_requests_are_not_sent(subject: &dyn Subject) {
    let spy = Spy::on(subject.open().await);
    let client = LockClient::new(spy.store());
    let long = "x".repeat(LockKey::MAX_LEN + 1);
    for name in [
        "",
        long.as_str(),
        "nul\0",
        "line\nbreak",
        "\u{7f}",
        "\u{85}",
    ] {
        let refused = client.acquire(name).await;
        assert!(
            matches!(refused, Err(Error::InvalidKey(_))),
            "{name:?}: {refused:?}"
        );
        let refused = client.run(name, async |_| ()).await.map_err(Error::from);
        assert!(
            matches!(refused, Err(Error::InvalidKey(_))),
            "{name:?}: {refused:?}"
        );
    }
    let key = key("impossible");
    let too_long = Ttl::MAX.as_duration() + Duration::from_nanos(1);
    let impossible = [
        client.lock(&key).ttl(Duration::ZERO),
        client.lock(&key).ttl(too_long),
        client.lock(&key).ttl(Duration::MAX),
        client.lock(&key).max_hold(Duration::ZERO),
        client.lock(&key).min_hold(Duration::ZERO),
        client.lock(&key).min_hold(too_long),
        client.lock(&key).min_hold(2 * LONG).max_hold(LONG),
        client.lock(&key).label(""),
        client.lock(&key).label("a\u{7}"),
    ];
    for acquire in impossible {
        let described = format!("{acquire:?}");
        let refused = acquire.acquire().await;
        assert!(
            matches!(refused, Err(Error::InvalidConfig { .. })),
            "{described}: {refused:?}"
        );
    }
    assert_eq!(spy.seen.requests(), 0);
}

/// The longest ttl, wait and hold there are overflow nothing. Clause 13; A38, B76.
pub async fn the_longest_of_all_is_possible(subject: &dyn Subject) {
    let key = key("longest");
    let client = client(subject).await;
    let acquire = || {
        client
            .lock(&key)
            .ttl(Ttl::MAX.as_duration())
            .max_hold(Duration::MAX)
    };
    let guard = acquire()
        .wait(Duration::MAX)
        .acquire()
        .await
        .expect("the lock");
    assert!(guard.is_held() && guard.valid_for() > Ttl::MAX.as_duration() / 2);
    let refused = acquire().try_acquire().await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    let waiting = tokio::spawn(acquire().wait(Duration::MAX).acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    guard.release().await.expect("it was held");
    let guard = waiting.await.expect("no panic").expect("its turn comes");
    assert!(guard.renew(Duration::MAX).await.is_err());
    guard.release().await.expect("it was held");
}

/// Busy, timed out, lost, too late, closed: each outcome is its own error, tells its lock, and
/// says whether trying again makes sense. Clause 13; B14, B18, B112, B126.
pub async fn every_outcome_has_its_own_error(subject: &dyn Subject) {
    let key = key("outcomes");
    let actor = Actor::open(subject, &key, "somebody else").await;
    let client = client(subject).await;
    actor.enters().await;

    let busy = client.try_acquire(&key).await.expect_err("it is held");
    assert!(matches!(busy, Error::Busy { .. }) && busy.is_retryable());
    assert!(busy.to_string().contains("somebody else"), "{busy}");
    let wait = Duration::from_millis(100);
    let timeout = client
        .lock(&key)
        .wait(wait)
        .acquire()
        .await
        .expect_err("it is held");
    assert!(matches!(timeout, Error::Timeout { .. }) && timeout.is_retryable());
    assert!(actor.force(None).await);

    let guard = client
        .lock(&key)
        .ttl(LONG)
        .manual_renewal()
        .acquire()
        .await
        .expect("the lock");
    assert!(actor.force(None).await);
    let lost = guard.renew(LONG).await.expect_err("it was ended");
    assert!(
        matches!(
            lost,
            Error::Lost {
                reason: LostReason::ForceReleased,
                ..
            }
        ) && !lost.is_retryable()
    );
    let late = guard.release().await.expect_err("it was lost");
    assert!(matches!(late, Error::Lost { .. }));

    let guard = client
        .lock(&key)
        .ttl(LONG)
        .manual_renewal()
        .acquire()
        .await
        .expect("the lock");
    assert!(actor.force(None).await);
    let released = guard
        .release()
        .await
        .expect_err("it was ended by somebody else");
    assert!(matches!(
        released,
        Error::Lost {
            reason: LostReason::ForceReleased,
            ..
        }
    ));
    for error in [busy, timeout, lost, late, released] {
        assert!(error.to_string().contains(key.as_str()), "{error}");
    }

    let handle = subject.open().await;
    handle.close().await.expect("the handle closes");
    let unusable = LockClient::new(handle)
        .try_acquire(&key)
        .await
        .expect_err("it is closed");
    let kind = unusable.store_error().map(crate::StoreError::kind);
    assert_eq!(kind, Some(StoreErrorKind::Closed), "{unusable}");
    assert!(!unusable.is_retryable());
    assert!(client.clone().shutdown().await.is_clean());
    let closed = client.try_acquire(&key).await.expect_err("it is shut down");
    assert!(matches!(closed, Error::Closed) && !closed.is_retryable());
}
