//! The faults: what they are, how they are brought about, and how it is known that they happened.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sqlx::Connection;
use tokio::time::{Instant, sleep};

use super::{Site, StoreKind, fleet::Log, lock_name, schedule::Planned, server::Server};
use crate::{checker::Excuse, history::now, proxy::Proxy, servers::redis::RedisServer};

/// A kind of fault.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// one client stands still (SIGSTOP)
    PauseClient,
    /// half of the clients stand still
    PauseClients,
    /// one client is killed, and another takes its place
    KillClient,
    /// half of the clients are killed
    KillClients,
    /// the runtime of one client is blocked
    BlockClient,
    /// all acquires under way in one client are dropped
    DropAcquires,
    /// the wall clock of one client is set back by an hour or forward by one
    ClientClock,
    /// an operator ends all grants
    ForceRelease,

    /// requests take longer
    DelayRequests,
    /// replies take longer
    DelayReplies,
    /// nothing comes through, either way
    Blackhole,
    /// requests do not arrive
    HoldRequests,
    /// replies do not arrive
    HoldReplies,
    /// connections are reset
    Reset,
    /// connections are closed
    Close,
    /// requests are applied, their replies are lost, and the connections with them
    LoseReplies,
    /// connections are cut in the middle of a request
    CutRequests,
    /// connections are cut in the middle of a reply
    CutReplies,
    /// connections are reset, and new ones refused
    Refuse,

    /// the server stands still (SIGSTOP)
    PauseServer,
    /// the server is killed and comes back with its data
    RestartServer,
    /// the server's clock is set forward by some seconds
    ClockForward,
    /// the server's clock is set back by up to a second
    ClockBack,
    /// the server ends the connections
    EndSessions,

    /// Redis loses all its data
    LoseData,
    /// Redis forgets its scripts
    ForgetScripts,
    /// Redis takes no writes for a while
    RefuseWrites,
    /// Redis is busy with a script of somebody else's
    BusyScript,

    /// somebody locks the Postgres table against writes
    LockTable,
    /// the Postgres table is vacuumed
    VacuumTable,

    /// the history of etcd is compacted
    Compact,
    /// etcd rewrites its file
    Defragment,
    /// an operator revokes the leases of all locks
    RevokeLeases,
    /// another member of etcd becomes the leader
    MoveLeader,
    /// a member of etcd is cut off from the others, and clients still reach it
    IsolateMember,

    /// another program keeps the file locked
    LockFile,
    /// another program reads the file for a while, in one transaction
    ReadFile,
    /// another program moves the log into the file and empties it
    Checkpoint,
    /// another program rewrites the file
    VacuumFile,
}

impl Kind {
    /// The kinds that a store can have.
    pub fn of(store: StoreKind) -> Vec<Self> {
        use Kind::{
            Blackhole, BlockClient, BusyScript, Checkpoint, ClientClock, ClockBack, ClockForward,
            Close, Compact, CutReplies, CutRequests, Defragment, DelayReplies, DelayRequests,
            DropAcquires, EndSessions, ForceRelease, ForgetScripts, HoldReplies, HoldRequests,
            IsolateMember, KillClient, KillClients, LockFile, LockTable, LoseData, LoseReplies,
            MoveLeader, PauseClient, PauseClients, PauseServer, ReadFile, Refuse, RefuseWrites,
            Reset, RestartServer, RevokeLeases, VacuumFile, VacuumTable,
        };
        let clients = [
            PauseClient,
            PauseClients,
            KillClient,
            KillClients,
            BlockClient,
            DropAcquires,
            ForceRelease,
        ];
        let network = [
            DelayRequests,
            DelayReplies,
            Blackhole,
            HoldRequests,
            HoldReplies,
            Reset,
            Close,
            LoseReplies,
            CutRequests,
            CutReplies,
            Refuse,
        ];
        let server = [ClientClock, PauseServer, RestartServer];
        let clocks = [ClockForward, ClockBack];
        match store {
            StoreKind::Redis => [
                &clients[..],
                &network,
                &server,
                &clocks,
                &[
                    EndSessions,
                    LoseData,
                    ForgetScripts,
                    RefuseWrites,
                    BusyScript,
                ],
            ]
            .concat(),
            StoreKind::Postgres => [
                &clients[..],
                &network,
                &server,
                &clocks,
                &[EndSessions, LockTable, VacuumTable],
            ]
            .concat(),
            // Its clock is the machine's time since its start, which nobody can set.
            StoreKind::Etcd => [
                &clients[..],
                &network,
                &server,
                &[Compact, Defragment, RevokeLeases],
            ]
            .concat(),
            StoreKind::Etcd3 => [
                &clients[..],
                &network,
                &server,
                &[Compact, Defragment, RevokeLeases, MoveLeader, IsolateMember],
            ]
            .concat(),
            // What the file's clock is, is the machine's: it moves for all clients at once.
            StoreKind::Sqlite => [
                &clients[..],
                &clocks,
                &[LockFile, ReadFile, Checkpoint, VacuumFile],
            ]
            .concat(),
        }
    }

