//! What goes wrong, and as which kind of error it comes out.

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, ConnectOptions, DeleteOptions,
    Permission,
};
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{
    Attempt, DistributedLock, Error, Page, Release, Renewal, StoreError, StoreErrorKind,
};
use lock_etcd::EtcdLock;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

fn kind_and_text<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> (StoreErrorKind, String) {
    let why = answer.unwrap_err();
    (why.kind(), why.to_string())
}

/// E12, B103: out of space: transient and named; what is held is renewed and released all the
/// same, and afterwards all is well.
#[tokio::test]
async fn e12_out_of_space() {
    let cluster = EtcdCluster::with(1, &["--quota-backend-bytes", "400000"]);
    let store = store(&cluster).await;
    let (held, waiting) = (claim("l"), queuing("l"));
    granted(&*store, &held).await;
    busy(&*store, &waiting).await;
    let mut admin = cluster.admin().await;
    let block = "x".repeat(50_000);
    while admin.put("data", block.as_str(), None).await.is_ok() {}
    for claim in [claim("m"), with_ttl(claim("m"), 77_000)] {
        let (kind, text) = kind_and_text(store.try_acquire(&claim).await);
        assert_eq!(kind, StoreErrorKind::Transient, "{text}");
        assert!(text.contains("space"), "{text}");
    }
    assert!(matches!(
        store.renew(&held).await,
        Ok(Renewal::Renewed { .. })
    ));
    assert_eq!(
        store.release(&held).await.unwrap(),
        Release::Released { holds: 0 }
    );
    granted(&*store, &waiting).await;
    let released = store.release(&waiting).await.unwrap();
    assert_eq!(released, Release::Released { holds: 0 });
    // The operator makes room.
    let now = revision(&cluster).await;
    let physical = CompactionOptions::new().with_physical();
    admin.compact(now, Some(physical)).await.unwrap();
    admin.defragment().await.unwrap();
    let status = admin.status().await.unwrap();
    let mut here = AlarmOptions::new();
    here.with_member(status.header().unwrap().member_id());
    admin
        .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(here))
        .await
        .unwrap();
    granted(&*store, &claim("m")).await;
}

/// Checking a password takes a tenth of a second otherwise, of a whole processor.
const CHEAP: [&str; 2] = ["--bcrypt-cost", "4"];

/// Users: `root`, and `app`, which may read and write what begins with `distlock:`.
async fn add_users(cluster: &EtcdCluster) {
    let mut admin = cluster.admin().await;
    admin.user_add("root", "root", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.role_add("locks").await.unwrap();
    let ours = Permission::read_write("distlock:").with_prefix();
    admin.role_grant_permission("locks", ours).await.unwrap();
    for (user, password) in [("app", "p@ss/word"), ("mute", "pw")] {
        admin.user_add(user, password, None).await.unwrap();
    }
    admin.user_grant_role("app", "locks").await.unwrap();
}

async fn root(cluster: &EtcdCluster) -> Client {
    let options = ConnectOptions::new().with_user("root", "root");
    let client = Client::connect(cluster.addresses(), Some(options)).await;
    client.unwrap()
}

/// The URL for `app`.
fn as_app(cluster: &EtcdCluster) -> String {
    format!("etcd://app:p%40ss%2Fword@{}", cluster.address(0))
}

/// E13, B117: the token of the connection expires while it is idle, and while a lock is held: the
/// store authenticates again, and nobody notices.
#[tokio::test]
async fn e13_b117_an_expired_token_is_replaced() {
    let cluster = EtcdCluster::with(1, &["--auth-token-ttl", "1", CHEAP[0], CHEAP[1]]);
    add_users(&cluster).await;
    cluster.admin().await.auth_enable().await.unwrap();
    let (store, rival) = (
        client_at(&as_app(&cluster)).await,
        open(&as_app(&cluster)).await,
    );
    for _ in 0..2 {
        sleep(ms(2500)).await;
        let guard = store.lock("l").ttl(ms(5000)).try_acquire().await.unwrap();
        sleep(ms(6500)).await;
        assert!(guard.is_held(), "{:?}", guard.lost().await);
        busy(&rival, &claim("l")).await;
        guard.release().await.unwrap();
    }
    let text = format!("{rival:?} {store:?}");
    assert!(!text.contains("p@ss"), "{text}");
}

/// E13, B117: signed tokens are refused after every change of the users: the store authenticates
/// again; locks and waiters are kept.
#[tokio::test]
async fn e13_b117_changed_users_are_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (private, public) = (file("private.pem"), file("public.pem"));
    openssl(&format!("genrsa -out {private} 2048"));
    openssl(&format!("rsa -in {private} -pubout -out {public}"));
    let token = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=3s");
    let cluster = EtcdCluster::with(1, &["--auth-token", &token, CHEAP[0], CHEAP[1]]);
    add_users(&cluster).await;
    cluster.admin().await.auth_enable().await.unwrap();
    let (holder, waiter) = (
        client_at(&as_app(&cluster)).await,
        client_at(&as_app(&cluster)).await,
    );
    let guard = holder.lock("l").ttl(ms(5000)).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(60_000)).acquire().await });
    queued(&**holder.store(), "l", 1).await;
    for n in 0..4 {
        let mut root = root(&cluster).await;
        root.user_add(format!("user {n}"), "pw", None)
            .await
            .unwrap();
        // The first call after the change.
        drop(holder.try_acquire(format!("m {n}")).await.unwrap());
        sleep(ms(1500)).await;
        assert!(guard.is_held(), "{:?}", guard.lost().await);
    }
    guard.release().await.unwrap();
    drop(timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap());
}

