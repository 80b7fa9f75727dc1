//! The life of a delivery: every legal change of state, in one function.

use super::delivery::{Delivery, Failure, FailureKind, Lane, Status};
use super::id::LeaseToken;
use super::time::Timestamp;

/// A change of a delivery's state. The lease token is the store's to compare: a transition says what happens once
/// the right to do it is established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A worker takes a due delivery, pending or with an expired lease; the attempt is counted at once. That the attempt
    /// under an expired lease ended without an outcome is remembered as a failure of kind crashed.
    Claim {
        /// The fence of the new lease.
        token: LeaseToken,
        /// Who takes it.
        owner: String,
        /// When the lease runs out.
        expires_at: Timestamp,
    },
    /// The handler succeeded.
    Complete,
    /// The attempt failed, and another follows.
    Reschedule {
        /// Not before this time.
        available_at: Timestamp,
        /// What went wrong.
        failure: Failure,
    },
    /// The worker hands the delivery back unused; the attempt is not counted.
    Release,
    /// The handler puts the delivery off; the attempt is not counted, and nothing went wrong.
    Snooze {
        /// Not before this time.
        available_at: Timestamp,
    },
    /// The worker gives it up.
    Bury {
        /// What went wrong.
        failure: Failure,
    },
    /// The worker needs more time.
    ExtendLease {
        /// When the lease now runs out.
        expires_at: Timestamp,
    },
    /// An operator returns a delivery with an expired lease to pending, due now; that its attempt ended without an outcome
    /// is remembered as with a claim.
    Recover,
    /// An operator brings a dead delivery back.
    Requeue {
        /// Not before this time.
        available_at: Timestamp,
    },
    /// An operator gives up a delivery that is pending or processing.
    OperatorBury {
        /// Why.
        reason: String,
    },
    /// A claim leaves a blocked delivery aside.
    Park,
    /// A claim brings a parked delivery back.
    Unpark,
}

impl Transition {
    const fn verb(&self) -> &'static str {
        match self {
            Transition::Claim { .. } => "claimed",
            Transition::Complete => "completed",
            Transition::Reschedule { .. } => "rescheduled",
            Transition::Release => "released",
            Transition::Snooze { .. } => "snoozed",
            Transition::Bury { .. } | Transition::OperatorBury { .. } => "buried",
            Transition::ExtendLease { .. } => "extended",
            Transition::Recover => "recovered",
            Transition::Requeue { .. } => "requeued",
            Transition::Park => "parked",
            Transition::Unpark => "unparked",
        }
    }
}

/// A transition that the delivery's state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a delivery that is {status} cannot be {verb}")]
pub struct IllegalTransition {
    /// The state that it is in.
    pub status: Status,
    /// What was tried.
    pub verb: &'static str,
}

/// The delivery after `transition` at `now`.
///
/// # Errors
/// [`IllegalTransition`] when its state does not allow the change; nothing is changed then.
pub fn apply(
    delivery: &Delivery,
    transition: &Transition,
    now: Timestamp,
) -> Result<Delivery, IllegalTransition> {
    if !is_legal(delivery, transition, now) {
        return Err(IllegalTransition { status: delivery.status, verb: transition.verb() });
    }
    let mut next = delivery.clone();
    if !matches!(transition, Transition::Park | Transition::Unpark) {
        next.updated_at = now;
    }
    match transition {
        Transition::Claim { token, owner, expires_at } => {
            if delivery.status == Status::Processing {
                next.remember_crash(now);
            }
            next.attempts = next.attempts.saturating_add(1);
            next.status = Status::Processing;
            next.lane = Lane::Ready;
            next.lease_token = Some(token.clone());
            next.lease_owner = Some(owner.clone());
            set_lease_expiry(&mut next, *expires_at);
        }
        Transition::Complete => {
            finish(&mut next, Status::Completed);
            next.completed_at = Some(now);
        }
        Transition::Reschedule { available_at, failure } => {
            next.remember(failure, now);
            wait_until(&mut next, *available_at);
        }
        Transition::Release => {
            next.attempts = next.attempts.saturating_sub(1);
            wait_until(&mut next, delivery.available_at);
        }
        Transition::Snooze { available_at } => {
            next.attempts = next.attempts.saturating_sub(1);
            wait_until(&mut next, *available_at);
        }
        Transition::Bury { failure } => {
            next.remember(failure, now);
            finish(&mut next, Status::Dead);
        }
        Transition::ExtendLease { expires_at } => set_lease_expiry(&mut next, *expires_at),
        Transition::Recover => {
            next.remember_crash(now);
            wait_until(&mut next, now);
        }
        Transition::Requeue { available_at } => {
            next.attempts = 0;
            next.requeues = next.requeues.saturating_add(1);
            wait_until(&mut next, *available_at);
        }
        Transition::OperatorBury { reason } => {
            next.remember(&Failure::new(FailureKind::Buried, reason.clone()), now);
            finish(&mut next, Status::Dead);
        }
        Transition::Park => next.lane = Lane::Parked,
        Transition::Unpark => next.lane = Lane::Ready,
    }
    Ok(next)
}

