//! Keep-alives: one stream for all leases of a handle.
//!
//! The stream is opened when it is first needed. When it ends, or is silent though it owes an
//! answer, it is opened again at another member, and what is not answered is sent again.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper, ResponseHeader};
use lock_core::{StoreError, Ttl};
use parking_lot::Mutex;
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    connection::{Connection, Open},
    error::{Cure, Failure},
    lease::Life,
};

/// What the server says to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    For(Life),
    /// There is no such lease, for certain.
    Gone,
}

impl Alive {
    /// Reads an answer. A server that is ill tells of lives that nobody has asked for.
    fn of(seconds: i64, term: u64) -> Self {
        match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Self::For(Life {
                seconds: seconds.min(Ttl::MAX.as_millis() / 1000 + 1),
                term,
            }),
            _ => Self::Gone,
        }
    }
}

#[derive(Debug)]
pub(crate) struct KeepAlive {
    connection: Arc<Connection>,
    asks: Mutex<Option<UnboundedSender<Ask>>>,
    elsewhere: Arc<Notify>,
}

#[derive(Debug)]
struct Ask {
    lease: i64,
    answer: oneshot::Sender<Alive>,
}

impl KeepAlive {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            asks: Mutex::new(None),
            elsewhere: Arc::default(),
        }
    }

    /// Renews a lease, within the operation time-out.
    pub(crate) async fn renew(&self, lease: i64) -> Result<Alive, StoreError> {
        if self.connection.is_closed() {
            return Err(StoreError::closed());
        }
        let (sender, answer) = oneshot::channel();
        self.ask(Ask {
            lease,
            answer: sender,
        });
        let limit = self.connection.cluster().operation_timeout();
        match timeout(limit, answer).await {
            Ok(Ok(alive)) => Ok(alive),
            Ok(Err(_)) if self.connection.is_closed() => Err(StoreError::closed()),
            Ok(Err(_)) => Err(StoreError::transient("the stream of renewals has ended")),
            Err(_) => Err(self.connection.cluster().no_answer()),
        }
    }

    fn ask(&self, ask: Ask) {
        let mut asks = self.asks.lock();
        let ask = match &*asks {
            Some(line) => match line.send(ask) {
                Ok(()) => return,
                Err(back) => back.0,
            },
            None => ask,
        };
        // None yet, or its runtime is gone.
        let (sender, receiver) = unbounded_channel();
        let _ = sender.send(ask);
        *asks = Some(sender);
        tokio::spawn(serve(
            self.connection.clone(),
            receiver,
            self.elsewhere.clone(),
        ));
    }

    /// Opens the stream anew, at another member if there is one.
    pub(crate) fn reopen(&self) {
        self.elsewhere.notify_one();
    }

    pub(crate) fn close(&self) {
        *self.asks.lock() = None;
    }
}

