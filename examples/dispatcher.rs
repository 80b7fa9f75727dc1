//! A service that handles events itself: one handler that only acts, and one that writes in the transaction which also
//! completes its delivery.
//!
//! ```text
//! cargo run --example dispatcher -- 'mongodb://127.0.0.1:27017/shop?replicaSet=rs0'
//! ```
//!
//! The URL may also come from `RELAYCTL_STORE`. It works until Ctrl-C.

#![expect(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use relayctl::clock::{Clock, ServerClock};
use relayctl::dispatch::{DispatchEvent, DispatchOptions, Dispatcher, Signals, Subscription};
use relayctl::handler::{Outcome, TransactionalError, TransactionalHandler, handler_fn};
use relayctl::model::{Envelope, Failure, FailureKind, NewEvent};
use relayctl::store::mongo::{MongoOptions, MongoStore, MongoTransaction};
use relayctl::store::{Store, StoreError, Transaction};
use serde_json::json;
use tokio::sync::mpsc;

/// Keeps one document for each order. Its write and the completion of the delivery commit together, so that every event
/// counts exactly once, whatever happens in between.
struct Projector {
    store: MongoStore,
}

#[async_trait]
impl TransactionalHandler for Projector {
    async fn handle(
        &self,
        envelope: &Envelope,
        transaction: &mut dyn Transaction,
    ) -> Result<(), TransactionalError> {
        let Some(total) = envelope.payload["total"].as_i64() else {
            return Err(Failure::new(FailureKind::Rejected, "the order has no total").into());
        };
        let transaction: &mut MongoTransaction =
            transaction.as_any_mut().downcast_mut().expect("a MongoStore's transaction");
        let totals = self.store.database().collection::<Document>("totals");
        let order = envelope.key.as_deref().unwrap_or_default();
        totals
            .update_one(doc! { "_id": order }, doc! { "$inc": { "total": total, "events": 1 } })
            .upsert(true)
            .session(transaction.session())
            .await
            .map_err(StoreError::from)?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("RELAYCTL_STORE").ok());
    let url = url.ok_or_else(|| anyhow::anyhow!("give the URL as an argument, or in RELAYCTL_STORE"))?;
    let store = MongoStore::connect(&url, MongoOptions::default()).await?;
    store.setup().await?;
    // The clocks of services differ, and leases must not: all go by the server's.
    let clock = ServerClock::new();
    clock.measure(store.server_time()).await?;
    let order = NewEvent::new("order.placed.v1", json!({ "total": 42 })).key("order-17");
    store.append(&[order.handler("greeter").handler("projector")], clock.now()).await?;

    let greeter = handler_fn(|envelope| async move {
        println!("hello, {} {}", envelope.event_type, envelope.event_id);
        Outcome::Succeeded
    });
    let subscriptions = vec![
        Subscription::new("greeter", greeter).concurrency(8).timeout(Duration::from_secs(5)),
        Subscription::transactional("projector", Projector { store: store.clone() }),
    ];
    let options = DispatchOptions { owner: "example".to_owned(), ..DispatchOptions::default() };
    let dispatcher =
        Dispatcher::new(Arc::new(store.clone()), Arc::new(clock.clone()), subscriptions, options)?
            .keeping_time(clock);

    let signals = Signals::default();
    let drain = signals.drain.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        drain.cancel();
    });
    let (sender, mut events) = mpsc::channel(64);
    let log = tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let DispatchEvent::Finished(finished) = event {
                println!("{} of {}: {:?}", finished.delivery_id, finished.handler, finished.verdict);
            }
        }
    });
    let counts = dispatcher.run(signals, sender).await?;
    log.await?;
    println!("{counts:?}");
    store.close().await;
    Ok(())
}
