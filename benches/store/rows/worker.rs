//! The real worker, run over an outbox for a number of deliveries or for a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use relayctl::clock::ManualClock;
use relayctl::dispatch::{
    DispatchEvent, DispatchOptions, Dispatcher, Signals, StopWhen, Subscription, Verdict,
};
use tokio::sync::mpsc;

use crate::data::{NOW, Outbox};
use crate::harness::{Samples, per_second};

/// However slow the worker is, it is stopped after so long, and its rate is that of what it did.
const AT_MOST: Duration = Duration::from_secs(6);

/// What a worker did.
pub struct Work {
    /// Completed deliveries per second, from the start of the worker to its end.
    pub rate: f64,
    /// Deliveries for each claim that brought any.
    pub claim_sizes: Samples,
}

/// Handles `count` deliveries of `outbox` and ends.
pub async fn work(outbox: &Outbox, subscription: Subscription, count: u64) -> Result<Work> {
    let options = DispatchOptions { stop_when: StopWhen::Deliveries(count), ..DispatchOptions::default() };
    let (store, clock) = (Arc::new(outbox.store()?), Arc::new(ManualClock::at(NOW)));
    let dispatcher = Dispatcher::new(store, clock, vec![subscription], options)?;
    let (signals, (sender, events)) = (Signals::default(), mpsc::channel(1_024));
    let began = Instant::now();
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    let claim_sizes = follow(events, &signals, began).await?;
    let counts = running.await??;
    let elapsed = began.elapsed();
    ensure!(counts.completed > 0, "the worker completed nothing");
    Ok(Work { rate: per_second(counts.completed, elapsed), claim_sizes })
}

/// Reads what a worker tells until it ends. Anything but a completion spoils the measurement.
async fn follow(
    mut events: mpsc::Receiver<DispatchEvent>,
    signals: &Signals,
    began: Instant,
) -> Result<Samples> {
    let mut claim_sizes = Samples::default();
    while let Some(event) = events.recv().await {
        match event {
            DispatchEvent::Claimed { count, .. } => claim_sizes.add(count as f64),
            DispatchEvent::Finished(finished) => match finished.verdict {
                Verdict::Completed | Verdict::Released => {}
                verdict => bail!("a delivery was not completed: {verdict:?}"),
            },
            DispatchEvent::StoreFailing { error } => bail!("the store failed: {error}"),
            _ => {}
        }
        if began.elapsed() > AT_MOST {
            signals.drain.cancel();
        }
    }
    Ok(claim_sizes)
}
