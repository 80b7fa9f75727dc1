//! Claims, each beside one update of as many known ids of the same outbox, and beside the published algorithm.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use relayctl::store::Store as _;
use relayctl::store::mongo::MongoStore;
use serde_json::json;

use super::Measured;
use crate::data::{Indexes, Outbox, Seed, State, claim_request};
use crate::harness::{Lab, Samples, say, timed};
use crate::published;

/// Claims in a row on one store, before the outbox becomes again what it was.
const CLAIMS: usize = 4;

const KEYS: usize = 10_000;
const EACH: usize = 10;

pub async fn unkeyed(lab: &Lab) -> Result<Vec<Measured>> {
    let names = Names {
        by_limit: &[(1, "claim-1-unkeyed"), (10, "claim-10-unkeyed"), (100, "claim-100-unkeyed")],
        published: Some("claim-100-unkeyed-published"),
    };
    measure(lab, &names, || (0..10_000).map(|_| Seed::unkeyed(State::Due))).await
}

pub async fn unkeyed_100k(lab: &Lab) -> Result<Vec<Measured>> {
    let by_limit =
        &[(1, "claim-1-unkeyed-100k"), (10, "claim-10-unkeyed-100k"), (100, "claim-100-unkeyed-100k")];
    let names = Names { by_limit, published: None };
    measure(lab, &names, || (0..100_000).map(|_| Seed::unkeyed(State::Due))).await
}

/// The first delivery of every key is due before the second of any.
pub async fn keyed_interleaved(lab: &Lab) -> Result<Vec<Measured>> {
    let by_limit = &[
        (1, "claim-1-keyed-interleaved"),
        (10, "claim-10-keyed-interleaved"),
        (100, "claim-100-keyed-interleaved"),
    ];
    let names = Names { by_limit, published: Some("claim-100-keyed-published") };
    measure(lab, &names, || (0..KEYS * EACH).map(|i| keyed(i % KEYS, i / KEYS))).await
}

/// All deliveries of a key are due before any of the next.
pub async fn keyed_by_key(lab: &Lab) -> Result<Vec<Measured>> {
    let names = Names { by_limit: &[(100, "claim-100-keyed-by-key")], published: None };
    measure(lab, &names, || (0..KEYS * EACH).map(|i| keyed(i / EACH, i % EACH))).await
}

fn keyed(key: usize, place: usize) -> Seed {
    Seed::keyed(State::Due, format!("order-{key:06}"), place as i64 + 1)
}

/// The rows of a scenario.
struct Names {
    by_limit: &'static [(usize, &'static str)],
    /// The row that compares the published algorithm with ours for claims of 100.
    published: Option<&'static str>,
}

async fn measure<S>(lab: &Lab, names: &Names, seeds: impl Fn() -> S) -> Result<Vec<Measured>>
where
    S: Iterator<Item = Seed>,
{
    let mut ours = Outbox::load(lab, "ours", Indexes::Ours, seeds()).await?;
    let needs_published = names.published.is_some_and(|name| lab.wants(name)) || !lab.is_quick;
    let mut theirs = match needs_published {
        true => Some(Outbox::load(lab, "published", Indexes::Published, seeds()).await?),
        false => None,
    };
    let mut measured = Vec::new();
    for (limit, name) in names.by_limit {
        let published = names.published.filter(|published| *limit == 100 && lab.wants(published));
        if lab.wants(name) || published.is_some() {
            let contest = Contest::run(lab, &mut ours, theirs.as_mut(), *limit).await?;
            measured.push(contest.beside_floor(name));
            measured.extend(published.map(|name| contest.published_over_ours(name)));
        }
    }
    Ok(measured)
}

/// Times of claims of one size, in milliseconds.
#[derive(Default)]
struct Contest {
    ours: Samples,
    floor: Samples,
    published: Samples,
}

impl Contest {
    /// Takes turns. The first repetition warms up and is not counted.
    async fn run(
        lab: &Lab,
        ours: &mut Outbox,
        mut theirs: Option<&mut Outbox>,
        limit: usize,
    ) -> Result<Self> {
        let mut contest = Contest::default();
        for repetition in 0..=lab.size(5, 9) {
            let mut round = Contest::default();
            round.play(ours, limit).await?;
            if let Some(theirs) = theirs.as_deref_mut() {
                let leased = timed(published::claim(&theirs.deliveries, limit)).await?;
                round.published.add_time(leased.0);
                ensure!(leased.1.len() == limit, "the published algorithm claimed {}", leased.1.len());
                theirs.finish(leased.1.into_iter().map(|one| one.id).collect()).await?;
                theirs.reset().await?;
            }
            if repetition > 0 {
                contest.ours.extend(round.ours);
                contest.floor.extend(round.floor);
                contest.published.extend(round.published);
            }
        }
        say(&format!("  claim {limit}: {} samples", contest.ours.len()));
        Ok(contest)
    }

    /// One repetition: a fresh store, and claims in turn with the floor.
    async fn play(&mut self, outbox: &mut Outbox, limit: usize) -> Result<()> {
        let store = outbox.store()?;
        for turn in 0..CLAIMS {
            if turn % 2 == 0 {
                self.ours.add_time(claim(&store, outbox, limit).await?);
                self.floor.add_time(lease_known(outbox, limit).await?);
            } else {
                self.floor.add_time(lease_known(outbox, limit).await?);
                self.ours.add_time(claim(&store, outbox, limit).await?);
            }
        }
        outbox.reset().await
    }

    fn beside_floor(&self, name: &'static str) -> Measured {
        let (ours, floor) = (self.ours.median(), self.floor.median());
        let details = json!({
            "samples": self.ours.len(),
            "mean": self.ours.mean(),
            "floorMean": self.floor.mean(),
        });
        let published = (self.published.len() > 0).then(|| self.published.median());
        Measured::new(name, "ms", ours, floor, details).beside_published(published)
    }

    /// Here the floor is ours: the ratio says how many times as long the published algorithm takes.
    fn published_over_ours(&self, name: &'static str) -> Measured {
        let details = json!({ "samples": self.published.len() });
        Measured::new(name, "ms", self.published.median(), self.ours.median(), details)
    }
}

/// Claims exactly `limit`, no two of one key, and finishes them out of the clock.
pub async fn claim(store: &MongoStore, outbox: &mut Outbox, limit: usize) -> Result<std::time::Duration> {
    let request = claim_request(limit);
    let (time, claimed) = timed(async { Ok(store.claim(&request).await?) }).await?;
    ensure!(claimed.len() == limit, "claimed {} of {limit}", claimed.len());
    let keys: Vec<&String> = claimed.iter().filter_map(|one| one.delivery.key.as_ref()).collect();
    ensure!(
        keys.iter().collect::<HashSet<_>>().len() == keys.len(),
        "two deliveries of one key were claimed"
    );
    outbox.finish(claimed.iter().map(|one| one.delivery.id.to_string()).collect()).await?;
    Ok(time)
}

async fn lease_known(outbox: &mut Outbox, count: usize) -> Result<std::time::Duration> {
    let ids = outbox.take_known(count)?;
    let (time, ()) = timed(outbox.lease_known(&ids, "token of the floor")).await?;
    outbox.finish(ids).await?;
    Ok(time)
}
