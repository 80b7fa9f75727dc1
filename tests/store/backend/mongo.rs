//! The MongoDB store under test, each in a database of its own that is dropped in the end.

use std::sync::Arc;

use async_trait::async_trait;
use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use relayctl::model::{Appended, DeliveryId, IdSource, Lease, NewEvent, Timestamp};
use relayctl::store::mongo::{DEFAULT_PREFIX, MongoOptions, MongoStore, MongoTransaction};
use relayctl::store::{Fenced, Result, Store, Transaction};

use super::{Backend, ByHand};

const URI_VARIABLE: &str = "RELAYCTL_TEST_MONGODB_URI";

pub struct MongoBackend(MongoStore);

impl MongoBackend {
    pub async fn open(ids: Arc<dyn IdSource>) -> Self {
        let uri = std::env::var(URI_VARIABLE)
            .unwrap_or_else(|_| panic!("{URI_VARIABLE} names no replica set to test on: run dev/test"));
        let database = format!("relayctl_test_{:016x}", fastrand::u64(..));
        let options = MongoOptions { database: Some(database), ..MongoOptions::default() };
        let store = MongoStore::connect(&uri, options).await.unwrap().with_ids(ids);
        store.setup().await.unwrap();
        MongoBackend(store)
    }
}

#[async_trait]
impl Backend for MongoBackend {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn begin(&self) -> Box<dyn ByHand> {
        Box::new(self.0.begin().await.unwrap())
    }

    async fn not_begun(&self) -> Box<dyn ByHand> {
        let session = self.0.client().start_session().await.unwrap();
        Box::new(PlainSession { store: self.0.clone(), session })
    }

    async fn park(&self, ids: &[DeliveryId]) {
        let ids: Vec<&str> = ids.iter().map(DeliveryId::as_str).collect();
        let deliveries = self.0.database().collection::<Document>(&format!("{DEFAULT_PREFIX}deliveries"));
        let parked = doc! { "$set": { "lane": "parked" } };
        deliveries.update_many(doc! { "_id": { "$in": ids }, "status": "pending" }, parked).await.unwrap();
    }

    async fn tear_down(&self) {
        self.0.database().drop().await.unwrap();
        self.0.close().await;
    }
}

#[async_trait]
impl ByHand for MongoTransaction {
    fn transaction(&mut self) -> &mut dyn Transaction {
        self
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        MongoTransaction::commit(*self).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        MongoTransaction::abort(*self).await;
        Ok(())
    }
}

/// A session of the application's own, on which it started no transaction.
struct PlainSession {
    store: MongoStore,
    session: ClientSession,
}

#[async_trait]
impl Transaction for PlainSession {
    async fn append(&mut self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        self.store.append_in(&mut self.session, events, now).await
    }

    async fn complete(&mut self, lease: &Lease, now: Timestamp) -> Result<Fenced> {
        self.store.complete_in(&mut self.session, lease, now).await
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

#[async_trait]
impl ByHand for PlainSession {
    fn transaction(&mut self) -> &mut dyn Transaction {
        self
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        unreachable!("nothing was begun")
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        unreachable!("nothing was begun")
    }
}
