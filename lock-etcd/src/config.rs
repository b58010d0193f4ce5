//! How to reach a cluster, and what may differ between applications.

use std::{fmt, time::Duration};

use etcd_client::{Client, ConnectOptions};
use lock_core::{Error, Result};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::{EtcdLock, connection::Cluster};

/// Options for an [`EtcdLock`]; from [`EtcdLock::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use lock_etcd::EtcdLock;
///
/// # async fn example() -> lock_core::Result<()> {
/// let store = EtcdLock::builder("etcd://app:secret@one:2379,two:2379,three:2379")?
///     .prefix("billing")
///     .operation_timeout(Duration::from_secs(2))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use]
#[derive(Clone)]
pub struct EtcdLockBuilder {
    source: Source,
    options: Options,
}

#[derive(Clone)]
enum Source {
    Members {
        addresses: Vec<String>,
        user: Option<(String, String)>,
        #[cfg(feature = "tls")]
        tls: Option<Box<etcd_client::TlsOptions>>,
    },
    Client(Box<Client>),
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) prefix: String,
    pub(crate) operation_timeout: Duration,
    pub(crate) lease_pool: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "distlock".to_owned(),
            operation_timeout: Duration::from_secs(3),
            lease_pool: 128,
        }
    }
}

impl fmt::Debug for EtcdLockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the source: it knows the password.
        f.debug_struct("EtcdLockBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl EtcdLockBuilder {
    pub(crate) fn from_url(url: &str) -> Result<Self> {
        let source = read_url(url).map_err(|why| Error::InvalidConfig {
            // Not the URL: it may hold a password.
            what: format!("the etcd URL cannot be used: {why}"),
        })?;
        Ok(Self {
            source,
            options: Options::default(),
        })
    }

    pub(crate) fn with_client(client: Client) -> Self {
        Self {
            source: Source::Client(Box::new(client)),
            options: Options::default(),
        }
    }

    /// What the names of all keys start with; `distlock` by default.
    ///
    /// 1 to 100 bytes without colons and control characters. Stores with different prefixes know
    /// nothing of each other. A role needs to read and write the keys that begin with the prefix
    /// and a colon.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// How long one request may take, connecting and other members included; 3 s by default, from
    /// 1 ms.
    ///
    /// Keep it below the operation time-out of the client (5 s by default), and well below the
    /// ttl.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.options.operation_timeout = limit;
        self
    }

    /// How many unused leases are kept for the next locks; 128 by default, 0 for none.
    ///
    /// A lock that takes its lease from there costs one request less. Keep it above the number of
    /// locks that are acquired and released at the same time. A lease that nobody needs for a
    /// minute is given back.
    pub fn lease_pool(mut self, leases: usize) -> Self {
        self.options.lease_pool = leases;
        self
    }

    /// Certificates: the authority to trust instead of the system's, and the client's own. For
    /// `etcds://` URLs.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when the URL is not for TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: etcd_client::TlsOptions) -> Result<Self> {
        match &mut self.source {
            Source::Members {
                tls: tls @ Some(_), ..
            } => *tls = Some(Box::new(options)),
            _ => {
                return Err(Error::InvalidConfig {
                    what: "certificates are for `etcds://` URLs".to_owned(),
                });
            }
        }
        Ok(self)
    }

    /// Connects, and logs what weakens the guarantees as the cluster is set up.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for options that are out of range; [`Error::Store`] when no member
    /// can be reached or the user is refused.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(self) -> Result<EtcdLock> {
        self.options.check()?;
        let limit = self.options.operation_timeout;
        let cluster = match self.source {
            Source::Client(client) => Cluster::of_client(*client, limit),
            Source::Members {
                addresses,
                user,
                #[cfg(feature = "tls")]
                tls,
            } => {
                let options = ConnectOptions::new()
                    .with_connect_timeout(limit)
                    .with_require_leader(true)
                    // The server allows a ping every five seconds, and only on streams.
                    .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3))
                    .with_keep_alive_while_idle(false);
                #[cfg(feature = "tls")]
                let options = match tls {
                    Some(tls) => options.with_tls(*tls),
                    None => options,
                };
                Cluster::new(addresses, options, user, limit)
            }
        };
        EtcdLock::open(cluster, self.options)
            .await
            .map_err(|source| Error::Store {
                operation: "connect",
                key: None,
                source,
            })
    }
}

