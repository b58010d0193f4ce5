//! The verbs of the store, one by one.

use std::time::Duration;

use lock_core::{DistributedLock, Page, Release, Renewal};

use crate::support::{Place, busy, claim, granted, key, queued, secs, until};

#[tokio::test]
async fn acquire_renew_release() {
    let place = Place::shared();
    let store = place.store().await;
    let (a, b) = (claim("k", 30_000), claim("k", 30_000));

    let first = granted(store.try_acquire(&a).await.unwrap());
    assert_eq!((first.holds, first.ttl), (1, a.ttl));
    assert_eq!(granted(store.try_acquire(&a).await.unwrap()), first);
    let refused = busy(store.try_acquire(&b).await.unwrap());
    let holder = refused.holder.unwrap();
    assert_eq!((holder.owner, holder.token), (a.owner, first.token));
    assert_eq!(holder.asker, a.asker);
    assert!(holder.remaining > secs(20) && holder.remaining <= secs(30));
    assert_eq!((refused.position, refused.queued), (None, 0));

    assert_eq!(
        store.renew(&a).await.unwrap(),
        Renewal::Renewed { ttl: a.ttl }
    );
    let gone = Renewal::Gone { taken_over: true };
    assert_eq!(store.renew(&b).await.unwrap(), gone);
    assert_eq!(store.release(&b).await.unwrap(), Release::NotHeld);
    assert_eq!(
        store.release(&a).await.unwrap(),
        Release::Released { holds: 0 }
    );
    assert_eq!(store.release(&a).await.unwrap(), Release::NotHeld);
    let gone = Renewal::Gone { taken_over: false };
    assert_eq!(store.renew(&a).await.unwrap(), gone);

    let second = granted(store.try_acquire(&b).await.unwrap());
    assert!(second.token > first.token);
}

#[tokio::test]
async fn waiters_are_served_in_order_and_told() {
    let place = Place::shared();
    let (one, two) = (place.store().await, place.store().await);
    let holder = claim("k", 30_000);
    granted(one.try_acquire(&holder).await.unwrap());

    let (first, second) = (queued("k", 30_000), queued("k", 30_000));
    let refused = busy(two.try_acquire(&first).await.unwrap());
    assert_eq!((refused.position, refused.queued), (Some(1), 1));
    let refused = busy(one.try_acquire(&second).await.unwrap());
    assert_eq!((refused.position, refused.queued), (Some(2), 2));

    let info = one.inspect(&key("k")).await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().owner, holder.owner);
    let waiters: Vec<_> = info.waiters.iter().map(|w| w.owner).collect();
    assert_eq!(waiters, [first.owner, second.owner]);

    one.release(&holder).await.unwrap();
    // Nobody overtakes the first, not even its neighbour in the queue.
    busy(one.try_acquire(&claim("k", 30_000)).await.unwrap());
    busy(one.try_acquire(&second).await.unwrap());
    tokio::time::timeout(secs(5), two.wait(&first, &refused))
        .await
        .expect("the first is told");
    granted(two.try_acquire(&first).await.unwrap());
    two.release(&first).await.unwrap();
    tokio::time::timeout(secs(5), one.wait(&second, &refused))
        .await
        .expect("the second is told");
    granted(one.try_acquire(&second).await.unwrap());
    assert_eq!(
        one.release(&second).await.unwrap(),
        Release::Released { holds: 0 }
    );
    assert!(one.inspect(&key("k")).await.unwrap().is_none());
}

#[tokio::test]
async fn lists_in_pages_and_ends_by_force() {
    let place = Place::shared();
    let store = place.store().await;
    let names = ["a", "a/1", "a/2", "a/3", "a0", "b"];
    for name in names {
        granted(store.try_acquire(&claim(name, 30_000)).await.unwrap());
    }
    let mut found = Vec::new();
    let mut page = Page {
        limit: 2,
        cursor: None,
    };
    loop {
        let part = store.list("a/", page.clone()).await.unwrap();
        found.extend(part.locks.iter().map(|lock| lock.key.as_str().to_owned()));
        match part.next {
            Some(next) => page.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(found, ["a/1", "a/2", "a/3"]);
    assert_eq!(
        store.list("", Page::default()).await.unwrap().locks.len(),
        6
    );

    let token = store
        .inspect(&key("b"))
        .await
        .unwrap()
        .unwrap()
        .holder
        .unwrap()
        .token;
    let wrong = lock_core::FencingToken::new(token.as_u64() + 1);
    assert!(!store.force_release(&key("b"), wrong).await.unwrap());
    assert!(store.force_release(&key("b"), Some(token)).await.unwrap());
    assert!(!store.force_release(&key("b"), Some(token)).await.unwrap());
    assert!(!store.force_release(&key("never"), None).await.unwrap());
}

#[tokio::test]
async fn a_dead_process_costs_its_followers_two_seconds_at_most() {
    let place = Place::shared();
    let (one, two) = (place.store().await, place.store().await);
    let holder = claim("k", 60_000);
    granted(one.try_acquire(&holder).await.unwrap());
    for _ in 0..5 {
        busy(two.try_acquire(&queued("k", 60_000)).await.unwrap());
    }
    let last = queued("k", 60_000);
    let refused = busy(one.try_acquire(&last).await.unwrap());
    assert_eq!(refused.position, Some(6));
    drop(two);
    one.release(&holder).await.unwrap();
    let begin = std::time::Instant::now();
    until(secs(10), async || {
        one.wait(&last, &refused).await;
        matches!(
            one.try_acquire(&last).await.unwrap(),
            lock_core::Attempt::Granted(_)
        )
    })
    .await;
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
}
