//! Clause 4: every new grant of a key has a larger token than every earlier one.

use futures_util::future::join_all;

use super::{
    Subject,
    actor::{Actor, SHORT, key},
};

/// Tokens grow across release, the end of a lease, forced release, owners and handles.
/// Clause 4; A13, B12, B51, B67.
pub async fn every_new_grant_has_a_larger_token(subject: &dyn Subject) {
    let key = key("tokens");
    let handles = join_all((0..3).map(|_| subject.open())).await;
    let mut last = None;
    for round in 0..24 {
        let handle = &handles[round % handles.len()];
        let mut actor = Actor::on(handle, &key, "owner");
        let by_expiry = round % 8 == 0;
        if by_expiry {
            actor = actor.with_ttl(SHORT);
        }
        let token = actor.keeps_trying().await.token;
        assert!(Some(token) > last, "round {round}: {token} after {last:?}");
        last = Some(token);
        match round % 8 {
            0 => {}
            1 => assert!(actor.force(None).await),
            2 => assert!(actor.force(Some(token)).await),
            _ => assert_eq!(actor.leaves().await, 0),
        }
    }
}

/// Re-entry, repeats and renewals keep the token, exactly, wherever it is read. Clauses 3 and 4;
/// B67, B68.
pub async fn re_entry_and_renewal_keep_the_token(subject: &dyn Subject) {
    let key = key("same-token");
    let outer = Actor::open(subject, &key, "outer").await;
    let inner = outer.second_hold("inner");
    let token = outer.enters().await.token;
    for _ in 0..3 {
        outer.renews().await;
        assert_eq!(inner.enters().await.token, token);
        inner.renews().await;
        assert_eq!(outer.enters().await.token, token);
        assert_eq!(outer.sees().await.holder.expect("a holder").token, token);
        let busy = outer.rival("rival").is_refused().await;
        assert_eq!(busy.holder.expect("a holder").token, token);
        inner.leaves().await;
    }
}

/// A key that was free for a while, with others used in between, does not start again.
/// Clause 4; B68.
pub async fn a_forgotten_key_does_not_repeat_a_token(subject: &dyn Subject) {
    let forgotten = key("forgotten");
    let handle = subject.open().await;
    let first = Actor::on(&handle, &forgotten, "first");
    let token = first.enters().await.token;
    first.leaves().await;
    let others = (0..50).map(|_| {
        let other = Actor::on(&handle, &key("other"), "other");
        async move {
            other.enters().await;
            other.leaves().await;
        }
    });
    join_all(others).await;
    assert_eq!(first.looks().await, None);
    let later = Actor::open(subject, &forgotten, "later")
        .await
        .enters()
        .await;
    assert!(later.token > token, "{} after {token}", later.token);
}
