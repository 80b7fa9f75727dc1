//! The worker with the shortest child process there is, beside starting the same child and waiting for it.

use std::process::{ExitStatus, Stdio};

use anyhow::{Result, ensure};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use relayctl::dispatch::Subscription;
use relayctl::handler::{Command, ShellHandler};
use serde_json::json;

use super::Measured;
use super::worker::work;
use crate::data::{HANDLER, Outbox, Seed, State};
use crate::harness::{Lab, Samples, per_second, timed};

const PROGRAM: &str = "/bin/true";
const SLOTS: usize = 8;

pub async fn children(lab: &Lab) -> Result<Vec<Measured>> {
    let (count, turns) = (lab.size(1_500, 4_000), 1 + lab.size(3, 5));
    let seeds = (0..count * turns).map(|_| Seed::unkeyed(State::Due));
    let outbox = Outbox::load_with_events(lab, "children", seeds).await?;
    let (mut rates, mut floor, mut piped) = <(Samples, Samples, Samples)>::default();
    for turn in 0..turns {
        let rate = work(&outbox, subscription(), count as u64).await?.rate;
        let bare = per_second_of(count, bare_child).await?;
        let fed = per_second_of(count, piped_child).await?;
        // The first turn warms up.
        if turn > 0 {
            rates.add(rate);
            floor.add(bare);
            piped.add(fed);
        }
    }
    let details =
        json!({ "samples": rates.len(), "children": count, "slots": SLOTS, "pipedFloor": piped.median() });
    Ok(vec![Measured::new("children", "/s", rates.median(), floor.median(), details)])
}

fn subscription() -> Subscription {
    let command = Command::argv(PROGRAM, [] as [&str; 0]);
    Subscription::new(HANDLER, ShellHandler::new(command)).concurrency(SLOTS)
}

/// Starts and waits for so many children, as many at a time as the worker has slots. Per second.
async fn per_second_of(count: usize, child: impl AsyncFn() -> Result<ExitStatus>) -> Result<f64> {
    let one = async |_| {
        ensure!(child().await?.success(), "{PROGRAM} failed");
        Ok(())
    };
    let all = stream::iter(0..count).map(one).buffer_unordered(SLOTS).try_for_each(async |()| Ok(()));
    let (time, ()) = timed(all).await?;
    Ok(per_second(count as u64, time))
}

/// No pipes, no input, no environment.
async fn bare_child() -> Result<ExitStatus> {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().await?)
}

/// The three pipes that a handler needs, read and closed: what of the worker's time is not the worker's.
async fn piped_child() -> Result<ExitStatus> {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command.spawn()?.wait_with_output().await?.status)
}
