//! The command while it runs: its signals, its terminal, its lock, its end.

use std::{
    future::pending,
    io,
    process::Command,
    time::{Duration, Instant},
};

use distlock::{Clock, LockGuard, LostReason, SystemClock};
use rustix::process::{Pid, Signal, kill_current_process_group};
use tokio::{
    signal::unix::SignalKind,
    time::{sleep, sleep_until, timeout},
};

use crate::{
    args::{OnLost, Run},
    failure::warn,
    group::{Change, Group},
    show::rounded,
    signals::Signals,
    terminal::Terminal,
};

/// What happens when the lock is lost, and how much time there is for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    on_lost: OnLost,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    /// From SIGKILL to the end of trust in the lease.
    margin: Duration,
    /// How often the keeper is told of renewals at least.
    look: Duration,
    max_hold: Option<Duration>,
    pub(crate) json: bool,
}

impl Policy {
    pub(crate) fn new(args: &Run, json: bool) -> Self {
        let ttl = args.claim.ttl;
        let span = args.max_hold.map_or(ttl, |max| max.min(ttl));
        let most = span / 3;
        if let Some(grace) = args.grace.filter(|grace| *grace > most) {
            let (grace, most) = (rounded(grace), rounded(most));
            warn(
                json,
                format!("--grace {grace} is cut to a third of the lease, {most}"),
            );
        }
        Self {
            on_lost: args.on_lost,
            grace: args.grace.unwrap_or(span / 10).min(most),
            margin: (span / 20).min(Duration::from_secs(1)),
            look: (span / 10).max(Duration::from_millis(10)),
            max_hold: args.max_hold,
            json,
        }
    }

    pub(crate) fn kills(&self) -> bool {
        self.on_lost == OnLost::Kill
    }

    /// How long before the end of trust the command is asked to end.
    fn notice(&self) -> Duration {
        self.grace + self.margin
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code as a shell tells it.
    pub(crate) code: i32,
    /// Why it had to end, if it was for the lock.
    pub(crate) lost: Option<String>,
    /// Whether the loss of the lock was told while it ran.
    pub(crate) is_warned: bool,
    /// Whether nothing of its group is left.
    pub(crate) is_over: bool,
}

/// A command that runs under a lock.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    guard: &'a LockGuard,
    acquired: Instant,
    policy: Policy,
    group: Group,
    command: Pid,
    children: Signals,
    /// SIGCONT and SIGTSTP.
    stops: Signals,
    terminal: Option<Terminal>,
    /// Whether the group was given the terminal, or takes it.
    has_terminal: bool,
    /// Whether this process was asked to stop, and has passed it on.
    is_stopping: bool,
    /// What the command was told to end for.
    lost: Option<String>,
    /// When the group is killed.
    kill_at: Option<Instant>,
    /// Whether there is nothing more to do about the lock.
    is_settled: bool,
}

impl<'a> Job<'a> {
    /// Starts `command`; with `has_terminal` it takes the terminal by itself.
    pub(crate) fn start(
        guard: &'a LockGuard,
        group: Group,
        command: &mut Command,
        has_terminal: bool,
        policy: Policy,
    ) -> io::Result<Self> {
        let children = Signals::of([SignalKind::child()])?;
        let stops = Signals::of([
            SignalKind::from_raw(Signal::CONT.as_raw()),
            SignalKind::from_raw(Signal::TSTP.as_raw()),
        ])?;
        Ok(Self {
            command: group.spawn(command)?,
            guard,
            acquired: Instant::now(),
            policy,
            group,
            children,
            stops,
            terminal: Terminal::open(),
            has_terminal,
            is_stopping: false,
            lost: None,
            kill_at: None,
            is_settled: false,
        })
    }

