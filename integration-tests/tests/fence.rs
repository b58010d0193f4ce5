//! The fences, in real servers: who comes late or twice is refused where the data is.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};
use integration_tests::{
    protected::Protected,
    servers::{etcd::EtcdCluster, postgres::PostgresServer, redis::RedisServer},
    taker::Taker,
};
use lock_core::{Error, Fenced, FencingToken, LockKey, OwnerId, StoreErrorKind, Ticket};
use lock_etcd::TxnFence;
use lock_postgres::RowFence;
use lock_redis::ScriptFence;
use sqlx::{AssertSqlSafe, PgPool};

fn ticket(token: u64, owner: OwnerId) -> Ticket {
    let (key, token) = (
        LockKey::new("k").unwrap(),
        FencingToken::new(token).unwrap(),
    );
    Ticket { key, token, owner }
}

/// The refusal by a fence; anything else fails the test.
#[track_caller]
fn fenced<T: std::fmt::Debug>(result: lock_core::Result<T>) -> Fenced {
    match result {
        Err(Error::Fenced(refusal)) => refusal,
        other => panic!("not refused by the fence: {other:?}"),
    }
}

/// What a store or a script complains about; anything else fails the test.
#[track_caller]
fn complaint<T: std::fmt::Debug>(result: lock_core::Result<T>) -> (StoreErrorKind, String) {
    match result {
        Err(Error::Store { source, .. }) => (source.kind(), source.to_string()),
        other => panic!("not an error of the store: {other:?}"),
    }
}

/// A holder stands still past its lease, another one takes over and writes; what the first one
/// sends when it goes on, without a look at its guard, is refused, and changes nothing.
async fn a_late_write_is_refused(url: &str) {
    let mut data = Protected::open(url).await.unwrap();
    let mut holder = Taker::start(env!("CARGO_BIN_EXE_lock-taker"), url);
    // Long enough that a slow machine writes in time.
    let granted = holder.ask("acquire k 3000 0");
    assert!(granted.starts_with("granted "), "{granted}");
    assert_eq!(holder.ask(&format!("write {url} early")), "written");
    assert_eq!(data.read().await.unwrap(), "early");

    holder.process.pause();
    holder.send(&format!("write {url} late"));
    let rival = distlock::connect(url).await.unwrap();
    let wait = Duration::from_secs(60);
    let guard = rival.lock("k").wait(wait).acquire().await.unwrap();
    data.write(&guard.ticket(), "next").await.unwrap();
    holder.process.resume();

    let refused = holder.answer();
    let newest = format!("is refused: {} has passed", guard.token());
    assert!(refused.contains(&newest), "{refused}");
    assert_eq!(data.read().await.unwrap(), "next");
    data.write(&guard.ticket(), "again").await.unwrap();
    guard.release().await.unwrap();
}

/// A11, A12.
#[tokio::test]
async fn a11_a12_a_late_write_to_postgres_is_refused() {
    a_late_write_is_refused(&PostgresServer::start().url()).await;
}

/// A11, A12.
#[tokio::test]
async fn a11_a12_a_late_write_to_redis_is_refused() {
    a_late_write_is_refused(&RedisServer::start().url()).await;
}

/// A11, A12.
#[tokio::test]
async fn a11_a12_a_late_write_to_etcd_is_refused() {
    a_late_write_is_refused(&EtcdCluster::one().url()).await;
}

/// A table with an item in it, and its pool.
async fn stock(server: &PostgresServer) -> PgPool {
    let table = "CREATE TABLE stock (id text PRIMARY KEY, items int NOT NULL DEFAULT 9,
        fence_token bigint NOT NULL DEFAULT 0, fence_owner uuid);
        INSERT INTO stock VALUES ('42')";
    server.sql(table).await;
    PgPool::connect(&server.url()).await.unwrap()
}

