//! The watchdog's thread: sleeps until something is due, and sends it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Shared, Withdrawal};
use crate::{Claim, DistributedLock, Moment, Renewal, StoreError, held::Held};

/// Runs until the client is gone and nothing is left to do.
pub(super) fn run(shared: &Shared) {
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(rounds(shared)),
        // Guards then end by their own clock, which needs no thread.
        Err(why) => tracing::error!(%why, "the watchdog has no runtime; locks will not be renewed"),
    }
}

pub(super) async fn rounds(shared: &Shared) {
    let handle = Handle::default();
    let mut jobs = FuturesUnordered::<BoxFuture<'_, ()>>::new();
    loop {
        let round = shared.agenda.lock().round(shared.clock.now());
        // Many at once, but not so many that one lost batch is all that a client holds.
        for batch in round.renew.chunks(500) {
            jobs.push(renew(shared, &handle, batch.to_vec()).boxed());
        }
        for withdrawal in round.withdraw {
            jobs.push(withdraw(shared, &handle, withdrawal).boxed());
        }
        if round.finished && jobs.is_empty() {
            break;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            () = shared.clock.sleep_until(round.next) => {}
            Some(()) = jobs.next(), if !jobs.is_empty() => {
                // Take what else has come in before the next round.
                while let Some(Some(())) = jobs.next().now_or_never() {}
                shared.landed.notify_waiters();
            }
        }
    }
    drop(jobs);
    if let Some(store) = handle.0.into_inner()
        && let Err(why) = store.close().await
    {
        tracing::debug!(%why, "the watchdog's handle could not be closed");
    }
}

/// The watchdog's own handle on the store: opened when it is first needed, and again after a
/// request on it has timed out, since the connection may be dead without a word.
#[derive(Default)]
struct Handle(Mutex<Option<Arc<dyn DistributedLock>>>);

impl Handle {
    async fn open(&self, shared: &Shared) -> Result<Arc<dyn DistributedLock>, StoreError> {
        if let Some(store) = self.0.lock().clone() {
            return Ok(store);
        }
        let store = shared.store.dedicated().await?;
        Ok(self.0.lock().get_or_insert(store).clone())
    }

    fn discard(&self) {
        self.0.lock().take();
    }
}

async fn renew(shared: &Shared, handle: &Handle, batch: Vec<Arc<Held>>) {
    let now = shared.clock.now();
    let claims: Vec<Claim> = batch.iter().map(|held| held.claim()).collect();
    // Short enough that the most urgent lock of the batch gets some tries before its end.
    let shortest = batch
        .iter()
        .map(|held| held.lease.valid_for(now))
        .min()
        .unwrap_or_default();
    let limit = (shortest / 3)
        .max(Duration::from_millis(20))
        .min(shared.operation_timeout);

    let (sent, mut answers) = match answers(shared, handle, &claims, limit).await {
        Ok((sent, answers)) => (sent, answers),
        Err(Failure::TimedOut) => {
            handle.discard();
            (now, Vec::new())
        }
        Err(Failure::Panicked) => (now, one_by_one(shared, handle, &claims, limit).await),
    };
    // A store that answers too few, or not in time, has told nothing about the rest.
    answers.resize_with(batch.len(), || {
        Err(StoreError::transient("no answer in time"))
    });

    let now = shared.clock.now();
    let mut agenda = shared.agenda.lock();
    for (held, answer) in batch.iter().zip(answers) {
        held.holding.metrics().renewed(&answer, now.since(sent));
        agenda.answered(held.id, sent, now, answer);
    }
}

enum Failure {
    TimedOut,
    Panicked,
}

type Answers = Vec<Result<Renewal, StoreError>>;

/// The answers, and when the request was sent.
async fn answers(
    shared: &Shared,
    handle: &Handle,
    claims: &[Claim],
    limit: Duration,
) -> Result<(Moment, Answers), Failure> {
    let work = async {
        match handle.open(shared).await {
            Ok(store) => {
                let sent = shared.clock.now();
                (sent, store.renew_all(claims).await)
            }
            Err(why) => {
                let why = || StoreError::new(why.kind(), why.to_string());
                (
                    shared.clock.now(),
                    claims.iter().map(|_| Err(why())).collect(),
                )
            }
        }
    };
    match timeout(limit, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(answers)) => Ok(answers),
        Ok(Err(_)) => Err(Failure::Panicked),
        Err(_) => Err(Failure::TimedOut),
    }
}

/// After a panic: each claim by itself, so that the one at fault does not take the rest along.
async fn one_by_one(
    shared: &Shared,
    handle: &Handle,
    claims: &[Claim],
    limit: Duration,
) -> Answers {
    let mut all = Vec::with_capacity(claims.len());
    for claim in claims {
        let alone = std::slice::from_ref(claim);
        all.push(match answers(shared, handle, alone, limit).await {
            Ok((_, mut answers)) if !answers.is_empty() => answers.swap_remove(0),
            Err(Failure::Panicked) => Err(StoreError::transient("the store panicked")),
            _ => Err(StoreError::transient("no answer in time")),
        });
    }
    all
}

async fn withdraw(shared: &Shared, handle: &Handle, withdrawal: Withdrawal) {
    let work = async { handle.open(shared).await?.release(withdrawal.claim()).await };
    let limit = shared.operation_timeout;
    let answer = match timeout(limit, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(StoreError::transient("the store panicked")),
        Err(_) => {
            handle.discard();
            Err(StoreError::transient("no answer in time"))
        }
    };
    if withdrawal.is_first_for_guard() {
        shared.metrics.of(&withdrawal.claim().key).released(&answer);
    }
    let now = shared.clock.now();
    shared.agenda.lock().withdrawn(withdrawal, now, answer);
}
