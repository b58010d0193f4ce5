//! `try`, `inspect`, `list`, `release`, the completions and the manual page.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use sqlx::Connection;
use support::{Place, Running, code, output, stderr, until};

fn json(place: &Place, args: &str) -> Value {
    let output = output(&mut place.distlock(args));
    assert!(output.status.success(), "{args}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(place: &Place, args: &str) -> String {
    let output = output(&mut place.distlock(args));
    assert!(output.status.success(), "{args}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// B51: the token that `inspect` prints is the one that `release` takes; the second time there is
/// nothing to release, a wrong token changes nothing, and later tokens are larger all the same.
#[test]
fn b51_release_by_token() {
    let place = Place::new();
    let script = "trap 'exit 9' TERM; echo started > started; while :; do sleep 0.01; done";
    let mut holder = Running::start(&mut place.run_script("k --ttl 2s", script));
    place.text("started");
    let token = place.inspect("k")["holder"]["token"].as_u64().unwrap();

    let wrong = output(&mut place.distlock("release k --token 7"));
    assert_eq!(wrong.status.code(), Some(207));
    assert!(stderr(&wrong).contains(&token.to_string()), "{wrong:?}");
    assert!(!place.is_free("k"));

    assert_eq!(
        code(&mut place.distlock(&format!("release k --token {token}"))),
        0
    );
    let again = output(&mut place.distlock(&format!("release k --token {token}")));
    assert_eq!(again.status.code(), Some(206));
    assert!(stderr(&again).contains("lock k is not held"), "{again:?}");
    assert_eq!(code(&mut place.distlock("release never --token 1")), 206);
    assert_eq!(code(&mut place.distlock("release never --force")), 206);
    // The holder learns of it at its next renewal and ends its command.
    assert_eq!(holder.code(), 202);

    let next = json(&place, "--json try k");
    assert!(next["token"].as_u64().unwrap() > token);
    assert_eq!(code(&mut place.distlock("release k --force")), 0);
    assert!(place.is_free("k"));
}

#[test]
fn release_needs_a_token_or_force() {
    let place = Place::new();
    for args in [
        "release k",
        "release k --token 1 --force",
        "release k --token x",
        "release k --token 0",
    ] {
        assert_eq!(code(&mut place.distlock(args)), 205, "{args}");
    }
}

#[test]
fn try_leaves_the_lock_held_for_its_ttl() {
    let place = Place::new();
    let taken = json(&place, "--json try k --ttl 10m --label painter");
    assert_eq!(taken["key"], "k");
    assert_eq!(taken["ttl_ms"], 600_000);
    let info = place.inspect("k");
    assert_eq!(info["holder"]["token"], taken["token"]);
    assert_eq!(info["holder"]["owner"], taken["owner"]);
    assert_eq!(info["holder"]["label"], "painter");
    assert!(info["holder"]["remaining_ms"].as_u64().unwrap() > 500_000);
    assert_eq!(code(&mut place.distlock("try k")), 200);

    // Its owner enters, everybody else does not.
    let owner = taken["owner"].as_str().unwrap();
    assert_eq!(
        code(&mut place.distlock(&format!("run k --no-wait --owner {owner} -- true"))),
        0
    );
    assert_eq!(code(&mut place.distlock("run k --no-wait -- true")), 200);
    assert!(!place.is_free("k"), "entered and left, but not released");

    // A short one ends by itself.
    assert_eq!(code(&mut place.distlock("try short --ttl 200ms")), 0);
    assert_eq!(code(&mut place.distlock("run short --wait 60s -- true")), 0);
}

#[test]
fn inspect_and_list_show_holders_and_waiters() {
    let place = Place::new();
    assert_eq!(text(&place, "list"), "no locks\n");
    assert_eq!(json(&place, "--json list"), Value::Array(vec![]));
    assert!(text(&place, "inspect k").contains("nobody"));

    let mut holder = Running::start(&mut place.run_script("jobs/a --label painter", "sleep 600"));
    until("a holder", || !place.is_free("jobs/a"));
    let mut waiter = Running::start(&mut place.run_script("jobs/a --label baker", "true"));
    until("a waiter", || place.waiters("jobs/a") == 1);
    json(&place, "--json try other");

    let shown = text(&place, "inspect jobs/a");
    assert!(
        shown.contains("painter (") && shown.contains("waiter 1") && shown.contains("baker ("),
        "{shown}"
    );
    let table = text(&place, "list jobs/");
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(
        table.starts_with("LOCK ") && table.contains("jobs/a"),
        "{table}"
    );
    let all = json(&place, "--json list");
    assert_eq!(all[0]["key"], "jobs/a");
    assert_eq!(all[0]["waiters"][0]["label"], "baker");
    assert_eq!(all[1]["key"], "other");
    assert_eq!(all.as_array().unwrap().len(), 2);

    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert_eq!(waiter.code(), 0);
}

/// More locks than fit a page are listed all, and each once.
#[test]
fn a_long_list_has_every_lock_once() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = distlock::connect(&place.url()).await.unwrap();
        for n in 0..250 {
            let lock = client
                .lock(format!("n{n:03}"))
                .ttl(std::time::Duration::from_secs(600));
            let guard = lock.manual_renewal().try_acquire().await.unwrap();
            guard.detach().unwrap();
        }
    });
    let listed = json(&place, "--json list n");
    let keys: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["key"].as_str().unwrap().to_owned())
        .collect();
    let expected: Vec<_> = (0..250).map(|n| format!("n{n:03}")).collect();
    assert_eq!(keys, expected);
}

/// Without a URL the store is a file in the user's state folder.
#[test]
fn the_embedded_store_needs_no_setting() {
    let place = Place::new();
    let run = |args: &str| {
        let mut command = place.distlock(args);
        command
            .env_remove("DISTLOCK_URL")
            .env("XDG_STATE_HOME", place.path("state"));
        output(&mut command)
    };
    assert!(run("try k").status.success());
    assert_eq!(run("run k --no-wait -- true").status.code(), Some(200));
    assert!(place.path("state/distlock").is_dir());
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            text(&place, &format!("completions {shell}")).contains("distlock"),
            "{shell}"
        );
    }
    let page = text(&place, "man");
    assert!(
        page.contains(".TH distlock") && page.contains("203"),
        "{page}"
    );
    let page = text(&place, "man run");
    assert!(
        page.contains("on\\-lost") && page.contains("DISTLOCK_TOKEN"),
        "{page}"
    );
    assert_eq!(code(&mut place.distlock("man nonsense")), 205);
    assert!(text(&place, "--help").contains("201"));
    assert!(text(&place, "--version").starts_with("distlock "));
}

/// B51: a record that cannot be read is a clear error, and `--force` removes it.
#[test]
fn b51_a_damaged_record_can_be_removed() {
    let place = Place::new();
    let token = json(&place, "--json try k")["token"].as_u64().unwrap();
    let damage = "UPDATE locks SET owner = 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz' WHERE key = 'k'";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place.path("locks.db"));
        let mut connection = sqlx::SqliteConnection::connect_with(&options)
            .await
            .unwrap();
        let done = sqlx::raw_sql(damage)
            .execute(&mut connection)
            .await
            .unwrap();
        assert_eq!(done.rows_affected(), 1);
    });
    let unreadable = output(&mut place.distlock("inspect k"));
    assert_eq!(unreadable.status.code(), Some(204), "{unreadable:?}");
    assert_eq!(code(&mut place.distlock("release k --force")), 0);
    assert!(json(&place, "--json try k")["token"].as_u64().unwrap() > token);
}