/// Serves until the handle is gone.
async fn serve(
    connection: Arc<Connection>,
    mut asks: UnboundedReceiver<Ask>,
    elsewhere: Arc<Notify>,
) {
    let mut owed = VecDeque::new();
    let mut silent = 0;
    loop {
        if owed.is_empty() {
            match asks.recv().await {
                Some(ask) => owed.push_back(ask),
                None => return,
            }
        }
        let Some(first) = owed.front().map(|ask: &Ask| ask.lease) else {
            continue;
        };
        let open = match connection.current().await {
            Ok(open) => open,
            Err(why) => {
                tracing::debug!(%why, "no member for the stream of renewals");
                if connection.is_closed() {
                    return;
                }
                forget_given_up(&mut owed);
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let patience = connection.cluster().stream_patience(silent);
        let mut lease = open.client.lease_client();
        let failure = match timeout(patience, lease.keep_alive(first)).await {
            Ok(Ok((keeper, stream))) => {
                let began = Instant::now();
                match talk(keeper, stream, &mut asks, &mut owed, patience, &elsewhere).await {
                    Ended::HandleGone => return,
                    Ended::Stream(failure) => {
                        silent = if began.elapsed() > patience * 4 {
                            0
                        } else {
                            silent + 1
                        };
                        failure
                    }
                }
            }
            Ok(Err(why)) => {
                let failure = Failure::from(why);
                if failure.cure == Cure::Lease {
                    answer(&mut owed, first, Alive::Gone);
                    continue;
                }
                Some(failure)
            }
            Err(_) => {
                silent += 1;
                None
            }
        };
        gone(&connection, &open, failure.as_ref());
        forget_given_up(&mut owed);
    }
}

fn gone(connection: &Connection, open: &Open, failure: Option<&Failure>) {
    match failure {
        Some(failure) => tracing::debug!(why = %failure.error, "the stream of renewals broke"),
        None => tracing::debug!("the stream of renewals was silent"),
    }
    connection.broke(open, failure);
}

enum Ended {
    HandleGone,
    /// `None` when it was silent.
    Stream(Option<Failure>),
}

/// One stream from its first answer to its end.
async fn talk(
    mut keeper: LeaseKeeper,
    mut stream: LeaseKeepAliveStream,
    asks: &mut UnboundedReceiver<Ask>,
    owed: &mut VecDeque<Ask>,
    patience: Duration,
    elsewhere: &Notify,
) -> Ended {
    // Also the one that has opened it, whose answer the client library keeps.
    for ask in owed.iter() {
        keeper.id = ask.lease;
        match timeout(patience, keeper.keep_alive()).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Ended::Stream(Some(why.into())),
            Err(_) => return Ended::Stream(None),
        }
    }
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) => {
                    heard = Instant::now();
                    let term = message.header().map_or(0, ResponseHeader::raft_term);
                    answer(owed, message.id(), Alive::of(message.ttl(), term));
                }
                Ok(None) => return Ended::Stream(None),
                Err(why) => return Ended::Stream(Some(why.into())),
            },
            ask = asks.recv() => match ask {
                Some(ask) => {
                    if owed.is_empty() {
                        heard = Instant::now();
                    }
                    keeper.id = ask.lease;
                    owed.push_back(ask);
                    match timeout(patience, keeper.keep_alive()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(why)) => return Ended::Stream(Some(why.into())),
                        Err(_) => return Ended::Stream(None),
                    }
                }
                None => return Ended::HandleGone,
            },
            () = elsewhere.notified() => return Ended::Stream(None),
            () = sleep_until(heard + patience), if !owed.is_empty() => return Ended::Stream(None),
        }
    }
}

/// The server answers in the order of the requests.
fn answer(owed: &mut VecDeque<Ask>, lease: i64, alive: Alive) {
    if let Some(place) = owed.iter().position(|ask| ask.lease == lease)
        && let Some(ask) = owed.remove(place)
    {
        let _ = ask.answer.send(alive);
    }
}

/// What nobody waits for any more.
fn forget_given_up(owed: &mut VecDeque<Ask>) {
    owed.retain(|ask| !ask.answer.is_closed());
}

#[cfg(test)]
mod tests {
    use lock_core::{Clock, SystemClock};

    use super::*;
    use crate::lease::Lease;

    /// B84: absurd lives end in no panic and in no hold that is longer than was asked for; a
    /// shorter one counts.
    #[test]
    fn b84_absurd_lives_are_none() {
        for none in [0, -1, -68_272, i64::MIN] {
            assert_eq!(Alive::of(none, 7), Alive::Gone, "{none}");
        }
        let now = SystemClock.now();
        let (id, term) = (1, 7);
        let lease = Lease {
            id,
            seconds: 30,
            renewed: now,
            term,
        };
        for life in [1, 29, 30, 9_223_372_036, i64::MAX] {
            let Alive::For(life) = Alive::of(life, term) else {
                panic!("{life} is gone");
            };
            let lease = lease.with(now, life);
            for ttl in [Ttl::from_millis(30_000).unwrap(), Ttl::MAX] {
                let is_enough = life.is_enough(ttl, term);
                assert_eq!(is_enough, life.seconds * 1000 >= ttl.as_millis());
                assert!(lease.remaining(now) <= Ttl::MAX.as_duration());
                assert!(!is_enough || lease.end(term) >= Some(now + ttl.as_duration()));
            }
        }
    }

    /// E2: the word of a leader of an earlier term counts for nothing.
    #[test]
    fn e2_a_former_leader_renews_nothing() {
        let ttl = Ttl::from_millis(30_000).unwrap();
        let Alive::For(life) = Alive::of(31, 7) else {
            panic!("it is alive");
        };
        assert!(life.is_enough(ttl, 7) && !life.is_enough(ttl, 8));
        let now = SystemClock.now();
        let lease = Lease {
            id: 1,
            seconds: 31,
            renewed: now,
            term: 7,
        };
        assert!(lease.end(7).is_some() && lease.end(8).is_none());
    }
}
