//! Purge of completed deliveries with their events, beside plain deletes of as many known documents.

use std::time::Duration;

use anyhow::{Result, ensure};
use mongodb::bson::doc;
use relayctl::store::{PurgeRequest, Store as _};
use serde_json::json;

use super::Measured;
use crate::data::{NOW, Outbox, Seed, State, by_id, delivery_id, event_id};
use crate::harness::{Lab, Samples, per_second, timed};

/// Deliveries in one batch: what the command line does unless told otherwise.
const BATCH: usize = 500;

pub async fn purge(lab: &Lab) -> Result<Vec<Measured>> {
    let count: usize = lab.size(30_000, 100_000);
    let seeds = || (0..count).map(|_| Seed::unkeyed(State::Completed));
    let ours = Outbox::load_with_events(lab, "ours", seeds()).await?;
    let plain = Outbox::load_with_events(lab, "plain", seeds()).await?;
    let store = ours.store()?;
    let request = PurgeRequest { completed_before: Some(NOW), dead_before: None, batch: BATCH as u32 };
    let (mut times, mut floor) = <(Samples, Samples)>::default();
    for first in (0..count).step_by(BATCH) {
        let (time, batch) = timed(async { Ok(store.purge_batch(&request).await?) }).await?;
        let whole = BATCH as u64;
        ensure!((batch.deliveries, batch.events) == (whole, whole), "a batch purged {batch:?}");
        times.add_time(time);
        floor.add_time(timed(delete_known(&plain, first..first + BATCH)).await?.0);
    }
    let rate = |times: &Samples| per_second(count as u64, Duration::from_secs_f64(times.sum() / 1_000.0));
    let details = json!({
        "samples": times.len(),
        "deliveries": count,
        "batch": BATCH,
        "perSecond": rate(&times),
        "floorPerSecond": rate(&floor),
        "totalRatio": times.sum() / floor.sum(),
    });
    Ok(vec![Measured::new("purge", "ms", times.median(), floor.median(), details)])
}

async fn delete_known(outbox: &Outbox, numbers: std::ops::Range<usize>) -> Result<()> {
    let deliveries: Vec<String> = numbers.clone().map(delivery_id).collect();
    let events: Vec<String> = numbers.map(event_id).collect();
    outbox.deliveries.delete_many(doc! { "_id": { "$in": deliveries } }).hint(by_id()).await?;
    outbox.events.delete_many(doc! { "_id": { "$in": events } }).hint(by_id()).await?;
    Ok(())
}
