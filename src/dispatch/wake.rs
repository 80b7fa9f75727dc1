//! Being woken by the store while there is nothing to do.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::time::Instant;

use super::backoff::Backoff;
use crate::store::{ErrorKind, Result, Store, StoreError};

/// From one failure to the next try, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// The store's wake-ups: listened to while the worker is idle, and not a moment longer, as that costs the store.
pub(super) struct WakeUps {
    stream: Option<BoxStream<'static, Result<()>>>,
    /// It has said that it listens.
    is_listening: bool,
    listen_at: Instant,
    retry: Backoff,
    is_told: bool,
}

/// What the store says.
#[derive(Debug)]
pub(super) enum Wake {
    /// There may be something due; also when it begins to listen, for what came before.
    Up,
    /// It cannot tell any more.
    Lost(StoreError),
}

impl WakeUps {
    pub(super) fn new() -> Self {
        WakeUps {
            stream: None,
            is_listening: false,
            listen_at: Instant::now(),
            retry: Backoff::new(RETRY.0, RETRY.1),
            is_told: false,
        }
    }

    /// Whether the store will say when something may be due.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Whether to listen now, if the worker is idle.
    pub(super) fn may_listen(&self) -> bool {
        self.stream.is_none() && Instant::now() >= self.listen_at
    }

    /// Begins to listen, where the store offers it.
    pub(super) fn listen(&mut self, store: &dyn Store, handlers: &[String]) {
        self.stream = store.wake_ups(handlers);
        if self.stream.is_none() {
            self.listen_at = Instant::now() + RETRY.1;
        }
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
        self.is_listening = false;
    }

    /// What the store says next; never returns while nobody listens. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Wake {
        let Some(stream) = &mut self.stream else { return pending().await };
        match stream.next().await {
            Some(Ok(())) => Wake::Up,
            Some(Err(error)) => Wake::Lost(error),
            None => Wake::Lost(StoreError::new(ErrorKind::Unavailable, "the store has no more wake-ups")),
        }
    }

    /// Notes a wake-up. The first one only says that the store listens.
    pub(super) fn woken(&mut self) {
        if std::mem::replace(&mut self.is_listening, true) {
            self.retry.reset();
            self.is_told = false;
        }
    }

    /// Notes a loss, and rests for a while. Returns the reason when it is news.
    pub(super) fn lost(&mut self, error: StoreError) -> Option<Arc<StoreError>> {
        self.close();
        self.listen_at = Instant::now() + self.retry.next();
        (!std::mem::replace(&mut self.is_told, true)).then(|| Arc::new(error))
    }
}