fn read_url(url: &str) -> Result<Source, &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("it has no `://`")?;
    let secure = match scheme.to_ascii_lowercase().as_str() {
        "etcd" => false,
        "etcds" => true,
        _ => return Err("it begins with neither `etcd://` nor `etcds://`"),
    };
    if secure && !cfg!(feature = "tls") {
        return Err("`etcds://` needs the feature `tls`");
    }
    let rest = rest.trim_end_matches('/');
    let (user, hosts) = match rest.rsplit_once('@') {
        Some((user, hosts)) => (Some(read_user(user)?), hosts),
        None => (None, rest),
    };
    let transport = if secure { "https" } else { "http" };
    let addresses: Vec<_> = hosts
        .split(',')
        .map(|host| read_address(transport, host.trim()))
        .collect::<Result<_, _>>()?;
    Ok(Source::Members {
        #[cfg(feature = "tls")]
        tls: secure.then(|| Box::new(etcd_client::TlsOptions::new().with_native_roots())),
        addresses,
        user,
    })
}

fn read_user(user: &str) -> Result<(String, String), &'static str> {
    let (name, password) = user
        .split_once(':')
        .ok_or("a user needs a password: `user:password@`")?;
    let decode = |text: &str| {
        percent_decode_str(text)
            .decode_utf8()
            .map(|text| text.into_owned())
            .map_err(|_| "the user or the password is not UTF-8")
    };
    match (decode(name)?, decode(password)?) {
        (name, _) if name.is_empty() => Err("the user has no name"),
        user => Ok(user),
    }
}

fn read_address(transport: &str, host: &str) -> Result<String, &'static str> {
    // Not as a URL of the transport, which would hide that transport's own port.
    let url = Url::parse(&format!("etcd://{host}")).map_err(|_| "a member has no address")?;
    let rest = [Some(url.path()), url.query(), url.fragment()];
    match url.host_str() {
        Some(name) if rest == [Some(""), None, None] => {
            let port = url.port().unwrap_or(2379);
            Ok(format!("{transport}://{name}:{port}"))
        }
        _ => Err("a member is more than `host:port`"),
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let prefix = &self.prefix;
        let refused = |what: String| Err(Error::InvalidConfig { what });
        let bad = |c: char| c.is_control() || c == ':';
        if prefix.is_empty() || prefix.len() > 100 || prefix.contains(bad) {
            return refused(format!(
                "the prefix is {prefix:?}; it has to be 1 to 100 bytes without colons and control \
                 characters"
            ));
        }
        let (least, most) = (
            Duration::from_millis(1),
            Duration::from_secs(366 * 24 * 60 * 60),
        );
        if self.operation_timeout < least || self.operation_timeout > most {
            return refused(format!(
                "operation_timeout is {:?}; it has to be from {least:?} to 366 days",
                self.operation_timeout
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str) -> Vec<String> {
        match read_url(url) {
            Ok(Source::Members { addresses, .. }) => addresses,
            _ => panic!("{url}"),
        }
    }

    #[test]
    fn members_are_read() {
        assert_eq!(addresses("etcd://h"), ["http://h:2379"]);
        assert_eq!(
            addresses("ETCD://u:p@a:1,b,[::1]:3/"),
            ["http://a:1", "http://b:2379", "http://[::1]:3"]
        );
        assert_eq!(addresses("etcd://h:80"), ["http://h:80"]);
    }

    #[test]
    fn secrets_stay_out_of_debug_and_errors() {
        let builder = EtcdLockBuilder::from_url("etcd://me:hunter2@127.0.0.1:1").unwrap();
        assert!(!format!("{builder:?}").contains("hunter2"));
        for url in [
            "etcd://me:hunter2@127.0.0.1:x",
            "etcd://hunter2@h",
            "etcd://me:hunter2@h/path",
            "etcd://me:hunter2@",
            "etcd://:hunter2@h",
            "hunter2",
            "hunter2://h",
        ] {
            let why = EtcdLockBuilder::from_url(url).unwrap_err();
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
        assert!(!check(|o| o.prefix = "app/locks".into()));
        assert!(check(|o| o.prefix = "a:b".into()));
        assert!(check(|o| o.prefix = String::new()));
        assert!(check(|o| o.operation_timeout = Duration::ZERO));
        assert!(check(|o| o.operation_timeout = Duration::MAX));
    }
}
