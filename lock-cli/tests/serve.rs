//! `serve`: what the page shows, and to whom.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use support::{Place, Running, output, stderr, until};
use ureq::{
    Agent, Body,
    http::{Response, StatusCode},
};

const SECRET: &str = "correct horse battery";

struct Served {
    url: String,
    agent: Agent,
    _process: Running,
}

impl Served {
    fn start(mut serve: Command) -> Self {
        let mut process = Running::start(serve.stdout(Stdio::piped()));
        let mut url = String::new();
        let output = process.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://127.0.0.1:"), "{url:?}");
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Self {
            url: url.trim_end_matches(['/', '\n']).to_owned(),
            agent: agent.into(),
            _process: process,
        }
    }

    fn read_only(place: &Place) -> Self {
        Self::start(place.distlock("serve --listen 127.0.0.1:0"))
    }

    fn with_release(place: &Place) -> Self {
        fs::write(place.path("secret"), format!("{SECRET}\n")).unwrap();
        Self::start(place.distlock("serve --listen 127.0.0.1:0 --allow-release secret"))
    }

    fn text(&self, path: &str) -> String {
        let answer = self.agent.get(format!("{}{path}", self.url)).call();
        answer.unwrap().body_mut().read_to_string().unwrap()
    }

    fn release(&self, form: &[(&str, &str)]) -> Response<Body> {
        let form = form.iter().copied();
        let release = self.agent.post(format!("{}/release", self.url));
        release.send_form(form).unwrap()
    }
}

fn take(place: &Place, key: &str) -> String {
    let taken = output(place.distlock("--json try --label alice").arg(key));
    assert!(taken.status.success(), "{taken:?}");
    let taken: serde_json::Value = serde_json::from_slice(&taken.stdout).unwrap();
    taken["token"].to_string()
}

#[test]
fn the_page_shows_holders_as_they_come() {
    let place = Place::new();
    take(&place, "orders/<1>");
    let served = Served::read_only(&place);
    let front = served.text("/");
    assert!(
        front.contains("orders/&lt;1&gt;") && front.contains("alice"),
        "{front}"
    );
    assert!(!front.contains("<button"), "it only shows");

    let events = served.agent.get(format!("{}/events", served.url)).call();
    let mut events = BufReader::new(events.unwrap().into_body().into_reader());
    take(&place, "orders/2");
    let mut line = String::new();
    while !line.contains("orders/2") {
        line.clear();
        assert_ne!(events.read_line(&mut line).unwrap(), 0, "the events end");
    }
    until("it is counted", || {
        served.text("/metrics").contains("distlock_seen_held 2")
    });
    assert_eq!(served.text("/healthz"), "ok\n");
    assert!(served.text("/live.js").contains("EventSource"));
}

#[test]
fn who_knows_the_secret_releases_what_was_shown() {
    let place = Place::new();
    let served = Served::with_release(&place);
    let token = take(&place, "a key");
    let grant = format!("{token} a key");
    until("it is shown", || served.text("/").contains(&grant));

    let refused = [
        (StatusCode::FORBIDDEN, ("wrong", grant.as_str())),
        (StatusCode::FORBIDDEN, ("", grant.as_str())),
        (StatusCode::BAD_REQUEST, (SECRET, "a key")),
        (StatusCode::BAD_REQUEST, (SECRET, "7 ")),
        (StatusCode::CONFLICT, (SECRET, "7 a key")),
    ];
    for (status, (secret, grant)) in refused {
        let answer = served.release(&[("secret", secret), ("grant", grant)]);
        assert_eq!(answer.status(), status, "{secret:?} {grant:?}");
        assert!(!place.is_free("a key"));
    }
    assert_eq!(
        served.release(&[("secret", SECRET)]).status(),
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let long = "x".repeat(5000);
    let answer = served.release(&[("secret", SECRET), ("grant", &long)]);
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);

    let answer = served.release(&[("secret", SECRET), ("grant", &grant)]);
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert!(place.is_free("a key"));
}

#[test]
fn strangers_are_refused() {
    let place = Place::new();
    let served = Served::with_release(&place);
    let token = take(&place, "k");
    let grant = format!("{token} k");
    let form = [("secret", SECRET), ("grant", grant.as_str())];
    let post = || served.agent.post(format!("{}/release", served.url));
    for (name, value) in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Origin", "http://example.org"),
        ("Host", "example.org"),
    ] {
        let answer = post().header(name, value).send_form(form).unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{name}: {value}");
    }
    let page = served.agent.get(&served.url).header("Host", "example.org");
    assert_eq!(page.call().unwrap().status(), StatusCode::FORBIDDEN);
    assert!(!place.is_free("k"));

    // Without a secret nobody releases, whatever is sent.
    let read_only = Served::read_only(&place);
    assert_eq!(read_only.release(&form).status(), StatusCode::FORBIDDEN);
    assert!(!place.is_free("k"));

    let page = served.agent.get(&served.url).call().unwrap();
    let policy = &page.headers()["content-security-policy"];
    assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
    let mut text = String::new();
    page.into_body()
        .into_reader()
        .read_to_string(&mut text)
        .unwrap();
    assert!(!text.contains(SECRET) && !served.text("/metrics").contains(SECRET));
}

#[test]
fn a_secret_that_is_none_is_refused() {
    let place = Place::new();
    fs::write(place.path("short"), "0123456789\n").unwrap();
    for (file, what) in [
        ("short", "shorter than 16 bytes"),
        ("none", "cannot read none"),
    ] {
        let serve = format!("serve --listen 127.0.0.1:0 --allow-release {file}");
        let refused = output(&mut place.distlock(&serve));
        assert_eq!(refused.status.code(), Some(205), "{refused:?}");
        assert!(stderr(&refused).contains(what), "{refused:?}");
    }
}
