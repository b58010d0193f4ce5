//! Clause 10: names are exact; the same bytes are the same lock, different bytes are not.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use rand::{RngExt, seq::IndexedRandom};

use super::{
    PATIENCE, Subject,
    actor::{Actor, key},
};
use crate::{HoldId, LockKey, Page};

/// Names that one store or another has been known to mix up.
const TRICKY: &[&str] = &[
    "a",
    "ab",
    "abc",
    "a/b",
    "a/",
    "/a",
    "a//b",
    "A",
    "a ",
    " a",
    "a\u{a0}",
    "a.b",
    "a..b",
    "../a",
    "a:b",
    "a::b",
    "a|b",
    "a,b",
    "a;b",
    "a-b",
    "a_b",
    "a%b",
    "a%",
    "a*",
    "a?",
    "a[b]",
    "a[a-c]",
    "{a}",
    "}a{",
    "}x{",
    "{}",
    "{}a",
    "a{}",
    "{a",
    "a}",
    "{{a}}",
    "a'b",
    "a\"b",
    "a`b",
    "a\\b",
    "a\\\\b",
    "a''b",
    "$1",
    "a$b",
    "#a",
    "--a",
    "a--",
    "a;DROP TABLE locks",
    "a\u{301}",
    "\u{e1}",
    "\u{c1}",
    "ss",
    "\u{df}",
    "\u{1e9e}",
    "\u{131}",
    "i",
    "I",
    "\u{130}",
    "\u{fb01}",
    "fi",
    "\u{200b}a",
    "a\u{200b}",
    "\u{feff}a",
    "\u{1f512}",
    "\u{1f513}",
    "\u{10ffff}",
    "null",
    "NULL",
    "0",
    "00",
    "-1",
    "1e3",
    "0x10",
    "true",
    "a=b",
    "a&b",
    "a<b",
    "a>b",
    "a@b",
    "a!b",
    "a^b",
    "a~b",
    "a+b",
    "a%2Fb",
    "a%2fb",
    "a\u{ff0f}b",
    "a\u{2215}b",
];

/// Each name in front of and behind a random text that no other test uses.
fn tricky_keys() -> Vec<LockKey> {
    let unique = HoldId::random().to_string();
    let keys: Vec<_> = TRICKY
        .iter()
        .flat_map(|name| [format!("{unique}{name}"), format!("{name}{unique}")])
        .map(|name| LockKey::new(name).expect("a valid key"))
        .collect();
    let distinct: BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    keys
}

/// All are held at the same time by different owners; each can be seen and released by itself.
async fn never_meet(subject: &dyn Subject, keys: &[LockKey]) {
    let handles = [subject.open().await, subject.open().await];
    let actors: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(place, key)| Actor::on(&handles[place % 2], key, "owner"))
        .collect();
    for some in actors.chunks(64) {
        join_all(some.iter().map(Actor::enters)).await;
    }
    for some in actors.chunks(64) {
        join_all(some.iter().map(async |actor| {
            let seen = actor.sees().await;
            assert_eq!(seen.key, actor.claim.key);
            assert_eq!(seen.holder.expect("a holder").owner, actor.claim.owner);
            actor.rival("rival").is_refused().await;
            assert_eq!(actor.leaves().await, 0, "{:?}", actor.claim.key);
            assert_eq!(actor.looks().await, None);
        }))
        .await;
    }
}

/// Names with slashes, braces, quotes, patterns, letters of other cases and forms, and names that
/// begin with one another are different locks. Clause 10; A39, B73, B116.
pub async fn different_names_are_different_locks(subject: &dyn Subject) {
    never_meet(subject, &tricky_keys()).await;
}

/// Names as long as they may be count to the last byte. Clause 10; A39, B73, B89.
pub async fn long_names_differ_in_their_last_byte(subject: &dyn Subject) {
    let unique = HoldId::random().to_string();
    let mut keys = Vec::new();
    for filler in ["x", "{", "'", "\u{e9}", "\u{1f512}"] {
        // From around the limits of 63 and 64 bytes up to the longest.
        for length in [63, 64, 65, 200, LockKey::MAX_LEN] {
            let room = length - unique.len() - 1;
            let stem = format!("{unique}{}", filler.repeat(room / filler.len()));
            let stem = format!("{stem}{}", "-".repeat(length - 1 - stem.len()));
            for last in ["a", "b"] {
                keys.push(LockKey::new(format!("{stem}{last}")).expect("a valid key"));
            }
            keys.push(LockKey::new(stem).expect("a valid key"));
        }
    }
    let keys: Vec<_> = BTreeSet::from_iter(keys).into_iter().collect();
    assert!(
        keys.iter()
            .any(|key| key.as_str().len() == LockKey::MAX_LEN)
    );
    never_meet(subject, &keys).await;
}

/// A thousand names of random characters, many of them alike, are a thousand locks. Clause 10;
/// A39, B116.
pub async fn random_names_never_meet(subject: &dyn Subject) {
    const LETTERS: &[char] = &[
        'a',
        'A',
        'b',
        '/',
        ':',
        '{',
        '}',
        '*',
        '?',
        '%',
        '_',
        '\'',
        '"',
        '\\',
        ' ',
        '.',
        '\u{e1}',
        '\u{301}',
        '\u{1f512}',
    ];
    let unique = HoldId::random().to_string();
    let mut random = rand::rng();
    let mut keys = BTreeSet::new();
    while keys.len() < 1000 {
        let letters = (0..random.random_range(1..6)).filter_map(|_| LETTERS.choose(&mut random));
        let name: String = letters.collect();
        keys.insert(LockKey::new(format!("{unique}{name}")).expect("a valid key"));
        keys.insert(LockKey::new(format!("{name}{unique}")).expect("a valid key"));
    }
    never_meet(subject, &Vec::from_iter(keys)).await;
}

