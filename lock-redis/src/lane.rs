//! Sending attempts and releases, together when many come at the same time.
//!
//! A request that finds few others under way goes out at once, by itself. One that finds more
//! waits until less than two commands are under way, and leaves with half of all that are there,
//! in one script: the server works on one half while this process works on the other. So a few
//! callers pay nothing, and a busy process sends fewer and larger commands.

use std::{collections::VecDeque, sync::Arc};

use lock_core::{LockKey, StoreError, StoreErrorKind};
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use crate::{
    connection::{Connection, Reply},
    record::{Part, add_keys},
    scripts::Scripts,
};

/// Fewer requests than these do not gather.
const FEW: usize = 16;
/// How many commands are under way when requests gather.
const UNDER_WAY: usize = 2;
/// How many requests go into one script at most: it keeps the server from everything else.
const LARGEST: usize = 64;

/// The way to the server for the verbs that applications wait for.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) connection: Connection,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) prefix: String,
    /// Whether requests about different locks may share a script; not in a cluster.
    pub(crate) together: bool,
    traffic: Mutex<Traffic>,
}

#[derive(Debug, Default)]
struct Traffic {
    /// Commands that were sent and not answered yet.
    under_way: usize,
    /// Requests in those commands.
    requests: usize,
    gathered: VecDeque<Gathered>,
}

impl Traffic {
    fn all(&self) -> usize {
        self.requests + self.gathered.len()
    }

    /// How many requests leave now, in one command.
    fn share(&self) -> usize {
        match self.under_way < UNDER_WAY {
            true => self
                .all()
                .div_ceil(UNDER_WAY)
                .min(LARGEST)
                .min(self.gathered.len()),
            false => 0,
        }
    }
}

/// One attempt or release.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) key: LockKey,
    /// `OWNER\nHOLD\n`
    pub(crate) id: String,
    /// `None` for a release.
    pub(crate) attempt: Option<Wanted>,
}

/// What an attempt asks for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) ttl: u64,
    pub(crate) asker: String,
}

#[derive(Debug)]
struct Gathered {
    request: Arc<Request>,
    answer: oneshot::Sender<Outcome>,
}

#[derive(Debug)]
enum Outcome {
    Answered(Reply),
    /// Not simple enough for a batch. Says whether the batch was sent more than once.
    SendAlone(bool),
    Failed(StoreErrorKind, String),
}

impl Lane {
    pub(crate) fn new(
        connection: Connection,
        scripts: Arc<Scripts>,
        prefix: String,
        together: bool,
    ) -> Self {
        Self {
            connection,
            scripts,
            prefix,
            together,
            traffic: Mutex::default(),
        }
    }

    /// Sends a request; the answer is that of acquire.lua or release.lua. The channel is the
    /// last argument of either.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: Request,
        channel: Option<&str>,
    ) -> Result<Reply, StoreError> {
        if !self.together {
            return self.send_alone(&request, channel).await;
        }
        let request = Arc::new(request);
        let outcome = match self.enter(&request) {
            Ok(_place) => return self.send_alone(&request, channel).await,
            Err(outcome) => outcome,
        };
        let limit = self.connection.server().operation_timeout();
        match timeout(limit, outcome).await {
            Ok(Ok(Outcome::Answered(reply))) => Ok(reply),
            Ok(Ok(Outcome::Failed(kind, why))) => Err(StoreError::new(kind, why)),
            Ok(Ok(Outcome::SendAlone(resent))) => {
                let mut reply = self.send_alone(&request, channel).await?;
                reply.resent |= resent;
                Ok(reply)
            }
            // Whoever was to send it may have gone, with its runtime for example.
            Ok(Err(_)) => self.send_alone(&request, channel).await,
            Err(_) => Err(self.connection.server().no_answer()),
        }
    }

    /// A place among the commands under way, or one in the gathering.
    fn enter(
        self: &Arc<Self>,
        request: &Arc<Request>,
    ) -> Result<Place, oneshot::Receiver<Outcome>> {
        let mut traffic = self.traffic.lock();
        if traffic.all() < FEW || traffic.under_way < UNDER_WAY {
            traffic.under_way += 1;
            traffic.requests += 1;
            return Ok(Place {
                lane: self.clone(),
                requests: 1,
            });
        }
        let (answer, outcome) = oneshot::channel();
        traffic.gathered.push_back(Gathered {
            request: request.clone(),
            answer,
        });
        Err(outcome)
    }

    async fn send_alone(
        &self,
        request: &Request,
        channel: Option<&str>,
    ) -> Result<Reply, StoreError> {
        let script = match request.attempt {
            Some(_) => &self.scripts.acquire,
            None => &self.scripts.release,
        };
        let sent = self.connection.run(script, |command| {
            self.keys(command, &request.key, &Part::ALL);
            command.arg(&request.id);
            if let Some(wanted) = &request.attempt {
                command.arg(wanted.ttl).arg(&wanted.asker);
            }
            command.arg(channel);
        });
        sent.await
    }

    /// Adds the names of a lock's keys, and how many they are.
    pub(crate) fn keys(&self, command: &mut Cmd, key: &LockKey, parts: &[Part]) {
        command.arg(parts.len());
        add_keys(command, &self.prefix, key, parts);
    }

    async fn send_together(&self, mut batch: Vec<Gathered>) {
        batch.retain(|gathered| !gathered.answer.is_closed());
        if batch.is_empty() {
            return;
        }
        let parts = [Part::Claim, Part::Token];
        let sent = self.connection.run(&self.scripts.batch, |command| {
            command.arg(batch.len() * parts.len());
            for Gathered { request, .. } in &batch {
                add_keys(command, &self.prefix, &request.key, &parts);
            }
            for Gathered { request, .. } in &batch {
                command.arg(&request.id);
                match &request.attempt {
                    Some(wanted) => command.arg(wanted.ttl).arg(&wanted.asker),
                    None => command.arg("").arg(""),
                };
            }
        });
        match sent.await {
            Ok(Reply {
                value: Value::Array(answers),
                resent,
            }) if answers.len() == batch.len() => {
                for (gathered, answer) in batch.into_iter().zip(answers) {
                    let answered = |value| Outcome::Answered(Reply { value, resent });
                    // Nobody may be there any more.
                    let _ = gathered.answer.send(match answer {
                        Value::Int(1) => answered(Value::Int(0)),
                        Value::Int(_) => Outcome::SendAlone(resent),
                        token => answered(token),
                    });
                }
            }
            Err(why) if why.is_transient() => {
                for gathered in batch {
                    let failed = Outcome::Failed(why.kind(), why.to_string());
                    let _ = gathered.answer.send(failed);
                }
            }
            // One of them may be at fault, and not the others.
            _ => {
                for gathered in batch {
                    let _ = gathered.answer.send(Outcome::SendAlone(false));
                }
            }
        }
    }
}

/// The place of a command under way. When it is given up, the next batch takes it over.
struct Place {
    lane: Arc<Lane>,
    requests: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut traffic = self.lane.traffic.lock();
        traffic.under_way -= 1;
        traffic.requests -= self.requests;
        let share = traffic.share();
        if share == 0 {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            // Without a runtime here, they find out and go by themselves.
            return traffic.gathered.clear();
        };
        let batch = traffic.gathered.drain(..share).collect();
        traffic.under_way += 1;
        traffic.requests += share;
        drop(traffic);
        let place = Self {
            lane: self.lane.clone(),
            requests: share,
        };
        runtime.spawn(async move {
            place.lane.send_together(batch).await;
        });
    }
}
