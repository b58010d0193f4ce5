//! The clock that local deadlines are measured with.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A point on a [`Clock`]: nanoseconds since an arbitrary start. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The last moment there is; nothing happens so late.
    pub const NEVER: Self = Self(u64::MAX >> 1);

    /// The moment `nanos` nanoseconds after the start, at most [`Moment::NEVER`].
    pub const fn from_nanos(nanos: u64) -> Self {
        if nanos < Self::NEVER.0 {
            Self(nanos)
        } else {
            Self::NEVER
        }
    }

    /// Nanoseconds since the start; the highest bit is never set.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero when it is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self::from_nanos(self.0.saturating_add(by))
    }
}

impl std::ops::Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(by))
    }
}

/// A clock that never goes back and does not stop while the machine sleeps.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;

    /// Returns at `at` or soon afterwards.
    fn sleep_until(&self, at: Moment) -> BoxFuture<'_, ()>;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux, which counts the time in suspend.
///
/// Sleeping needs a tokio runtime with its timer enabled.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(since_boot())
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // tokio's timers stand still in suspend, so look again after each.
            loop {
                let left = at.since(self.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            }
        })
    }
}

#[cfg(unix)]
fn since_boot() -> u64 {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // Counts the time in suspend on macOS.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let time = clock_gettime(CLOCK);
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(not(unix))]
fn since_boot() -> u64 {
    use std::{sync::OnceLock, time::Instant};

    // The performance counter, which goes on in suspend on Windows.
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) + 1_000_000_000
}

/// A clock that stands still until a test moves it. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    now: Mutex<Moment>,
    moved: Notify,
}

impl Default for Manual {
    fn default() -> Self {
        Self {
            now: Mutex::new(Moment::from_nanos(1_000_000_000)),
            moved: Notify::new(),
        }
    }
}

impl ManualClock {
    /// A clock that shows one second.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward and wakes who waits for it.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.now.lock();
        *now = *now + by;
        drop(now);
        self.0.moved.notify_waiters();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        *self.0.now.lock()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let moved = self.0.moved.notified();
                if self.now() >= at {
                    return;
                }
                moved.await;
            }
        })
    }
}
