//! The operator's repairs: one by one, in bulk with a cut-off, and the recovery of expired leases.

use futures_util::future::join_all;
use relayctl::model::{
    AttemptError, Delivery, DeliveryId, ErrorGroupId, Failure, FailureKind, Filter, Lane, NewEvent,
    Selection, Status, Timestamp,
};
use relayctl::store::{Fenced, Outcome, Repair, RepairOutcome};

use crate::fixture::{
    Fixture, HANDLER, HOUR, LEASE, MILLISECOND, OTHER_HANDLER, SECOND, bury, delayed, event, every_outcome,
    failure, ids,
};

conformance![
    a_requeue_brings_a_dead_one_back,
    a_requeue_is_due_at_the_given_time,
    a_requeued_one_can_die_and_be_requeued_again,
    a_requeue_skips_what_is_not_dead_and_says_what_it_is,
    a_bury_gives_up_a_pending_one,
    a_bury_takes_the_lease_of_the_worker,
    a_bury_skips_what_is_finished_and_says_what_it_is,
    a_repair_of_nothing_is_missing,
    a_bulk_repair_changes_those_that_are_still_selected,
    a_bulk_repair_changes_none_but_the_ids_given,
    a_bulk_repair_of_no_ids_changes_nothing,
    a_bulk_repair_of_a_group_changes_its_members_alone,
    a_bulk_repair_skips_the_statuses_that_it_does_not_apply_to,
    a_cut_off_leaves_later_failures_out,
    a_bulk_bury_takes_leases,
    a_bulk_requeue_of_one_id_twice_counts_once,
    two_operators_requeue_one_at_once,
    two_operators_requeue_a_thousand_at_once,
    a_bury_and_a_completion_race_to_one_of_both,
    a_requeue_and_a_bury_race_in_some_order,
    recover_returns_expired_leases,
    recover_is_for_the_handlers_named,
    a_recovered_lease_is_lost,
];

fn buried(at: Timestamp, attempt: u32) -> AttemptError {
    AttemptError { attempt, at, kind: FailureKind::Buried, message: "not today".into() }
}

async fn repair(fixture: &Fixture, id: &DeliveryId, repair: &Repair) -> RepairOutcome {
    fixture.store.repair(id, repair, fixture.now()).await.unwrap()
}

fn not_today() -> Repair {
    Repair::Bury { reason: "not today".into() }
}

async fn a_requeue_brings_a_dead_one_back(fixture: &Fixture) {
    let id = fixture.publish_dead(event().key("a")).await;
    let dead = fixture.get(&id).await;
    fixture.clock.advance(HOUR);
    let now = fixture.now();
    assert_eq!(repair(fixture, &id, &fixture.requeue_now()).await, RepairOutcome::Changed);
    let expected = Delivery {
        status: Status::Pending,
        lane: Lane::Ready,
        attempts: 0,
        requeues: 1,
        available_at: now,
        due_at: Some(now),
        updated_at: now,
        ..dead
    };
    assert_eq!(expected.errors.len(), 1);
    assert_eq!(fixture.get(&id).await, expected);
    assert_eq!(fixture.claim_only().await.delivery.attempts, 1);
}

async fn a_requeue_is_due_at_the_given_time(fixture: &Fixture) {
    let id = fixture.publish_dead(event()).await;
    let at_hour = Repair::Requeue { available_at: fixture.later(HOUR) };
    assert_eq!(repair(fixture, &id, &at_hour).await, RepairOutcome::Changed);
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(HOUR);
    assert_eq!(ids(&fixture.claim(10).await), [id]);
}

async fn a_requeued_one_can_die_and_be_requeued_again(fixture: &Fixture) {
    let id = fixture.publish_dead(event()).await;
    for requeues in 1..=3 {
        fixture.requeue(&id).await;
        let claimed = fixture.claim_only().await;
        assert_eq!((claimed.delivery.requeues, claimed.delivery.attempts), (requeues, 1));
        assert_eq!(claimed.delivery.errors.len(), requeues as usize);
        assert_eq!(fixture.settle(&claimed, bury()).await, Fenced::Applied);
    }
}

