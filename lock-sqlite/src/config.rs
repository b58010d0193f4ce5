//! Where the file is, and the few settings.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use etcetera::BaseStrategy;
use lock_core::StoreError;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::{SqliteLock, store};

/// A [`SqliteLock`] that is about to be opened.
///
/// ```
/// use std::time::Duration;
/// use lock_sqlite::SqliteLock;
///
/// let store = SqliteLock::builder("/var/lib/app/locks.db").busy_timeout(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct SqliteLockBuilder {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    create_folder: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) busy_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) claim_window: Duration,
    pub(crate) forget_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(3),
            poll_interval: Duration::from_millis(10),
            claim_window: Duration::from_millis(1900),
            forget_after: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl SqliteLockBuilder {
    /// A store in the file at `path`, which is created when it is missing; its folder is not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            settings: Settings::default(),
            create_folder: false,
        }
    }

    /// A store in this user's state folder: `distlock/locks.db` in `$XDG_STATE_HOME`, which is
    /// `~/.local/state` when it is not set. Folders that are missing are created for this user
    /// only.
    ///
    /// # Errors
    ///
    /// A permanent [`StoreError`] when the user has no home folder.
    pub fn in_state_folder() -> Result<Self, StoreError> {
        let folders = etcetera::choose_base_strategy().map_err(|why| {
            StoreError::permanent("there is no home folder to keep locks in").with_source(why)
        })?;
        let state = folders.state_dir().unwrap_or_else(|| folders.data_dir());
        Ok(Self {
            create_folder: true,
            ..Self::new(state.join("distlock").join("locks.db"))
        })
    }

    /// The store of a URL: `sqlite:///absolute/path` or `sqlite:relative/path`, with special
    /// characters percent-encoded, or `sqlite:` for the [state folder](Self::in_state_folder).
    /// Settings may follow: `?busy_timeout_ms=2000&poll_interval_ms=10&claim_window_ms=1900`.
    ///
    /// # Errors
    ///
    /// A permanent [`StoreError`] that names the part it cannot use.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let wrong = |what: String| StoreError::permanent(format!("store URL {url:?}: {what}"));
        let parsed = Url::parse(url).map_err(|why| wrong(why.to_string()))?;
        if parsed.scheme() != "sqlite" {
            return Err(wrong("it has to begin with `sqlite:`".into()));
        }
        if parsed.has_host() && parsed.host_str() != Some("") {
            return Err(wrong(
                "it names a host; an absolute path begins with three slashes, `sqlite:///`, and a \
                 relative one with none"
                    .into(),
            ));
        }
        if let Some(fragment) = parsed.fragment() {
            return Err(wrong(format!(
                "`#{fragment}` cannot be used; a `#` in the path is written `%23`"
            )));
        }
        let path = percent_decode_str(parsed.path())
            .decode_utf8()
            .map_err(|_| wrong("the path is not UTF-8".into()))?;
        let mut builder = match &*path {
            "" => Self::in_state_folder()?,
            ":memory:" => {
                return Err(wrong(
                    "locks of one process are what MemoryLock is for".into(),
                ));
            }
            path => Self::new(path),
        };
        for (name, value) in parsed.query_pairs() {
            let millis = value.parse().map(Duration::from_millis);
            let millis = millis.map_err(|_| wrong(format!("{name} is not a number: {value:?}")));
            match &*name {
                "busy_timeout_ms" => builder = builder.busy_timeout(millis?),
                "poll_interval_ms" => builder = builder.poll_interval(millis?),
                "claim_window_ms" => builder = builder.claim_window(millis?),
                _ => return Err(wrong(format!("there is no setting {name:?}"))),
            }
        }
        builder.check()?;
        Ok(builder)
    }

    /// How long a call waits while another program keeps the file locked: up to 1 minute; 3 s
    /// unless set.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.settings.busy_timeout = timeout;
        self
    }

    /// How often a process with waiters looks whether the file has changed: 1 ms to 1 s; 10 ms
    /// unless set.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// How long a waiter that gives no sign of life keeps its place: 0.1 s to 10 s; 1.9 s
    /// unless set. This is what a killed waiter costs those behind it.
    pub fn claim_window(mut self, window: Duration) -> Self {
        self.settings.claim_window = window;
        self
    }

    /// How long a lock has to be unused before its row may be deleted: up to 10 years; 1 day
    /// unless set. Later tokens are larger all the same.
    pub fn forget_after(mut self, idle: Duration) -> Self {
        self.settings.forget_after = idle;
        self
    }

    /// Opens the file, and creates it or its tables when they are missing.
    ///
    /// # Errors
    ///
    /// Permanent for a setting out of its range, a file that is not SQLite's, belongs to another
    /// program, is damaged or of a newer version, and for missing rights; transient when the file
    /// stays locked or the disk is full.
    pub async fn open(self) -> Result<SqliteLock, StoreError> {
        self.check()?;
        let path = std::path::absolute(&self.path).map_err(|why| {
            let path = self.path.display();
            StoreError::permanent(format!("lock file {path}: the path cannot be used"))
                .with_source(why)
        })?;
        if self.create_folder
            && let Some(folder) = path.parent()
        {
            create_private(folder)?;
        }
        store::open(path, self.settings).await
    }

    fn check(&self) -> Result<(), StoreError> {
        let Settings {
            busy_timeout,
            poll_interval,
            claim_window,
            forget_after,
        } = self.settings;
        let ms = Duration::from_millis;
        for (name, value, least, most) in [
            ("busy_timeout", busy_timeout, ms(0), ms(60_000)),
            ("poll_interval", poll_interval, ms(1), ms(1000)),
            ("claim_window", claim_window, ms(100), ms(10_000)),
            (
                "forget_after",
                forget_after,
                ms(0),
                ms(10 * 366 * 86_400_000),
            ),
        ] {
            if value < least || value > most {
                return Err(StoreError::permanent(format!(
                    "{name} is {value:?}; it has to be from {least:?} to {most:?}"
                )));
            }
        }
        let path = self.path.to_str();
        if path.is_none_or(|path| path.is_empty() || path.contains('\0')) {
            return Err(StoreError::permanent(format!(
                "the path of a lock file has to be UTF-8 without NUL, and not empty: {:?}",
                self.path
            )));
        }
        Ok(())
    }
}

