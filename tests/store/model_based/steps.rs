//! The steps of a random sequence, how they are drawn, and how one is performed.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::Index;
use relayctl::model::{
    Appended, Delivery, DeliveryId, ErrorGroupId, EventId, Filter, KeyState, Lease, LeaseToken, ListQuery,
    NewEvent, Selection, SortBy, Statistics, Status, Timestamp, TypePattern,
};
use relayctl::store::{
    ClaimRequest, Claimed, ErrorKind, Fenced, Outcome, PruneBatch, PruneRequest, PurgeBatch, PurgeRequest,
    Repair, RepairOutcome, Result, Settlement,
};

use super::subject::{Subject, without_lane};
use crate::fixture::{SECOND, START, failure};

/// A few of each, so that steps meet again.
pub const HANDLERS: [&str; 3] = ["h-1", "h-2", "h-3"];
const KEYS: [&str; 3] = ["a", "b", "c"];
const TYPES: [&str; 3] = ["order.placed", "order.sent", "orders"];

#[derive(Clone, Debug)]
pub enum Step {
    Append(Vec<Draft>),
    AppendByHand { first: Vec<Draft>, second: Vec<Draft>, commit: bool },
    Burst { key: usize, count: usize },
    Claim { handlers: Vec<bool>, limit: usize, lease: u32 },
    Settle(Vec<(Index, Verdict)>),
    CompleteByHand { lease: Index, commit: bool },
    Repair { delivery: Index, requeue: bool, delay: u32 },
    RepairSelected { filter: Box<Filter>, age: u32, requeue: bool },
    Recover { handlers: Vec<bool> },
    Purge { completed: Option<u32>, dead: Option<u32>, batch: u32 },
    Prune { after: Option<usize>, batch: u32, dry_run: bool },
    Advance { seconds: u32 },
    List { filter: Box<Filter>, sort: SortBy, descending: bool, limit: Option<u64> },
    Count { filter: Box<Filter>, age: u32 },
    Look { delivery: Index, handler: usize, key: usize },
}

/// An event to append.
#[derive(Clone, Debug)]
pub struct Draft {
    id: Option<u8>,
    event_type: usize,
    key: Option<usize>,
    payload: u8,
    handlers: Vec<bool>,
    delay: u32,
    max_attempts: Option<u32>,
}

/// What a worker reports.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    Complete,
    Retry(u32),
    Snooze(u32),
    Release,
    Bury,
    Extend(u32),
}

/// What a step was answered.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Appended(Vec<Result<Vec<Appended>, ErrorKind>>),
    Claimed(Vec<Claimed>),
    Fenced(Vec<Fenced>),
    Repaired(RepairOutcome),
    Counted(u64),
    Purged { counted: u64, deleted: PurgeBatch },
    Pruned(PruneBatch),
    Listed(Vec<Delivery>),
    Looked(Box<(Option<Delivery>, KeyState, Statistics)>),
    Nothing,
}

/// Knows the time, and what there is to act upon: the same for every store.
#[derive(Default)]
pub struct Pilot {
    seconds: u32,
    pub leases: Vec<Lease>,
    pub deliveries: BTreeSet<DeliveryId>,
    pub events: BTreeSet<EventId>,
}

// ---- drawing

pub fn sequence_of_steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=length)
}

fn step() -> impl Strategy<Value = Step> {
    let (seconds, handlers) = (0..40_u32, || vec(any::<bool>(), HANDLERS.len()));
    let lease = prop_oneof![Just(0), Just(1), Just(10), Just(60)];
    let verdicts = vec((any::<Index>(), verdict()), 1..6);
    let age = || prop_oneof![4 => Just(0), 1 => 1..30_u32];
    let limit_of_age = || option::of(0..20_u32);
    prop_oneof![
        6 => vec(draft(), 1..5).prop_map(Step::Append),
        2 => (vec(draft(), 1..3), vec(draft(), 0..3), any::<bool>())
            .prop_map(|(first, second, commit)| Step::AppendByHand { first, second, commit }),
        1 => (0..KEYS.len(), 30..40_usize).prop_map(|(key, count)| Step::Burst { key, count }),
        9 => (handlers(), 0..9_usize, lease)
            .prop_map(|(handlers, limit, lease)| Step::Claim { handlers, limit, lease }),
        9 => verdicts.prop_map(Step::Settle),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(lease, commit)| Step::CompleteByHand { lease, commit }),
        4 => (any::<Index>(), any::<bool>(), age())
            .prop_map(|(delivery, requeue, delay)| Step::Repair { delivery, requeue, delay }),
        2 => (filter(), age(), any::<bool>())
            .prop_map(|(filter, age, requeue)| Step::RepairSelected { filter, age, requeue }),
        1 => handlers().prop_map(|handlers| Step::Recover { handlers }),
        2 => (limit_of_age(), limit_of_age(), 0..8_u32)
            .prop_map(|(completed, dead, batch)| Step::Purge { completed, dead, batch }),
        1 => (option::of(0..KEYS.len()), 0..4_u32, any::<bool>())
            .prop_map(|(after, batch, dry_run)| Step::Prune { after, batch, dry_run }),
        5 => seconds.prop_map(|seconds| Step::Advance { seconds }),
        2 => (filter(), sort(), any::<bool>(), option::of(0..9_u64)).prop_map(
            |(filter, sort, descending, limit)| Step::List { filter, sort, descending, limit }
        ),
        1 => (filter(), age()).prop_map(|(filter, age)| Step::Count { filter, age }),
        2 => (any::<Index>(), 0..HANDLERS.len(), 0..KEYS.len())
            .prop_map(|(delivery, handler, key)| Step::Look { delivery, handler, key }),
    ]
}

