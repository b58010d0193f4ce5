//! Who may do what a page offers.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, header};
use subtle::ConstantTimeEq;

/// The secret of those who may release.
#[derive(Clone)]
pub(super) struct Access(String);

impl Access {
    /// The shortest secret, in bytes.
    pub(super) const LEAST: usize = 16;

    /// `None` when it is too short.
    pub(super) fn new(secret: &str) -> Option<Self> {
        (secret.len() >= Self::LEAST).then(|| Self(secret.to_owned()))
    }

    /// Whether this is the secret; the time it takes does not tell how much of it is right.
    pub(super) fn is(&self, secret: &str) -> bool {
        self.0.as_bytes().ct_eq(secret.as_bytes()).into()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(…)")
    }
}

/// Whether a page of another site has sent it, as the browser says; what is no browser says
/// nothing.
pub(super) fn is_cross_site(headers: &HeaderMap) -> bool {
    if let Some(site) = text(headers, HeaderName::from_static("sec-fetch-site")) {
        return !["same-origin", "none"].contains(&site);
    }
    text(headers, header::ORIGIN).is_some_and(|origin| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none() || host != text(headers, header::HOST)
    })
}

/// Whether it was sent to a name of this machine: another one that leads to loopback is a trick of
/// a page that wants to read what is here.
pub(super) fn is_to_loopback(headers: &HeaderMap) -> bool {
    text(headers, header::HOST).is_some_and(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        ["localhost", "127.0.0.1", "[::1]"].contains(&name)
    })
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers
        .get(name)
        .map(|value| value.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let value = value.parse().expect("a header");
            (name.clone(), value)
        });
        pairs.collect()
    }

    #[test]
    fn a_secret_is_whole_and_long_enough() {
        let secret = "0123456789abcdef";
        assert!(Access::new(&secret[1..]).is_none());
        let access = Access::new(secret).expect("long enough");
        assert!(access.is(secret));
        assert!(!access.is(&secret[1..]) && !access.is("") && !access.is("0123456789abcdeF"));
        assert!(!format!("{access:?}").contains(secret));
    }

    #[test]
    fn other_sites_are_told_by_their_headers() {
        let site = HeaderName::from_static("sec-fetch-site");
        let host = (header::HOST, "locks:80");
        for same in [
            vec![host.clone()],
            vec![(site.clone(), "same-origin")],
            vec![(header::ORIGIN, "http://locks:80"), host.clone()],
        ] {
            assert!(!is_cross_site(&headers(&same)), "{same:?}");
        }
        for cross in [
            vec![(site.clone(), "cross-site")],
            vec![(site, "same-site")],
            vec![(header::ORIGIN, "http://other"), host.clone()],
            vec![(header::ORIGIN, "null"), host],
        ] {
            assert!(is_cross_site(&headers(&cross)), "{cross:?}");
        }
    }

    #[test]
    fn loopback_has_few_names() {
        for name in [
            "localhost",
            "localhost:7070",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_to_loopback(&headers(&[(header::HOST, name)])), "{name}");
        }
        for name in ["", "example.org", "localhost.example.org:7070", "127.0.0.2"] {
            assert!(!is_to_loopback(&headers(&[(header::HOST, name)])), "{name}");
        }
        assert!(!is_to_loopback(&headers(&[])));
    }
}
