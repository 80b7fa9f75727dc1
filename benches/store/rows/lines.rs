//! The worker with children that stay, beside a process for each delivery.
//!
//! The child is this program itself, which answers every line (`--answer-lines`). The floor is the worker with
//! `/bin/true` and as many slots; `batched` in the details is line mode with batches of 32, `handlerAlone` what a child
//! in line mode does for one slot without worker and server.

use std::time::Instant;

use anyhow::{Result, ensure};
use relayctl::dispatch::Subscription;
use relayctl::handler::{
    AttemptControl, BatchLimits, Command, Handler as _, LinesHandler, Outcome, ShellHandler,
};
use serde_json::json;

use super::Measured;
use super::children::envelope;
use super::worker::work;
use crate::data::{HANDLER, NOW, Outbox, Seed, State};
use crate::harness::{Lab, Samples, per_second};

const SLOTS: usize = 8;
const BATCH: usize = 32;

pub async fn lines(lab: &Lab) -> Result<Vec<Measured>> {
    let (count, few, turns) = (lab.size(8_000, 20_000), lab.size(1_500, 4_000), 1 + lab.size(3, 5));
    let seeds = (0..(2 * count + few) * turns).map(|_| Seed::unkeyed(State::Due));
    let outbox = Outbox::load_with_events(lab, "lines", seeds).await?;
    let mut rates: [Samples; 4] = Default::default();
    for turn in 0..turns {
        let figures = [
            work(&outbox, in_lines()?, count as u64).await?.rate,
            work(&outbox, in_batches()?, count as u64).await?.rate,
            work(&outbox, processes(), few as u64).await?.rate,
            handled_per_second(count).await?,
        ];
        // The first turn warms up.
        if turn > 0 {
            rates.iter_mut().zip(figures).for_each(|(rates, figure)| rates.add(figure));
        }
    }
    let samples = rates[0].len();
    let [rate, batched, floor, alone] = rates.map(|rates| rates.median());
    let details = json!({
        "samples": samples, "deliveries": count, "slots": SLOTS, "batched": batched, "batch": BATCH,
        "handlerAlone": alone,
    });
    Ok(vec![Measured::new("lines", "/s", rate, floor, details)])
}

fn command() -> Result<Command> {
    Ok(Command::argv(std::env::current_exe()?, ["--answer-lines"]))
}

fn in_lines() -> Result<Subscription> {
    Ok(Subscription::new(HANDLER, LinesHandler::new(command()?)).concurrency(SLOTS))
}

fn in_batches() -> Result<Subscription> {
    let limits = BatchLimits { size: BATCH, at_once: SLOTS };
    let handler = LinesHandler::in_batches(command()?, limits);
    Ok(Subscription::new(HANDLER, handler).concurrency(SLOTS * BATCH))
}

fn processes() -> Subscription {
    let handler = ShellHandler::new(Command::argv("/bin/true", [] as [&str; 0]));
    Subscription::new(HANDLER, handler).concurrency(SLOTS)
}

/// One after the other, through one child. Per second.
async fn handled_per_second(count: usize) -> Result<f64> {
    let (handler, envelope) = (LinesHandler::new(command()?), envelope()?);
    let attempt = AttemptControl::new(NOW, Default::default());
    let began = Instant::now();
    for _ in 0..count {
        let outcome = handler.handle(&envelope, &attempt.context()).await;
        ensure!(outcome == Outcome::Succeeded, "the child in line mode failed: {outcome:?}");
    }
    Ok(per_second(count as u64, began.elapsed()))
}
