//! Group commit: one task with one connection. Requests that come while a statement is under way
//! go out together in the next one.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::{Either, pending};
use lock_core::{HoldId, LockInfo, StoreError};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet, yield_now},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    config::{Listen, PostgresLockBuilder},
    connection::{Backend, Connector, Session, no_answer, with_defaults},
    error::{breaks_connection, sqlstate, store_error},
    metrics,
    request::{Answer, Reply, Request, Verb},
    sweeper::Sweeper,
    view::View,
    wakeup::{Turns, listen},
};

/// How often a process with waiters says that it lives: well within the 2 s of the schema.
const BEAT: Duration = Duration::from_millis(600);

/// How long a request goes on trying when another session has its lock's row locked. Batches lock
/// rows for a moment only, so this is a transaction of somebody else.
const LOCKED_LIMIT: Duration = Duration::from_secs(1);

/// A connection that takes requests in batches.
///
/// Its task is spawned on the runtime of whoever asks first, and anew when that has ended.
pub(crate) struct Lane {
    connector: Arc<Connector>,
    turns: Arc<Turns>,
    batch_limit: usize,
    background: Option<Background>,
    state: Mutex<State>,
    last_sent: Arc<Mutex<Option<Instant>>>,
}

/// What the lane does when nobody asks for anything; one lane of a process has it.
#[derive(Clone)]
pub(crate) struct Background {
    pub(crate) listen: Listen,
    pub(crate) poll_interval: Duration,
    pub(crate) sweeper: Option<Sweeper>,
}

/// Whether a request may wait for others, to go out with them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    None,
    /// It goes with whatever is sent next; a beat at the latest.
    ForCompany,
    /// It keeps this distance from the last statement.
    SinceLast(Duration),
}

enum State {
    Idle,
    Running(mpsc::UnboundedSender<Job>, JoinHandle<()>),
    Closed,
}

enum Job {
    Ask(Asked),
    Look(View, oneshot::Sender<Result<Vec<LockInfo>, StoreError>>),
}

struct Asked {
    request: Request,
    /// Until when it may wait for a statement that is sent anyway; `None`: it is urgent.
    patient: Option<Instant>,
    locked: Option<Locked>,
    reply: oneshot::Sender<Result<Answer, StoreError>>,
}

/// A request whose lock's row another session has locked.
#[derive(Clone, Copy)]
struct Locked {
    since: Instant,
    /// When to try again, unless something is sent before.
    again: Instant,
}

impl Locked {
    /// The row is locked, again; `None` when it has been for long enough.
    fn after(before: Option<Self>) -> Option<Self> {
        let now = Instant::now();
        let since = before.map_or(now, |locked| locked.since);
        let pause = ((now - since) / 4).clamp(Duration::from_millis(2), Duration::from_millis(50));
        let again = now + pause.mul_f64(rand::random_range(0.5..1.0));
        (now - since < LOCKED_LIMIT).then_some(Self { since, again })
    }
}

impl Lane {
    pub(crate) fn new(
        connector: Arc<Connector>,
        turns: Arc<Turns>,
        builder: &PostgresLockBuilder,
        background: Option<Background>,
    ) -> Self {
        Self {
            connector,
            turns,
            batch_limit: builder.batch_limit,
            background,
            state: Mutex::new(State::Idle),
            last_sent: Arc::default(),
        }
    }

    /// Another lane on the same server, without background work.
    pub(crate) fn another(&self) -> Self {
        Self {
            connector: self.connector.clone(),
            turns: self.turns.clone(),
            batch_limit: self.batch_limit,
            background: None,
            state: Mutex::new(State::Idle),
            last_sent: Arc::default(),
        }
    }

    /// Starts the task on this runtime, with a connection that is there already.
    pub(crate) fn start(&self, session: Session) {
        *self.state.lock() = self.spawn(Some(session));
    }

    pub(crate) async fn ask(
        &self,
        request: Request,
        patience: Patience,
    ) -> Result<Answer, StoreError> {
        let (reply, answer) = oneshot::channel();
        let patient = match patience {
            Patience::None => None,
            Patience::ForCompany => Some(Instant::now() + BEAT * 2),
            Patience::SinceLast(pause) => {
                let due = self.last_sent.lock().map(|last| last + pause);
                due.filter(|due| *due > Instant::now())
            }
        };
        self.send(Job::Ask(Asked {
            request,
            patient,
            locked: None,
            reply,
        }))?;
        answer.await.unwrap_or_else(|_| Err(runtime_ended()))
    }

