//! Clause 13, at the level of the store: errors keep their kinds.

use std::time::Duration;

use super::{
    Subject,
    actor::{Actor, key},
};
use crate::{Page, StoreErrorKind};

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
        store.force_release(&claim.key, None).await.map(drop),
    ];
    errors.extend(
        store
            .renew_all(std::slice::from_ref(claim))
            .await
            .into_iter()
            .map(|r| r.map(drop)),
    );
    assert_eq!(errors.len(), 7);
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