/// A12, A13: a row knows the newest ticket, of one owner; a transaction that is rolled back has
/// not passed.
#[tokio::test]
async fn a12_a13_a_row_lets_the_newest_ticket_pass() {
    let server = PostgresServer::start();
    let pool = stock(&server).await;
    let fence = RowFence::new("public.stock", "id").unwrap();
    let (alice, bob) = (OwnerId::random(), OwnerId::random());
    let pass = async |ticket: Ticket, commits: bool| {
        let mut transaction = pool.begin().await.unwrap();
        let passed = fence.pass(&mut transaction, "42", &ticket).await;
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        passed
    };
    pass(ticket(5, alice), true).await.unwrap();
    pass(ticket(5, alice), true).await.unwrap();
    pass(ticket(6, bob), false).await.unwrap();
    pass(ticket(5, alice), true).await.unwrap();
    let refusal = fenced(pass(ticket(5, bob), true).await);
    assert!(
        refusal
            .to_string()
            .ends_with("5 has passed, of another owner"),
        "{refusal}"
    );
    pass(ticket(6, bob), true).await.unwrap();
    assert_eq!(
        fenced(pass(ticket(5, alice), true).await).newest.as_u64(),
        6
    );

    let most = i64::MAX as u64;
    let (_, text) = complaint(pass(ticket(most + 1, bob), true).await);
    assert!(text.contains("bigint"), "{text}");
    pass(ticket(most, bob), true).await.unwrap();

    // What is not there is not fenced, and said so.
    let mut transaction = pool.begin().await.unwrap();
    let (_, text) = complaint(fence.pass(&mut transaction, "43", &ticket(7, bob)).await);
    assert!(text.contains("no such row"), "{text}");
    let other = RowFence::with_columns("stock", "id", "token", "owner").unwrap();
    let (kind, text) = complaint(other.pass(&mut transaction, "42", &ticket(7, bob)).await);
    assert_eq!(kind, StoreErrorKind::Permanent, "{text}");
}

/// A12: who passes keeps others off the row until its transaction ends; who waited is judged by
/// what was committed meanwhile.
#[tokio::test]
async fn a12_one_transaction_passes_at_a_time() {
    let server = Arc::new(PostgresServer::start());
    let pool = stock(&server).await;
    let fence = RowFence::new("stock", "id").unwrap();
    let [old, new] = [5, 6].map(|token| ticket(token, OwnerId::random()));
    let mut first = pool.begin().await.unwrap();
    fence.pass(&mut first, "42", &new).await.unwrap();
    let late = tokio::spawn(async move {
        let mut second = pool.begin().await.unwrap();
        fence.pass(&mut second, "42", &old).await
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while server.value::<i64>(waiting).await == 0 {
        assert!(!late.is_finished(), "it has not waited");
    }
    first.commit().await.unwrap();
    assert_eq!(fenced(late.await.unwrap()).newest.as_u64(), 6);
}

/// A13: the statement of the documentation, by hand.
#[tokio::test]
async fn a13_the_same_by_hand() {
    let server = PostgresServer::start();
    let pool = stock(&server).await;
    let sell = async |ticket: Ticket| {
        let sql = "UPDATE stock SET items = items - 1, fence_token = $2, fence_owner = $3
            WHERE id = $1 AND (fence_token < $2 OR fence_token = $2 AND fence_owner = $3)";
        let sold = sqlx::query(AssertSqlSafe(sql))
            .bind("42")
            .bind(ticket.token.as_u64() as i64)
            .bind(uuid::Uuid::from_u128(ticket.owner.as_u128()));
        sold.execute(&pool).await.unwrap().rows_affected() == 1
    };
    let (alice, bob) = (OwnerId::random(), OwnerId::random());
    assert!(sell(ticket(5, alice)).await);
    assert!(sell(ticket(5, alice)).await);
    assert!(!sell(ticket(5, bob)).await);
    assert!(sell(ticket(6, bob)).await);
    assert!(!sell(ticket(5, alice)).await);
    assert_eq!(server.value::<i32>("SELECT items FROM stock").await, 6);
}

/// A12, A13: a script runs with the newest ticket, of one owner, at any size of a token; a
/// refused one has done nothing.
#[tokio::test]
async fn a12_a13_a_script_runs_with_the_newest_ticket() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let count = ScriptFence::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    let run = async |ticket: Ticket| {
        let mut connection = connection.clone();
        count
            .run::<u32>(&mut connection, "{n}:fence", &ticket, "{n}", 2)
            .await
    };
    let (alice, bob) = (OwnerId::random(), OwnerId::random());
    assert_eq!(run(ticket(9, alice)).await.unwrap(), 2);
    assert_eq!(run(ticket(9, alice)).await.unwrap(), 4);
    let refusal = fenced(run(ticket(9, bob)).await);
    assert!(
        refusal
            .to_string()
            .ends_with("9 has passed, of another owner"),
        "{refusal}"
    );
    assert_eq!(fenced(run(ticket(8, alice)).await).newest.as_u64(), 9);
    // As numbers of Lua these two would be the same.
    let exact = 1 << 53;
    assert_eq!(run(ticket(exact + 1, bob)).await.unwrap(), 6);
    assert_eq!(
        fenced(run(ticket(exact, alice)).await).newest.as_u64(),
        exact + 1
    );
    assert_eq!(run(ticket(u64::MAX, bob)).await.unwrap(), 8);
    assert_eq!(server.command(&["GET", "{n}"]), "8");
}

/// The caller's script has its own keys and arguments, and its own errors.
#[tokio::test]
async fn a_script_behind_a_fence_is_the_callers_own() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    const NONE: Option<&str> = None;
    let ticket = ticket(1, OwnerId::random());
    let echo = ScriptFence::new("return {#KEYS, KEYS[2], #ARGV, ARGV[1]} -- and no more");
    let answer: (u32, String, u32, String) = echo
        .run(
            &mut connection,
            "f",
            &ticket,
            ("a", "b"),
            &["x", "y", "z"][..],
        )
        .await
        .unwrap();
    assert_eq!(answer, (2, "b".into(), 3, "x".into()));
    let nothing = ScriptFence::new("");
    let answer: Option<u32> = nothing
        .run(&mut connection, "f", &ticket, NONE, NONE)
        .await
        .unwrap();
    assert_eq!(answer, None);
    let fails = ScriptFence::new("return redis.call('LPUSH', 'f', 'x')");
    let (_, text) = complaint(
        fails
            .run::<()>(&mut connection, "f", &ticket, NONE, NONE)
            .await,
    );
    assert!(text.contains("WRONGTYPE"), "{text}");
    server.command(&["SET", "g", "something else"]);
    let (_, text) = complaint(
        nothing
            .run::<()>(&mut connection, "g", &ticket, NONE, NONE)
            .await,
    );
    assert!(text.contains("something else"), "{text}");
}

