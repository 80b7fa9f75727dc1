//! From facts to findings, and from findings to what would help.

use std::time::Duration;

use serde::Serialize;

use super::facts::{Facts, KeyFacts};
use crate::model::{
    AttemptError, Blocker, Delivery, DeliveryId, FailureKind, HandlerActivity, KeyState, Lane, Pause, Status,
    Timestamp, TrippedBreaker,
};

/// An outcome this long ago is no sign any more that somebody runs a handler.
const LATELY: Duration = Duration::from_secs(15 * 60);

/// A delivery that has been due for no longer may just not have been claimed yet.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// One thing that was found. Codes and fields are part of the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Finding {
    /// It was completed.
    Completed {
        /// When.
        at: Timestamp,
    },
    /// It was given up.
    Dead {
        /// When.
        at: Timestamp,
        /// Its last failure, where it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<AttemptError>,
    },
    /// It is not due before a time that was asked for.
    Delayed {
        /// That time.
        until: Timestamp,
    },
    /// It failed, and is not due before its next attempt.
    BackingOff {
        /// When that is.
        until: Timestamp,
        /// The failure.
        failure: AttemptError,
    },
    /// It is pending and due.
    Due {
        /// Since when.
        since: Timestamp,
    },
    /// A worker holds it under a live lease.
    Running {
        /// Who took the lease, for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
        /// When the lease was taken or last renewed.
        held_at: Timestamp,
        /// When it runs out, unless it is renewed.
        until: Timestamp,
    },
    /// Its lease ran out without an outcome.
    LeaseExpired {
        /// Who took it.
        #[serde(skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
        /// When it ran out.
        at: Timestamp,
    },
    /// Claims leave it aside, as its key was long blocked.
    Parked,
    /// It has no attempt left.
    AttemptsExhausted {
        /// Attempts made.
        attempts: u32,
        /// Attempts that it has.
        max_attempts: u32,
    },
    /// An earlier delivery of its handler and key has to finish first.
    BlockedByEarlier {
        /// That one.
        by: DeliveryId,
    },
    /// Another delivery of its handler and key runs under a live lease.
    BlockedByRunning {
        /// That one.
        by: DeliveryId,
    },
    /// Nothing is in its way: the next claim for its handler takes it.
    NextInLine,
    /// Of its handler and key others are unfinished too.
    Waiting {
        /// Unfinished ones before it.
        ahead: u64,
        /// Unfinished ones behind it.
        behind: u64,
    },
    /// An operator paused its handler.
    Paused(Pause),
    /// A worker leaves its handler alone, as it kept failing.
    BreakerOpen(TrippedBreaker),
    /// A worker was at work for its handler lately.
    WorkerSeen {
        /// Who holds a live lease of the handler, if anybody does.
        #[serde(skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
        /// The latest outcome that was found.
        #[serde(skip_serializing_if = "Option::is_none")]
        last_outcome_at: Option<Timestamp>,
    },
    /// Nobody seems to run its handler: no live lease, no report of a breaker, no outcome.
    NoWorkerSeen {
        /// No outcome since then.
        since: Timestamp,
        /// Among so many deliveries of the handler.
        examined: u64,
    },
}

/// A finding, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The delivery; absent where it is the handler as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<DeliveryId>,
    /// What was found.
    #[serde(flatten)]
    pub finding: Finding,
}

/// Something that an operator can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Bring a dead delivery back.
    Requeue {
        /// The delivery.
        id: DeliveryId,
        /// Unfinished ones of its handler and key with a higher sequence.
        behind: u64,
    },
    /// Return deliveries with an expired lease to pending.
    Recover {
        /// Of this handler.
        handler: String,
    },
    /// End a pause.
    Resume {
        /// Of this handler.
        handler: String,
    },
    /// Give up a delivery that others wait for.
    Bury {
        /// The delivery.
        id: DeliveryId,
    },
    /// Look at what keeps failing.
    LookAtErrors {
        /// Of this handler.
        handler: String,
    },
    /// Make a delivery due now that waits for a later time: one without a key, whose place nobody can take meanwhile.
    BringForward {
        /// The delivery.
        id: DeliveryId,
    },
}

