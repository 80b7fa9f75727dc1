//! A service that writes its business data and the event about it in one transaction: both are there, or neither.
//!
//! ```text
//! cargo run --example append_in_transaction -- 'mongodb://127.0.0.1:27017/shop?replicaSet=rs0'
//! ```
//!
//! The URL may also come from `RELAYCTL_STORE`.

#![expect(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use mongodb::bson::{Document, doc};
use relayctl::clock::{Clock, SystemClock};
use relayctl::model::NewEvent;
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Store, StoreError, Transaction};
use serde_json::json;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("RELAYCTL_STORE").ok());
    let url = url.ok_or_else(|| anyhow::anyhow!("give the URL as an argument, or in RELAYCTL_STORE"))?;
    let store = MongoStore::connect(&url, MongoOptions::default()).await?;
    store.setup().await?;

    place_order(&store, "order-17", 42).await?;
    place_order_by_hand(&store, "order-18", 23).await?;
    store.close().await;
    Ok(())
}

/// The plain way: the store runs the transaction, and runs it again after a conflict with another one.
async fn place_order(store: &MongoStore, number: &str, total: i64) -> Result<(), StoreError> {
    let order = doc! { "number": number, "total": total };
    let event = NewEvent::new("order.placed.v1", json!({ "number": number, "total": total }))
        .key(number)
        .handler("projector");
    let orders = store.database().collection::<Document>("orders");
    store
        .transaction(&mut |transaction| {
            let (orders, order, event) = (orders.clone(), order.clone(), event.clone());
            Box::pin(async move {
                let session = mongo(transaction).session();
                orders.insert_one(order).session(session).await?;
                transaction.append(&[event], SystemClock.now()).await?;
                Ok(())
            })
        })
        .await
}

/// For a service that has a session of its own already: append within the transaction that it started.
async fn place_order_by_hand(store: &MongoStore, number: &str, total: i64) -> anyhow::Result<()> {
    let event = NewEvent::new("order.placed.v1", json!({ "number": number, "total": total }))
        .key(number)
        .handler("projector");
    let mut session = store.client().start_session().await?;
    session.start_transaction().await?;
    let orders = store.database().collection::<Document>("orders");
    orders.insert_one(doc! { "number": number, "total": total }).session(&mut session).await?;
    let appended = store.append_in(&mut session, &[event], SystemClock.now()).await?;
    session.commit_transaction().await?;
    println!("{number} is stored, and event {} with it", appended[0].id);
    Ok(())
}

/// The store's transaction as what it is on MongoDB.
fn mongo(transaction: &mut dyn Transaction) -> &mut relayctl::store::mongo::MongoTransaction {
    transaction.as_any_mut().downcast_mut().expect("a MongoStore's transaction")
}