/// A12, A13: a transaction passes with the newest ticket, of one owner, and one key is left.
#[tokio::test]
async fn a12_a13_a_transaction_passes_with_the_newest_ticket() {
    let cluster = EtcdCluster::one();
    let client = cluster.admin().await;
    let fence = TxnFence::new("n/fence").unwrap();
    let run = async |ticket: Ticket| {
        let put = TxnOp::put("n", ticket.token.to_string(), None);
        let answers = fence.run(&client, &ticket, [put]).await?;
        assert!(
            matches!(answers[..], [TxnOpResponse::Put(_)]),
            "{answers:?}"
        );
        Ok(())
    };
    // In either order of the owners, as text.
    let mut owners = [OwnerId::random(), OwnerId::random()];
    for token in [9, 10] {
        owners.reverse();
        let [alice, bob] = owners;
        run(ticket(token, alice)).await.unwrap();
        run(ticket(token, alice)).await.unwrap();
        let refusal = fenced(run(ticket(token, bob)).await);
        let text = format!("{token} has passed, of another owner");
        assert!(refusal.to_string().ends_with(&text), "{refusal}");
    }
    assert_eq!(fenced(run(ticket(9, owners[0])).await).newest.as_u64(), 10);
    assert_eq!(value(&client, "n").await, "10");
    run(ticket(u64::MAX, owners[1])).await.unwrap();
    let all = GetOptions::new().with_prefix();
    let left = client.kv_client().get("n/fence", Some(all)).await.unwrap();
    assert_eq!(left.count(), 1);

    // Another key that begins like the fence's is told, and nothing passes.
    client.kv_client().put("n/fence/x", "", None).await.unwrap();
    let (_, text) = complaint(run(ticket(u64::MAX, owners[1])).await);
    assert!(text.contains("n/fence/"), "{text}");
    assert!(matches!(
        TxnFence::new(""),
        Err(Error::InvalidConfig { .. })
    ));
}

/// The parts, in a transaction with a condition of its own.
#[tokio::test]
async fn a_transaction_of_the_callers_own_is_fenced() {
    let cluster = EtcdCluster::one();
    let client = cluster.admin().await;
    let fence = TxnFence::new("n/fence").unwrap();
    client.kv_client().put("n", "8", None).await.unwrap();
    let sell = async |ticket: Ticket, from: &str, to: &str| {
        let mut when = fence.compares(&ticket);
        when.push(Compare::value("n", CompareOp::Equal, from));
        let mut then = fence.ops(&ticket);
        then.push(TxnOp::put("n", to, None));
        let sold = client
            .kv_client()
            .txn(Txn::new().when(when).and_then(then))
            .await;
        sold.unwrap().succeeded()
    };
    let (alice, bob) = (OwnerId::random(), OwnerId::random());
    assert!(sell(ticket(5, alice), "8", "7").await);
    assert!(!sell(ticket(6, bob), "8", "7").await, "its own condition");
    assert!(sell(ticket(5, alice), "7", "6").await, "nothing was noted");
    assert!(sell(ticket(6, bob), "6", "5").await);
    assert!(!sell(ticket(5, alice), "5", "4").await);
    assert_eq!(value(&client, "n").await, "5");
}

async fn value(client: &Client, key: &str) -> String {
    let found = client.kv_client().get(key, None).await.unwrap();
    found.kvs()[0].value_str().unwrap().to_owned()
}
