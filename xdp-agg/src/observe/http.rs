//! The HTTP server: everything that strangers may do to it is bounded, and nothing that they do
//! reaches the control loop or the data path.

mod assets;
mod guests;
mod listener;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time;
use tracing::{debug, warn};

use super::pages::Pages;
use assets::ASSETS;
use guests::Guests;
use listener::accept;
pub use listener::{HttpError, HttpListener};

/// How long a request's head may take, and a connection be without one.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Lines of a request's head.
const HEADERS_MAX: usize = 64;
/// How long a connection lives: whoever does not read its answers holds a place for that long.
const CONNECTION_TIME: Duration = Duration::from_secs(120);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What no answer goes without.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Serves until its future is dropped.
pub(super) async fn serve(listener: HttpListener, pages: Arc<Pages>) -> io::Result<()> {
    let router = router(pages, listener.addr().ip().is_loopback());
    let listener = listener.into_tokio()?;
    let (mut guests, mut connections) = (Guests::default(), JoinSet::new());
    loop {
        while connections.try_join_next().is_some() {}
        match accept(&listener).await {
            Ok((stream, from)) => {
                let service = router.clone();
                let guest = guests.admit(from.ip());
                connections.spawn(async move {
                    tokio::select! {
                        () = guest.evicted() => debug!(%from, "HTTP: made room for another one"),
                        () = answer(stream, service) => {}
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, or the peer has gone already. It must not spin.
                debug!("HTTP: cannot accept a connection: {error}");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // What went wrong is the client's affair.
    drop(time::timeout(CONNECTION_TIME, connection).await);
}

fn router(pages: Arc<Pages>, loopback: bool) -> Router {
    let page = ASSETS.into_iter().fold(Router::new(), |router, asset| {
        let file = move || async move { bytes(asset.kind, Bytes::from_static(asset.bytes)) };
        router.route(asset.path, get(file))
    });
    let router = page
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/events", get(events))
        .method_not_allowed_fallback(not_allowed)
        .fallback(not_found)
        .with_state(pages);
    let router = if loopback { router.layer(middleware::from_fn(for_this_host)) } else { router };
    router.layer(middleware::map_response(with_headers))
}

/// Browsers can be led to a loopback address by a name that somebody else owns (DNS rebinding):
/// such requests name that host.
async fn for_this_host(request: Request, next: Next) -> Response {
    let named = request
        .headers()
        .get_all(header::HOST)
        .iter()
        .all(|host| host.to_str().is_ok_and(is_this_host));
    let asked = request.uri().host().is_none_or(is_this_host);
    if named && asked {
        return next.run(request).await;
    }
    let words = "this address is for this host alone: ask for localhost or 127.0.0.1";
    line(StatusCode::FORBIDDEN, words)
}

/// Whether a `Host`, with or without a port, names loopback.
fn is_this_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<axum::http::uri::Authority>() else {
        return false;
    };
    let name = authority.host();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}

/// An answer of one line.
fn line(status: StatusCode, words: &str) -> Response {
    (status, [(header::CONTENT_TYPE, PLAIN)], format!("{words}\n")).into_response()
}

fn bytes(kind: &'static str, body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}

async fn metrics(State(pages): State<Arc<Pages>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let open = accept
        .filter_map(|accept| accept.to_str().ok())
        .any(|accept| accept.contains("application/openmetrics-text"));
    let kind = if open { OPENMETRICS } else { PROMETHEUS };
    bytes(kind, pages.metrics(open))
}

async fn healthz(State(pages): State<Arc<Pages>>) -> Response {
    state(pages.unhealthy())
}

async fn readyz(State(pages): State<Arc<Pages>>) -> Response {
    state(pages.unready())
}

/// `ok`, or why not.
fn state(wrong: Option<String>) -> Response {
    match wrong {
        None => line(StatusCode::OK, "ok"),
        Some(why) => line(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn jobs(State(pages): State<Arc<Pages>>) -> Response {
    bytes(JSON, pages.jobs())
}

async fn events(State(pages): State<Arc<Pages>>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or("");
    let since = query.split('&').find_map(|part| part.strip_prefix("since="));
    match since.map_or(Ok(0), str::parse) {
        Ok(since) => bytes(JSON, pages.events(since)),
        Err(_) => line(StatusCode::BAD_REQUEST, "since=N takes the number of an event"),
    }
}

async fn not_allowed(method: Method) -> Response {
    let words = format!("{} is not possible here: all is read-only, by GET", clip(method.as_str()));
    line(StatusCode::METHOD_NOT_ALLOWED, &words)
}

async fn not_found() -> Result<Response, Infallible> {
    let words = "no such path; there are /, /metrics, /healthz, /readyz, /api/v1/jobs and \
                 /api/v1/events";
    Ok(line(StatusCode::NOT_FOUND, words))
}

/// The first characters of what a client said.
fn clip(words: &str) -> &str {
    words.get(..16).unwrap_or(words)
}

/// Says that all who reach the address may read.
pub(super) fn warn_if_open(listener: &HttpListener) {
    if !listener.addr().ip().is_loopback() {
        warn!(
            "HTTP IS OPEN: every host that reaches {} may read jobs, ranks, addresses and \
             counters; bind --http to loopback, or put a proxy with authentication before it",
            listener.addr()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopbacks_names_are_this_host() {
        for host in ["localhost", "LOCALHOST:9871", "127.0.0.1:9871", "127.9.9.9", "[::1]:9871"] {
            assert!(is_this_host(host), "{host}");
        }
        let others = ["evil.example", "localhost.evil.example", "10.0.0.1:9871", "", "127.0.0.1.x"];
        for host in others {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