fn draft() -> impl Strategy<Value = Draft> {
    let delay = prop_oneof![6 => Just(0), 1 => 1..30_u32];
    let handlers = vec(any::<bool>(), HANDLERS.len());
    let id = option::weighted(0.3, 0..12_u8);
    let key = option::weighted(0.7, 0..KEYS.len());
    let max_attempts = option::weighted(0.2, 1..4_u32);
    (id, 0..TYPES.len(), key, 0..2_u8, handlers, delay, max_attempts).prop_map(
        |(id, event_type, key, payload, handlers, delay, max_attempts)| Draft {
            id,
            event_type: if id.is_some() { 0 } else { event_type },
            key,
            payload,
            handlers,
            delay,
            max_attempts,
        },
    )
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        4 => Just(Verdict::Complete),
        2 => (0..30_u32).prop_map(Verdict::Retry),
        1 => (0..30_u32).prop_map(Verdict::Snooze),
        1 => Just(Verdict::Release),
        3 => Just(Verdict::Bury),
        1 => (0..90_u32).prop_map(Verdict::Extend),
    ]
}

fn sort() -> impl Strategy<Value = SortBy> {
    prop_oneof![Just(SortBy::Created), Just(SortBy::Updated), Just(SortBy::Due)]
}

fn filter() -> impl Strategy<Value = Box<Filter>> {
    let statuses =
        vec(prop_oneof![Just(Status::Dead), Just(Status::Pending), Just(Status::Processing)], 0..3);
    let type_pattern = prop_oneof![
        Just(TypePattern::Exact("orders".into())),
        Just(TypePattern::Prefix("order.".into())),
        Just(TypePattern::Prefix(String::new())),
    ];
    let instant = || option::weighted(0.2, (0..200_u32).prop_map(|n| START.saturating_add(SECOND * n)));
    let which = (statuses, option::weighted(0.3, 0..HANDLERS.len()), option::weighted(0.3, type_pattern));
    let what = (option::weighted(0.3, 0..KEYS.len()), option::weighted(0.2, 0..3_u32), any::<bool>());
    let when = (instant(), instant(), instant(), instant());
    (which, what, when).prop_map(
        |(
            (statuses, handler, event_type),
            (key, min_attempts, fire),
            (since, until, finished_before, due_before),
        )| {
            Box::new(Filter {
                statuses,
                handler: handler.map(|place| HANDLERS[place].to_owned()),
                event_type,
                key: key.map(|place| KEYS[place].to_owned()),
                event: None,
                groups: if fire && min_attempts.is_none() { on_fire() } else { Vec::new() },
                error: (fire && min_attempts.is_some()).then(|| "ON FIRE".to_owned()),
                since,
                until,
                finished_before,
                min_attempts,
                lane: None,
                due_before,
            })
        },
    )
}

/// What failed in two of the handlers.
fn on_fire() -> Vec<ErrorGroupId> {
    HANDLERS[..2].iter().map(|handler| ErrorGroupId::of(handler, &failure().message)).collect()
}

// ---- performing

impl Pilot {
    pub fn now(&self) -> Timestamp {
        START.saturating_add(SECOND * self.seconds)
    }

    fn later(&self, seconds: u32) -> Timestamp {
        self.now().saturating_add(SECOND * seconds)
    }

    fn ago(&self, seconds: u32) -> Timestamp {
        self.now().saturating_sub(SECOND * seconds)
    }

