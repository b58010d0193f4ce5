//! The addresses of the page.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Form, Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{
        IntoResponse, Redirect, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use distlock::{FencingToken, LockClient, LockKey};
use futures_util::{Stream, stream};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use tokio::sync::watch::Receiver;

use super::{
    Seen,
    access::{Access, is_cross_site, is_to_loopback},
    page,
};

/// What every handler has.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) client: LockClient,
    pub(super) seen: Receiver<Seen>,
    /// Nobody may release without.
    pub(super) access: Option<Access>,
    pub(super) recorder: PrometheusHandle,
    /// Whether it listens on loopback only.
    pub(super) is_local: bool,
}

/// For so long the store may be silent until the page counts as ill.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn routes(site: Site) -> Router {
    let is_local = site.is_local;
    Router::new()
        .route("/", get(front))
        .route("/events", get(events))
        .route("/live.js", get(script))
        .route("/release", post(release))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .layer(DefaultBodyLimit::max(4096))
        .layer(middleware::from_fn(move |request, next| {
            guard(is_local, request, next)
        }))
        .with_state(Arc::new(site))
}

async fn front(State(site): State<Arc<Site>>) -> Response {
    let store = site.client.capabilities().store;
    let may_release = site.access.is_some();
    page::front(&site.seen.borrow(), store, may_release).into_response()
}

/// The part of the page that changes, whenever there is a new one.
async fn events(
    State(site): State<Arc<Site>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let may_release = site.access.is_some();
    let parts = stream::unfold(site.seen.clone(), move |mut seen| async move {
        seen.changed().await.ok()?;
        let part = page::changing(&seen.borrow_and_update(), may_release);
        Some((Ok(Event::default().data(part.into_string())), seen))
    });
    Sse::new(parts).keep_alive(KeepAlive::default())
}

async fn script() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/javascript")];
    (kind, include_str!("live.js")).into_response()
}

#[derive(Deserialize)]
struct Wanted {
    secret: String,
    /// The token of the grant, a space, and the key.
    grant: String,
}

/// Ends the grant that the page has shown, and no later one.
async fn release(State(site): State<Arc<Site>>, Form(wanted): Form<Wanted>) -> Response {
    let Some(access) = &site.access else {
        return told(StatusCode::FORBIDDEN, "This page only shows.");
    };
    if !access.is(&wanted.secret) {
        // Not as often as one likes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        return told(StatusCode::FORBIDDEN, "That is not the secret.");
    }
    let grant = wanted.grant.split_once(' ').and_then(|(token, key)| {
        let token: FencingToken = token.parse().ok()?;
        Some((token, LockKey::new(key).ok()?))
    });
    let Some((token, key)) = grant else {
        return told(StatusCode::BAD_REQUEST, "That is no grant.");
    };
    match site.client.force_release(&key, Some(token)).await {
        Ok(true) => Redirect::to("/").into_response(),
        Ok(false) => told(
            StatusCode::CONFLICT,
            "It is not held with this token any more.",
        ),
        Err(why) => told(StatusCode::SERVICE_UNAVAILABLE, &why.to_string()),
    }
}

fn told(status: StatusCode, text: &str) -> Response {
    (status, page::message(text)).into_response()
}

async fn metrics(State(site): State<Arc<Site>>) -> String {
    site.recorder.run_upkeep();
    site.recorder.render()
}

async fn health(State(site): State<Arc<Site>>) -> Response {
    let seen = site.seen.borrow();
    match &seen.trouble {
        Some(_) if seen.at.elapsed() > PATIENCE => {
            (StatusCode::SERVICE_UNAVAILABLE, "the store is silent\n").into_response()
        }
        _ => "ok\n".into_response(),
    }
}

/// What holds for every request and every answer.
async fn guard(is_local: bool, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_write = request.method() != Method::GET && request.method() != Method::HEAD;
    if is_local && !is_to_loopback(headers) {
        return (StatusCode::FORBIDDEN, "by a name of another machine\n").into_response();
    }
    if is_write && is_cross_site(headers) {
        return (StatusCode::FORBIDDEN, "from another site\n").into_response();
    }
    let mut answer = next.run(request).await;
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; connect-src 'self'; \
             style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}
