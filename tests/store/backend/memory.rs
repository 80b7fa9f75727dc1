//! The in-memory store under test.

use std::sync::Arc;

use async_trait::async_trait;
use relayctl::model::{DeliveryId, IdSource};
use relayctl::store::memory::{MemoryStore, MemoryTransaction};
use relayctl::store::{Result, Store, Transaction};

use super::{Backend, ByHand};

pub struct MemoryBackend(MemoryStore);

impl MemoryBackend {
    pub fn open(ids: Arc<dyn IdSource>) -> Self {
        MemoryBackend(MemoryStore::with_ids(ids))
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn begin(&self) -> Box<dyn ByHand> {
        Box::new(self.0.begin().await)
    }

    async fn not_begun(&self) -> Box<dyn ByHand> {
        let mut transaction = self.0.begin().await;
        transaction.abort();
        Box::new(transaction)
    }

    async fn park(&self, _ids: &[DeliveryId]) {}

    async fn tear_down(&self) {
        self.0.close().await;
    }
}

#[async_trait]
impl ByHand for MemoryTransaction {
    fn transaction(&mut self) -> &mut dyn Transaction {
        self
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        MemoryTransaction::commit(&mut self)
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        MemoryTransaction::abort(&mut self);
        Ok(())
    }
}