    pub(crate) async fn look(&self, view: View) -> Result<Vec<LockInfo>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Look(view, reply))?;
        answer.await.unwrap_or_else(|_| Err(runtime_ended()))
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let job = match &*state {
            State::Closed => return Err(StoreError::closed()),
            State::Idle => job,
            State::Running(jobs, _) => match jobs.send(job) {
                Ok(()) => return Ok(()),
                // The runtime of the task has ended.
                Err(mpsc::error::SendError(job)) => job,
            },
        };
        *state = self.spawn(None);
        if let State::Running(jobs, _) = &*state {
            drop(jobs.send(job));
        }
        Ok(())
    }

    fn spawn(&self, session: Option<Session>) -> State {
        let (sender, jobs) = mpsc::unbounded_channel();
        let driver = Driver {
            connector: self.connector.clone(),
            turns: self.turns.clone(),
            batch_limit: self.batch_limit,
            background: self.background.clone(),
            jobs,
            patient: Vec::new(),
            locked: Vec::new(),
            last_sent: self.last_sent.clone(),
            session,
            abandoned: None,
            listener: JoinSet::new(),
            warned: false,
            missing: 0,
        };
        State::Running(sender, tokio::spawn(driver.run()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(&*self.state.lock(), State::Closed)
    }

    pub(crate) async fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed);
        if let State::Running(jobs, task) = before {
            drop(jobs);
            let _ = timeout(self.connector.request_timeout, task).await;
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("connector", &self.connector)
            .finish_non_exhaustive()
    }
}

fn runtime_ended() -> StoreError {
    StoreError::transient("the runtime that worked the connection has ended")
}

struct Driver {
    connector: Arc<Connector>,
    turns: Arc<Turns>,
    batch_limit: usize,
    background: Option<Background>,
    jobs: mpsc::UnboundedReceiver<Job>,
    patient: Vec<Asked>,
    /// Requests whose rows were locked; they go with every statement until they are answered.
    locked: Vec<Asked>,
    last_sent: Arc<Mutex<Option<Instant>>>,
    session: Option<Session>,
    /// The server process of a connection that was given up with a statement under way.
    abandoned: Option<Backend>,
    listener: JoinSet<()>,
    warned: bool,
    /// Beats in a row that found fewer claims in the queue than there are here.
    missing: u32,
}

impl Driver {
    async fn run(mut self) {
        let mut jobs = Vec::new();
        let mut beat = Instant::now() + BEAT;
        let mut sweep = self.next_sweep();
        loop {
            let waiting = self.background.is_some() && self.turns.waiting() > 0;
            let turns = self.turns.clone();
            let beat_is_due = match waiting {
                true => Either::Left(sleep_until(beat)),
                false => Either::Right(pending()),
            };
            let sweep_is_due = match sweep {
                Some(at) => Either::Left(sleep_until(at)),
                None => Either::Right(pending()),
            };
            let patience = match self.patient.iter().filter_map(|asked| asked.patient).min() {
                Some(at) => Either::Left(sleep_until(at)),
                None => Either::Right(pending()),
            };
            let locked_is_due = match self
                .locked
                .iter()
                .filter_map(|asked| asked.locked)
                .min_by_key(|locked| locked.again)
            {
                Some(locked) => Either::Left(sleep_until(locked.again)),
                None => Either::Right(pending()),
            };
            tokio::select! {
                biased;
                received = self.jobs.recv_many(&mut jobs, self.batch_limit) => {
                    if received == 0 {
                        break;
                    }
                }
                () = turns.nudged(), if self.background.is_some() => {}
                () = beat_is_due => {}
                () = patience => {}
                () = locked_is_due => {}
                () = sweep_is_due => {}
            }
            let mut urgent = Vec::new();
            let mut looks = Vec::new();
            for job in jobs.drain(..) {
                match job {
                    Job::Look(view, reply) => looks.push((view, reply)),
                    Job::Ask(asked) if asked.patient.is_some() => self.patient.push(asked),
                    Job::Ask(asked) => urgent.push(asked),
                }
            }
            let now = Instant::now();
            let beats = self.background.is_some()
                && self.turns.waiting() > 0
                && (now >= beat || self.turns.take_missed());
            if beats {
                beat = now + self.beat_interval();
                self.listen();
            }
            // The patient ride along, and go by themselves when they are told or have waited long.
            let is_due = |asked: &Asked| {
                asked.patient.is_some_and(|until| until <= now)
                    || asked.request.queues()
                        && asked.request.hold().is_some_and(|hold| turns.is_told(hold))
            };
            if beats || !urgent.is_empty() || self.patient.iter().any(is_due) {
                urgent.append(&mut self.patient);
            }
            // First those that came first.
            let again = |asked: &Asked| asked.locked.is_some_and(|locked| locked.again <= now);
            if !urgent.is_empty() || self.locked.iter().any(again) {
                urgent.splice(0..0, self.locked.drain(..));
            }
            self.serve(urgent, beats).await;
            // Who was answered, and whose turn came with that, asks again first: in one statement.
            yield_now().await;
            for (view, reply) in looks {
                let found = self.look(&view).await;
                let _ = reply.send(found);
            }
            if sweep.is_some_and(|at| at <= now) {
                self.sweep().await;
                sweep = self.next_sweep();
            }
        }
        if let Some(session) = self.session.take() {
            let _ = timeout(
                Duration::from_secs(1),
                sqlx::Connection::close(session.connection),
            )
            .await;
        }
    }

