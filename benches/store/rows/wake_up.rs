//! How long an event waits for an idle worker: from the acknowledged commit to the start of its handler. The floor is
//! one millisecond, so that the ratio is the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use relayctl::clock::ManualClock;
use relayctl::dispatch::{DispatchOptions, Dispatcher, Signals, Subscription};
use relayctl::handler::{Outcome, handler_fn};
use relayctl::model::NewEvent;
use relayctl::store::Store as _;
use serde_json::json;
use tokio::sync::mpsc;

use super::Measured;
use crate::data::{EVENT_TYPE, HANDLER, NOW, Outbox};
use crate::harness::{Lab, Samples};

/// After so long without work the worker is idle and listens.
const REST: Duration = Duration::from_millis(250);

/// Events before the measured ones.
const WARM_UP: usize = 3;

pub async fn wake_up(lab: &Lab) -> Result<Vec<Measured>> {
    let outbox = Outbox::load_with_events(lab, "idle", std::iter::empty()).await?;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = handler_fn(move |_| {
        let _ = started.send(Instant::now());
        async { Outcome::Succeeded }
    });
    let (store, clock) = (Arc::new(outbox.store()?), Arc::new(ManualClock::at(NOW)));
    let subscriptions = vec![Subscription::new(HANDLER, handler)];
    let dispatcher = Dispatcher::new(store, clock, subscriptions, DispatchOptions::default())?;
    let (signals, (sender, mut events)) = (Signals::default(), mpsc::channel(1_024));
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    tokio::spawn(async move { while events.recv().await.is_some() {} });

    let store = outbox.store()?;
    let mut times = Samples::default();
    for number in 0..WARM_UP + lab.size(60, 100) {
        tokio::time::sleep(REST).await;
        store.append(&[NewEvent::new(EVENT_TYPE, json!({ "number": number })).handler(HANDLER)], NOW).await?;
        let committed = Instant::now();
        let start = starts.recv().await.context("the worker ended")?;
        if number >= WARM_UP {
            times.add_time(start.saturating_duration_since(committed));
        }
    }
    signals.drain.cancel();
    running.await??;
    let details = json!({ "samples": times.len(), "mean": times.mean(), "largest": times.largest() });
    Ok(vec![Measured::new("wake-up", "ms", times.median(), 1.0, details)])
}
