//! Signals to this process, as a stream.

use std::{future::poll_fn, io, task::Poll};

use tokio::signal::unix::{self, SignalKind, signal};

/// A set of signals that is listened to; from then on they do nothing else.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(i32, unix::Signal)>);

impl Signals {
    /// Those that are passed on to the command, but for those that this process was told to
    /// ignore, as `nohup` does: the command then ignores them too.
    pub(crate) fn forwarded() -> io::Result<Self> {
        let ignored = ignored();
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::window_change(),
        ];
        Self::of(kinds.into_iter().filter(|kind| {
            let bit = kind.as_raw_value() - 1;
            ignored & (1 << bit) == 0
        }))
    }

    pub(crate) fn of(kinds: impl IntoIterator<Item = SignalKind>) -> io::Result<Self> {
        let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
        kinds
            .into_iter()
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next one, by its number.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks this process to end.
    pub(crate) async fn next_to_end(&mut self) -> i32 {
        const ASK_TO_END: [SignalKind; 4] = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
        ];
        loop {
            let number = self.next().await;
            if ASK_TO_END.iter().any(|kind| kind.as_raw_value() == number) {
                return number;
            }
        }
    }
}

/// The signals that were ignored when this process started, one bit each; none where the system
/// does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