/// E13: authentication is switched on, and off, while locks are held.
#[tokio::test]
async fn e13_authentication_is_switched_on_while_running() {
    let cluster = EtcdCluster::with(1, &CHEAP);
    add_users(&cluster).await;
    // A user that is not asked for yet does no harm.
    let (known, unknown) = (client_at(&as_app(&cluster)).await, client(&cluster).await);
    let guard = known.lock("l").ttl(ms(5000)).acquire().await.unwrap();
    cluster.admin().await.auth_enable().await.unwrap();
    let (kind, text) = kind_and_text(unknown.store().try_acquire(&claim("m")).await);
    assert_eq!(kind, StoreErrorKind::Permanent, "{text}");
    drop(known.try_acquire("m").await.unwrap());
    sleep(ms(6500)).await;
    assert!(guard.is_held(), "{:?}", guard.lost().await);
    root(&cluster).await.auth_disable().await.unwrap();
    drop(known.lock("m").wait(PATIENCE).acquire().await.unwrap());
    drop(unknown.lock("n").wait(PATIENCE).acquire().await.unwrap());
    guard.release().await.unwrap();
}

/// B112, B117, B66: wrong passwords and missing rights are permanent and come at once; no secret is
/// told.
#[tokio::test]
async fn b112_missing_rights_are_permanent() {
    let cluster = EtcdCluster::with(1, &CHEAP);
    add_users(&cluster).await;
    cluster.admin().await.auth_enable().await.unwrap();
    for user in ["app:hunter2", "nobody:hunter2", "app:"] {
        let url = format!("etcd://{user}@{}", cluster.address(0));
        let begin = Instant::now();
        let why = EtcdLock::connect(&url).await.unwrap_err();
        assert!(begin.elapsed() < ms(2500), "{:?}", begin.elapsed());
        let source = why.store_error().unwrap();
        assert_eq!(source.kind(), StoreErrorKind::Permanent, "{why}");
        assert!(why.to_string().contains("password"), "{why}");
        assert!(!format!("{why} {why:?}").contains("hunter2"));
    }
    let mute = format!("etcd://mute:pw@{}", cluster.address(0));
    let elsewhere = EtcdLock::builder(&as_app(&cluster))
        .unwrap()
        .prefix("elsewhere");
    let stores = [EtcdLock::connect(&mute).await, elsewhere.connect().await];
    for store in stores {
        // Some tell it when they connect.
        let why = match store {
            Err(why) => why,
            Ok(store) => {
                let client = lock_core::LockClient::new(std::sync::Arc::new(store));
                let begin = Instant::now();
                let refused = client.lock("l").wait(ms(20_000)).acquire().await;
                assert!(begin.elapsed() < ms(10_000));
                refused.unwrap_err()
            }
        };
        assert!(
            matches!(&why, Error::Store { .. }) && !why.is_retryable(),
            "{why}"
        );
        assert!(why.to_string().contains("right"), "{why}");
    }
}