    /// What there is to act upon after `step` was answered so.
    pub fn learn(&mut self, step: &Step, answer: &Answer) {
        match (step, answer) {
            (Step::Advance { seconds }, _) => self.seconds += seconds,
            (_, Answer::Appended(answers)) => {
                for appended in answers.iter().flatten().flatten() {
                    self.events.insert(appended.id.clone());
                    self.deliveries.extend(appended.deliveries.iter().map(|delivery| delivery.id.clone()));
                }
            }
            (_, Answer::Claimed(claimed)) => self.leases.extend(claimed.iter().map(|one| one.lease.clone())),
            _ => {}
        }
    }

    pub async fn perform(&self, step: &Step, subject: &Subject) -> Answer {
        let (store, now) = (&subject.store, self.now());
        match step {
            Step::Append(drafts) => {
                Answer::Appended(vec![kind_of(store.append(&self.events_of(drafts), now).await)])
            }
            Step::AppendByHand { first, second, commit } => {
                self.append_by_hand([first, second], *commit, subject).await
            }
            Step::Burst { key, count } => {
                let event = NewEvent::new(TYPES[0], 1.into()).key(KEYS[*key]).handler(HANDLERS[0]);
                Answer::Appended(vec![kind_of(store.append(&vec![event; *count], now).await)])
            }
            Step::Claim { .. } => {
                let claimed = store.claim(&self.claim_request(step)).await.unwrap();
                let of = |one: Claimed| Claimed { delivery: without_lane(one.delivery), ..one };
                Answer::Claimed(claimed.into_iter().map(of).collect())
            }
            Step::Settle(verdicts) => {
                Answer::Fenced(store.settle(&self.settlements(verdicts), now).await.unwrap())
            }
            Step::CompleteByHand { lease, commit } => self.complete_by_hand(lease, *commit, subject).await,
            Step::Repair { delivery, requeue, delay } => {
                let repair = repair(*requeue, self.later(*delay));
                Answer::Repaired(store.repair(&self.delivery(delivery), &repair, now).await.unwrap())
            }
            Step::RepairSelected { filter, age, requeue } => {
                let ids: Vec<_> = self.deliveries.iter().cloned().collect();
                let (selection, repair) = (self.selection(filter, *age), repair(*requeue, now));
                Answer::Counted(store.repair_selected(&ids, &selection, &repair, now).await.unwrap())
            }
            Step::Recover { handlers } => {
                Answer::Counted(store.recover(&named(handlers), now).await.unwrap())
            }
            Step::Purge { completed, dead, batch } => {
                let limit = |age: &Option<u32>| age.map(|age| self.ago(age));
                let request = PurgeRequest {
                    completed_before: limit(completed),
                    dead_before: limit(dead),
                    batch: *batch,
                };
                Answer::Purged {
                    counted: store.count_purgeable(&request).await.unwrap(),
                    deleted: purge(subject, &request).await,
                }
            }
            Step::Prune { after, batch, dry_run } => {
                let after = after.map(|place| KEYS[place].to_owned());
                let request = PruneRequest { after, batch: *batch, dry_run: *dry_run };
                Answer::Pruned(store.prune_keys(&request).await.unwrap())
            }
            Step::Advance { .. } => Answer::Nothing,
            Step::List { filter, sort, descending, limit } => {
                let (filter, limit) = ((**filter).clone(), *limit);
                let query =
                    ListQuery { filter, sort: *sort, descending: *descending, limit, ..ListQuery::default() };
                let listed: Vec<Delivery> = store.list(&query).try_collect().await.unwrap();
                Answer::Listed(listed.into_iter().map(without_lane).collect())
            }
            Step::Count { filter, age } => {
                Answer::Counted(store.count(&self.selection(filter, *age)).await.unwrap())
            }
            Step::Look { delivery, handler, key } => {
                let delivery = store.get(&self.delivery(delivery)).await.unwrap().map(without_lane);
                let state = store.key_state(HANDLERS[*handler], KEYS[*key], now).await.unwrap();
                let statistics = store.statistics().await.unwrap();
                Answer::Looked(Box::new((delivery, without_lanes(state), without_parked(statistics))))
            }
        }
    }

    async fn append_by_hand(&self, parts: [&Vec<Draft>; 2], commit: bool, subject: &Subject) -> Answer {
        let mut open = subject.backend.begin().await;
        let mut answers = Vec::new();
        for drafts in parts {
            answers.push(kind_of(open.transaction().append(&self.events_of(drafts), self.now()).await));
        }
        if commit {
            open.commit().await.unwrap()
        } else {
            open.abort().await.unwrap()
        }
        Answer::Appended(answers)
    }

    async fn complete_by_hand(&self, lease: &Index, commit: bool, subject: &Subject) -> Answer {
        let mut open = subject.backend.begin().await;
        let fenced = open.transaction().complete(&self.lease(lease), self.now()).await.unwrap();
        if commit {
            open.commit().await.unwrap()
        } else {
            open.abort().await.unwrap()
        }
        Answer::Fenced(vec![fenced])
    }