fn is_legal(delivery: &Delivery, transition: &Transition, now: Timestamp) -> bool {
    let is_due = delivery.due_at.is_some_and(|due| due <= now);
    match transition {
        Transition::Claim { .. } => delivery.status.is_unfinished() && is_due,
        Transition::Complete
        | Transition::Reschedule { .. }
        | Transition::Release
        | Transition::Snooze { .. }
        | Transition::Bury { .. } => delivery.status == Status::Processing,
        Transition::ExtendLease { .. } => {
            delivery.status == Status::Processing && can_be_extended(delivery, now)
        }
        Transition::Recover => delivery.status == Status::Processing && is_due,
        Transition::Requeue { .. } => delivery.status == Status::Dead,
        Transition::OperatorBury { .. } => delivery.status.is_unfinished(),
        Transition::Park | Transition::Unpark => delivery.status == Status::Pending,
    }
}

/// A lease that ran out can be revived only where nobody can have stepped in: behind it another delivery of its key may
/// have been claimed, and both would run.
fn can_be_extended(delivery: &Delivery, now: Timestamp) -> bool {
    delivery.key.is_none() || delivery.is_running(now)
}

fn set_lease_expiry(delivery: &mut Delivery, expires_at: Timestamp) {
    delivery.lease_expires_at = Some(expires_at);
    delivery.due_at = Some(expires_at);
}

fn wait_until(delivery: &mut Delivery, available_at: Timestamp) {
    drop_lease(delivery);
    delivery.status = Status::Pending;
    delivery.lane = Lane::Ready;
    delivery.available_at = available_at;
    delivery.due_at = Some(available_at);
}

fn finish(delivery: &mut Delivery, status: Status) {
    drop_lease(delivery);
    delivery.status = status;
    delivery.lane = Lane::Ready;
    delivery.due_at = None;
}

