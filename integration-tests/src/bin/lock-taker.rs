//! A client process that is driven over its standard input, one command a line; it answers each
//! with one line.
//!
//! ```text
//! lock-taker URL                 of a store
//!   acquire KEY TTL_MS WAIT_MS   → granted TOKEN | ERROR
//!   is_held                      → true | false
//!   release                      → released | ERROR
//!   write URL VALUE              → written | ERROR, of the fence in that server
//!   fork                         → child 0 when its copy of the guard is inert | child N
//!   block MS                     → blocked; blocks its only runtime thread
//! ```

use std::{
    env, io, process,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use integration_tests::protected::Protected;
use lock_core::{Error, LockClient, LockGuard, Ticket};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let store = env::args().nth(1).unwrap_or_default();
    let client = distlock::connect(&store).await.map_err(io::Error::other)?;
    let mut guard = None;
    for line in io::stdin().lines() {
        println!("{}", obey(&line?, &client, &mut guard).await);
    }
    Ok(())
}

async fn obey(line: &str, client: &LockClient, guard: &mut Option<LockGuard>) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let millis = |word: &str| Duration::from_millis(word.parse().unwrap_or_default());
    match (&words[..], guard.take()) {
        (["acquire", key, ttl, wait], None) => {
            let acquire = client.lock(*key).ttl(millis(ttl)).wait(millis(wait));
            match acquire.acquire().await {
                Ok(got) => format!("granted {}", guard.insert(got).token()),
                Err(why) => why.to_string(),
            }
        }
        (["is_held"], Some(held)) => guard.insert(held).is_held().to_string(),
        (["release"], Some(held)) => match held.release().await {
            Ok(()) => "released".into(),
            Err(why) => why.to_string(),
        },
        (["write", url, value], Some(held)) => {
            // Without a look at the guard, as if the request had been on its way.
            let ticket = guard.insert(held).ticket();
            match write(url, &ticket, value).await {
                Ok(()) => "written".into(),
                Err(why) => why.to_string(),
            }
        }
        (["fork"], Some(held)) => match fork::fork() {
            Ok(fork::Fork::Child) => in_the_child(held, client),
            Ok(fork::Fork::Parent(child)) => {
                *guard = Some(held);
                match fork::waitpid(child) {
                    Ok(status) => format!("child {}", status >> 8),
                    Err(why) => why.to_string(),
                }
            }
            Err(why) => why.to_string(),
        },
        (["block", time], held) => {
            *guard = held;
            std::thread::sleep(millis(time));
            "blocked".into()
        }
        (words, _) => format!("cannot {words:?} now"),
    }
}

async fn write(
    url: &str,
    ticket: &Ticket,
    value: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Protected::open(url).await?.write(ticket, value).await
}

/// Exits with 0 when the copies in a forked child do nothing and say so.
fn in_the_child(guard: LockGuard, client: &LockClient) -> ! {
    let start = Instant::now();
    let held = guard.is_held() || !guard.valid_for().is_zero();
    let open = !matches!(
        client.try_acquire("other").now_or_never(),
        Some(Err(Error::Closed))
    );
    let sends = !matches!(
        guard.release().now_or_never(),
        Some(Err(Error::Lost { .. }))
    );
    let slow = start.elapsed() > Duration::from_secs(5);
    process::exit(
        i32::from(held) + 2 * i32::from(open) + 4 * i32::from(sends) + 8 * i32::from(slow),
    )
}