/// One delivery in each status, in the order of [`Status::ALL`].
async fn one_in_each_status(fixture: &Fixture) -> [DeliveryId; 4] {
    fixture.publish_many(event(), 3).await;
    let claimed = fixture.claim(3).await;
    fixture.complete(&claimed[1]).await;
    assert_eq!(fixture.settle(&claimed[2], bury()).await, Fenced::Applied);
    let pending = fixture.publish(event()).await;
    let [processing, completed, dead] = [0, 1, 2].map(|place| claimed[place].delivery.id.clone());
    [pending, processing, completed, dead]
}

/// The repair skips the deliveries in these statuses without a trace.
async fn assert_skips(fixture: &Fixture, skipped: &[Status], refused: &Repair) {
    let by_status = one_in_each_status(fixture).await;
    fixture.clock.advance(SECOND);
    for id in &by_status {
        let before = fixture.get(id).await;
        if skipped.contains(&before.status) {
            assert_eq!(repair(fixture, id, refused).await, RepairOutcome::Skipped(before.status));
            assert_eq!(fixture.get(id).await, before);
        }
    }
}

async fn a_requeue_skips_what_is_not_dead_and_says_what_it_is(fixture: &Fixture) {
    let others = [Status::Pending, Status::Processing, Status::Completed];
    assert_skips(fixture, &others, &fixture.requeue_now()).await;
}

async fn a_bury_skips_what_is_finished_and_says_what_it_is(fixture: &Fixture) {
    assert_skips(fixture, &[Status::Completed, Status::Dead], &not_today()).await;
}

async fn a_bury_gives_up_a_pending_one(fixture: &Fixture) {
    let id = fixture.publish(delayed(event(), fixture.later(HOUR))).await;
    let before = fixture.get(&id).await;
    fixture.clock.advance(SECOND);
    assert_eq!(repair(fixture, &id, &not_today()).await, RepairOutcome::Changed);
    let expected = Delivery {
        status: Status::Dead,
        due_at: None,
        updated_at: fixture.now(),
        last_error: Some("not today".into()),
        errors: vec![buried(fixture.now(), 0)],
        ..before
    };
    assert_eq!(fixture.get(&id).await, expected);
}

async fn a_bury_takes_the_lease_of_the_worker(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    assert_eq!(repair(fixture, &claimed.delivery.id, &not_today()).await, RepairOutcome::Changed);
    let dead = fixture.get(&claimed.delivery.id).await;
    assert_eq!((dead.status, dead.lease(), dead.due_at), (Status::Dead, None, None));
    assert_eq!(dead.errors, [buried(fixture.now(), 1)]);
    for outcome in every_outcome(fixture.now()) {
        assert_eq!(fixture.settle(&claimed, outcome).await, Fenced::LeaseLost);
    }
    assert_eq!(fixture.get(&dead.id).await, dead);
}

async fn a_repair_of_nothing_is_missing(fixture: &Fixture) {
    fixture.publish_dead(event()).await;
    for id in ["nothing", r#"{"$gt":""}"#, ""] {
        let id = DeliveryId::from(id);
        assert_eq!(repair(fixture, &id, &fixture.requeue_now()).await, RepairOutcome::Missing);
        assert_eq!(repair(fixture, &id, &not_today()).await, RepairOutcome::Missing);
        assert_eq!(fixture.store.get(&id).await.unwrap(), None);
    }
    assert_eq!(fixture.count(in_status(Status::Dead)).await, 1);
}

fn in_status(status: Status) -> Filter {
    Filter { statuses: vec![status], ..Filter::default() }
}

async fn requeue_selected(fixture: &Fixture, ids: &[DeliveryId], selection: &Selection) -> u64 {
    let (requeue, now) = (fixture.requeue_now(), fixture.now());
    fixture.store.repair_selected(ids, selection, &requeue, now).await.unwrap()
}

