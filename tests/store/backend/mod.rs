//! The backends, and what only a backend can do.

mod memory;
mod mongo;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use relayctl::model::{DeliveryId, IdSource};
use relayctl::store::{Result, Store, Transaction};

/// Which backend a test runs on.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// [`relayctl::store::memory`].
    Memory,
    /// [`relayctl::store::mongo`].
    Mongo,
}

impl Kind {
    /// A fresh, set up store that nobody else uses.
    pub async fn open(self, ids: Arc<dyn IdSource>) -> Box<dyn Backend> {
        match self {
            Kind::Memory => Box::new(memory::MemoryBackend::open(ids)),
            Kind::Mongo => Box::new(mongo::MongoBackend::open(ids).await),
        }
    }
}

/// One store under test.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Begins a transaction as an application does: by hand.
    async fn begin(&self) -> Box<dyn ByHand>;

    /// What an application has in its hand when it forgot to begin a transaction.
    async fn not_begun(&self) -> Box<dyn ByHand>;

    /// Moves these deliveries to lane parked, as another client of the same store may. A store that no other client
    /// can reach leaves it to the parking of its own.
    async fn park(&self, ids: &[DeliveryId]);

    /// Ends the store, and deletes all that it kept.
    async fn tear_down(&self);
}

/// A transaction, or the lack of one, that is driven by hand.
#[async_trait]
pub trait ByHand: Send {
    /// What runs inside it.
    fn transaction(&mut self) -> &mut dyn Transaction;

    /// Commits it.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// Aborts it.
    async fn abort(self: Box<Self>) -> Result<()>;
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store().location())
    }
}
