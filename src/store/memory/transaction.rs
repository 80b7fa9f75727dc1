//! Transactions: alone with the store, on a copy of its state.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;

use super::append;
use super::state::State;
use super::wake_up::Changes;
use crate::model::{Appended, IdSource, Lease, NewEvent, Timestamp, Transition};
use crate::store::{ErrorKind, Fenced, Result, StoreError, Transaction};

/// A transaction of a [`MemoryStore`](super::MemoryStore). It holds the store's lock until it is committed, aborted or
/// dropped; dropping aborts it.
pub struct MemoryTransaction {
    open: Option<Open>,
    ids: Arc<dyn IdSource>,
    changes: Arc<Changes>,
}

/// What a transaction has while it has not ended.
struct Open {
    committed: OwnedMutexGuard<State>,
    /// What `committed` becomes at commit.
    working: State,
}

impl MemoryTransaction {
    pub(super) fn new(
        committed: OwnedMutexGuard<State>,
        ids: Arc<dyn IdSource>,
        changes: Arc<Changes>,
    ) -> Self {
        let working = committed.clone();
        MemoryTransaction { open: Some(Open { committed, working }), ids, changes }
    }

    /// Makes the transaction's changes those of the store, and ends it.
    ///
    /// # Errors
    /// `Misconfigured` when it has ended before.
    pub fn commit(&mut self) -> Result<()> {
        let Open { mut committed, working } = self.open.take().ok_or_else(not_started)?;
        *committed = working;
        drop(committed);
        self.changes.tell();
        Ok(())
    }

    /// Ends the transaction, and forgets its changes.
    pub fn abort(&mut self) {
        self.open = None;
    }

    fn working(&mut self) -> Result<&mut State> {
        self.open.as_mut().map(|open| &mut open.working).ok_or_else(not_started)
    }
}

fn not_started() -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, "the append is not inside a started transaction")
        .with_hint("begin a transaction, append, write your own data, and commit")
}

impl fmt::Debug for MemoryTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransaction").field("open", &self.open.is_some()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Transaction for MemoryTransaction {
    async fn append(&mut self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        let ids = Arc::clone(&self.ids);
        append::append(self.working()?, events, &*ids, now)
    }

    async fn complete(&mut self, lease: &Lease, now: Timestamp) -> Result<Fenced> {
        Ok(self.working()?.change_leased(lease, &Transition::Complete, now))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
