//! One process alone, which knows all that happens: each claim returns what the rules say, no less.

use std::time::Duration;

use super::actors::Scene;
use super::oracle;
use super::schedule::{Actors, alone};
use crate::store::{ClaimRequest, Claimed};

/// See the [module](self).
pub(super) fn run_solo(scene: &Scene) {
    let server = &scene.server;
    scene.processes[0].offset.set(0);
    let mut held = Vec::new();
    for _ in 0..30 {
        match server.below(20) {
            0..8 => held.extend(claim_all_there_is(scene)),
            8..12 if !held.is_empty() => {
                let one = held.swap_remove(server.below(held.len()));
                alone(scene.settle(0, &one, scene.random_outcome(server.now()), server.now()));
            }
            12..14 => {
                let key = scene.random_key();
                scene.append(key, server.now());
                scene.remember_append(0, key);
            }
            14 => requeue_one(scene),
            15 => break_off_a_claim(scene),
            _ => server.advance(server.random.borrow_mut().i64(0..3_000)),
        }
    }
}

fn requeue_one(scene: &Scene) {
    let ids: Vec<String> = scene.server.deliveries.borrow().keys().cloned().collect();
    let requeue = scene.requeue(&ids[scene.server.below(ids.len())]);
    drop(alone(scene.server.command(vec![requeue])));
    scene.processes[0].memory.borrow().forget();
}

/// A claim is dropped half-way; its process goes on.
fn break_off_a_claim(scene: &Scene) {
    let server = &scene.server;
    server.is_troubled.set(true);
    let request = scene.request(0, 1 + server.below(4));
    let mut actors = Actors::default();
    actors.start(async { drop(scene.claim(0, &request).await) });
    for _ in 0..server.below(40) {
        if actors.len() > 0 {
            actors.step(0, &server.trace);
        }
    }
    drop(actors);
    server.trace.note(|| "the claim is broken off".to_owned());
    server.is_troubled.set(false);
}

/// What a claim returns is all that is eligible, up to its limit. It is the oldest where one look found it; what several
/// looks found, or a look from a random place, is the oldest of each handler and key alone.
fn claim_all_there_is(scene: &Scene) -> Vec<Claimed> {
    let server = &scene.server;
    let lease = Duration::from_millis([400, 8_000][server.below(2)]);
    let request = ClaimRequest { lease, ..scene.request(0, 1 + server.below(4)) };
    let expected = oracle::look(server, request.now);
    server.trace.note(|| format!("{expected:?}"));
    let takes_before = server.takes.get();
    let is_within_reach = request.limit <= scene.processes[0].limits.largest_page;
    let is_contended = scene.processes[0].memory.borrow().is_contended();
    let is_orderly = scene.handlers.len() == 1 && expected.is_plain && is_within_reach && !is_contended;
    let claimed = alone(scene.claim(0, &request)).expect("nothing fails");
    let mut ids: Vec<&str> = claimed.iter().map(|one| one.delivery.id.as_str()).collect();
    let mut oldest: Vec<&str> = expected.eligible.iter().take(request.limit).map(String::as_str).collect();
    assert_eq!(ids.len(), oldest.len(), "{ids:?} of {expected:?}");
    if is_orderly && server.takes.get() == takes_before + 1 {
        ids.sort_unstable();
        oldest.sort_unstable();
        assert_eq!(ids, oldest);
    }
    claimed
}
