//! Wake-ups: one for every change after which something may be due, whatever the handler.

use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio::sync::watch;

use crate::store::Result;

/// Tells everyone who listens that something changed. Changes that nobody has looked at yet are one.
#[derive(Debug)]
pub(super) struct Changes(watch::Sender<()>);

impl Changes {
    pub(super) fn new() -> Self {
        Changes(watch::Sender::new(()))
    }

    pub(super) fn tell(&self) {
        self.0.send_replace(());
    }

    /// Begins with an item: from there on nothing is missed.
    pub(super) fn listen(&self) -> BoxStream<'static, Result<()>> {
        let mut changes = self.0.subscribe();
        changes.mark_changed();
        let next = |mut changes: watch::Receiver<()>| async move {
            // It ends with the store.
            changes.changed().await.ok().map(|()| (Ok(()), changes))
        };
        stream::unfold(changes, next).boxed()
    }
}
