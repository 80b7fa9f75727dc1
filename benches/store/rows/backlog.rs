//! Claims beside a backlog that is none of their business, against the same claims without it.

use std::time::{Duration, Instant};

use anyhow::Result;
use relayctl::store::mongo::MongoStore;
use serde_json::{Value, json};

use super::Measured;
use super::claims::claim;
use crate::data::{Indexes, Outbox, Seed, State};
use crate::harness::{Lab, Samples, timed};
use crate::published;

/// Deliveries that can be claimed, due behind the whole backlog: every other one keyed, with a key of its own.
const READY: usize = 1_000;

/// Claims behind the first, before the outbox becomes again what it was.
const STEADY_CLAIMS: usize = 6;

/// Slow claims are repeated less often than the others: when this time is over, [`FEWEST`] of each are enough.
const LONG_ENOUGH: Duration = Duration::from_secs(15);
const FEWEST: usize = 2;

pub async fn delayed_heads(lab: &Lab) -> Result<Vec<Measured>> {
    const KEYS: usize = 5_000;
    const FOLLOWERS: usize = 31;
    let backlog = || keys(KEYS, FOLLOWERS, State::Delayed);
    let contest = Contest::run(lab, 10, backlog).await?;
    let details = json!({ "keys": KEYS, "followers": FOLLOWERS });
    Ok(contest.measured(["claim-10-delayed-heads-first", "claim-10-delayed-heads-steady"], &details))
}

pub async fn hot_key(lab: &Lab) -> Result<Vec<Measured>> {
    const BLOCKED: usize = 50_000;
    let rows = [
        (1, ["claim-1-hot-key-first", "claim-1-hot-key-steady"]),
        (10, ["claim-10-hot-key-first", "claim-10-hot-key-steady"]),
        (100, ["claim-100-hot-key-first", "claim-100-hot-key-steady"]),
    ];
    let details = json!({ "keys": 1, "blocked": BLOCKED });
    by_limit(lab, rows, || keys(1, BLOCKED, State::Running), &details).await
}

pub async fn blocked_keys(lab: &Lab) -> Result<Vec<Measured>> {
    const KEYS: usize = 1_000;
    const BLOCKED: usize = 100;
    let rows = [
        (1, ["claim-1-blocked-keys-first", "claim-1-blocked-keys-steady"]),
        (10, ["claim-10-blocked-keys-first", "claim-10-blocked-keys-steady"]),
        (100, ["claim-100-blocked-keys-first", "claim-100-blocked-keys-steady"]),
    ];
    let details = json!({ "keys": KEYS, "blocked": KEYS * BLOCKED });
    by_limit(lab, rows, || keys(KEYS, BLOCKED, State::Running), &details).await
}

