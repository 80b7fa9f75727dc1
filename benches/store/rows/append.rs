//! Append of some events in one transaction, beside plain inserts of as many documents in a transaction.

use anyhow::Result;
use mongodb::bson::Document;
use relayctl::model::NewEvent;
use relayctl::store::Store as _;
use serde_json::json;

use super::Measured;
use crate::data::{EVENT_TYPE, HANDLER, NOW, Outbox, Seed, State, delivery_document, event_document};
use crate::harness::{Lab, Samples, timed};

const TURNS: usize = 30;

/// How many events at once, and the key of each.
type Shape = (&'static str, usize, fn(usize) -> Option<String>);

pub async fn append(lab: &Lab) -> Result<Vec<Measured>> {
    let shapes: [Shape; 5] = [
        ("append-1", 1, |_| None),
        ("append-10", 10, |_| None),
        ("append-100", 100, |_| None),
        ("append-100-one-key", 100, |_| Some("order-1".to_owned())),
        ("append-100-keys", 100, |number| Some(format!("order-{number}"))),
    ];
    let mut measured = Vec::new();
    for shape in shapes.into_iter().filter(|(name, ..)| lab.wants(name)) {
        measured.push(measure(lab, shape).await?);
        lab.clear().await?;
    }
    Ok(measured)
}

async fn measure(lab: &Lab, (name, count, key): Shape) -> Result<Measured> {
    let ours = Outbox::load_with_events(lab, "ours", std::iter::empty()).await?;
    let plain = Outbox::load_with_events(lab, "plain", std::iter::empty()).await?;
    let store = ours.store()?;
    let event = |number| {
        let payload = json!({ "orderId": format!("o-{number}"), "total": 4_200, "currency": "EUR" });
        NewEvent { key: key(number), ..NewEvent::new(EVENT_TYPE, payload).handler(HANDLER) }
    };
    let events: Vec<NewEvent> = (0..count).map(event).collect();
    let (mut times, mut floor) = <(Samples, Samples)>::default();
    for turn in 0..=TURNS {
        let (time, _) = timed(async { Ok(store.append(&events, NOW).await?) }).await?;
        let seed =
            |place| (turn * count + place, Seed { state: State::Due, key: key(place).map(|key| (key, 1)) });
        let seeds: Vec<(usize, Seed)> = (0..count).map(seed).collect();
        let (bare, ()) = timed(insert(&plain, &seeds)).await?;
        // The first turn warms up.
        if turn > 0 {
            times.add_time(time);
            floor.add_time(bare);
        }
    }
    let details = json!({ "samples": times.len(), "events": count });
    Ok(Measured::new(name, "ms", times.median(), floor.median(), details))
}

/// Events and deliveries alone: no look at what is there, and no counter.
async fn insert(outbox: &Outbox, seeds: &[(usize, Seed)]) -> Result<()> {
    let documents = |make: fn(usize, &Seed) -> Document| -> Vec<Document> {
        seeds.iter().map(|(number, seed)| make(*number, seed)).collect()
    };
    let mut session = outbox.deliveries.client().start_session().await?;
    session.start_transaction().await?;
    outbox.events.insert_many(documents(event_document)).session(&mut session).await?;
    outbox.deliveries.insert_many(documents(delivery_document)).session(&mut session).await?;
    session.commit_transaction().await?;
    Ok(())
}
