//! Questions to the daemon's HTTP server.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use xdp_agg::observe::api::{Events, State};

/// How long a whole answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// Most bytes of an answer: 48 jobs of 64 ranks have about 1 MB.
const ANSWER_MAX: usize = 16 << 20;

/// Nobody answers there.
#[derive(Debug, thiserror::Error)]
#[error(
    "no daemon serves HTTP at {addr} ({why}): start `xdp-agg serve` there (its `ready` line names \
     the address), or name the address with --http"
)]
pub(crate) struct NoHttp {
    addr: String,
    why: String,
}

/// The server.
#[derive(Clone, Debug)]
pub(super) struct Source {
    addr: String,
}

impl Source {
    pub(super) fn new(addr: &str) -> Self {
        Self { addr: addr.into() }
    }

    /// Daemon, ports and jobs.
    pub(super) async fn state(&self) -> Result<State> {
        self.get("/api/v1/jobs").await
    }

    /// The same, and the events with numbers above `since`.
    pub(super) async fn look(&self, since: u64) -> Result<(State, Events)> {
        let state = self.state().await?;
        let events = self.get(&format!("/api/v1/events?since={since}")).await?;
        Ok((state, events))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let addr = &self.addr;
        let Ok(answer) = timeout(ANSWER_TIME, self.body(path)).await else {
            bail!("no answer from {addr} in {} s", ANSWER_TIME.as_secs());
        };
        let (status, body) =
            answer.map_err(|error| NoHttp { addr: addr.clone(), why: format!("{error:#}") })?;
        if status != StatusCode::OK {
            let words = String::from_utf8_lossy(&body);
            bail!("{addr} says {status}: {}", words.trim_end());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("{addr} does not answer as this version of xdp-agg does"))
    }

    async fn body(&self, path: &str) -> Result<(StatusCode, Bytes)> {
        let stream = TcpStream::connect(&self.addr).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path).header(HOST, &self.addr).body(Empty::<Bytes>::new())?;
        let ask = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
            Ok::<_, anyhow::Error>((status, body))
        };
        tokio::pin!(ask, connection);
        // The connection is driven until the answer is here.
        tokio::select! {
            biased;
            answer = &mut ask => answer,
            ended = &mut connection => match ended {
                Ok(()) => ask.await,
                Err(error) => Err(error.into()),
            },
        }
    }
}