    /// Whether a client stands still.
    pub(super) fn is_pause(self) -> bool {
        matches!(self, Self::PauseClient | Self::PauseClients)
    }
}

/// A fault that has been brought about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Injected {
    /// As it was planned.
    #[serde(flatten)]
    pub planned: Planned,
    /// When it began.
    pub begin: u64,
    /// When it was over.
    pub end: u64,
    /// What shows that it has happened: how many processes stood still, pieces were lost,
    /// connections cut and so on. With 0 it did not happen.
    pub evidence: u64,
}

impl Site {
    /// Brings a fault about, and ends it.
    pub(super) async fn inject(&mut self, fault: Planned) -> Injected {
        let begin = now();
        let evidence = self.bring_about(&fault).await;
        self.heal();
        let end = now();
        if let Some(why) = excuse(fault.kind, self.store) {
            // Whoever has lost the lock that way learns it before its lease is over.
            let longest = self.store.longest_lease();
            self.excuses.push(Excuse {
                from: begin,
                until: end + longest.as_nanos() as u64,
                why: why.into(),
            });
        }
        Injected {
            planned: fault,
            begin,
            end,
            evidence,
        }
    }

    async fn bring_about(&mut self, fault: &Planned) -> u64 {
        match fault.kind {
            Kind::PauseClient | Kind::PauseClients => self.pause_clients(fault).await,
            Kind::KillClient | Kind::KillClients => self.kill_clients(fault),
            Kind::BlockClient => {
                let before = self.log.lock().blocked;
                self.clients[fault.client].tell("block");
                self.until(|log| log.blocked > before).await
            }
            Kind::DropAcquires => self.drop_acquires(fault).await,
            Kind::ClientClock => {
                let hour = if fault.everywhere {
                    3_600_000
                } else {
                    -3_600_000
                };
                self.client_clocks[fault.client].advance(hour);
                sleep(fault.duration()).await;
                let ahead = self.client_is_ahead(fault.client).await;
                self.client_clocks[fault.client].advance(-hour);
                u64::from(ahead.signum() == hour.signum() && ahead.abs() > hour.abs() / 2)
            }
            Kind::ForceRelease => self.force_release().await,
            Kind::PauseServer => u64::from(self.server.pause(fault.duration(), fault.dice).await),
            Kind::RestartServer => {
                let down = fault.duration() / 2;
                u64::from(self.server.restart(down, fault.dice).await)
            }
            Kind::ClockForward => self.move_clock(2000 + (fault.dice % 3000) as i64).await,
            Kind::ClockBack => self.move_clock(-(100 + (fault.dice % 900) as i64)).await,
            kind if kind >= Kind::DelayRequests && kind <= Kind::Refuse => {
                self.disturb_network(fault).await
            }
            _ => self.of_the_store(fault).await,
        }
    }