/// Publishes and buries so many for each handler.
async fn many_dead(fixture: &Fixture, handler: &str, count: usize) -> Vec<DeliveryId> {
    let for_handler = NewEvent { handlers: vec![handler.into()], ..event() };
    let published = fixture.publish_many(for_handler, count).await;
    let selection = fixture.select(Filter::default());
    let changed = fixture.store.repair_selected(&published, &selection, &not_today(), fixture.now()).await;
    assert_eq!(changed.unwrap(), count as u64);
    published
}

async fn a_bulk_repair_changes_those_that_are_still_selected(fixture: &Fixture) {
    let mine = many_dead(fixture, HANDLER, 10).await;
    let others = many_dead(fixture, OTHER_HANDLER, 10).await;
    let selection = fixture.select(Filter { handler: Some(HANDLER.into()), ..in_status(Status::Dead) });
    fixture.requeue(&mine[3]).await;
    let all = [mine.clone(), others].concat();
    assert_eq!(requeue_selected(fixture, &all, &selection).await, 9);
    for id in &mine {
        assert_eq!(fixture.get(id).await.requeues, 1);
    }
    assert_eq!(fixture.count(in_status(Status::Dead)).await, 10);
}

async fn a_bulk_repair_changes_none_but_the_ids_given(fixture: &Fixture) {
    let dead = many_dead(fixture, HANDLER, 10).await;
    let selection = fixture.select(in_status(Status::Dead));
    assert_eq!(requeue_selected(fixture, &dead[..4], &selection).await, 4);
    assert_eq!(fixture.count(in_status(Status::Dead)).await, 6);
    assert_eq!(requeue_selected(fixture, &["nothing".into()], &selection).await, 0);
}

async fn a_bulk_repair_of_no_ids_changes_nothing(fixture: &Fixture) {
    many_dead(fixture, HANDLER, 2).await;
    assert_eq!(requeue_selected(fixture, &[], &fixture.select(Filter::default())).await, 0);
    assert_eq!(fixture.count(in_status(Status::Dead)).await, 2);
}

async fn a_bulk_repair_of_a_group_changes_its_members_alone(fixture: &Fixture) {
    fixture.publish_many(event(), 4).await;
    let claimed = fixture.claim(4).await;
    for (claimed, message) in claimed.iter().zip(["line 1", "other", "line 22", "line"]) {
        let failure = Failure::new(FailureKind::Failed, message);
        assert_eq!(fixture.settle(claimed, Outcome::Bury { failure }).await, Fenced::Applied);
    }
    let groups = vec![ErrorGroupId::of(HANDLER, "line <n>")];
    let selection = fixture.select(Filter { groups, ..in_status(Status::Dead) });
    let all = crate::fixture::ids(&claimed);
    assert_eq!(fixture.store.count(&selection).await.unwrap(), 2);
    assert_eq!(requeue_selected(fixture, &all, &selection).await, 2);
    for (id, requeues) in all.iter().zip([1, 0, 1, 0]) {
        assert_eq!(fixture.get(id).await.requeues, requeues);
    }
    assert_eq!(requeue_selected(fixture, &all, &selection).await, 0);
}

async fn a_bulk_repair_skips_the_statuses_that_it_does_not_apply_to(fixture: &Fixture) {
    let all = one_in_each_status(fixture).await;
    let any = fixture.select(Filter::default());
    assert_eq!(requeue_selected(fixture, &all, &any).await, 1);
    let changed = fixture.store.repair_selected(&all, &any, &not_today(), fixture.now()).await.unwrap();
    assert_eq!(changed, 3);
    assert_eq!(fixture.status(&all[2]).await, Status::Completed);
}

