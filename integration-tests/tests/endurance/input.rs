//! Names, ttls and waits of any kind.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use lock_core::{Error, LockClient, LockGuard, LockKey, Page, Ttl};
use rand::{
    Rng, RngExt,
    seq::{IndexedRandom, IteratorRandom},
};

use crate::place::{Place, times};

/// So many are asked for and held at a time.
const AT_ONCE: usize = 500;

/// A39, B116.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_takes_what_is_valid_and_refuses_the_rest() {
    ask_for_anything(Place::redis()).await;
}

/// A39, B116.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_takes_what_is_valid_and_refuses_the_rest() {
    ask_for_anything(Place::postgres()).await;
}

/// A39, B116.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_takes_what_is_valid_and_refuses_the_rest() {
    ask_for_anything(Place::etcd()).await;
}

/// A39, B116.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_takes_what_is_valid_and_refuses_the_rest() {
    ask_for_anything(Place::sqlite()).await;
}

/// What is valid is granted, under its own name and no other; what is not is refused before
/// anything is sent, by an error of its own. Nothing panics, nothing is left.
async fn ask_for_anything(place: Place) {
    let client = place.client().await;
    let rival = place.client().await;
    let mut random = rand::rng();
    let (mut taken, mut refused) = (0, 0);
    let wanted = times(2_000, 100_000);
    for _ in 0..wanted / AT_ONCE {
        let mut inputs = BTreeMap::new();
        while inputs.len() < AT_ONCE {
            inputs.insert(name(&mut random), (ttl(&mut random), wait(&mut random)));
        }
        let asked = inputs.iter().map(async |(name, (ttl, wait))| {
            let outcome = client.lock(name.as_str()).ttl(*ttl).wait(*wait).acquire();
            check(name, *ttl, outcome.await)
        });
        let held: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        taken += held.len();
        refused += AT_ONCE - held.len();

        let mut names: Vec<_> = held.iter().map(|guard| guard.key().clone()).collect();
        names.sort();
        assert!(
            listed(&client, "").await == names,
            "all are listed, and nothing else"
        );
        let prefix = prefix(names.choose(&mut random).unwrap(), &mut random);
        let start = prefix.as_str();
        let expected = names.iter().filter(|name| name.as_str().starts_with(start));
        assert!(
            listed(&client, start).await.iter().eq(expected),
            "{start:?}"
        );

        // A second one is refused, by the same name only.
        let guards = held.iter().sample(&mut random, 10);
        for guard in guards {
            let tried = rival.lock(guard.key()).wait(soon(&mut random)).acquire();
            match tried.await {
                Err(Error::Busy { .. } | Error::Timeout { .. }) => {}
                other => panic!("{:?} is held: {other:?}", guard.key()),
            }
        }
        for left in join_all(held.into_iter().map(LockGuard::release)).await {
            left.unwrap();
        }
    }
    assert_eq!(listed(&client, "").await, []);
    assert!(
        taken > wanted / 4 && refused > wanted / 20,
        "{taken} {refused}"
    );
}

/// The grant of what is valid.
fn check(name: &str, ttl: Duration, outcome: Result<LockGuard, Error>) -> Option<LockGuard> {
    let is_name = (1..=LockKey::MAX_LEN).contains(&name.len()) && !name.contains(char::is_control);
    let is_ttl = !ttl.is_zero() && ttl <= Ttl::MAX.as_duration();
    match outcome {
        Ok(guard) if is_name && is_ttl => {
            assert_eq!(guard.key().as_str(), name);
            Some(guard)
        }
        Err(Error::InvalidKey(_)) if !is_name => None,
        Err(Error::InvalidConfig { .. }) if !is_ttl => None,
        outcome => panic!("{name:?} for {ttl:?}: {outcome:?}"),
    }
}

fn name(random: &mut impl Rng) -> String {
    // What means something to a server, a shell or a file, and what only looks like another.
    const PIECES: [&str; 40] = [
        "a",
        "A",
        "b",
        "0",
        "/",
        "//",
        "%",
        "%2F",
        "%25",
        ":",
        "{",
        "}",
        "{a}",
        "*",
        "?",
        "[",
        "]",
        "^",
        "_",
        "'",
        "''",
        "\"",
        "\\",
        ";",
        "--",
        "$1",
        "$$",
        " ",
        ".",
        "..",
        "~",
        "|",
        "\u{e1}",
        "a\u{301}",
        "\u{1f512}",
        "\u{202e}",
        "\u{feff}",
        "\u{10ffff}",
        "'; DROP TABLE distlock_lock; --",
        "\r\nFLUSHALL\r\n",
    ];
    let mut name = String::new();
    let pieces = match random.random_range(0..20) {
        0 => 0,
        1 => random.random_range(1..300),
        _ => random.random_range(1..8),
    };
    for _ in 0..pieces {
        match random.random_range(0..40) {
            0 => name.push(random.random()),
            1 => name.extend((0..random.random_range(1..60)).map(|_| 'x')),
            _ => name.push_str(PIECES.choose(random).unwrap()),
        }
    }
    name
}

/// From next to nothing to next to for ever, long enough for those to be held that are.
fn ttl(random: &mut impl Rng) -> Duration {
    match random.random_range(0..20) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2 => Ttl::MAX.as_duration() + Duration::from_nanos(random.random_range(1..u64::MAX)),
        3 => Ttl::MAX.as_duration(),
        4 => Duration::from_nanos(random.random_range(60_000_000_000..90_000_000_000)),
        _ => Duration::from_millis(random.random_range(60_000..=Ttl::MAX.as_millis())),
    }
}

fn wait(random: &mut impl Rng) -> Duration {
    match random.random_range(0..4) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2 => Duration::from_secs(random.random_range(60..u64::MAX)),
        _ => Duration::from_nanos(random.random_range(60_000_000_000..u64::MAX)),
    }
}

fn soon(random: &mut impl Rng) -> Duration {
    Duration::from_nanos(random.random_range(0..2_000_000))
}

/// The beginning of a name, up to any character.
fn prefix(name: &LockKey, random: &mut impl Rng) -> String {
    let letters = name.as_str().chars().count();
    let length = random.random_range(0..=letters);
    name.as_str().chars().take(length).collect()
}

/// Over all pages, in order.
async fn listed(client: &LockClient, prefix: &str) -> Vec<LockKey> {
    let mut found = Vec::new();
    let mut page = Page::default();
    loop {
        let part = client.list(prefix, page.clone()).await.unwrap();
        found.extend(part.locks.into_iter().map(|info| info.key));
        match part.next {
            Some(next) => page.cursor = Some(next),
            None => break,
        }
    }
    found.sort();
    found
}
