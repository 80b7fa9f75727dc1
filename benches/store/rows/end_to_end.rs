//! The worker with a handler that does nothing, beside raw updates that lease and complete known deliveries in batches
//! of the size that the worker claimed, and never smaller than its slots: small claims shall not make the floor slow.

use anyhow::{Result, ensure};
use futures_util::future::try_join;
use relayctl::dispatch::Subscription;
use relayctl::handler::{Outcome, handler_fn};
use serde_json::json;

use super::Measured;
use super::worker::{Work, work};
use crate::data::{HANDLER, Indexes, Outbox, Seed, State};
use crate::harness::{Lab, Samples, per_second, timed};
use crate::published;

/// Deliveries of a key, where there are keys.
const EACH: usize = 10;

type Rows = [(usize, &'static str); 3];

pub async fn unkeyed(lab: &Lab) -> Result<Vec<Measured>> {
    let rows = [(32, "end-to-end-unkeyed"), (8, "end-to-end-unkeyed-8"), (1, "end-to-end-unkeyed-1")];
    measure(lab, rows, |_, _| Seed::unkeyed(State::Due)).await
}

pub async fn keyed(lab: &Lab) -> Result<Vec<Measured>> {
    let rows = [(32, "end-to-end-keyed"), (8, "end-to-end-keyed-8"), (1, "end-to-end-keyed-1")];
    let seed = |number: usize, count: usize| {
        let keys = count / EACH;
        Seed::keyed(State::Due, format!("order-{:06}", number % keys), (number / keys) as i64 + 1)
    };
    measure(lab, rows, seed).await
}

async fn measure(lab: &Lab, rows: Rows, seed: fn(usize, usize) -> Seed) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for (slots, name) in rows.into_iter().filter(|(_, name)| lab.wants(name)) {
        let share = if slots == 1 { 4 } else { 1 };
        let contest = Contest { lab, slots, count: lab.size(8_000, 16_000) / share, seed };
        measured.push(contest.run(name).await?);
        lab.clear().await?;
    }
    Ok(measured)
}

/// A worker with some slots against raw updates, so many deliveries a time.
struct Contest<'l> {
    lab: &'l Lab,
    slots: usize,
    count: usize,
    seed: fn(usize, usize) -> Seed,
}

impl Contest<'_> {
    /// Takes turns; every turn has deliveries of its own. The first warms up and is not counted.
    async fn run(&self, name: &'static str) -> Result<Measured> {
        let turns = 1 + self.lab.size(3, 5);
        let total = turns * self.count;
        let seeds = || (0..total).map(|number| (self.seed)(number, total));
        let ours = Outbox::load_with_events(self.lab, "ours", seeds()).await?;
        let raw = [
            Outbox::load(self.lab, "floor", Indexes::Ours, seeds()).await?,
            Outbox::load(self.lab, "overlapped", Indexes::Ours, seeds()).await?,
        ];
        let (mut rates, mut floor, mut overlapped) = <(Samples, Samples, Samples)>::default();
        let (mut batches, mut claims, mut largest) = (Samples::default(), Samples::default(), 0.0);
        for turn in 0..turns {
            let Work { rate, claim_sizes } = work(&ours, self.subscription(), self.count as u64).await?;
            let batch = (claim_sizes.mean().round() as usize).max(self.slots);
            let ids = turn * self.count..(turn + 1) * self.count;
            let bare = lease_and_complete(&raw[0], &raw[0].due_in_order()[ids.clone()], batch).await?;
            let side_by_side = overlap(&raw[1], &raw[1].due_in_order()[ids], batch).await?;
            if turn > 0 {
                rates.add(rate);
                floor.add(bare);
                overlapped.add(side_by_side);
                batches.add(batch as f64);
                claims.add(claim_sizes.mean());
                largest = claim_sizes.largest().max(largest);
            }
        }
        ensure!(ours.count_completed().await? > 0, "nothing is completed in the store");
        let (rate, published) = (rates.median(), self.published(seeds()).await?);
        let details = json!({
            "samples": rates.len(),
            "deliveries": self.count,
            "slots": self.slots,
            "batch": batches.median(),
            "claim": claims.median(),
            "largestClaim": largest,
            "overlappedFloor": overlapped.median(),
            "overlappedRatio": rate / overlapped.median(),
        });
        Ok(Measured::new(name, "/s", rate, floor.median(), details).beside_published(published))
    }

    fn subscription(&self) -> Subscription {
        let idle = handler_fn(async |_| Outcome::Succeeded);
        Subscription::new(HANDLER, idle).concurrency(self.slots)
    }

    /// A worker of the published kind for some hundred deliveries; not in a quick run.
    async fn published(&self, seeds: impl Iterator<Item = Seed>) -> Result<Option<f64>> {
        if self.lab.is_quick {
            return Ok(None);
        }
        let outbox = Outbox::load(self.lab, "published", Indexes::Published, seeds).await?;
        let (time, done) = timed(published::work(&outbox.deliveries, self.slots, 640)).await?;
        Ok(Some(per_second(done as u64, time)))
    }
}

/// One batch after the other: leased, then completed. Per second.
async fn lease_and_complete(outbox: &Outbox, ids: &[String], batch: usize) -> Result<f64> {
    let run = async {
        for ids in ids.chunks(batch) {
            outbox.lease_known(ids, "token of the floor").await?;
            outbox.complete_known(ids, "token of the floor").await?;
        }
        Ok(())
    };
    let (time, ()) = timed(run).await?;
    Ok(per_second(ids.len() as u64, time))
}

/// The next batch is leased while the last one is completed. Per second.
async fn overlap(outbox: &Outbox, ids: &[String], batch: usize) -> Result<f64> {
    let token = "token of the floor";
    let run = async {
        let mut leased: &[String] = &[];
        for next in ids.chunks(batch) {
            try_join(outbox.lease_known(next, token), outbox.complete_known(leased, token)).await?;
            leased = next;
        }
        outbox.complete_known(leased, token).await
    };
    let (time, ()) = timed(run).await?;
    Ok(per_second(ids.len() as u64, time))
}