    pub fn claim_request(&self, step: &Step) -> ClaimRequest {
        let (handlers, limit, lease) = match step {
            Step::Claim { handlers, limit, lease } => (named(handlers), *limit, SECOND * *lease),
            _ => (Vec::new(), 0, Duration::ZERO),
        };
        ClaimRequest { handlers, limit, lease, owner: "pilot".into(), now: self.now() }
    }

    fn events_of(&self, drafts: &[Draft]) -> Vec<NewEvent> {
        drafts.iter().map(|draft| draft.event(self)).collect()
    }

    fn selection(&self, filter: &Filter, age: u32) -> Selection {
        Selection { filter: filter.clone(), cutoff: self.ago(age) }
    }

    fn settlements(&self, verdicts: &[(Index, Verdict)]) -> Vec<Settlement> {
        let settlement = |(lease, verdict): &(Index, Verdict)| Settlement {
            lease: self.lease(lease),
            outcome: verdict.outcome(self),
        };
        let mut settlements: Vec<Settlement> = verdicts.iter().map(settlement).collect();
        let mut seen = BTreeSet::new();
        settlements.retain(|each| seen.insert(each.lease.delivery_id.clone()));
        settlements
    }

    /// One of the leases that were ever given, more often a late one; an invented one while there is none.
    fn lease(&self, index: &Index) -> Lease {
        let invented = || Lease { delivery_id: "nothing".into(), token: LeaseToken::from("nothing") };
        let recent = &self.leases[self.leases.len().saturating_sub(12)..];
        if recent.is_empty() { invented() } else { index.get(recent).clone() }
    }

    fn delivery(&self, index: &Index) -> DeliveryId {
        let place = if self.deliveries.is_empty() { 0 } else { index.index(self.deliveries.len()) };
        self.deliveries.iter().nth(place).cloned().unwrap_or_else(|| "nothing".into())
    }
}

impl Draft {
    fn event(&self, pilot: &Pilot) -> NewEvent {
        let mut handlers = named(&self.handlers);
        if handlers.is_empty() {
            handlers.push(HANDLERS[0].to_owned());
        }
        NewEvent {
            id: self.id.map(|id| EventId::from(format!("named-{id:02}"))),
            key: self.key.map(|place| KEYS[place].to_owned()),
            handlers,
            available_at: (self.delay > 0).then(|| pilot.later(self.delay)),
            max_attempts: self.max_attempts,
            ..NewEvent::new(TYPES[self.event_type], self.payload.into())
        }
    }
}

impl Verdict {
    fn outcome(self, pilot: &Pilot) -> Outcome {
        match self {
            Verdict::Complete => Outcome::Complete,
            Verdict::Retry(seconds) => {
                Outcome::Reschedule { available_at: pilot.later(seconds), failure: failure() }
            }
            Verdict::Snooze(seconds) => Outcome::Snooze { available_at: pilot.later(seconds) },
            Verdict::Release => Outcome::Release,
            Verdict::Bury => Outcome::Bury { failure: failure() },
            Verdict::Extend(seconds) => Outcome::ExtendLease { expires_at: pilot.later(seconds) },
        }
    }
}

/// Purges batch by batch, as which of several that finished at once goes first is left to the store.
async fn purge(subject: &Subject, request: &PurgeRequest) -> PurgeBatch {
    let mut deleted = PurgeBatch::default();
    loop {
        let batch = subject.store.purge_batch(request).await.unwrap();
        if batch == PurgeBatch::default() {
            return deleted;
        }
        assert!(batch.deliveries <= u64::from(request.batch));
        deleted.deliveries += batch.deliveries;
        deleted.events += batch.events;
    }
}

fn repair(requeue: bool, available_at: Timestamp) -> Repair {
    if requeue { Repair::Requeue { available_at } } else { Repair::Bury { reason: "not today".into() } }
}

fn named(handlers: &[bool]) -> Vec<String> {
    HANDLERS
        .iter()
        .zip(handlers)
        .filter(|(_, named)| **named)
        .map(|(&handler, _)| handler.to_owned())
        .collect()
}

fn kind_of<T>(result: Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

fn without_lanes(state: KeyState) -> KeyState {
    KeyState { head: state.head.map(without_lane), running: state.running.map(without_lane), ..state }
}

fn without_parked(mut statistics: Statistics) -> Statistics {
    statistics.parked = 0;
    statistics.handlers.iter_mut().for_each(|handler| handler.parked = 0);
    statistics
}