    fn victims(&self, fault: &Planned) -> Vec<usize> {
        let count = match fault.kind {
            Kind::PauseClients | Kind::KillClients => self.clients.len() / 2,
            _ => 1,
        };
        (fault.client..fault.client + count)
            .map(|client| client % self.clients.len())
            .collect()
    }

    async fn pause_clients(&mut self, fault: &Planned) -> u64 {
        let victims = self.victims(fault);
        // The worst moment is between looking and writing.
        let before = self.log.lock().hesitating;
        for &victim in &victims {
            self.clients[victim].tell("hesitate");
        }
        let all = before + victims.len() as u64;
        let ready = self.until(|log| log.hesitating >= all);
        let _ = tokio::time::timeout(Duration::from_millis(500), ready).await;
        for &victim in &victims {
            self.clients[victim].process.pause();
        }
        sleep(fault.duration()).await;
        let stopped = victims
            .iter()
            .filter(|victim| self.clients[**victim].process.is_stopped())
            .count();
        for &victim in &victims {
            self.clients[victim].process.resume();
        }
        if stopped == victims.len() {
            stopped as u64
        } else {
            0
        }
    }

    fn kill_clients(&mut self, fault: &Planned) -> u64 {
        let victims = self.victims(fault);
        for &victim in &victims {
            tokio::task::block_in_place(|| self.clients[victim].kill());
            self.start_client(victim);
        }
        victims.len() as u64
    }

    async fn drop_acquires(&mut self, fault: &Planned) -> u64 {
        let dropped = |log: &Log| log.refusals.get("dropped").copied().unwrap_or_default();
        let before = dropped(&self.log.lock());
        let begin = Instant::now();
        loop {
            self.clients[fault.client].tell("drop");
            sleep(Duration::from_millis(50)).await;
            let count = dropped(&self.log.lock()) - before;
            if count > 0 || begin.elapsed() > PATIENCE {
                return count;
            }
        }
    }