fn create_private(folder: &Path) -> Result<(), StoreError> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder).map_err(|why| {
        StoreError::permanent(format!("cannot create the folder {}", folder.display()))
            .with_source(why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> Result<PathBuf, String> {
        let builder = SqliteLockBuilder::from_url(url).map_err(|why| why.to_string())?;
        Ok(builder.path)
    }

    #[test]
    fn urls_name_absolute_and_relative_paths() {
        assert_eq!(path("sqlite:///var/lib/x.db"), Ok("/var/lib/x.db".into()));
        assert_eq!(path("sqlite:/var/lib/x.db"), Ok("/var/lib/x.db".into()));
        assert_eq!(path("sqlite:locks.db"), Ok("locks.db".into()));
        assert_eq!(path("sqlite:../a b.db"), Ok("../a b.db".into()));
        assert_eq!(path("sqlite:///a%20b%3F%23.db"), Ok("/a b?#.db".into()));
        assert_eq!(path("sqlite:x.db?busy_timeout_ms=10"), Ok("x.db".into()));
    }

    /// A38: what cannot work is refused before anything is opened, by its name.
    #[test]
    fn bad_urls_and_settings_are_named() {
        for (url, part) in [
            ("sqlite://locks.db", "three slashes"),
            ("postgres://localhost", "`sqlite:`"),
            ("sqlite:x.db#y", "%23"),
            ("sqlite::memory:", "MemoryLock"),
            ("sqlite:%FF.db", "UTF-8"),
            ("sqlite:a%00b.db", "NUL"),
            ("sqlite:x.db?mode=ro", "mode"),
            ("sqlite:x.db?busy_timeout_ms=-1", "busy_timeout_ms"),
            ("sqlite:x.db?busy_timeout_ms=60001", "busy_timeout"),
            ("sqlite:x.db?poll_interval_ms=0", "poll_interval"),
            (
                "sqlite:x.db?claim_window_ms=18446744073709551615",
                "claim_window",
            ),
            ("no url", "no url"),
        ] {
            let error = SqliteLockBuilder::from_url(url).expect_err(url);
            assert!(error.to_string().contains(part), "{error}");
            assert!(!error.is_transient(), "{error}");
        }
    }
}
