//! Planted bugs: the suite or the campaign finds each, and the same check passes without the bug.
//!
//! The table in docs/proof.md is written by
//! `UPDATE=1 cargo test -p integration-tests --test planted`.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use clap::ValueEnum;
use integration_tests::{
    campaign::{Report, Verdict},
    sabotage::{Bug, Sabotaged, Shared},
};
use lock_core::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, HoldId, LockInfo, LockKey,
    LockPage, MemoryLock, Page, Release, Renewal, StoreError,
    conformance::{self, Behaviour, Subject},
};

/// How the store below the bug answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weather {
    /// At once.
    Fine,
    /// To the first who opens it, some time after the request was applied.
    Late,
    /// The first renewal of each hold fails.
    Flaky,
    /// Waiters are woken all the time, for nothing.
    Restless,
}

/// What finds a bug.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// A behaviour of the suite, on the store in memory.
    Suite(&'static str, Weather),
    /// The campaign on Redis, with these faults.
    Campaign(&'static str),
}

use Check::{Campaign, Suite};
use Weather::{Fine, Flaky, Late, Restless};

#[rustfmt::skip]
const CHECKS: &[(Bug, Check)] = &[
    (Bug::ReleaseWithoutOwner, Suite("a_stranger_cannot_release", Fine)),
    (Bug::ReleaseEndsAllHolds, Suite("holds_may_leave_in_any_order", Fine)),
    (Bug::DeadlineFromReply, Suite("a_lock_is_lost_before_anybody_else_gets_it", Late)),
    (Bug::HalfALease, Suite("a_lease_ends_by_itself_and_never_early", Fine)),
    (Bug::ClientsClock, Campaign("client-clock")),
    (Bug::OneFailureEndsWatchdog, Suite("renewals_keep_a_lock_for_many_ttls", Flaky)),
    (Bug::RenewalNotSent, Suite("a_renewal_starts_the_lease_anew", Fine)),
    (Bug::RenewalRecreates, Suite("a_renewal_after_the_end_is_gone", Fine)),
    (Bug::LossNotTold, Suite("a_forced_release_is_noticed", Fine)),
    (Bug::TokenFromRestart, Suite("every_new_grant_has_a_larger_token", Fine)),
    (Bug::TokenTooCoarse, Suite("every_new_grant_has_a_larger_token", Fine)),
    (Bug::WakeUpIsGrant, Suite("a_wait_ends_at_its_limit", Restless)),
    (Bug::LateGrantStays, Suite("an_acquire_dropped_at_any_poll_leaves_nothing", Late)),
    (Bug::ErrorIsBusy, Suite("every_outcome_has_its_own_error", Fine)),
    (Bug::RepeatCountsTwice, Suite("the_same_hold_again_is_the_same_grant", Fine)),
    (Bug::QueueForgetsOrder, Suite("a_queued_claim_again_keeps_its_place", Fine)),
    (Bug::DeadWaiterStays, Suite("a_dead_waiter_does_not_block_the_queue", Fine)),
    (Bug::NamesFolded, Suite("different_names_are_different_locks", Fine)),
];

#[test]
fn every_bug_is_found() {
    let planted: Vec<Bug> = CHECKS.iter().map(|(bug, _)| *bug).collect();
    assert_eq!(planted, Bug::all());

    // A thread for each: most of the time they wait for the end of a lease.
    let rows = std::thread::scope(|scope| {
        let sound: BTreeSet<_> = CHECKS
            .iter()
            .filter_map(|(_, check)| match check {
                Suite(name, weather) => Some((*name, *weather)),
                Campaign(_) => None,
            })
            .collect();
        for (name, weather) in sound {
            scope.spawn(move || {
                let (seconds, failed) = fails(None, name, weather, PATIENCE);
                assert_eq!(failed, None, "{name} {weather:?} fails without a bug");
                println!("{name} {weather:?} passes without a bug in {seconds:.1} s");
            });
        }
        let finding: Vec<_> = CHECKS
            .iter()
            .filter(|(_, check)| matches!(check, Suite(..)))
            .map(|(bug, check)| (*bug, scope.spawn(|| found(*bug, *check))))
            .collect();
        let mut rows: Vec<_> = finding
            .into_iter()
            .map(|(bug, found)| (bug, found.join().unwrap()))
            .collect();
        // The campaign has the machine for itself.
        for (bug, check) in CHECKS {
            if matches!(check, Campaign(_)) {
                rows.push((*bug, found(*bug, *check)));
            }
        }
        rows
    });
    let table: String = Bug::all()
        .iter()
        .map(|bug| rows.iter().find(|(of, _)| of == bug).unwrap().1.as_str())
        .collect();
    println!("{table}");
    if env::var_os("UPDATE").is_some() {
        update(&table);
    }
}

const BEGIN: &str = "<!-- planted bugs: written by integration-tests/tests/planted.rs -->\n";
const END: &str = "<!-- end of planted bugs -->";

fn update(table: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/proof.md");
    let text = fs::read_to_string(&page).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let head_row = "\n| planted bug | found by | in |\n| --- | --- | --- |\n";
    fs::write(page, format!("{head}{BEGIN}{head_row}{table}\n{END}{tail}")).unwrap();
}

/// Makes sure that the check finds the bug; a row of the table.
fn found(bug: Bug, check: Check) -> String {
    let (by, seconds) = match check {
        Suite(name, weather) => {
            let (seconds, failed) = fails(Some(bug), name, weather, Duration::from_secs(12));
            assert!(failed.is_some(), "{name} {weather:?} does not find {bug:?}");
            let weather = match weather {
                Fine => "",
                Late => ", answers are late",
                Flaky => ", first renewals fail",
                Restless => ", wake-ups for nothing",
            };
            let name = name.replace('_', " ");
            (format!("suite: {name}{weather}"), seconds)
        }
        Campaign(faults) => (
            format!("campaign on Redis: {faults}"),
            campaign_finds(bug, faults),
        ),
    };
    format!("| {bug} | {by} | {seconds:.1} s |\n")
}

fn campaign_finds(bug: Bug, faults: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let bug = bug.to_possible_value().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_campaign"))
        .args(["--store", "redis", "--minutes", "2", "--clients", "3"])
        .args(["--tasks", "6", "--keys", "6", "--least", "1"])
        .args(["--only", faults, "--bug", bug.get_name()])
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    let report = fs::read(folder.path().join("redis-1.json"));
    let report: Report = match report {
        Ok(report) => serde_json::from_slice(&report).unwrap(),
        Err(_) => panic!("no report: {output:?}"),
    };
    assert_eq!(report.verdict, Verdict::Bad, "{report}");
    report.found_after.unwrap()
}

/// How long a behaviour may take when nothing is wrong, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long the behaviour took, in seconds, and why it failed if it did; not to come to an end
/// within `limit` is a failure.
fn fails(bug: Option<Bug>, name: &str, weather: Weather, limit: Duration) -> (f64, Option<String>) {
    let behaviour: &Behaviour = conformance::ALL.iter().find(|(of, _)| *of == name).unwrap();
    let begin = Instant::now();
    let run = || {
        conformance::run(async {
            let planted = Planted {
                memory: MemoryLock::new(),
                bug,
                weather,
                shared: Arc::default(),
                renewed: Arc::default(),
                opened: AtomicBool::new(false),
            };
            tokio::time::timeout(limit, behaviour.1(&planted))
                .await
                .expect("an end in time");
        });
    };
    let failure = catch_unwind(AssertUnwindSafe(run)).err().map(|panic| {
        let text = panic.downcast::<String>();
        text.map_or_else(|_| String::new(), |text| *text)
    });
    (begin.elapsed().as_secs_f64(), failure)
}

struct Planted {
    memory: MemoryLock,
    bug: Option<Bug>,
    weather: Weather,
    shared: Arc<Shared>,
    renewed: Arc<Mutex<BTreeSet<String>>>,
    opened: AtomicBool,
}

#[async_trait]
impl Subject for Planted {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        let is_first = !self.opened.swap(true, Ordering::SeqCst);
        let store: Arc<dyn DistributedLock> = Arc::new(Weathered {
            store: Arc::new(self.memory.handle()),
            weather: match self.weather {
                Late if !is_first => Fine,
                weather => weather,
            },
            renewed: self.renewed.clone(),
        });
        match self.bug {
            Some(bug) => Arc::new(Sabotaged::new(store, bug, self.shared.clone())),
            None => store,
        }
    }
}