/// The rows of those sizes of a claim that are wanted.
async fn by_limit<S>(
    lab: &Lab,
    rows: [(usize, [&'static str; 2]); 3],
    backlog: impl Fn() -> S,
    details: &Value,
) -> Result<Vec<Measured>>
where
    S: Iterator<Item = Seed>,
{
    let mut measured = Vec::new();
    for (limit, names) in rows.into_iter().filter(|(_, names)| names.iter().any(|name| lab.wants(name))) {
        measured.extend(Contest::run(lab, limit, &backlog).await?.measured(names, details));
        lab.clear().await?;
    }
    Ok(measured)
}

/// The first claim and those behind it are alike here.
pub async fn history(lab: &Lab) -> Result<Vec<Measured>> {
    let completed = lab.size(200_000, 1_000_000);
    let backlog = || (0..completed).map(|_| Seed::unkeyed(State::Completed));
    let contest = Contest::run(lab, 100, backlog).await?;
    Ok(vec![contest.over_all("claim-100-history", json!({ "history": completed }))])
}

/// Keys with a head in some state and followers that are due; the keys take turns.
fn keys(count: usize, followers: usize, head: State) -> impl Iterator<Item = Seed> {
    (0..count * (followers + 1)).map(move |i| {
        let (key, place) = (i % count, i / count);
        let state = if place == 0 { head } else { State::Due };
        Seed::keyed(state, format!("blocked-{key:06}"), place as i64 + 1)
    })
}

fn ready() -> impl Iterator<Item = Seed> {
    (0..READY).map(|i| match i % 2 {
        0 => Seed::unkeyed(State::Due),
        _ => Seed::keyed(State::Due, format!("ready-{i:06}"), 1),
    })
}

/// Times in milliseconds, with the backlog and without.
#[derive(Default)]
struct Contest {
    first: Samples,
    steady: Samples,
    without: Samples,
    published_first: Samples,
    published_steady: Samples,
}

impl Contest {
    /// Takes turns. The first repetition without the backlog warms up and is not counted.
    async fn run<S>(lab: &Lab, limit: usize, backlog: impl Fn() -> S) -> Result<Self>
    where
        S: Iterator<Item = Seed>,
    {
        let mut with = Outbox::load(lab, "with", Indexes::Ours, backlog().chain(ready())).await?;
        let mut without = Outbox::load(lab, "without", Indexes::Ours, ready()).await?;
        let mut contest = Contest::default();
        for _ in 0..STEADY_CLAIMS {
            claim(&without.store()?, &mut without, limit).await?;
        }
        without.reset().await?;
        let until = Instant::now() + LONG_ENOUGH;
        for repetition in 0..lab.size(9, 11) {
            if repetition < FEWEST || Instant::now() < until {
                contest.play(&mut with, &mut without, limit, until).await?;
            }
        }
        if !lab.is_quick {
            contest.play_published(lab, limit, backlog().chain(ready())).await?;
        }
        Ok(contest)
    }

    /// One repetition: a fresh store for each side, one claim that meets everything for the first time, and some more.
    async fn play(
        &mut self,
        with: &mut Outbox,
        without: &mut Outbox,
        limit: usize,
        until: Instant,
    ) -> Result<()> {
        let stores: [MongoStore; 2] = [with.store()?, without.store()?];
        self.first.add_time(claim(&stores[0], with, limit).await?);
        self.without.add_time(claim(&stores[1], without, limit).await?);
        for number in 0..STEADY_CLAIMS {
            if number >= FEWEST && Instant::now() > until {
                break;
            }
            self.without.add_time(claim(&stores[1], without, limit).await?);
            self.steady.add_time(claim(&stores[0], with, limit).await?);
        }
        with.reset().await?;
        without.reset().await
    }

    /// Once: it takes seconds.
    async fn play_published(
        &mut self,
        lab: &Lab,
        limit: usize,
        seeds: impl Iterator<Item = Seed>,
    ) -> Result<()> {
        let mut outbox = Outbox::load(lab, "published", Indexes::Published, seeds).await?;
        for number in 0..=2 {
            let (time, leased) = timed(published::claim(&outbox.deliveries, limit)).await?;
            let samples = if number == 0 { &mut self.published_first } else { &mut self.published_steady };
            samples.add_time(time);
            outbox.finish(leased.into_iter().map(|one| one.id).collect()).await?;
        }
        Ok(())
    }

    fn measured(&self, [first, steady]: [&'static str; 2], details: &Value) -> Vec<Measured> {
        vec![
            self.row(first, &self.first, &self.published_first, details.clone()),
            self.row(steady, &self.steady, &self.published_steady, details.clone()),
        ]
    }

    fn row(&self, name: &'static str, ours: &Samples, published: &Samples, mut details: Value) -> Measured {
        details["samples"] = json!(ours.len());
        details["mean"] = json!(ours.mean());
        details["floorMean"] = json!(self.without.mean());
        let published = (published.len() > 0).then(|| published.median());
        Measured::new(name, "ms", ours.median(), self.without.median(), details).beside_published(published)
    }

    fn over_all(&self, name: &'static str, details: Value) -> Measured {
        let both = |a: &Samples, b: &Samples| {
            let mut all = a.clone();
            all.extend(b.clone());
            all
        };
        let published = both(&self.published_first, &self.published_steady);
        self.row(name, &both(&self.first, &self.steady), &published, details)
    }
}