async fn a_cut_off_leaves_later_failures_out(fixture: &Fixture) {
    let early = many_dead(fixture, HANDLER, 5).await;
    let selection = fixture.select(in_status(Status::Dead));
    fixture.clock.advance(MILLISECOND);
    let late = many_dead(fixture, HANDLER, 5).await;
    fixture.requeue(&early[0]).await;
    let again = fixture.claim_only().await;
    assert_eq!(fixture.settle(&again, bury()).await, Fenced::Applied);
    let all = [early.clone(), late.clone()].concat();
    assert_eq!(fixture.store.count(&selection).await.unwrap(), 4);
    assert_eq!(requeue_selected(fixture, &all, &selection).await, 4);
    assert_eq!(requeue_selected(fixture, &all, &selection).await, 0);
    for id in late.iter().chain([&early[0]]) {
        assert_eq!(fixture.status(id).await, Status::Dead);
    }
}

async fn a_bulk_bury_takes_leases(fixture: &Fixture) {
    let published = fixture.publish_many(event(), 10).await;
    let claimed = fixture.claim(4).await;
    fixture.clock.advance(SECOND);
    let selection = fixture.select(Filter::default());
    let changed = fixture.store.repair_selected(&published, &selection, &not_today(), fixture.now()).await;
    assert_eq!(changed.unwrap(), 10);
    for claimed in &claimed {
        assert_eq!(fixture.settle(claimed, Outcome::Complete).await, Fenced::LeaseLost);
        assert_eq!(fixture.get(&claimed.delivery.id).await.errors, [buried(fixture.now(), 1)]);
    }
}

async fn a_bulk_requeue_of_one_id_twice_counts_once(fixture: &Fixture) {
    let dead = many_dead(fixture, HANDLER, 1).await.remove(0);
    let twice = [dead.clone(), dead.clone()];
    assert_eq!(requeue_selected(fixture, &twice, &fixture.select(Filter::default())).await, 1);
    assert_eq!(fixture.get(&dead).await.requeues, 1);
}

async fn two_operators_requeue_one_at_once(fixture: &Fixture) {
    for _ in 0..10 {
        let id = fixture.publish_dead(event()).await;
        let requeue = fixture.requeue_now();
        let answers = futures_util::join!(repair(fixture, &id, &requeue), repair(fixture, &id, &requeue));
        assert!(
            [
                (RepairOutcome::Changed, RepairOutcome::Skipped(Status::Pending)),
                (RepairOutcome::Skipped(Status::Pending), RepairOutcome::Changed)
            ]
            .contains(&answers),
            "{answers:?}"
        );
        assert_eq!(fixture.get(&id).await.requeues, 1);
        fixture.drain(10).await;
    }
}

async fn two_operators_requeue_a_thousand_at_once(fixture: &Fixture) {
    let dead = many_dead(fixture, HANDLER, 1_000).await;
    let selection = fixture.select(in_status(Status::Dead));
    let operate = |batch: usize| {
        let (dead, selection) = (&dead, &selection);
        async move {
            let mut changed = 0;
            for ids in dead.chunks(batch) {
                changed += requeue_selected(fixture, ids, selection).await;
            }
            changed
        }
    };
    let (first, second) = futures_util::join!(operate(100), operate(125));
    assert_eq!(first + second, 1_000);
    assert!(fixture.all().await.iter().all(|delivery| delivery.requeues == 1));
}

async fn a_bury_and_a_completion_race_to_one_of_both(fixture: &Fixture) {
    for _ in 0..10 {
        fixture.publish(event()).await;
        let claimed = fixture.claim_only().await;
        let id = &claimed.delivery.id;
        let bury = not_today();
        let (fenced, buried) =
            futures_util::join!(fixture.settle(&claimed, Outcome::Complete), repair(fixture, id, &bury));
        match fenced {
            Fenced::Applied => assert_eq!(buried, RepairOutcome::Skipped(Status::Completed)),
            Fenced::LeaseLost => assert_eq!(buried, RepairOutcome::Changed),
        }
        let expected = if fenced == Fenced::Applied { Status::Completed } else { Status::Dead };
        assert_eq!(fixture.status(id).await, expected);
    }
}