    fn beat_interval(&self) -> Duration {
        match &self.background {
            Some(background) if !self.turns.is_listening() => background.poll_interval,
            _ => BEAT,
        }
    }

    /// Sees to it that somebody listens, once there are waiters.
    fn listen(&mut self) {
        let Some(background) = &self.background else {
            return;
        };
        while self.listener.try_join_next().is_some() {}
        if !self.listener.is_empty() {
            return;
        }
        let server = match &background.listen {
            Listen::Url(options) => Some(with_defaults(options.as_ref().clone())),
            Listen::SameUrl if !self.connector.is_pooled() => None,
            Listen::SameUrl => {
                if !self.warned {
                    self.warned = true;
                    tracing::warn!(
                        interval = ?background.poll_interval,
                        "the address is a pooler's, which passes on no notifications: waiters \
                         poll; a listen_url of the server itself avoids that"
                    );
                }
                return;
            }
            Listen::Never => return,
        };
        let task = listen(server, self.connector.clone(), self.turns.clone());
        self.listener.spawn(task);
    }

    /// Sends requests in one statement, in the order that all batches lock rows.
    async fn serve(&mut self, mut asked: Vec<Asked>, beats: bool) {
        // What nobody waits for any more need not be granted; a release is done all the same.
        asked.retain(|asked| asked.request.verb == Verb::Release || !asked.reply.is_closed());
        if asked.is_empty() && !beats {
            return;
        }
        for asked in &asked {
            if let (true, Some(hold)) = (asked.request.queues(), asked.request.hold()) {
                self.turns.enter(hold);
            }
        }
        asked.sort_by(|a, b| a.request.key().cmp(&b.request.key()));
        while !asked.is_empty() || beats {
            let rest = asked.split_off(asked.len().min(self.batch_limit));
            let last = rest.is_empty();
            let beat = (beats && last).then(Request::beat);
            self.serve_batch(asked, beat).await;
            asked = rest;
            if last {
                break;
            }
        }
    }

