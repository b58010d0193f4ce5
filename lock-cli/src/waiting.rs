//! What a person at a terminal sees while `distlock run` waits.

use std::{
    convert::Infallible,
    future::pending,
    io::{self, IsTerminal},
    time::Duration,
};

use distlock::{LockClient, LockInfo, LockKey};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::sleep;

use crate::show::rounded;

/// Shows a spinner with the holder's name on stderr until it is dropped.
pub(crate) async fn show(client: &LockClient, key: &LockKey, json: bool) -> Infallible {
    if json || !io::stderr().is_terminal() {
        return pending().await;
    }
    sleep(Duration::from_millis(300)).await;
    let spinner = Spinner::new();
    loop {
        let message = match client.inspect(key).await {
            Ok(info) => describe(key, info),
            Err(why) => format!("waiting for lock {key}: {why}"),
        };
        spinner.0.set_message(message);
        for _ in 0..10 {
            spinner.0.tick();
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn describe(key: &LockKey, info: Option<LockInfo>) -> String {
    let Some(info) = info else {
        return format!("waiting for lock {key}");
    };
    let holder = info.holder.map_or(String::new(), |holder| {
        format!(
            ", held by {} for {}",
            holder.asker,
            rounded(holder.held_for)
        )
    });
    let pid = std::process::id();
    let ahead = info
        .waiters
        .iter()
        .position(|waiter| waiter.asker.pid() == pid);
    let queue = match ahead {
        Some(ahead @ 1..) => format!(", {ahead} ahead in the queue"),
        _ => String::new(),
    };
    format!("waiting for lock {key}{holder}{queue}")
}

/// Leaves no trace when it is dropped.
struct Spinner(ProgressBar);

impl Spinner {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg}");
        let bar = ProgressBar::new_spinner();
        Self(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
