//! Append of some events in one transaction, beside plain inserts of as many documents in a transaction.

use anyhow::Result;
use futures_util::future::try_join_all;
use mongodb::bson::Document;
use relayctl::model::NewEvent;
use relayctl::store::Store as _;
use serde_json::json;

use super::Measured;
use crate::data::{EVENT_TYPE, HANDLER, NOW, Outbox, Seed, State, delivery_document, event_document};
use crate::harness::{Lab, Samples, per_second, timed};

const TURNS: usize = 30;

/// Appenders that know nothing of each other, as in processes of their own, and the events of each.
const APPENDERS: usize = 8;
const EVENTS_EACH: usize = 50;

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

/// Single events of one key, by many stores at once beside one store alone. Per second.
pub async fn contended(lab: &Lab) -> Result<Vec<Measured>> {
    let outbox = Outbox::load_with_events(lab, "contended", std::iter::empty()).await?;
    let (mut many, mut alone, mut slowest) = <(Samples, Samples, Samples)>::default();
    for turn in 0..=lab.size(2, 4) {
        let (together, times) = append_singly(&outbox, APPENDERS).await?;
        let (by_itself, _) = append_singly(&outbox, 1).await?;
        // The first turn warms up.
        if turn > 0 {
            many.add(together);
            alone.add(by_itself);
            slowest.add(times.largest());
        }
    }
    let details = json!({ "samples": many.len(), "appenders": APPENDERS, "slowestMs": slowest.median() });
    Ok(vec![Measured::new("append-one-key-contended", "/s", many.median(), alone.median(), details)])
}

/// So many appenders at once; how many events a second, and how long each append took.
async fn append_singly(outbox: &Outbox, appenders: usize) -> Result<(f64, Samples)> {
    let appender = async || {
        let (store, mut times) = (outbox.store()?, Samples::default());
        for _ in 0..EVENTS_EACH {
            let event = NewEvent::new(EVENT_TYPE, json!({ "total": 4_200 })).key("order-1").handler(HANDLER);
            let (time, _) = timed(async { Ok(store.append(&[event], NOW).await?) }).await?;
            times.add_time(time);
        }
        anyhow::Ok(times)
    };
    let (time, all) = timed(try_join_all((0..appenders).map(|_| appender()))).await?;
    let mut times = Samples::default();
    all.into_iter().for_each(|each| times.extend(each));
    Ok((per_second((appenders * EVENTS_EACH) as u64, time), times))
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
