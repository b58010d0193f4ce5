//! A claim between its first request and its grant.

use std::sync::Arc;

use crate::{Attempt, Claim, HoldId, StoreError, client::Inner, watchdog::Withdrawal};

/// A claim on its way; what is not over when it is dropped is taken back.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    inner: &'a Arc<Inner>,
    claim: Claim,
    state: State,
    attempts: u32,
    /// Whether an attempt was given up while it may have been under way: it may still be applied.
    stray: bool,
}

/// What the store has of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing, or nothing that is ours to take back.
    Over,
    /// An attempt that is not answered.
    Unknown,
    /// A hold or a place in the queue.
    Known,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>, claim: Claim) -> Self {
        Self {
            inner,
            claim,
            state: State::Over,
            attempts: 0,
            stray: false,
        }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether an attempt that was given up may still be applied.
    pub(crate) fn has_strays(&self) -> bool {
        self.stray
    }

    pub(crate) async fn attempt(&mut self) -> Result<Attempt, StoreError> {
        let before = self.state;
        self.attempts += 1;
        self.state = State::Unknown;
        let answer = self
            .inner
            .ask(self.inner.store.try_acquire(&self.claim))
            .await;
        match &answer {
            Ok(Attempt::Granted(_)) => self.state = State::Known,
            Ok(Attempt::Busy(_)) if self.claim.queue => self.state = State::Known,
            Ok(Attempt::Busy(_)) => self.state = State::Over,
            Err(why) if why.is_transient() => self.stray = true,
            Err(_) => self.state = before,
        }
        answer
    }

    /// Takes the claim back in the background and goes on with a fresh one.
    pub(crate) fn start_over(&mut self) {
        self.withdraw();
        self.settle();
        self.claim.hold = HoldId::random();
    }

    /// Takes the claim back and waits for it, unless that has to be done in the background.
    pub(crate) async fn give_up(&mut self) {
        if self.state == State::Known && !self.stray {
            let release = self.inner.store.release(&self.claim);
            if self.inner.ask(release).await.is_ok() {
                self.state = State::Over;
            }
        }
    }

    /// The claim is a guard's now, stray attempts included.
    pub(crate) fn settle(&mut self) {
        self.state = State::Over;
        self.stray = false;
    }

    fn withdraw(&self) {
        let now = self.inner.clock.now();
        let claim = self.claim.clone();
        let withdrawal = if self.stray || self.state == State::Unknown {
            Withdrawal::uncertain(claim, now, self.inner.options.operation_timeout)
        } else if self.state == State::Known {
            let end = now + claim.ttl.as_duration();
            Withdrawal::certain(claim, None, now, end)
        } else {
            return;
        };
        self.inner.watchdog.withdraw(withdrawal);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