    /// Returns when the command and its group have ended.
    pub(crate) async fn run(mut self, signals: &mut Signals) -> Ended {
        let code = loop {
            tokio::select! {
                biased;
                _ = self.children.next() => match self.group.collect(self.command) {
                    Some(Change::Ended(code)) => break code,
                    Some(Change::Stopped(signal)) => self.stopped(signal).await,
                    None => {}
                },
                signal = signals.next() => self.pass_on(signal),
                signal = self.stops.next() => if signal == Signal::CONT.as_raw() {
                    self.resume();
                } else {
                    self.is_stopping = true;
                    self.pass_on(signal);
                },
                lost = endangered(self.guard, &self.group, self.policy), if !self.is_settled => {
                    self.end_for(lost);
                }
                () = at(self.kill_at) => {
                    self.kill_at = None;
                    self.group.signal(Signal::KILL);
                }
            }
        };
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.group.id());
        }
        if !self.is_settled && self.policy.kills() && self.guard.valid_for() <= self.policy.margin {
            // This process stood still, and the keeper did what had to be done.
            let lost = timeout(Duration::ZERO, self.guard.lost()).await.ok();
            self.end_for(lost);
        }
        let is_over = self.end_the_rest(signals).await;
        Ended {
            code,
            is_warned: self.is_settled && self.lost.is_none(),
            lost: self.lost,
            is_over,
        }
    }

    fn pass_on(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.group.signal(signal);
        }
    }

    /// The lock is lost, or will be before long since it cannot be renewed.
    fn end_for(&mut self, lost: Option<LostReason>) {
        self.is_settled = true;
        let key = self.guard.key();
        let left = self.guard.valid_for();
        let why = match lost {
            Some(reason) => format!("lock {key} is lost: {reason}"),
            None if self.is_held_for_max(left) => {
                format!("lock {key} is over: the longest allowed hold ends in {left:.1?}")
            }
            None => format!("lock {key} cannot be renewed: its lease ends in {left:.1?}"),
        };
        if !self.policy.kills() {
            return warn(self.policy.json, format!("{why}; the command goes on"));
        }
        self.group.signal(Signal::TERM);
        let grace = self.policy.grace;
        let grace = match lost {
            Some(_) => grace,
            None => grace.min(left.saturating_sub(self.policy.margin)),
        };
        self.kill_at = Some(Instant::now() + grace);
        if lost.is_some() {
            let end = SystemClock.now() + grace + self.policy.margin;
            self.group.keep_until(end);
        }
        self.lost = Some(format!("{why}; the command was ended"));
    }

    /// Whether it is the longest allowed hold that leaves no more than `left`.
    fn is_held_for_max(&self, left: Duration) -> bool {
        let max = self.policy.max_hold;
        max.is_some_and(|max| self.acquired.elapsed() + left + max / 10 > max)
    }

    /// The command was stopped: by somebody for a reason of his own, by the terminal because it
    /// is not its turn, or by the user, who wants the shell back.
    async fn stopped(&mut self, signal: i32) {
        let wants_terminal = [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&signal);
        if wants_terminal && self.give_terminal() {
            return self.group.signal(Signal::CONT);
        }
        if !(wants_terminal || self.has_terminal || self.is_stopping) {
            return;
        }
        self.is_stopping = false;
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.group.id());
        }
        // Stops the whole job as the shell knows it, this process included. SIGTTIN, for which
        // there is no handler here, since the system ignores it where no shell could continue
        // the job; then, and after `fg`, it goes on in the next line.
        let _ = kill_current_process_group(Signal::TTIN);
        let _ = timeout(Duration::from_millis(100), self.stops.next()).await;
        self.resume();
    }

    fn resume(&mut self) {
        if self.policy.kills() && !self.guard.is_held() {
            return self.group.signal(Signal::KILL);
        }
        if self.has_terminal {
            self.give_terminal();
        }
        self.group.signal(Signal::CONT);
    }

    fn give_terminal(&mut self) -> bool {
        let terminal = self.terminal.as_ref();
        let given = terminal.is_some_and(|terminal| terminal.hand_over(self.group.id()));
        self.has_terminal |= given;
        given
    }

    /// Waits for the rest of the group, and ends it when it takes long; `false` when something
    /// cannot be killed.
    async fn end_the_rest(&mut self, signals: &mut Signals) -> bool {
        let Policy { grace, margin, .. } = self.policy;
        self.group.dismiss_keeper();
        let ended = Instant::now();
        let (mut term_at, mut kill_at) = match self.lost {
            None => (Some(ended + grace), Some(ended + 2 * grace)),
            Some(_) => (None, self.kill_at.or(Some(ended))),
        };
        let mut give_up_at = None;
        let mut pause = Duration::from_millis(1);
        loop {
            self.group.collect(self.command);
            if self.group.is_over() {
                return true;
            }
            let now = Instant::now();
            let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            if is_due(give_up_at) {
                return false;
            }
            if is_due(term_at) {
                term_at = None;
                self.group.signal(Signal::TERM);
            }
            let must_end = self.policy.kills() && self.guard.valid_for() <= margin;
            if is_due(kill_at) || (kill_at.is_some() && self.lost.is_none() && must_end) {
                kill_at = None;
                give_up_at = Some(now + Duration::from_secs(1));
                self.group.signal(Signal::KILL);
            }
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(Duration::from_millis(20)),
                _ = signals.next_to_end() => term_at = term_at.map(|_| now),
            }
        }
    }
}

/// Returns when something has to be done about the lock: with the reason when it is lost, with
/// none when it will be. Meanwhile it lets the keeper know how long the group may live.
async fn endangered(guard: &LockGuard, group: &Group, policy: Policy) -> Option<LostReason> {
    loop {
        let left = guard.valid_for();
        let mut pause = policy.look;
        if policy.kills() && !left.is_zero() {
            group.keep_until(SystemClock.now() + left.saturating_sub(policy.margin / 2));
            if left <= policy.notice() {
                return None;
            }
            pause = pause.min(left - policy.notice());
        }
        tokio::select! {
            biased;
            reason = guard.lost() => return Some(reason),
            () = sleep(pause) => {}
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => pending().await,
    }
}
