//! Purge of completed deliveries with their events, beside plain deletes of as many known documents.
//!
//! In the details, in ms for a batch: `inTransaction`, the same deletes of known documents in one transaction, and
//! `overlappedFloor`, the plain ones in two halves beside each other.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, ensure};
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;
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
    let halved = Outbox::load_with_events(lab, "halved", seeds()).await?;
    let bound = Outbox::load_with_events(lab, "bound", seeds()).await?;
    let store = ours.store()?;
    let request = PurgeRequest { completed_before: Some(NOW), dead_before: None, batch: BATCH as u32 };
    let (mut times, mut floor) = <(Samples, Samples)>::default();
    let (mut in_transaction, mut overlapped) = <(Samples, Samples)>::default();
    for first in (0..count).step_by(BATCH) {
        let (time, batch) = timed(async { Ok(store.purge_batch(&request).await?) }).await?;
        let whole = BATCH as u64;
        ensure!((batch.deliveries, batch.events) == (whole, whole), "a batch purged {batch:?}");
        times.add_time(time);
        let numbers = first..first + BATCH;
        floor.add_time(timed(delete_known(&plain, numbers.clone())).await?.0);
        overlapped.add_time(timed(delete_beside(&halved, numbers.clone())).await?.0);
        in_transaction.add_time(timed(delete_in_transaction(lab, &bound, numbers)).await?.0);
    }
    let rate = |times: &Samples| per_second(count as u64, Duration::from_secs_f64(times.sum() / 1_000.0));
    let details = json!({
        "samples": times.len(),
        "deliveries": count,
        "batch": BATCH,
        "perSecond": rate(&times),
        "floorPerSecond": rate(&floor),
        "totalRatio": times.sum() / floor.sum(),
        "inTransaction": in_transaction.median(),
        "overlappedFloor": overlapped.median(),
        "overlappedRatio": times.median() / overlapped.median(),
    });
    Ok(vec![Measured::new("purge", "ms", times.median(), floor.median(), details)])
}

async fn delete_known(outbox: &Outbox, numbers: Range<usize>) -> Result<()> {
    let (deliveries, events) = known(numbers);
    outbox.deliveries.delete_many(deliveries).hint(by_id()).await?;
    outbox.events.delete_many(events).hint(by_id()).await?;
    Ok(())
}

fn known(numbers: Range<usize>) -> (Document, Document) {
    let deliveries: Vec<String> = numbers.clone().map(delivery_id).collect();
    let events: Vec<String> = numbers.map(event_id).collect();
    (doc! { "_id": { "$in": deliveries } }, doc! { "_id": { "$in": events } })
}

async fn delete_in_transaction(lab: &Lab, outbox: &Outbox, numbers: Range<usize>) -> Result<()> {
    let (deliveries, events) = known(numbers);
    let mut session = lab.client.start_session().await?;
    session.start_transaction().write_concern(WriteConcern::majority()).await?;
    outbox.deliveries.delete_many(deliveries).hint(by_id()).session(&mut session).await?;
    outbox.events.delete_many(events).hint(by_id()).session(&mut session).await?;
    Ok(session.commit_transaction().await?)
}

/// The same in two halves beside each other, as a purge does it: what of its ratio is due to the second core.
async fn delete_beside(outbox: &Outbox, numbers: Range<usize>) -> Result<()> {
    let middle = usize::midpoint(numbers.start, numbers.end);
    let halves = (delete_known(outbox, numbers.start..middle), delete_known(outbox, middle..numbers.end));
    futures_util::try_join!(halves.0, halves.1)?;
    Ok(())
}