    /// Waits until the clients have told something; 0 when they do not.
    async fn until(&self, told: impl Fn(&Log) -> bool) -> u64 {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if told(&self.log.lock()) {
                return 1;
            }
            sleep(Duration::from_millis(10)).await;
        }
        0
    }

    /// By how many milliseconds a client's wall clock is ahead of this process'.
    async fn client_is_ahead(&mut self, client: usize) -> i64 {
        self.log.lock().ahead = None;
        self.clients[client].tell("clock");
        self.until(|log| log.ahead.is_some()).await;
        self.log.lock().ahead.unwrap_or_default()
    }

    /// Ends the grants of all locks that are held.
    async fn force_release(&mut self) -> u64 {
        let mut ended = 0;
        let begin = Instant::now();
        while ended == 0 && begin.elapsed() < PATIENCE {
            for key in 0..self.keys {
                let done = self.operator.force_release(lock_name(key), None).await;
                ended += u64::from(done.unwrap_or(false));
            }
        }
        ended
    }

    async fn move_clock(&mut self, by: i64) -> u64 {
        self.clock.advance(by);
        let begin = Instant::now();
        let mut moved = false;
        // An answer that was long under way tells the wrong time.
        while !moved && begin.elapsed() < PATIENCE {
            moved = (self.is_ahead().await - self.clock.ahead()).abs() < by.abs() / 2;
        }
        sleep(Duration::from_millis(200)).await;
        if moved { by.unsigned_abs() } else { 0 }
    }

    /// By how many milliseconds the clock that ends leases is ahead of this process'.
    async fn is_ahead(&mut self) -> i64 {
        match self.server.is_ahead().await {
            Some(millis) => millis,
            None => self.client_is_ahead(0).await,
        }
    }

    async fn disturb_network(&mut self, fault: &Planned) -> u64 {
        let hit: Vec<&Proxy> = match fault.everywhere {
            true => self.proxies.iter().flatten().collect(),
            false => self.proxies[fault.client].iter().collect(),
        };
        // Clients that have just been cut off come back first.
        let begin = Instant::now();
        while hit.iter().all(|proxy| proxy.open() == 0) && begin.elapsed() < PATIENCE {
            sleep(Duration::from_millis(10)).await;
        }
        let before: Vec<u64> = hit
            .iter()
            .map(|proxy| happened(fault.kind, proxy))
            .collect();
        let mut ended = 0;
        for proxy in &hit {
            let (faults, some) = (proxy.faults(), fault.dice % 200);
            let delay = Duration::from_millis(5 + fault.dice % 300);
            match fault.kind {
                Kind::DelayRequests => faults.delay_requests(delay),
                Kind::DelayReplies => faults.delay_replies(delay),
                Kind::Blackhole => faults.blackhole(true),
                Kind::HoldRequests => faults.hold_requests(true),
                // What is lost in the middle of a stream is the rest of it as well: to take one
                // reply out and let the next through is what no network does.
                Kind::HoldReplies | Kind::LoseReplies => faults.hold_replies(true),
                Kind::CutRequests => faults.cut_requests_after(some),
                Kind::CutReplies => faults.cut_replies_after(some),
                Kind::Refuse => {
                    faults.refuse(true);
                    proxy.reset_all();
                }
                Kind::Close => {
                    ended += proxy.open();
                    proxy.close_all();
                }
                _ => {
                    ended += proxy.open();
                    proxy.reset_all();
                }
            }
        }
        sleep(fault.duration()).await;
        if matches!(fault.kind, Kind::Reset | Kind::Close) {
            return ended;
        }
        // Under load it happens soon.
        let begin = Instant::now();
        let count = loop {
            let after = hit.iter().map(|proxy| happened(fault.kind, proxy));
            let count = after
                .zip(&before)
                .map(|(after, before)| after - before)
                .sum();
            if count > 0 || begin.elapsed() > PATIENCE {
                break count;
            }
            sleep(Duration::from_millis(10)).await;
        };
        if fault.kind == Kind::LoseReplies {
            for proxy in &hit {
                proxy.reset_all();
            }
            // What was held must not come through after all.
            sleep(Duration::from_millis(50)).await;
        }
        count
    }

    async fn of_the_store(&mut self, fault: &Planned) -> u64 {
        let time = fault.duration();
        match (&self.server, fault.kind) {
            (Server::Redis(server), Kind::EndSessions) => {
                let ended = ask(
                    server,
                    &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
                );
                let listening = ask(server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
                number(&ended) + number(&listening)
            }
            (Server::Redis(server), Kind::LoseData) => {
                let had = number(&ask(server, &["DBSIZE"]));
                let lost = ask(server, &["FLUSHALL", "SYNC"]) == "OK";
                if lost { had } else { 0 }
            }
            (Server::Redis(server), Kind::ForgetScripts) => {
                u64::from(ask(server, &["SCRIPT", "FLUSH"]) == "OK")
            }
            (Server::Redis(server), Kind::RefuseWrites) => {
                let millis = time.as_millis().to_string();
                let done = ask(server, &["CLIENT", "PAUSE", &millis, "WRITE"]);
                sleep(time).await;
                u64::from(done == "OK")
            }
            (Server::Redis(server), Kind::BusyScript) => {
                let millis = time.as_millis().to_string();
                // Within a script the server's clock stands still.
                let script = "local n = 0 while n < ARGV[1] * 1000 do n = n + 1 end return 1";
                number(&ask(server, &["EVAL", script, "0", &millis]))
            }
            (Server::Postgres(server), Kind::EndSessions) => {
                let ended: i64 = server
                    .value(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                    )
                    .await;
                ended.unsigned_abs()
            }
            (Server::Postgres(server), Kind::LockTable) => {
                let sql = format!(
                    "BEGIN; LOCK TABLE distlock_lock IN SHARE MODE; \
                     SELECT pg_sleep({}); COMMIT",
                    time.as_secs_f64()
                );
                server.sql(&sql).await.len() as u64
            }
            (Server::Postgres(server), Kind::VacuumTable) => {
                server.sql("VACUUM FULL distlock_lock").await;
                1
            }
            (Server::Etcd(cluster), Kind::Compact) => until_done(|| cluster.compact()).await,
            (Server::Etcd(cluster), Kind::Defragment) => {
                let member = fault.dice as usize % cluster.size();
                until_done(|| cluster.defragment(member)).await
            }
            (Server::Etcd(cluster), Kind::RevokeLeases) => {
                until_done(|| cluster.revoke_leases()).await
            }
            (Server::Etcd(cluster), Kind::MoveLeader) => until_done(|| cluster.move_leader()).await,
            (Server::Etcd(cluster), Kind::IsolateMember) => {
                let before = cluster.cuts();
                cluster.isolate(fault.dice as usize % cluster.size());
                sleep(time).await;
                cluster.heal();
                cluster.cuts() - before
            }
            (Server::Sqlite(_), Kind::LockFile | Kind::ReadFile) => {
                let mut file = self.server.connect().await;
                let begin = match fault.kind {
                    Kind::LockFile => "BEGIN IMMEDIATE",
                    _ => "BEGIN; SELECT count(*) FROM sqlite_schema",
                };
                let done = sqlx::raw_sql(begin).execute(&mut file).await.is_ok();
                sleep(time).await;
                let _ = file.close().await;
                u64::from(done)
            }
            (Server::Sqlite(_), Kind::Checkpoint | Kind::VacuumFile) => {
                let mut file = self.server.connect().await;
                let command = match fault.kind {
                    Kind::Checkpoint => "PRAGMA wal_checkpoint(TRUNCATE)",
                    _ => "VACUUM",
                };
                let begin = Instant::now();
                let mut done = false;
                while !done && begin.elapsed() < PATIENCE {
                    done = sqlx::raw_sql(command).execute(&mut file).await.is_ok();
                }
                let _ = file.close().await;
                u64::from(done)
            }
            _ => 0,
        }
    }

    /// Ends what a fault has left on.
    fn heal(&self) {
        for proxy in self.proxies.iter().flatten() {
            proxy.faults().heal();
        }
    }
}

