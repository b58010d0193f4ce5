//! Tokens grow across everything.

use std::time::Duration;

use lock_core::{Claim, DistributedLock, HoldId, Release};

use crate::support::*;

/// B51, B67: a forced release ends one grant, and tokens go on, at 2^53 too.
#[tokio::test]
async fn tokens_grow_across_everything() {
    let file = File::new();
    let mut store = file.store().await;
    let start: i64 = 1 << 53;
    let mut stranger = file.stranger().await;
    sqlx::query("INSERT INTO locks SELECT 'k', ?1, NULL, '', NULL, 'h', 1, 0, 0")
        .bind(start)
        .execute(&mut stranger)
        .await
        .unwrap();
    let mut last = start as u64;
    for round in 0..40 {
        if round % 5 == 0 {
            store = file.store().await;
        }
        let holder = claim("k", if round % 4 == 0 { 10 } else { 600_000 });
        let token = granted(&store, &holder).await.token;
        assert_eq!(token.as_u64(), last + 1, "exact, as an integer");
        last = token.as_u64();
        let again = Claim {
            hold: HoldId::random(),
            ..holder.clone()
        };
        match round % 4 {
            0 => {
                until("the lease ends", async || {
                    store.inspect(&holder.key).await.unwrap().is_none()
                })
                .await
            }
            1 => {
                let wrong = lock_core::FencingToken::new(last - 1);
                assert!(!store.force_release(&holder.key, wrong).await.unwrap());
                assert!(store.force_release(&holder.key, Some(token)).await.unwrap());
                assert!(!store.force_release(&holder.key, Some(token)).await.unwrap());
                assert_eq!(store.release(&holder).await.unwrap(), Release::NotHeld);
            }
            2 => {
                assert_eq!(granted(&store, &again).await.token, token);
                store.renew(&again).await.unwrap();
                store.release(&holder).await.unwrap();
                store.release(&again).await.unwrap();
            }
            _ => drop(store.release(&holder).await.unwrap()),
        }
    }
}

/// A14: tokens go on growing when an older copy of the file is put back.
#[tokio::test]
async fn a14_tokens_stay_ahead_of_an_older_copy() {
    let file = File::new();
    let copy = file.path().with_extension("copy");
    let mut tokens = Vec::new();
    for step in ["copy", "go on", "restore"] {
        match step {
            "copy" => {}
            "go on" => drop(std::fs::copy(file.path(), &copy).unwrap()),
            _ => drop(std::fs::copy(&copy, file.path()).unwrap()),
        }
        let client = file.client().await;
        for _ in 0..20 {
            let guard = client.acquire("k").await.unwrap();
            tokens.push(guard.token());
            guard.release().await.unwrap();
        }
        let store = client.store().clone();
        client.shutdown().await;
        // The last connection to close writes the log back into the file.
        store.close().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