async fn a_requeue_and_a_bury_race_in_some_order(fixture: &Fixture) {
    for _ in 0..10 {
        let id = many_dead(fixture, HANDLER, 1).await.remove(0);
        let (requeue, bury) = (fixture.requeue_now(), not_today());
        let operators = (0..6).map(|n| repair(fixture, &id, if n % 2 == 0 { &requeue } else { &bury }));
        let answers = join_all(operators).await;
        let changed = |parity: usize| {
            let of_kind = answers.iter().skip(parity).step_by(2);
            of_kind.filter(|answer| **answer == RepairOutcome::Changed).count()
        };
        let (requeued, buried) = (changed(0), changed(1));
        let after = fixture.get(&id).await;
        assert_eq!((after.requeues as usize, after.errors.len()), (requeued, 1 + buried));
        let expected = if requeued > buried { Status::Pending } else { Status::Dead };
        assert_eq!(after.status, expected, "{answers:?}");
        assert!(requeued == buried || requeued == buried + 1);
        fixture.drain(10).await;
    }
}

async fn recover(fixture: &Fixture, handlers: &[&str]) -> u64 {
    let handlers: Vec<String> = handlers.iter().map(|&handler| handler.to_owned()).collect();
    fixture.store.recover(&handlers, fixture.now()).await.unwrap()
}

async fn recover_returns_expired_leases(fixture: &Fixture) {
    let early = fixture.publish(event()).await;
    let crashed = fixture.claim_only().await;
    fixture.clock.advance(LEASE / 2);
    fixture.publish(event()).await;
    let live = fixture.claim_only().await;
    let waiting = fixture.publish(delayed(event(), fixture.later(HOUR))).await;
    let before = fixture.get(&waiting).await;
    fixture.clock.advance(LEASE / 2);
    assert_eq!(recover(fixture, &[]).await, 1);
    let owner = crashed.delivery.lease_owner.unwrap();
    let message = format!("worker {owner} died, or lost its lease, without an outcome");
    let expected = Delivery {
        status: Status::Pending,
        available_at: fixture.now(),
        due_at: Some(fixture.now()),
        updated_at: fixture.now(),
        lease_expires_at: None,
        lease_token: None,
        lease_owner: None,
        last_error: Some(message.clone()),
        errors: vec![AttemptError { attempt: 1, at: fixture.now(), kind: FailureKind::Crashed, message }],
        ..crashed.delivery
    };
    assert_eq!(fixture.get(&early).await, expected);
    assert_eq!(fixture.get(&live.delivery.id).await, live.delivery);
    assert_eq!(fixture.get(&waiting).await, before);
    assert_eq!(recover(fixture, &[]).await, 0);
}

async fn recover_is_for_the_handlers_named(fixture: &Fixture) {
    fixture.append(&[event().handler(OTHER_HANDLER).handler("third")]).await;
    fixture.claim_for(&[HANDLER, OTHER_HANDLER, "third"], 10).await;
    fixture.clock.advance(LEASE);
    assert_eq!(recover(fixture, &["nobody"]).await, 0);
    assert_eq!(recover(fixture, &[OTHER_HANDLER]).await, 1);
    assert_eq!(fixture.count(in_status(Status::Processing)).await, 2);
    assert_eq!(recover(fixture, &[HANDLER, "third"]).await, 2);
}

async fn a_recovered_lease_is_lost(fixture: &Fixture) {
    fixture.publish(event()).await;
    let crashed = fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    assert_eq!(recover(fixture, &[]).await, 1);
    let pending = fixture.get(&crashed.delivery.id).await;
    for outcome in every_outcome(fixture.now()) {
        assert_eq!(fixture.settle(&crashed, outcome).await, Fenced::LeaseLost);
    }
    assert_eq!(fixture.get(&pending.id).await, pending);
    let retry = fixture.claim_only().await;
    assert_eq!(retry.delivery.attempts, 2);
    let again = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
    assert_eq!(fixture.settle(&retry, again).await, Fenced::Applied);
}