/// How long it may take until a fault happens.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until the server has done something; what it has done of it, or 0 when it does not.
async fn until_done<E>(mut job: impl AsyncFnMut() -> Result<u64, E>) -> u64 {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match job().await {
            Ok(done) if done > 0 => return done,
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
    0
}

/// How often it has happened at a proxy.
fn happened(kind: Kind, proxy: &Proxy) -> u64 {
    let faults = proxy.faults();
    match kind {
        Kind::CutRequests | Kind::CutReplies => faults.cuts(),
        Kind::Refuse => faults.refused(),
        _ => faults.late(),
    }
}

/// Why two may hold a lock after this, as the guarantees say.
fn excuse(kind: Kind, store: StoreKind) -> Option<&'static str> {
    match (kind, store) {
        (Kind::ForceRelease, _) => Some("an operator ended the grant"),
        (Kind::RevokeLeases, _) => Some("an operator revoked the lease"),
        (Kind::LoseData, _) => Some("the server lost its data"),
        (Kind::ClockForward, StoreKind::Sqlite) => Some("the machine's clock was set forward"),
        (Kind::ClockForward, _) => Some("the server's clock was set forward"),
        _ => None,
    }
}

/// What the server answers; nothing when it does not.
fn ask(server: &RedisServer, parts: &[&str]) -> String {
    tokio::task::block_in_place(|| server.try_command(parts)).unwrap_or_default()
}

fn number(reply: &str) -> u64 {
    reply.trim().parse().unwrap_or_default()
}
