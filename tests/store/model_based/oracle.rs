//! What has to be true of a claim and of any state, written straight from the rules and without a thought for speed.

use std::collections::{BTreeMap, BTreeSet};

use relayctl::model::{Delivery, DeliveryId, Status};
use relayctl::store::ClaimRequest;

use super::steps::{Answer, Pilot, Step};
use super::subject::Subject;

/// Performs a step, and objects to an answer or a state that the rules do not allow.
pub async fn perform_and_judge(step: &Step, pilot: &mut Pilot, subject: &Subject) {
    let before = subject.deliveries().await;
    let answer = pilot.perform(step, subject).await;
    if let (Step::Claim { .. }, Answer::Claimed(claimed)) = (step, &answer) {
        let taken: Vec<_> = claimed.iter().map(|one| one.delivery.id.clone()).collect();
        assert_eq!(
            taken,
            what_may_be_claimed(&before, &pilot.claim_request(step)),
            "{step:?} of {before:#?}"
        );
    }
    pilot.learn(step, &answer);
    judge(pilot, subject).await;
}

/// Rules 1, 2, 5 and 6 of a claim.
fn what_may_be_claimed(all: &[Delivery], request: &ClaimRequest) -> Vec<DeliveryId> {
    let asked_for = |delivery: &&Delivery| request.handlers.contains(&delivery.handler);
    let is_due = |delivery: &&Delivery| delivery.due_at.is_some_and(|due| due <= request.now);
    let mut oldest_first: Vec<&Delivery> = all.iter().filter(asked_for).filter(is_due).collect();
    oldest_first.sort_by_key(|delivery| (delivery.due_at, &delivery.id));
    let mut taken: Vec<&Delivery> = Vec::new();
    for delivery in oldest_first {
        let blocks = |other: &&Delivery| {
            let is_earlier = other.due_at.is_some() && other.sequence < delivery.sequence;
            let runs_beside = other.id != delivery.id && other.is_running(request.now);
            share_a_key(delivery, other) && (is_earlier || runs_beside)
        };
        let is_blocked = all.iter().any(|other| blocks(&other));
        let is_second = taken.iter().any(|other| share_a_key(delivery, other));
        if taken.len() < request.limit && !is_blocked && !is_second {
            taken.push(delivery);
        }
    }
    taken.into_iter().map(|delivery| delivery.id.clone()).collect()
}

fn share_a_key(one: &Delivery, other: &Delivery) -> bool {
    one.key.is_some() && one.key == other.key && one.handler == other.handler
}

/// What is true of every state that can be reached.
async fn judge(pilot: &Pilot, subject: &Subject) {
    let deliveries = subject.deliveries().await;
    deliveries.iter().for_each(judge_delivery);
    judge_sequences(&deliveries, subject).await;
    let needed: BTreeSet<_> = deliveries.iter().map(|delivery| delivery.event_id.clone()).collect();
    let ids: Vec<_> = pilot.events.iter().cloned().collect();
    let present: BTreeSet<_> =
        subject.store.events(&ids).await.unwrap().into_iter().map(|event| event.id).collect();
    assert_eq!(needed, present, "deliveries need the first, and there are the second");
}

fn judge_delivery(delivery: &Delivery) {
    let due = match delivery.status {
        Status::Pending => Some(delivery.available_at),
        Status::Processing => delivery.lease_expires_at,
        Status::Completed | Status::Dead => None,
    };
    let leased = delivery.status == Status::Processing;
    assert_eq!(delivery.due_at, due, "{delivery:?}");
    assert_eq!(delivery.lease().is_some(), leased, "{delivery:?}");
    assert_eq!(delivery.lease_owner.is_some(), leased, "{delivery:?}");
    assert_eq!(delivery.completed_at.is_some(), delivery.status == Status::Completed, "{delivery:?}");
}

/// Of one handler and key no sequence stands twice, and none is above its counter.
async fn judge_sequences(deliveries: &[Delivery], subject: &Subject) {
    let counters: BTreeMap<_, _> =
        subject.counters().await.into_iter().map(|counter| (counter.key, counter.value)).collect();
    let mut seen = BTreeSet::new();
    for delivery in deliveries {
        let (Some(key), Some(sequence)) = (&delivery.key, delivery.sequence) else { continue };
        assert!(seen.insert((&delivery.handler, key, sequence)), "twice: {delivery:?}");
        assert!(counters.get(key).is_some_and(|value| *value >= sequence), "above its counter: {delivery:?}");
    }
}