fn drop_lease(delivery: &mut Delivery) {
    delivery.lease_expires_at = None;
    delivery.lease_token = None;
    delivery.lease_owner = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DeliveryId, EventId, MAX_ERROR_HISTORY};

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn pending(due: i64) -> Delivery {
        let due = Timestamp::from_millis(due);
        Delivery {
            id: DeliveryId::from("d"),
            event_id: EventId::from("e"),
            event_type: "t".into(),
            handler: "h".into(),
            key: None,
            sequence: None,
            status: Status::Pending,
            lane: Lane::Ready,
            attempts: 0,
            max_attempts: None,
            available_at: due,
            lease_expires_at: None,
            lease_token: None,
            lease_owner: None,
            due_at: Some(due),
            created_at: due,
            updated_at: due,
            completed_at: None,
            last_error: None,
            errors: Vec::new(),
            requeues: 0,
        }
    }

    fn claim(expires: i64) -> Transition {
        let token = LeaseToken::from("token");
        Transition::Claim { token, owner: "w".into(), expires_at: Timestamp::from_millis(expires) }
    }

    fn failure() -> Failure {
        Failure::new(FailureKind::Failed, "boom")
    }

    fn every_transition() -> Vec<Transition> {
        let at = NOW;
        vec![
            claim(20_000),
            Transition::Complete,
            Transition::Reschedule { available_at: at, failure: failure() },
            Transition::Release,
            Transition::Snooze { available_at: at },
            Transition::Bury { failure: failure() },
            Transition::ExtendLease { expires_at: at },
            Transition::Recover,
            Transition::Requeue { available_at: at },
            Transition::OperatorBury { reason: "r".into() },
            Transition::Park,
            Transition::Unpark,
        ]
    }

    fn legal_verbs(delivery: &Delivery) -> Vec<&'static str> {
        let legal = every_transition().into_iter().filter(|t| apply(delivery, t, NOW).is_ok());
        legal.map(|t| t.verb()).collect()
    }

    #[test]
    fn each_state_allows_exactly_these_transitions() {
        let due = pending(10_000);
        let live = apply(&due, &claim(20_000), NOW).unwrap();
        let expired = apply(&due, &claim(10_000), NOW).unwrap();
        let outcomes = ["completed", "rescheduled", "released", "snoozed", "buried", "extended"];
        assert_eq!(legal_verbs(&due), ["claimed", "buried", "parked", "unparked"]);
        assert_eq!(legal_verbs(&pending(10_001)), ["buried", "parked", "unparked"]);
        assert_eq!(legal_verbs(&live), [&outcomes[..], &["buried"]].concat());
        assert_eq!(legal_verbs(&expired), [&["claimed"], &outcomes[..], &["recovered", "buried"]].concat());
        assert_eq!(legal_verbs(&apply(&live, &Transition::Complete, NOW).unwrap()), Vec::<&str>::new());
        assert_eq!(
            legal_verbs(&apply(&live, &Transition::Bury { failure: failure() }, NOW).unwrap()),
            ["requeued"]
        );
    }

    #[test]
    fn a_lease_of_a_key_that_ran_out_is_not_revived() {
        let keyed = Delivery { key: Some("k".into()), ..pending(10_000) };
        let extend = Transition::ExtendLease { expires_at: NOW };
        assert!(apply(&apply(&keyed, &claim(10_001), NOW).unwrap(), &extend, NOW).is_ok());
        assert!(apply(&apply(&keyed, &claim(10_000), NOW).unwrap(), &extend, NOW).is_err());
        assert!(apply(&apply(&pending(10_000), &claim(10_000), NOW).unwrap(), &extend, NOW).is_ok());
    }

    #[test]
    fn due_at_follows_the_state() {
        let live = apply(&pending(1), &claim(20_000), NOW).unwrap();
        assert_eq!(live.due_at, live.lease_expires_at);
        let later = Timestamp::from_millis(99_000);
        let retried =
            apply(&live, &Transition::Reschedule { available_at: later, failure: failure() }, NOW).unwrap();
        assert_eq!((retried.due_at, retried.available_at, retried.attempts), (Some(later), later, 1));
        assert_eq!(retried.lease(), None);
        assert_eq!(apply(&live, &Transition::Complete, NOW).unwrap().due_at, None);
    }

    #[test]
    fn release_restores_what_the_claim_took() {
        let before = pending(1);
        let after = apply(&apply(&before, &claim(20_000), NOW).unwrap(), &Transition::Release, NOW).unwrap();
        assert_eq!(after, Delivery { updated_at: NOW, ..before });
    }

    #[test]
    fn a_snooze_puts_off_without_a_trace() {
        let before = pending(1);
        let until = Timestamp::from_millis(70_000);
        let snooze = Transition::Snooze { available_at: until };
        let after = apply(&apply(&before, &claim(20_000), NOW).unwrap(), &snooze, NOW).unwrap();
        assert_eq!(after, Delivery { available_at: until, due_at: Some(until), updated_at: NOW, ..before });
    }

    #[test]
    fn an_attempt_without_an_outcome_is_remembered_by_whoever_comes_next() {
        let expired = apply(&pending(1), &claim(10_000), NOW).unwrap();
        for next in [claim(20_000), Transition::Recover] {
            let after = apply(&expired, &next, NOW).unwrap();
            let [error] = &after.errors[..] else { panic!("{:?}", after.errors) };
            assert_eq!((error.attempt, error.at, &error.kind), (1, NOW, &FailureKind::Crashed));
            assert_eq!(error.message, "worker w died, or lost its lease, without an outcome");
            assert_eq!(after.last_error.as_ref(), Some(&error.message));
        }
        assert_eq!(apply(&pending(1), &claim(20_000), NOW).unwrap().errors, []);
    }

    #[test]
    fn requeue_keeps_the_history_and_starts_counting_again() {
        let live = apply(&pending(1), &claim(20_000), NOW).unwrap();
        let dead = apply(&live, &Transition::Bury { failure: failure() }, NOW).unwrap();
        let again = apply(&dead, &Transition::Requeue { available_at: NOW }, NOW).unwrap();
        assert_eq!(
            (again.status, again.attempts, again.requeues, again.errors.len()),
            (Status::Pending, 0, 1, 1)
        );
        assert_eq!(again.last_error.as_deref(), Some("boom"));
    }

    #[test]
    fn the_history_keeps_the_latest_ten() {
        let mut delivery = pending(1);
        for attempt in 1..=MAX_ERROR_HISTORY as i64 + 2 {
            let now = Timestamp::from_millis(attempt * 100_000);
            delivery = apply(&delivery, &claim(now.as_millis() + 1), now).unwrap();
            delivery =
                apply(&delivery, &Transition::Reschedule { available_at: now, failure: failure() }, now)
                    .unwrap();
        }
        let attempts: Vec<_> = delivery.errors.iter().map(|error| error.attempt).collect();
        assert_eq!(attempts, (3..=12).collect::<Vec<_>>());
    }
}
