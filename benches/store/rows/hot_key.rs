//! One key drained in order by the worker, beside bare updates one after the other.

use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use relayctl::dispatch::Subscription;
use relayctl::handler::{Outcome, handler_fn};
use serde_json::json;

use super::Measured;
use super::worker::work;
use crate::data::{HANDLER, Indexes, Outbox, Seed, State};
use crate::harness::{Lab, Samples, per_second, timed};
use crate::published;

/// Slots of the worker; one key can use one.
const SLOTS: usize = 32;

pub async fn drain(lab: &Lab) -> Result<Vec<Measured>> {
    let (backlog, count, turns) = (lab.size(5_000, 20_000), lab.size(300, 1_000), lab.size(3, 5));
    let key = |number: usize| Seed::keyed(State::Due, "hot".to_owned(), number as i64 + 1);
    let outbox = Outbox::load_with_events(lab, "hot", (0..backlog).map(key)).await?;
    let plain = (0..=turns * count).map(|_| Seed::unkeyed(State::Due));
    let mut bare = Outbox::load(lab, "bare", Indexes::Ours, plain).await?;
    let (mut rates, mut floor) = <(Samples, Samples)>::default();
    let handled = Handled::default();
    work(&outbox, handled.subscription(), count as u64 / 10).await?;
    for _ in 0..turns {
        rates.add(work(&outbox, handled.subscription(), count as u64).await?.rate);
        floor.add(update_one_by_one(&mut bare, count).await?);
    }
    let handled = handled.check_order()?;
    ensure!(outbox.count_completed().await? == handled, "what is completed is not what was handled");
    let details = json!({ "samples": rates.len(), "backlog": backlog, "handled": handled });
    let published = match lab.is_quick {
        true => None,
        false => Some(published_rate(lab, (0..backlog).map(key)).await?),
    };
    let measured = Measured::new("drain-hot-key", "/s", rates.median(), floor.median(), details);
    Ok(vec![measured.beside_published(published)])
}

/// The sequences in the order in which the handler saw them.
#[derive(Clone, Default)]
struct Handled(Arc<Mutex<Vec<i64>>>);

impl Handled {
    fn subscription(&self) -> Subscription {
        let handled = self.0.clone();
        let note = move |envelope: relayctl::model::Envelope| {
            let sequence = envelope.sequence.unwrap_or_default();
            handled.lock().unwrap_or_else(|poison| poison.into_inner()).push(sequence);
            async { Outcome::Succeeded }
        };
        Subscription::new(HANDLER, handler_fn(note)).concurrency(SLOTS)
    }

    /// How many were handled, each once and in order.
    fn check_order(&self) -> Result<u64> {
        let handled = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        let in_order = handled.iter().zip(1..).all(|(sequence, expected)| *sequence == expected);
        ensure!(in_order, "the key was not handled in order");
        Ok(handled.len() as u64)
    }
}

/// A worker of the published kind: it parks the backlog first, then brings it back one by one.
async fn published_rate(lab: &Lab, seeds: impl Iterator<Item = Seed>) -> Result<f64> {
    let outbox = Outbox::load(lab, "published", Indexes::Published, seeds).await?;
    published::work(&outbox.deliveries, SLOTS, 3).await?;
    let (time, done) = timed(published::work(&outbox.deliveries, SLOTS, 50)).await?;
    Ok(per_second(done as u64, time))
}

/// Writes of the size of a lease, each confirmed by a majority before the next begins. Per second.
async fn update_one_by_one(outbox: &mut Outbox, count: usize) -> Result<f64> {
    let ids = outbox.take_known(count)?;
    let run = async {
        for id in &ids {
            outbox.lease_known(std::slice::from_ref(id), "token of the floor").await?;
        }
        Ok(())
    };
    let (time, ()) = timed(run).await?;
    Ok(per_second(count as u64, time))
}
