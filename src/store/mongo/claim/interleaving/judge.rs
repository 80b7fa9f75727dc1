//! Watches every write and every start, and objects to what breaks the contract.

use std::collections::{BTreeMap, BTreeSet};

use mongodb::bson::Document;

use super::super::super::documents::read_delivery;
use super::server::{Deliveries, Purpose, raw};
use crate::model::{Delivery, Timestamp};
use crate::store::Claimed;

/// So long before its lease ends, by its own clock, a worker is through with a delivery or has given it up.
///
/// This is what the first half of the invariant rests on: no two clocks may disagree by more. The second half, the order of
/// a key, rests on no clock.
pub(super) const MARGIN: i64 = 3_000;

/// What an undone take leaves exactly as it was. The lane is nobody's state, and `updatedAt` is for people.
const RESTORED: [&str; 10] = [
    "status",
    "attempts",
    "requeues",
    "dueAt",
    "availableAt",
    "leaseToken",
    "leaseOwner",
    "leaseExpiresAt",
    "lastError",
    "errors",
];

/// A lease that was written.
struct Taken {
    before: Document,
    after: Document,
    /// Whether no earlier delivery of the key was unfinished at some instant since.
    was_first: bool,
    is_undone: bool,
    is_returned: bool,
}

/// A delivery that a worker runs.
struct Run {
    id: String,
    handler: String,
    key: Option<String>,
    token: String,
    /// The end of the lease.
    expires_at: i64,
    /// How far the worker's clock is ahead of the true time.
    offset: i64,
}

impl Run {
    /// Whether its worker runs it at this (true) time, under a lease that is still its own.
    fn is_live(&self, delivery: Option<&Document>, now: Timestamp) -> bool {
        let is_held = delivery.is_some_and(|delivery| {
            has(delivery, "status", "processing") && has(delivery, "leaseToken", &self.token)
        });
        is_held && now.as_millis() + self.offset < self.expires_at - MARGIN
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Judge {
    /// By id and token.
    taken: BTreeMap<(String, String), Taken>,
    runs: Vec<Run>,
    /// Whether no two clocks disagree by more than [`MARGIN`].
    pub(super) trusts_clocks: bool,
    /// Runs that were started.
    pub(super) starts: usize,
}

pub(super) fn has(delivery: &Document, field: &str, value: &str) -> bool {
    delivery.get_str(field).is_ok_and(|found| found == value)
}

fn text<'d>(delivery: &'d Document, field: &str) -> &'d str {
    delivery.get_str(field).unwrap_or_default()
}

fn attempts(delivery: &Document) -> i32 {
    delivery.get_i32("attempts").unwrap_or_default()
}

/// Whether both are of one handler and key.
fn share_key(a: &Document, b: &Document) -> bool {
    a.contains_key("key") && a.get("key") == b.get("key") && a.get("handler") == b.get("handler")
}

/// Whether no earlier delivery of the key is unfinished.
pub(super) fn is_first(delivery: &Document, all: &Deliveries) -> bool {
    let sequence = |one: &Document| one.get_i64("sequence").unwrap_or_default();
    let is_in_the_way = |other: &Document| {
        share_key(delivery, other) && sequence(other) < sequence(delivery) && other.contains_key("dueAt")
    };
    !all.values().any(is_in_the_way)
}

impl Judge {
    /// A delivery was changed.
    pub(super) fn wrote(
        &mut self,
        purpose: &Purpose,
        before: Document,
        after: Document,
        all: &Deliveries,
        now: Timestamp,
    ) {
        assert!(!has(&before, "status", "completed"), "a completed delivery is changed: {before}");
        match purpose {
            Purpose::Take { token, now: claimed_at } => {
                self.judge_take(&before, &after, *claimed_at, now);
                let taken = Taken { before, after, was_first: false, is_undone: false, is_returned: false };
                self.taken.insert((text(&taken.after, "_id").to_owned(), token.clone()), taken);
            }
            Purpose::Undo { token } => self.judge_undo(&after, token),
            Purpose::Settle | Purpose::Repair | Purpose::Lane => {}
        }
        self.look_who_is_first(all);
    }

