//! Looking at the locks of a store again and again.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use distlock::{FencingToken, LockClient, LockInfo, LockKey, Page};

/// What there is at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// In the order of their names.
    pub(crate) locks: Vec<LockInfo>,
    pub(crate) rates: Rates,
}

/// Changes a second over the last ten, as far as one can see who looks now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Grants that were not there at the look before.
    pub(crate) grants: f64,
    /// Grants that are gone, and whose lease had run out by then.
    pub(crate) losses: f64,
}

/// Looks, and compares with the look before.
#[derive(Debug)]
pub(crate) struct Observer {
    client: LockClient,
    prefix: String,
    changes: Changes,
    /// When to look again.
    next: Instant,
}

/// A new holder is seen within a second, with time to spare.
const PAUSE: Duration = Duration::from_millis(600);

/// So many pages a second at most.
const MOST_PAGES: u32 = 2;

impl Observer {
    pub(crate) fn new(client: LockClient, prefix: String) -> Self {
        Self {
            client,
            prefix,
            changes: Changes::default(),
            next: Instant::now(),
        }
    }

    /// Waits until it is time, and looks.
    ///
    /// When dropped, nothing is lost but the look.
    pub(crate) async fn look(&mut self) -> distlock::Result<View> {
        tokio::time::sleep_until(self.next.into()).await;
        self.next = Instant::now() + PAUSE;
        let mut locks = Vec::new();
        let mut page = Page {
            limit: 1000,
            cursor: None,
        };
        let mut pages = 0;
        loop {
            let answer = self.client.list(&self.prefix, page.clone()).await?;
            pages += 1;
            locks.extend(answer.locks);
            match answer.next {
                Some(cursor) => page.cursor = Some(cursor),
                None => break,
            }
        }
        let now = Instant::now();
        self.next = now + PAUSE.max(Duration::from_secs(1) * pages / MOST_PAGES);
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        let rates = self.changes.compare(&locks, now);
        Ok(View { locks, rates })
    }
}

/// What has changed from look to look.
#[derive(Debug, Default)]
struct Changes {
    began: Option<Instant>,
    last: HashMap<LockKey, Grant>,
    /// Grants and losses of the last looks.
    counts: VecDeque<(Instant, u32, u32)>,
}

#[derive(Debug)]
struct Grant {
    token: FencingToken,
    /// The end of the lease, unless it is renewed.
    end: Instant,
}

impl Changes {
    const WINDOW: Duration = Duration::from_secs(10);

    fn compare(&mut self, locks: &[LockInfo], now: Instant) -> Rates {
        let held = locks.iter().filter_map(|info| {
            let holder = info.holder.as_ref()?;
            let grant = Grant {
                token: holder.token,
                end: now + holder.remaining,
            };
            Some((info.key.clone(), grant))
        });
        let held: HashMap<_, _> = held.collect();
        let same = |a: &HashMap<LockKey, Grant>, key: &LockKey, grant: &Grant| {
            a.get(key).is_some_and(|other| other.token == grant.token)
        };
        if self.began.is_some() {
            let new = held.iter().filter(|(key, it)| !same(&self.last, key, it));
            let gone = self.last.iter().filter(|(key, it)| !same(&held, key, it));
            let lost = gone.filter(|(_, grant)| grant.end <= now);
            let counts = (now, new.count() as u32, lost.count() as u32);
            self.counts.push_back(counts);
        }
        self.last = held;
        let began = *self.began.get_or_insert(now);
        while self
            .counts
            .front()
            .is_some_and(|(at, ..)| *at + Self::WINDOW <= now)
        {
            self.counts.pop_front();
        }
        let time = (now - began).min(Self::WINDOW).as_secs_f64().max(1.0);
        let sum = |count: fn(&(Instant, u32, u32)) -> u32| {
            f64::from(self.counts.iter().map(count).sum::<u32>()) / time
        };
        Rates {
            grants: sum(|(_, grants, _)| *grants),
            losses: sum(|(.., losses)| *losses),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use distlock::{Asker, Holder, OwnerId, Waiter};

    use super::*;

    pub(crate) fn lock(name: &str, token: u64, remaining: Duration) -> LockInfo {
        let asker = |label: &str| {
            let asker = Asker::new(Some(label.into()), "host".into(), 7);
            Arc::new(asker.expect("an asker"))
        };
        LockInfo {
            key: LockKey::new(name).expect("a key"),
            holder: Some(Holder {
                owner: OwnerId::random(),
                asker: asker("holder"),
                token: FencingToken::new(token).expect("a token"),
                holds: 2,
                held_for: Duration::from_secs(3),
                remaining,
            }),
            waiters: vec![Waiter {
                owner: OwnerId::random(),
                asker: asker("waiter"),
                waiting_for: Duration::from_secs(1),
            }],
        }
    }

    #[test]
    fn grants_and_losses_are_counted_for_ten_seconds() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut changes = Changes::default();
        let mut look = |at: u32, locks: &[LockInfo]| changes.compare(locks, start + second * at);
        // What was there before is no grant.
        let a = lock("a", 1, 2 * second);
        assert_eq!(look(0, std::slice::from_ref(&a)), Rates::default());
        // A second one, and the first was renewed.
        let b = lock("b", 2, 30 * second);
        let rates = look(2, &[a.clone(), b.clone()]);
        assert_eq!((rates.grants, rates.losses), (0.5, 0.0));
        // The first one's lease is over; the second one was released and taken again.
        let rates = look(4, &[lock("b", 3, 30 * second)]);
        assert_eq!((rates.grants, rates.losses), (0.5, 0.25));
        assert_eq!(look(20, &[lock("b", 3, 30 * second)]), Rates::default());
    }
}