/// E23: a request that the server takes for too large is permanent, and says so.
#[tokio::test]
async fn e23_a_request_that_is_too_large() {
    let cluster = EtcdCluster::with(1, &["--max-request-bytes", "300"]);
    let store = store(&cluster).await;
    let large = claim(&"x".repeat(255));
    let (kind, text) = kind_and_text(store.try_acquire(&large).await);
    assert_eq!(kind, StoreErrorKind::Permanent, "{text}");
    assert!(text.contains("too large"), "{text}");
    let mut admin = cluster.admin().await;
    let all = DeleteOptions::new().with_all_keys();
    assert_eq!(admin.delete("", Some(all)).await.unwrap().deleted(), 0);
}

/// B014, B126: busy, timed out and unreachable are different errors that name the lock.
#[tokio::test]
async fn b014_b126_busy_timeout_and_unreachable_are_told_apart() {
    let mut cluster = EtcdCluster::one();
    let (holder, other) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.lock("l").label("first").acquire().await.unwrap();
    match other.try_acquire("l").await.unwrap_err() {
        Error::Busy { key, busy } => {
            assert_eq!(key.as_str(), "l");
            let held = busy.holder.unwrap();
            assert_eq!(
                (held.asker.label(), held.token),
                (Some("first"), guard.token())
            );
        }
        why => panic!("{why}"),
    }
    match other.lock("l").wait(ms(300)).acquire().await.unwrap_err() {
        Error::Timeout { waited, busy, .. } => {
            assert!(waited >= ms(300));
            assert_eq!(busy.unwrap().holder.unwrap().owner, guard.owner());
        }
        why => panic!("{why}"),
    }
    cluster.kill(0);
    let begin = Instant::now();
    let why = other.lock("m").wait(ms(500)).acquire().await.unwrap_err();
    assert!(
        matches!(&why, Error::Store { .. }) && why.is_retryable(),
        "{why}"
    );
    assert!(why.to_string().contains("cannot be reached"), "{why}");
    assert!(begin.elapsed() < ms(10_000));
    let why = other.inspect("m").await.unwrap_err();
    assert!(
        why.to_string().starts_with("cannot inspect lock m"),
        "{why}"
    );
}