    /// A delivery as its take has left it: what a write that answers with the document returns.
    pub(super) fn delivery_taken(&self, id: &str, token: &str) -> Delivery {
        let taken = &self.taken[&(id.to_owned(), token.to_owned())];
        read_delivery(&raw(&taken.after)).expect("a delivery")
    }

    fn judge_take(&self, before: &Document, after: &Document, claimed_at: Timestamp, now: Timestamp) {
        let is_due =
            before.get_datetime("dueAt").is_ok_and(|due| due.timestamp_millis() <= claimed_at.as_millis());
        assert!(is_due, "what is not due is taken: {before}");
        assert_eq!(attempts(after), attempts(before) + 1, "a take counts one attempt: {before} {after}");
        let victim =
            self.runs.iter().find(|run| run.id == text(before, "_id") && run.is_live(Some(before), now));
        assert!(victim.is_none() || !self.trusts_clocks, "a live lease is taken over: {before} {after}");
    }

    fn judge_undo(&mut self, after: &Document, token: &str) {
        let taken = self.taken.get_mut(&(text(after, "_id").to_owned(), token.to_owned()));
        let taken = taken.expect("what is put back was taken");
        assert!(!taken.is_returned, "what was returned is put back: {after}");
        taken.is_undone = true;
        for field in RESTORED {
            assert_eq!(
                after.get(field),
                taken.before.get(field),
                "{field} is not put back: {}",
                taken.before
            );
        }
    }

    fn look_who_is_first(&mut self, all: &Deliveries) {
        for taken in self.taken.values_mut().filter(|taken| !taken.is_returned && !taken.was_first) {
            taken.was_first = is_first(&taken.after, all);
        }
    }

    /// A claim has returned; the worker starts all of it.
    pub(super) fn started(
        &mut self,
        claimed: &[Claimed],
        limit: usize,
        offset: i64,
        all: &Deliveries,
        now: Timestamp,
    ) {
        assert!(claimed.len() <= limit, "{} were claimed where {limit} were asked for", claimed.len());
        let mut keys = BTreeSet::new();
        for one in claimed {
            let key = one.delivery.key.as_ref().map_or(one.delivery.id.as_str(), |key| key.as_str());
            assert!(keys.insert((&one.delivery.handler, key)), "one claim takes two of a key: {claimed:#?}");
        }
        for one in claimed {
            self.judge_start(one, all);
            self.start(one, offset, all, now);
        }
    }

    fn judge_start(&mut self, one: &Claimed, all: &Deliveries) {
        let (id, token) = (one.delivery.id.as_str(), one.lease.token.as_str());
        let taken = self.taken.get_mut(&(id.to_owned(), token.to_owned()));
        let taken = taken.unwrap_or_else(|| panic!("{id} is returned and was not taken"));
        assert!(!taken.is_undone, "{id} is returned and was put back");
        assert!(!taken.is_returned, "{id} is returned twice under one token");
        taken.is_returned = true;
        let stored = read_delivery(&raw(&taken.after)).expect("a delivery");
        assert_eq!(one.delivery, stored, "{id} is returned as it was never stored");
        assert!(taken.was_first || is_first(&taken.after, all), "{id} overtakes an earlier one of its key");
    }

    fn start(&mut self, one: &Claimed, offset: i64, all: &Deliveries, now: Timestamp) {
        let run = Run {
            id: one.delivery.id.as_str().to_owned(),
            handler: one.delivery.handler.clone(),
            key: one.delivery.key.clone(),
            token: one.lease.token.as_str().to_owned(),
            expires_at: one.delivery.lease_expires_at.map_or(0, |at| at.as_millis()),
            offset,
        };
        if !run.is_live(all.get(&run.id), now) {
            return;
        }
        let beside = self.runs.iter().find(|other| {
            let is_alike = other.handler == run.handler && other.key.is_some() && other.key == run.key;
            is_alike && other.is_live(all.get(&other.id), now)
        });
        assert!(
            beside.is_none() || !self.trusts_clocks,
            "{} runs beside {}",
            run.id,
            beside.map_or("", |run| &run.id)
        );
        self.starts += 1;
        self.runs.push(run);
    }

    /// The worker is through with it, one way or the other.
    pub(super) fn ended(&mut self, id: &str, token: &str) {
        self.runs.retain(|run| run.id != id || run.token != token);
    }
}