/// Why a delivery runs or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The delivery.
    pub delivery: Delivery,
    /// What blocks it, and what blocks that.
    pub blockers: Vec<Delivery>,
    /// What was found: about the delivery, about its blockers one after the other, about its handler, and how many wait.
    pub findings: Vec<Found>,
    /// What would help, the best first.
    pub remedies: Vec<Remedy>,
}

impl Explanation {
    /// The delivery of an id, among those that this is about.
    pub fn delivery_of(&self, id: &DeliveryId) -> Option<&Delivery> {
        std::iter::once(&self.delivery).chain(&self.blockers).find(|delivery| delivery.id == *id)
    }
}

/// What follows from the facts.
pub fn explain(facts: &Facts) -> Explanation {
    let (delivery, now) = (&facts.delivery, facts.now);
    let state = facts.key.as_ref().map(|key| &key.state);
    let blockers = chain(delivery, state, now);
    let mut findings = Vec::new();
    for subject in std::iter::once(delivery).chain(&blockers) {
        findings.extend(situation(subject, state, now).into_iter().map(|finding| about(subject, finding)));
    }
    let root = blockers.last().unwrap_or(delivery);
    let of_handler = handler_findings(facts, root);
    if is_claimable(root, now)
        && of_handler.iter().all(|finding| matches!(finding, Finding::WorkerSeen { .. }))
    {
        findings.push(about(root, Finding::NextInLine));
    }
    findings.extend(of_handler.into_iter().map(|finding| Found { about: None, finding }));
    findings.extend(waiting(facts).map(|finding| about(delivery, finding)));
    let remedies = remedies(facts, root);
    Explanation { delivery: delivery.clone(), blockers, findings, remedies }
}

fn about(delivery: &Delivery, finding: Finding) -> Found {
    Found { about: Some(delivery.id.clone()), finding }
}

/// What blocks a delivery, what blocks that, and so on. It ends with one that runs or can be claimed when it is due: an
/// earlier one is the first of its key, and that can only be blocked by one that runs.
fn chain(delivery: &Delivery, state: Option<&KeyState>, now: Timestamp) -> Vec<Delivery> {
    let next = |delivery: &Delivery| blocker(delivery, state, now).map(|by| by.delivery().clone());
    std::iter::successors(next(delivery), |last| next(last)).collect()
}

fn blocker(delivery: &Delivery, state: Option<&KeyState>, now: Timestamp) -> Option<Blocker> {
    let waits = delivery.status.is_unfinished() && !delivery.is_running(now);
    state.filter(|_| waits)?.blocker_of(delivery)
}

/// Whether nothing but the lack of a claim keeps a delivery that nothing blocks from running.
fn is_claimable(delivery: &Delivery, now: Timestamp) -> bool {
    delivery.due_at.is_some_and(|due| due <= now)
}

fn situation(delivery: &Delivery, state: Option<&KeyState>, now: Timestamp) -> Vec<Finding> {
    let mut findings = vec![stage(delivery, now)];
    let is_over = matches!(delivery.status, Status::Completed) || delivery.is_running(now);
    findings.extend(exhausted(delivery).filter(|_| !is_over));
    if delivery.lane == Lane::Parked && delivery.status.is_unfinished() {
        findings.push(Finding::Parked);
    }
    findings.extend(blocker(delivery, state, now).map(|by| match by {
        Blocker::Predecessor(other) => Finding::BlockedByEarlier { by: other.id },
        Blocker::Running(other) => Finding::BlockedByRunning { by: other.id },
    }));
    findings
}

/// Where it stands in its life.
fn stage(delivery: &Delivery, now: Timestamp) -> Finding {
    let due_at = delivery.due_at.unwrap_or(delivery.available_at);
    let worker = || delivery.lease_owner.clone();
    match delivery.status {
        Status::Completed => Finding::Completed { at: delivery.finished_at().unwrap_or(delivery.updated_at) },
        Status::Dead => Finding::Dead { at: delivery.updated_at, failure: delivery.errors.last().cloned() },
        Status::Processing if due_at > now => {
            Finding::Running { worker: worker(), held_at: delivery.updated_at, until: due_at }
        }
        Status::Processing => Finding::LeaseExpired { worker: worker(), at: due_at },
        Status::Pending if due_at <= now => Finding::Due { since: due_at },
        Status::Pending => match failure_behind_a_delay(delivery) {
            Some(failure) => Finding::BackingOff { until: due_at, failure },
            None => Finding::Delayed { until: due_at },
        },
    }
}

