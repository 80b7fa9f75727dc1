//! The worker with the shortest child process there is, beside starting the same child and waiting for it.
//!
//! What the two cores allow is in the details, in the rates of what takes turns with the two:
//!
//! - `inTasks`: the floor, but each child in a task of its own, as handlers are: they start on both cores.
//! - `handlerAlone`: what a handler does for a delivery, without worker and server.
//! - `besideWrites`: the same, while as many known ids are leased and completed in batches of as many as there are
//!   slots; `besideLargeWrites` is that with batches of 64, for a worker that claims ahead.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use relayctl::dispatch::Subscription;
use relayctl::handler::{AttemptControl, Command, Handler as _, Outcome, ShellHandler};
use relayctl::model::{Delivery, Envelope, Event};
use serde_json::json;

use super::Measured;
use super::worker::work;
use crate::data::{EVENT_TYPE, HANDLER, Indexes, NOW, Outbox, Seed, State};
use crate::harness::{Lab, Samples, per_second, timed};

const PROGRAM: &str = "/bin/true";
const SLOTS: usize = 8;

/// The batches of a worker that claims ahead.
const LARGE: usize = 64;

pub async fn children(lab: &Lab) -> Result<Vec<Measured>> {
    let (count, turns) = (lab.size(1_500, 4_000), 1 + lab.size(3, 5));
    let seeds = |count: usize| (0..count).map(|_| Seed::unkeyed(State::Due));
    let outbox = Outbox::load_with_events(lab, "children", seeds(count * turns)).await?;
    let mut raw = Outbox::load(lab, "beside", Indexes::Ours, seeds(2 * count * turns)).await?;
    let mut rates: [Samples; 6] = Default::default();
    for turn in 0..turns {
        let figures = [
            work(&outbox, subscription(), count as u64).await?.rate,
            per_second_of(count, bare_child).await?,
            per_second_of(count, bare_child_in_task).await?,
            handled_per_second(count).await?,
            beside_writes(&mut raw, count, SLOTS).await?,
            beside_writes(&mut raw, count, LARGE).await?,
        ];
        // The first turn warms up.
        if turn > 0 {
            rates.iter_mut().zip(figures).for_each(|(rates, figure)| rates.add(figure));
        }
    }
    let samples = rates[0].len();
    let [rate, floor, in_tasks, alone, beside, beside_large] = rates.map(|rates| rates.median());
    let details = json!({
        "samples": samples,
        "children": count,
        "slots": SLOTS,
        "inTasks": in_tasks,
        "handlerAlone": alone,
        "besideWrites": beside,
        "besideLargeWrites": beside_large,
    });
    Ok(vec![Measured::new("children", "/s", rate, floor, details)])
}

fn shell() -> ShellHandler {
    ShellHandler::new(Command::argv(PROGRAM, [] as [&str; 0]))
}

fn subscription() -> Subscription {
    Subscription::new(HANDLER, shell()).concurrency(SLOTS)
}

/// Starts and waits for so many children, as many at a time as the worker has slots. Per second.
async fn per_second_of<F>(count: usize, child: impl Fn() -> F) -> Result<f64>
where
    F: Future<Output = Result<ExitStatus>>,
{
    let children = stream::iter(std::iter::repeat_with(child).take(count));
    let all = children.buffer_unordered(SLOTS).try_for_each(|status| {
        std::future::ready(if status.success() { Ok(()) } else { Err(anyhow!("{PROGRAM} failed: {status}")) })
    });
    let (time, ()) = timed(all).await?;
    Ok(per_second(count as u64, time))
}

/// No pipes, no input, no environment.
async fn bare_child() -> Result<ExitStatus> {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().await?)
}

async fn bare_child_in_task() -> Result<ExitStatus> {
    tokio::spawn(bare_child()).await?
}

/// The handler without a worker. Per second.
async fn handled_per_second(count: usize) -> Result<f64> {
    let (handler, envelope) = (Arc::new(shell()), Arc::new(envelope()?));
    per_second_of(count, || handled_in_task(handler.clone(), envelope.clone())).await
}

async fn handled_in_task(handler: Arc<ShellHandler>, envelope: Arc<Envelope>) -> Result<ExitStatus> {
    let attempt = AttemptControl::new(NOW, Default::default());
    let handled = tokio::spawn(async move { handler.handle(&envelope, &attempt.context()).await });
    ensure!(handled.await? == Outcome::Succeeded, "{PROGRAM} failed as a handler");
    Ok(ExitStatus::default())
}

/// The handler, and beside it the least that has to be written for as many deliveries. Per second, until both are done.
async fn beside_writes(raw: &mut Outbox, count: usize, batch: usize) -> Result<f64> {
    let ids = raw.take_known(count)?;
    let write = async {
        for ids in ids.chunks(batch) {
            raw.lease_known(ids, "token of the floor").await?;
            raw.complete_known(ids, "token of the floor").await?;
        }
        Ok(())
    };
    let (time, _) = timed(try_join(handled_per_second(count), write)).await?;
    Ok(per_second(count as u64, time))
}

/// Of some delivery.
pub fn envelope() -> Result<Envelope> {
    let event: Event = serde_json::from_value(json!({
        "id": "event",
        "type": EVENT_TYPE,
        "payload": { "orderId": "o-1", "total": 4_200, "currency": "EUR" },
        "headers": {},
        "createdAt": NOW,
    }))?;
    let delivery: Delivery = serde_json::from_value(json!({
        "id": "delivery",
        "eventId": "event",
        "eventType": EVENT_TYPE,
        "handler": HANDLER,
        "status": "processing",
        "lane": "ready",
        "attempts": 1,
        "availableAt": NOW,
        "createdAt": NOW,
        "updatedAt": NOW,
    }))?;
    Ok(Envelope::new(event, &delivery, 5))
}
