//! The URL of a store, which may hold a password.

use std::fmt;

use serde::Deserialize;

/// The URL of a store. It may hold a password, so `Debug` and `Display` show the scheme, the host
/// and the path at most.
#[derive(Clone, Default, Deserialize, Eq, PartialEq)]
#[serde(transparent)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// The URL `url`, which is checked when it is used.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole URL, its password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What stands before the first colon, in lower case.
    pub(super) fn scheme(&self) -> String {
        let scheme = self.0.split_once(':').map(|(scheme, _)| scheme);
        scheme.unwrap_or_default().to_ascii_lowercase()
    }
}

impl From<&str> for StoreUrl {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_known = |url: &::url::Url| crate::connect::is_scheme(url.scheme());
        let Some(url) = ::url::Url::parse(&self.0).ok().filter(is_known) else {
            // Several members, or a mistake: a password may be anywhere.
            return f.write_str("…");
        };
        write!(f, "{}:", url.scheme())?;
        if url.path().contains('@') || url.cannot_be_a_base() {
            return f.write_str("…");
        }
        if let Some(host) = url.host_str() {
            write!(f, "//{host}")?;
            if let Some(port) = url.port() {
                write!(f, ":{port}")?;
            }
        }
        f.write_str(url.path())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for url in [
            "redis://:hunter2@h/0",
            "redis://me:hunter2",
            "postgres://u:hun/ter2@h/d",
            "postgres://u:hunter2@h/d",
            "postgres://u@h/d?password=hunter2",
            "etcd://u:hunter2@a,b:2,c",
            "hunter2",
            "hunter2:x",
            "mysql:hunter2",
        ] {
            let url = StoreUrl::new(url);
            let shown = format!("{url} {url:?}").replace("/", "");
            assert!(
                !shown.contains("hunter2") && !shown.contains("ter2@"),
                "{shown}"
            );
        }
        let url = StoreUrl::new("redis://me:hunter2@host:7/0?x=y");
        assert_eq!(url.to_string(), "redis://host:7/0");
    }
}