/// B126: every verb in every state has one answer.
#[tokio::test]
async fn b126_every_verb_in_every_state() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let not_held = |answer| assert_eq!(answer, Release::NotHeld);
    // Free.
    let free = claim("free");
    assert_eq!(
        store.renew(&free).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    not_held(store.release(&free).await.unwrap());
    assert_eq!(store.inspect(&free.key).await.unwrap(), None);
    assert!(!store.force_release(&free.key, None).await.unwrap());
    // Mine, then expired.
    let mine = with_ttl(claim("mine"), 1000);
    granted(&*store, &mine).await;
    eventually("it expires", async || {
        store.inspect(&mine.key).await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        store.renew(&mine).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    not_held(store.release(&mine).await.unwrap());
    assert!(!store.force_release(&mine.key, None).await.unwrap());
    // Somebody else's (B18).
    let theirs = claim("mine");
    let grant = granted(&*store, &theirs).await;
    assert_eq!(
        store.renew(&mine).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
    not_held(store.release(&mine).await.unwrap());
    let other_token = lock_core::FencingToken::new(grant.token.as_u64() - 1);
    assert!(!store.force_release(&mine.key, other_token).await.unwrap());
    assert_eq!(holder(&*store, "mine").await, Some(theirs.owner));
    // B51: the right token, and the same again.
    assert!(
        store
            .force_release(&mine.key, Some(grant.token))
            .await
            .unwrap()
    );
    assert!(
        !store
            .force_release(&mine.key, Some(grant.token))
            .await
            .unwrap()
    );
    assert!(granted(&*store, &claim("mine")).await.token > grant.token);
    // Closed.
    store.close().await.unwrap();
    for (kind, text) in [
        kind_and_text(store.try_acquire(&mine).await),
        kind_and_text(store.renew(&mine).await),
        kind_and_text(store.release(&mine).await),
        kind_and_text(store.inspect(&mine.key).await),
        kind_and_text(store.list("", Page::default()).await),
        kind_and_text(store.force_release(&mine.key, None).await),
        kind_and_text(store.dedicated().await),
    ] {
        assert_eq!(kind, StoreErrorKind::Closed, "{text}");
    }
}

/// B66, A36: a cluster that does not answer: no call hangs, and afterwards all is well.
#[tokio::test]
async fn b66_no_call_hangs() {
    let cluster = EtcdCluster::one();
    let store = hasty_store(&cluster.url()).await;
    let held = claim("l");
    granted(&store, &held).await;
    cluster.pause(0);
    let begin = Instant::now();
    for (kind, text) in [
        kind_and_text(store.try_acquire(&claim("m")).await),
        kind_and_text(store.renew(&held).await),
        kind_and_text(store.release(&held).await),
        kind_and_text(store.inspect(&held.key).await),
        kind_and_text(store.list("", Page::default()).await),
        kind_and_text(
            EtcdLock::builder(&cluster.url())
                .unwrap()
                .operation_timeout(ms(500))
                .connect()
                .await
                .map_err(|why| {
                    let source = why.store_error().unwrap();
                    StoreError::new(source.kind(), source.to_string())
                }),
        ),
    ] {
        assert_eq!(kind, StoreErrorKind::Transient, "{text}");
        assert!(text.contains("did not answer"), "{text}");
    }
    assert!(begin.elapsed() < ms(15_000), "{:?}", begin.elapsed());
    cluster.resume(0);
    eventually("it answers again", async || {
        store.inspect(&held.key).await.is_ok()
    })
    .await;
    // What was sent to the paused cluster may have been applied since: all of it was asked for.
    granted(&store, &claim("n")).await;
}

/// B65, A37: the answer of a request that was given up is not read as that of another.
#[tokio::test]
async fn b65_late_answers_go_to_nobody() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let store = hasty_store(&through(&proxy)).await;
    granted(&store, &claim("taken")).await;
    let warm = claim("warm");
    granted(&store, &warm).await;
    store.release(&warm).await.unwrap(); // leaves a lease for the next one
    proxy.faults().hold_replies(true);
    let lost = claim("l1");
    assert!(store.try_acquire(&lost).await.unwrap_err().is_transient());
    proxy.faults().heal();
    // Neither this one nor the next gets the grant of the first.
    assert!(matches!(
        store.try_acquire(&claim("taken")).await,
        Ok(Attempt::Busy(_))
    ));
    assert_eq!(store.inspect(&claim("l3").key).await.unwrap(), None);
    assert_eq!(
        store.release(&lost).await.unwrap(),
        Release::Released { holds: 0 }
    );
}

/// A drop after the request was sent costs one withdrawal (B04 at the level of the store).
#[tokio::test]
async fn a_dropped_attempt_can_be_withdrawn() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let store = open(&through(&proxy)).await;
    proxy.faults().delay_replies(ms(100));
    for _ in 0..10 {
        let claim = claim("l");
        assert!(timeout(ms(30), store.try_acquire(&claim)).await.is_err());
        // An attempt that had not left this process yet is not sent any more.
        let taken_back = store.release(&claim).await.unwrap();
        assert!(matches!(
            taken_back,
            Release::Released { holds: 0 } | Release::NotHeld
        ));
    }
    sleep(ms(150)).await;
    assert!(keys(&cluster).await.is_empty());
}
