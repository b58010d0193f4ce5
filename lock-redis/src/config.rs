//! How to reach a server, and what may differ between applications.

use std::{fmt, time::Duration};

use lock_core::{Error, Result, StoreError};
use redis::{Client, IntoConnectionInfo, io::tcp::TcpSettings};

use crate::{RedisLock, connection::Server, error::store_error};

/// Options for a [`RedisLock`]; from [`RedisLock::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use lock_redis::RedisLock;
///
/// # async fn example() -> lock_core::Result<()> {
/// let store = RedisLock::builder("redis://:secret@127.0.0.1/2")?
///     .prefix("billing")
///     .operation_timeout(Duration::from_secs(2))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use]
#[derive(Clone)]
pub struct RedisLockBuilder {
    client: Client,
    options: Options,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) prefix: String,
    pub(crate) operation_timeout: Duration,
    pub(crate) claim_window: Duration,
    pub(crate) token_retention: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "distlock".to_owned(),
            operation_timeout: Duration::from_secs(3),
            claim_window: Duration::from_secs(2),
            token_retention: Duration::from_secs(2 * 60 * 60),
        }
    }
}

impl fmt::Debug for RedisLockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: it knows the password.
        f.debug_struct("RedisLockBuilder")
            .field("options", &self.options)
            .finish()
    }
}

impl RedisLockBuilder {
    pub(crate) fn from_url(url: &str) -> Result<Self> {
        let info = url
            .into_connection_info()
            .map_err(|why| Error::InvalidConfig {
                // Not the URL: it may hold a password.
                what: format!("the Redis URL cannot be used: {}", reason(&why)),
            })?;
        let tcp = TcpSettings::default().set_nodelay(true);
        Self::from_client(Client::open(info.set_tcp_settings(tcp)))
    }

    fn from_client(client: redis::RedisResult<Client>) -> Result<Self> {
        Ok(Self::with_client(client.map_err(|why| {
            Error::InvalidConfig {
                what: format!("the Redis server cannot be used: {}", reason(&why)),
            }
        })?))
    }

    pub(crate) fn with_client(client: Client) -> Self {
        Self {
            client,
            options: Options::default(),
        }
    }

    /// What the names of all keys and channels start with; `distlock` by default.
    ///
    /// 1 to 100 bytes without braces and control characters. Stores with different prefixes, or
    /// on different databases of a server, know nothing of each other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// How long one command may take, connecting included; 3 s by default, above zero.
    ///
    /// A connection that does not answer in time is given up, and the next command opens
    /// another. Keep it below the operation time-out of the client (5 s by default), and well
    /// below the ttl.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.options.operation_timeout = limit;
        self
    }

    /// How long the first waiter has to claim a lock that became free before the next one is
    /// asked; 2 s by default, from 1 ms.
    ///
    /// It is what a waiter that hangs costs those behind it. One whose process is gone costs
    /// nothing.
    pub fn claim_window(mut self, window: Duration) -> Self {
        self.options.claim_window = window;
        self
    }

    /// How long the last token of a lock is remembered after its grant; 2 h by default, from 1 s.
    ///
    /// Tokens follow the server's clock, so the last one only matters when that clock is set
    /// back. Tokens keep growing over steps back of less than this time. One small key for each
    /// name used within this time is the price.
    pub fn token_retention(mut self, time: Duration) -> Self {
        self.options.token_retention = time;
        self
    }

    /// Certificates in PEM form: the authority to trust instead of the system's, and the
    /// client's own certificate and key. For `rediss://` URLs.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when they cannot be read, or the URL is not for TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: redis::TlsCertificates) -> Result<Self> {
        let info = self.client.get_connection_info().clone();
        self.client =
            Client::build_with_tls(info, certificates).map_err(|why| Error::InvalidConfig {
                what: format!("the certificates cannot be used: {}", reason(&why)),
            })?;
        Ok(self)
    }

    /// Connects, and logs what weakens the guarantees as the server is set up.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for options that are out of range; [`Error::Store`] when the
    /// server cannot be reached, refuses the user or is too old.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(self) -> Result<RedisLock> {
        self.options.check()?;
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An application that has a choice of its own has made it by now, or makes it first.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let server = Server::new(self.client, self.options.operation_timeout);
        RedisLock::open(server, self.options)
            .await
            .map_err(not_connected)
    }
}

fn not_connected(source: StoreError) -> Error {
    Error::Store {
        operation: "connect",
        key: None,
        source,
    }
}

fn reason(why: &redis::RedisError) -> String {
    store_error(why).to_string()
}

impl Options {
    fn check(&self) -> Result<()> {
        let prefix = &self.prefix;
        let refused = |what: String| Err(Error::InvalidConfig { what });
        let bad = |c: char| c.is_control() || matches!(c, '{' | '}');
        if prefix.is_empty() || prefix.len() > 100 || prefix.contains(bad) {
            return refused(format!(
                "the prefix is {prefix:?}; it has to be 1 to 100 bytes without braces and control \
                 characters"
            ));
        }
        for (name, value, least) in [
            (
                "operation_timeout",
                self.operation_timeout,
                Duration::from_millis(1),
            ),
            ("claim_window", self.claim_window, Duration::from_millis(1)),
            (
                "token_retention",
                self.token_retention,
                Duration::from_secs(1),
            ),
        ] {
            let most = Duration::from_secs(366 * 24 * 60 * 60);
            if value < least || value > most {
                return refused(format!(
                    "{name} is {value:?}; it has to be from {least:?} to 366 days"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_out_of_debug_and_errors() {
        let builder = RedisLockBuilder::from_url("redis://me:hunter2@127.0.0.1:1/0").unwrap();
        assert!(!format!("{builder:?}").contains("hunter2"));
        for url in [
            "redis://me:hunter2@127.0.0.1:x/0",
            "redis://:hunter2@h/x",
            "hunter2",
        ] {
            let why = RedisLockBuilder::from_url(url).unwrap_err();
            assert!(matches!(why, Error::InvalidConfig { .. }), "{why}");
            assert!(!format!("{why} {why:?}").contains("hunter2"), "{why:?}");
        }
    }

    #[test]
    fn impossible_options_are_refused() {
        let check = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.check().is_err()
        };
        assert!(!check(|_| {}));
        assert!(check(|o| o.prefix = "{x}".into()));
        assert!(check(|o| o.prefix = String::new()));
        assert!(check(|o| o.operation_timeout = Duration::ZERO));
        assert!(check(|o| o.claim_window = Duration::MAX));
        assert!(check(|o| o.token_retention = Duration::from_millis(1)));
    }
}