/// After a failure the last attempt made is the one that failed. A requeue begins to count anew.
fn failure_behind_a_delay(delivery: &Delivery) -> Option<AttemptError> {
    let last = delivery.errors.last()?;
    (delivery.attempts > 0 && last.attempt == delivery.attempts).then(|| last.clone())
}

/// Only a limit of its own is known here; that of its handler is known to the workers.
fn exhausted(delivery: &Delivery) -> Option<Finding> {
    let max_attempts = delivery.max_attempts?;
    let was_buried = delivery.errors.last().is_some_and(|error| error.kind == FailureKind::Buried);
    let attempts = delivery.attempts;
    (attempts >= max_attempts && !was_buried).then_some(Finding::AttemptsExhausted { attempts, max_attempts })
}

fn waiting(facts: &Facts) -> Option<Finding> {
    let KeyFacts { state, behind } = facts.key.as_ref()?;
    let itself = u64::from(facts.delivery.status.is_unfinished());
    let ahead = state.unfinished.saturating_sub(behind + itself);
    (ahead + behind > 0).then_some(Finding::Waiting { ahead, behind: *behind })
}

/// What is known of the handler, where that matters: while the delivery is unfinished.
fn handler_findings(facts: &Facts, root: &Delivery) -> Vec<Finding> {
    let controls = &facts.controls;
    let pauses = controls.pauses.iter().cloned().map(Finding::Paused);
    let breakers = controls.breakers.iter().cloned().map(Finding::BreakerOpen);
    let mut findings: Vec<Finding> = pauses.chain(breakers).collect();
    if findings.is_empty() && is_claimable(root, facts.now) {
        findings.extend(facts.activity.as_ref().and_then(|activity| worker(activity, root, facts.now)));
    }
    findings
}

/// Whether somebody runs the handler; nothing where it is too early to tell.
fn worker(activity: &HandlerActivity, root: &Delivery, now: Timestamp) -> Option<Finding> {
    let since = now.saturating_sub(LATELY);
    let waited = root.due_at.map_or(Duration::ZERO, |due| now.since(due));
    if activity.is_seen_since(since) {
        let worker = activity.running.as_ref().and_then(|running| running.lease_owner.clone());
        Some(Finding::WorkerSeen { worker, last_outcome_at: activity.last_outcome_at })
    } else if waited >= CLAIM_PATIENCE {
        Some(Finding::NoWorkerSeen { since, examined: activity.examined })
    } else {
        None
    }
}

fn remedies(facts: &Facts, root: &Delivery) -> Vec<Remedy> {
    let Facts { delivery, key, controls, .. } = facts;
    let handler = delivery.handler.clone();
    match delivery.status {
        Status::Completed => return Vec::new(),
        Status::Dead => {
            let behind = key.as_ref().map_or(0, |key| key.behind);
            return vec![Remedy::Requeue { id: delivery.id.clone(), behind }];
        }
        Status::Pending | Status::Processing => {}
    }
    let mut remedies = Vec::new();
    if !controls.pauses.is_empty() {
        remedies.push(Remedy::Resume { handler: handler.clone() });
    }
    if !controls.breakers.is_empty() {
        remedies.push(Remedy::LookAtErrors { handler: handler.clone() });
    }
    let (id, is_blocked) = (root.id.clone(), root.id != delivery.id);
    match stage(root, facts.now) {
        Finding::LeaseExpired { .. } => remedies.push(Remedy::Recover { handler }),
        Finding::Delayed { .. } | Finding::BackingOff { .. } if is_blocked => {
            remedies.push(Remedy::Bury { id })
        }
        Finding::Delayed { .. } | Finding::BackingOff { .. } if root.key.is_none() => {
            remedies.push(Remedy::BringForward { id })
        }
        _ => {}
    }
    remedies
}
