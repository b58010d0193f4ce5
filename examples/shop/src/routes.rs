//! The addresses of the shop.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use distlock::{Busy, Error, LockClient};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    page,
    stock::{Sale, Stock},
};

/// What every handler has.
pub(crate) struct Shop {
    pub(crate) locks: LockClient,
    pub(crate) stock: Stock,
    pub(crate) metrics: PrometheusHandle,
}

/// How long a buyer stands in the queue: for less time than a browser waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// About how long one sale takes.
const SALE: Duration = Duration::from_millis(20);

pub(crate) fn routes(shop: Arc<Shop>) -> Router {
    Router::new()
        .route("/", get(front))
        .route("/buy/{item}", post(buy))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(1024))
        .layer(middleware::from_fn(refuse_cross_site))
        .with_state(shop)
}

async fn front(State(shop): State<Arc<Shop>>) -> Response {
    match shop.stock.articles().await {
        Ok(articles) => page::front(&articles, shop.locks.capabilities().store).into_response(),
        Err(why) => failed(&why),
    }
}

/// The body of the form is empty; reading it enforces the limit.
async fn buy(State(shop): State<Arc<Shop>>, Path(item): Path<String>, _: String) -> Response {
    let sold = shop
        .locks
        .lock(format!("shop/{item}"))
        .wait(PATIENCE)
        .run(async |guard| shop.stock.sell(&item, &guard.ticket()).await)
        .await;
    match sold.map_err(Error::from) {
        Ok(Ok(Sale::Sold(left))) => page::message(&format!("Yours. {left} left.")).into_response(),
        Ok(Ok(Sale::SoldOut)) => (StatusCode::GONE, page::message("Sold out.")).into_response(),
        Ok(Ok(Sale::Unknown)) | Err(Error::InvalidKey(_)) => {
            (StatusCode::NOT_FOUND, page::message("No such article.")).into_response()
        }
        Ok(Ok(Sale::TooLate)) | Err(Error::Lost { .. }) => later(1),
        Ok(Err(why)) => failed(&why),
        Err(Error::Busy { busy, .. }) => later(seconds(Some(&busy))),
        Err(Error::Timeout { busy, .. }) => later(seconds(busy.as_deref())),
        Err(why) if why.is_retryable() => later(5),
        Err(why) => failed(&why),
    }
}

/// How long those in the queue will take.
fn seconds(busy: Option<&Busy>) -> u64 {
    let ahead = busy.map_or(1, |busy| busy.queued + 1);
    (SALE * ahead).as_secs() + 1
}

fn later(seconds: u64) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let retry = [(header::RETRY_AFTER, seconds.to_string())];
    let text = format!("Many want it. Try again in {seconds} s.");
    (status, retry, page::message(&text)).into_response()
}

/// The reason is for those who run the shop.
fn failed(why: &dyn std::error::Error) -> Response {
    eprintln!("{why}");
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    (status, page::message("Something is broken.")).into_response()
}

/// Both the stock and the store of the locks answer.
async fn health(State(shop): State<Arc<Shop>>) -> Response {
    let locks = shop.locks.inspect("shop/schema").await;
    match (shop.stock.is_there().await, locks) {
        (true, Ok(_)) => "ok\n".into_response(),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "no stock\n").into_response(),
        (_, Err(_)) => (StatusCode::SERVICE_UNAVAILABLE, "no locks\n").into_response(),
    }
}

async fn metrics(State(shop): State<Arc<Shop>>) -> String {
    shop.metrics.run_upkeep();
    shop.metrics.render()
}

/// Another site's page must not buy in its visitor's name.
async fn refuse_cross_site(request: Request, next: Next) -> Response {
    match request.method() == Method::POST && is_cross_site(request.headers()) {
        true => (StatusCode::FORBIDDEN, "from another site\n").into_response(),
        false => next.run(request).await,
    }
}

/// As the browser says; what is no browser says nothing.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return !["same-origin", "none"].contains(&site);
    }
    let origin = text(header::ORIGIN);
    origin.is_some_and(|origin| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none() || host != text(header::HOST)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sites_are_told_by_their_headers() {
        let is_cross = |pairs: &[(HeaderName, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                let value = value.parse().expect("a header");
                (name.clone(), value)
            });
            is_cross_site(&pairs.collect())
        };
        let site = HeaderName::from_static("sec-fetch-site");
        let host = (header::HOST, "shop:80");
        assert!(!is_cross(std::slice::from_ref(&host)));
        assert!(!is_cross(&[(site.clone(), "same-origin")]));
        assert!(is_cross(&[(site.clone(), "cross-site")]));
        assert!(is_cross(&[(site, "same-site")]));
        assert!(!is_cross(&[
            (header::ORIGIN, "http://shop:80"),
            host.clone()
        ]));
        assert!(is_cross(&[(header::ORIGIN, "http://other"), host.clone()]));
        assert!(is_cross(&[(header::ORIGIN, "null"), host]));
    }
}
