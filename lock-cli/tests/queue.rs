//! Many processes, one lock: the counter is exact, tokens grow, and whoever came first is first.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::{HashMap, HashSet},
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use support::{Place, Running, read, until};

/// Reads, pauses, writes: loses increments as soon as two of them overlap. Then it notes who it
/// was, under the lock as well.
const INCREMENT: &str = "n=$(cat counter); echo $((n + 1)) > counter; \
     echo $DISTLOCK_TOKEN $DISTLOCK_OWNER >> log";

fn increments(place: &Place) -> Command {
    place.run_script("counter --wait 10m", INCREMENT)
}

/// On a machine that is too busy a waiter may need longer than usual to take its turn.
const PATIENT: &str = "?claim_window_ms=10000";

/// How many processes, and how many increments each; `DISTLOCK_TEST_RUNS=200` is the full size.
fn size() -> (usize, usize) {
    let runs = std::env::var("DISTLOCK_TEST_RUNS").map_or(20, |runs| runs.parse().unwrap());
    (16, runs)
}

#[test]
fn processes_exclude_each_other_in_the_order_of_arrival() {
    let place = Place::with(PATIENT);
    let (workers, runs) = size();
    fs::write(place.path("counter"), "0\n").unwrap();
    let start = Instant::now();

    let (snapshots, waits) = thread::scope(|scope| {
        let work = || -> Vec<Duration> {
            let run = |_| {
                let start = Instant::now();
                let status = increments(&place).status().unwrap();
                assert!(status.success(), "{status}");
                start.elapsed()
            };
            (0..runs).map(run).collect()
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut snapshots = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = distlock::connect(&place.url()).await.unwrap();
            while !handles.iter().all(|handle| handle.is_finished()) {
                if let Some(info) = client.inspect("counter").await.unwrap() {
                    let queue = info.waiters.iter().map(|waiter| waiter.owner.to_string());
                    snapshots.push(queue.collect::<Vec<_>>());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let waits = handles
            .into_iter()
            .flat_map(|handle| handle.join().unwrap());
        (snapshots, waits.collect::<Vec<_>>())
    });
    let took = start.elapsed();

    let total = workers * runs;
    assert_eq!(read(&place.path("counter")), format!("{total}\n"));
    let log = read(&place.path("log"));
    let grants: Vec<(u64, &str)> = log
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(token, owner)| (token.parse().unwrap(), owner))
        .collect();
    assert_eq!(grants.len(), total);
    assert!(
        grants.is_sorted_by(|a, b| a.0 < b.0),
        "tokens grow with every grant"
    );

    // Whoever stood before somebody else in the queue had the lock before that one.
    let places: HashMap<&str, usize> = grants.iter().map(|(_, owner)| *owner).zip(0..).collect();
    assert_eq!(places.len(), total, "every run has an owner of its own");
    let mut pairs = HashSet::new();
    for queue in &snapshots {
        for pair in queue.windows(2) {
            let [first, second] = [&pair[0], &pair[1]].map(|owner| places[owner.as_str()]);
            assert!(first < second, "grant {second} came before grant {first}");
            pairs.insert((first, second));
        }
    }
    assert!(
        pairs.len() > total / 4,
        "only {} pairs were seen in the queue",
        pairs.len()
    );
    let longest = waits.iter().max().unwrap();
    println!(
        "{workers} processes x {runs} runs: counter {total}, {took:.1?} in all, {:.1} runs/s, \
         longest run {longest:.2?}, {} neighbours in {} looks at the queue in order",
        total as f64 / took.as_secs_f64(),
        pairs.len(),
        snapshots.len(),
    );
}

/// Each comes when the one before it is in the queue for certain: so the order is known.
#[test]
fn grants_come_in_the_order_of_arrival() {
    let place = Place::with(PATIENT);
    fs::write(place.path("counter"), "0\n").unwrap();
    let script = "echo > held; while ! test -e stop; do sleep 0.01; done";
    let mut holder = Running::start(&mut place.run_script("counter", script));
    until("a holder", || place.path("held").exists());
    let mut waiters: Vec<Running> = Vec::new();
    let mut owners = Vec::new();
    for n in 0..16 {
        waiters.push(Running::start(&mut increments(&place)));
        until("one more in the queue", || {
            place.waiters("counter") == n + 1
        });
        let info = place.inspect("counter");
        owners.push(info["waiters"][n]["owner"].as_str().unwrap().to_owned());
    }
    fs::write(place.path("stop"), "").unwrap();
    assert_eq!(holder.code(), 0);
    for waiter in &mut waiters {
        assert_eq!(waiter.code(), 0);
    }
    let log = read(&place.path("log"));
    let granted: Vec<_> = log
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(granted, owners);
}