/// A store that answers as the weather is.
#[derive(Debug)]
struct Weathered {
    store: Arc<dyn DistributedLock>,
    weather: Weather,
    /// The holds that were renewed before.
    renewed: Arc<Mutex<BTreeSet<String>>>,
}

impl Weathered {
    async fn late(&self) {
        if self.weather == Late {
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    }

    fn is_first_renewal(&self, hold: HoldId) -> bool {
        self.renewed.lock().unwrap().insert(hold.to_string())
    }
}

#[async_trait]
impl DistributedLock for Weathered {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let answer = self.store.try_acquire(claim).await;
        self.late().await;
        answer
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        if self.weather == Flaky && self.is_first_renewal(claim.hold) {
            return Err(StoreError::transient("the connection was reset"));
        }
        let answer = self.store.renew(claim).await;
        self.late().await;
        answer
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let answer = self.store.release(claim).await;
        self.late().await;
        answer
    }

    async fn wait(&self, claim: &Claim, busy: &Busy) {
        if self.weather == Restless {
            let nap = Duration::from_millis(1);
            let _ = tokio::time::timeout(nap, self.store.wait(claim, busy)).await;
        } else {
            self.store.wait(claim, busy).await;
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        self.store.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        self.store.list(prefix, page).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        self.store.force_release(key, token).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        Ok(Arc::new(Self {
            store: self.store.dedicated().await?,
            weather: self.weather,
            renewed: self.renewed.clone(),
        }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}