    async fn serve_batch(&mut self, asked: Vec<Asked>, beat: Option<Request>) {
        let requests: Vec<_> = asked
            .iter()
            .map(|asked| &asked.request)
            .chain(&beat)
            .collect();
        match self.send(&requests).await {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                for asked in asked {
                    if let Some(reply) = replies.next() {
                        self.answer(asked, Ok(reply));
                    }
                }
                for reply in replies {
                    self.after_beat(reply);
                }
            }
            Err(Failure::Connection(why)) => {
                for asked in asked {
                    self.answer(asked, Err(copy(&why)));
                }
            }
            // One request may be the cause; the others must not suffer.
            Err(Failure::Statement(_)) if requests.len() > 1 => {
                for asked in asked {
                    let reply = match self.send(&[&asked.request]).await {
                        Ok(mut replies) => replies.pop().ok_or_else(runtime_ended),
                        Err(why) => Err(why.into()),
                    };
                    self.answer(asked, reply);
                }
                if let Some(beat) = beat
                    && let Ok(replies) = self.send(&[&beat]).await
                {
                    replies.into_iter().for_each(|reply| self.after_beat(reply));
                }
            }
            Err(Failure::Statement(why)) => {
                for asked in asked {
                    self.answer(asked, Err(copy(&why)));
                }
            }
        }
    }

    fn answer(&mut self, mut asked: Asked, reply: Result<Reply, StoreError>) {
        use lock_core::{Attempt, Release};
        let answer = match reply {
            Ok(Reply {
                answer: Answer::Locked,
                ..
            }) => {
                asked.locked = Locked::after(asked.locked);
                if asked.locked.is_some() {
                    self.locked.push(asked);
                    return;
                }
                Err(StoreError::transient(
                    "the lock's row is locked by another session",
                ))
            }
            Ok(reply) => {
                if let Some(hold) = asked.request.hold() {
                    match &reply.answer {
                        Answer::Attempt(Attempt::Busy(busy)) => match busy.position {
                            Some(place) => self.turns.queued(hold, place),
                            None => self.turns.left(hold),
                        },
                        Answer::Attempt(Attempt::Granted(_))
                        | Answer::Release(Release::Withdrawn | Release::NotHeld) => {
                            self.turns.left(hold);
                        }
                        _ => {}
                    }
                }
                self.wake(&reply.wake);
                Ok(reply.answer)
            }
            Err(why) => Err(why),
        };
        let _ = asked.reply.send(answer);
    }

    fn wake(&self, holds: &[HoldId]) {
        for hold in holds {
            self.turns.tell(*hold);
        }
    }

    fn after_beat(&mut self, reply: Reply) {
        self.wake(&reply.wake);
        if let Answer::Alive { waiting } = reply.answer {
            self.missing = if waiting < self.turns.waiting() {
                self.missing + 1
            } else {
                0
            };
            if self.missing > 2 {
                // Some claims have lost their places while they waited: each looks again.
                self.missing = 0;
                self.turns.tell_all();
            }
        }
    }

    async fn look(&mut self, view: &View) -> Result<Vec<LockInfo>, StoreError> {
        let connector = self.connector.clone();
        let limit = connector.request_timeout;
        let session = self.session().await?;
        let found = match timeout(limit, view.find(session, &connector.names)).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => Err(why),
            Err(_) => Ok(no_answer(limit)),
        };
        match found {
            Err(why) if !breaks_connection(&why) => Err(store_error(why)),
            Err(why) => {
                self.abandon();
                Err(store_error(why))
            }
            Ok(why) => {
                self.abandon();
                Err(why)
            }
        }
    }

    /// Sends one statement; conflicts with other sessions are sent again.
    async fn send(&mut self, requests: &[&Request]) -> Result<Vec<Reply>, Failure> {
        let connector = self.connector.clone();
        let limit = connector.request_timeout;
        *self.last_sent.lock() = Some(Instant::now());
        let mut may_notify = true;
        let mut conflicts = 0;
        loop {
            let session = self.session().await.map_err(Failure::Connection)?;
            let why = match timeout(limit, session.ask(&connector, requests, may_notify)).await {
                Ok(Ok(replies)) => return Ok(replies),
                Ok(Err(why)) => why,
                Err(_) => {
                    self.abandon();
                    return Err(Failure::Connection(no_answer(limit)));
                }
            };
            match sqlstate(&why).as_deref() {
                Some("40001" | "40P01") if conflicts < 10 => {
                    conflicts += 1;
                    metrics::repeated();
                    sleep(Duration::from_millis(rand::random_range(1..10 * conflicts))).await;
                }
                // The queue of notifications is full: the waiters find out by themselves.
                Some("54000") if may_notify => may_notify = false,
                _ if breaks_connection(&why) => {
                    self.abandon();
                    return Err(Failure::Connection(store_error(why)));
                }
                _ => return Err(Failure::Statement(store_error(why))),
            }
        }
    }

    async fn session(&mut self) -> Result<&mut Session, StoreError> {
        if self.session.is_none() {
            let mut session = self.connector.connect().await?;
            if let Some(backend) = self.abandoned.take() {
                let limit = Duration::from_secs(2);
                if !matches!(timeout(limit, session.end(&backend)).await, Ok(Ok(()))) {
                    self.abandoned = Some(backend);
                    return Err(StoreError::transient(
                        "a statement that was given up is still under way",
                    ));
                }
            }
            self.session = Some(session);
        }
        match &mut self.session {
            Some(session) => Ok(session),
            None => unreachable!("it was just made"),
        }
    }

    fn abandon(&mut self) {
        if let Some(session) = self.session.take() {
            self.abandoned = Some(session.backend);
        }
    }

    fn next_sweep(&self) -> Option<Instant> {
        let sweeper = self.background.as_ref()?.sweeper.as_ref()?;
        Some(Instant::now() + sweeper.pause())
    }

    async fn sweep(&mut self) {
        let Some(mut sweeper) = self.background.as_mut().and_then(|b| b.sweeper.take()) else {
            return;
        };
        let limit = self.connector.request_timeout;
        let connector = self.connector.clone();
        match self.session().await {
            Err(why) => tracing::debug!(%why, "cannot sweep"),
            Ok(session) => match timeout(limit, sweeper.step(session, &connector.names)).await {
                Ok(Ok(stuck)) => {
                    for request in stuck {
                        if let Ok(replies) = self.send(&[&request]).await {
                            replies.iter().for_each(|reply| self.wake(&reply.wake));
                        }
                    }
                }
                Ok(Err(why)) => {
                    if breaks_connection(&why) {
                        self.abandon();
                    }
                    tracing::debug!(why = %store_error(why), "cannot sweep");
                }
                Err(_) => self.abandon(),
            },
        }
        if let Some(background) = &mut self.background {
            background.sweeper = Some(sweeper);
        }
    }
}

enum Failure {
    /// The connection is gone: none of the requests is answered.
    Connection(StoreError),
    /// The server refused the statement.
    Statement(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connection(why) | Failure::Statement(why) => why,
        }
    }
}

fn copy(error: &StoreError) -> StoreError {
    StoreError::new(error.kind(), error.to_string())
}
