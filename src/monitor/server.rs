//! The HTTP side: `/metrics`, `/healthz` and `/readyz`.
//!
//! Whoever can reach the address may ask; there is nothing to be changed here. A client that is slow, silent or talks
//! nonsense costs a connection for a few seconds and nobody else anything.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Monitor;
use crate::dispatch::Obstacle;

/// How long a connection may last, from its first byte to its last: one request, and its answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);

/// How many connections there are at a time; more of them wait for their turn.
const CONNECTIONS: usize = 64;

/// The most of a request that is looked at.
const REQUEST_LIMIT: usize = 16 * 1024;

/// How long to wait when the system has no connection to give, for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long answers that are under way have when the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// See <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const PLAIN: &str = "text/plain; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// A server that answers for one worker until it is stopped.
#[derive(Debug)]
pub struct Server {
    stop: CancellationToken,
    accepting: AbortOnDropHandle<()>,
}

impl Server {
    /// Takes an address: 0 as its port takes a free one, which the listener knows. Nobody is answered yet.
    ///
    /// # Errors
    /// When the address is taken, is not this host's, or may not be used.
    pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    /// Begins to answer.
    pub fn start(listener: TcpListener, monitor: Arc<Monitor>) -> Self {
        let stop = CancellationToken::new();
        let accepting = tokio::spawn(accept(listener, monitor, stop.clone()));
        Server { stop, accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Answers nobody any more. Answers that are under way have a second.
    pub async fn stop(self) {
        self.stop.cancel();
        // A panic of the server is no concern of the worker.
        let _ = self.accepting.await;
    }
}

async fn accept(listener: TcpListener, monitor: Arc<Monitor>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = next => accepted,
        };
        match accepted {
            (place, Ok((stream, _))) => {
                let monitor = monitor.clone();
                connections.spawn(async move {
                    let _ = timeout(CONNECTION_LIMIT, serve(stream, monitor)).await;
                    drop(place);
                });
            }
            (_, Err(_)) => sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
}

/// One request and its answer. What goes wrong with a connection is the client's loss alone.
async fn serve(stream: TcpStream, monitor: Arc<Monitor>) {
    let service = service_fn(move |request| {
        let monitor = monitor.clone();
        async move { Ok::<_, Infallible>(answer(&request, &monitor).await) }
    });
    let mut connection = http1::Builder::new();
    connection.keep_alive(false).max_buf_size(REQUEST_LIMIT);
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: &Request<Incoming>, monitor: &Monitor) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "there is nothing here but to GET");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/metrics" => respond(StatusCode::OK, OPEN_METRICS, monitor.scrape().await),
        "/healthz" => verdict(monitor.health()),
        "/readyz" => verdict(monitor.readiness()),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz"),
    }
}

fn verdict(result: Result<(), Obstacle>) -> Answer {
    match result {
        Ok(()) => plain(StatusCode::OK, "ok"),
        Err(obstacle) => plain(StatusCode::SERVICE_UNAVAILABLE, &obstacle.to_string()),
    }
}

fn plain(status: StatusCode, line: &str) -> Answer {
    respond(status, PLAIN, format!("{line}\n"))
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