/// All keys that a list shows, over all of its pages.
async fn listed(actor: &Actor, prefix: &str) -> Vec<LockKey> {
    let mut found = Vec::new();
    let mut page = Page::default();
    loop {
        let part = actor.store.list(prefix, page.clone()).await;
        let part = part.unwrap_or_else(|error| panic!("cannot list {prefix:?}: {error}"));
        found.extend(part.locks.into_iter().map(|info| info.key));
        match part.next {
            Some(next) => page.cursor = Some(next),
            None => break,
        }
    }
    found.sort();
    found
}

/// A list shows all names that start with the prefix and no others; what is inspected is exact.
/// Clause 10; B116.
pub async fn a_prefix_lists_what_starts_with_it(subject: &dyn Subject) {
    let unique = HoldId::random().to_string();
    let handle = subject.open().await;
    let at = |name: &str| LockKey::new(format!("{unique}{name}")).expect("a valid key");
    let mut held = Vec::new();
    for name in ["ab", "a/b", "abc", "b", "A", "a\u{301}"] {
        held.push(Actor::on(&handle, &at(name), "holder"));
    }
    join_all(held.iter().map(Actor::enters)).await;
    let elsewhere = LockKey::new(format!("x{unique}a")).expect("a valid key");
    let elsewhere = Actor::on(&handle, &elsewhere, "has the prefix inside");
    elsewhere.enters().await;
    let viewer = Actor::on(&subject.open().await, &at("a"), "viewer");
    assert_eq!(viewer.looks().await, None);
    let expect = |prefix: &str| {
        let mut keys: Vec<_> = held.iter().map(|actor| actor.claim.key.clone()).collect();
        keys.retain(|key| key.as_str()[unique.len()..].starts_with(prefix));
        keys.sort();
        keys
    };
    for prefix in [
        "", "a", "ab", "abc", "abcd", "a/", "A", "b", "a\u{301}", "\u{e1}", "B",
    ] {
        let found = listed(&viewer, &format!("{unique}{prefix}")).await;
        assert_eq!(found, expect(prefix), "the locks under {prefix:?}");
    }
    let all = listed(&viewer, "").await;
    let mut expected = expect("");
    expected.push(elsewhere.claim.key.clone());
    assert!(
        expected.iter().all(|key| all.contains(key)),
        "an empty prefix lists all"
    );
}

/// Characters of patterns mean themselves in a prefix. Clause 10; A39, B116.
pub async fn a_prefix_is_taken_literally(subject: &dyn Subject) {
    let unique = HoldId::random().to_string();
    let handle = subject.open().await;
    let special = [
        "*", "?", "%", "_", "[a-z]", "\\", "'", "\"", "^", "{", "}", ".*", "$", "~",
    ];
    let mut held = Vec::new();
    for name in special.iter().copied().chain(["x", "xyz"]) {
        let key = LockKey::new(format!("{unique}{name}tail")).expect("a valid key");
        held.push(Actor::on(&handle, &key, "holder"));
    }
    join_all(held.iter().map(Actor::enters)).await;
    let viewer = Actor::on(&subject.open().await, &key("viewer"), "viewer");
    for prefix in special {
        let prefix = format!("{unique}{prefix}");
        let expected: Vec<_> = held
            .iter()
            .map(|actor| actor.claim.key.clone())
            .filter(|key| key.as_str().starts_with(&prefix))
            .collect();
        assert_eq!(
            listed(&viewer, &prefix).await,
            expected,
            "the locks under {prefix:?}"
        );
    }
}

/// A waiter is woken whatever the name is. Clauses 9 and 10; B89.
pub async fn waiters_are_woken_under_any_name(subject: &dyn Subject) {
    let unique = HoldId::random().to_string();
    let long = "n".repeat(200 - unique.len());
    let names = [
        format!("{unique}{long}1"),
        format!("{unique}{long}2"),
        format!("Upper'Quote\"{unique};"),
        format!("}}x{{{unique}"),
        format!("{unique}{}", "\u{6f22}".repeat(40)),
        format!("{unique}{}", "z".repeat(LockKey::MAX_LEN - unique.len())),
    ];
    let holders = subject.open().await;
    let waiters = subject.open().await;
    join_all(names.iter().map(async |name| {
        let key = LockKey::new(name).expect("a valid key");
        let holder = Actor::on(&holders, &key, "holder");
        let waiter = Actor::on(&waiters, &key, "waiter").queueing();
        holder.enters().await;
        waiter.queues_at(1).await;
        let waiting = async {
            // Only the store can wake it in time.
            waiter.waits_with(PATIENCE * 10).await;
        };
        let leaving = async {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            holder.leaves().await;
        };
        let both = async { tokio::join!(waiting, leaving) };
        let woken = tokio::time::timeout(PATIENCE, both).await;
        woken.unwrap_or_else(|_| panic!("nobody woke the waiter of {key:?}"));
        assert_eq!(waiter.leaves().await, 0);
    }))
    .await;
}
