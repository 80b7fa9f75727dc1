//! A collection in memory, reached by round trips that a schedule can put into any order.
//!
//! It evaluates the very filters and updates that a claim sends to a real server; only what the pipelines group by is
//! written anew. As on a real server, a command of several documents changes one after the other, with others in between.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt as _;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};

use super::super::super::documents::read_delivery;
use super::super::candidate::{Candidate, HandlerKey, UNREAD_FIELD};
use super::super::rounds::{DueHead, Head, Page, PageRequest, Rounds, Take};
use super::super::server::{
    by_handler, due_filter, lease_statement, live_filter, open_filter, page_filter, parked_filter,
    parking_statement, unkeyed_filter, won_filter,
};
use super::judge::Judge;
use super::matching::{compare, matches, update};
use super::schedule::{Pause, Trace};
use crate::model::{Delivery, LeaseToken, Timestamp};
use crate::store::{ErrorKind, Result, StoreError};

/// The deliveries, by id.
pub(super) type Deliveries = BTreeMap<String, Document>;

/// What a write is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// A lease is taken by a claim at this time.
    Take {
        token: String,
        now: Timestamp,
    },
    Undo {
        token: String,
    },
    /// A worker reports an outcome.
    Settle,
    /// An operator buries or requeues.
    Repair,
    /// Parks or brings back.
    Lane,
}

/// One statement: it changes each delivery that passes the filter, in one go each.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) purpose: Purpose,
    filter: Document,
    change: Rc<dyn Fn(&mut Document)>,
}

impl Write {
    pub(super) fn new(purpose: Purpose, filter: Document, change: impl Fn(&mut Document) + 'static) -> Self {
        Write { purpose, filter, change: Rc::new(change) }
    }

    /// A statement of an update command.
    fn of_statement(purpose: Purpose, statement: Document) -> Self {
        let filter = statement.get_document("q").expect("a statement has a filter").clone();
        let change = statement.get("u").expect("a statement has an update").clone();
        Write::new(purpose, filter, move |document| update(document, &change))
    }
}

/// What goes wrong with a round trip.
enum Fault {
    /// It has no effect.
    Refused,
    /// It has, and nobody is told.
    AnswerLost,
    /// The same, but not yet.
    Late,
}

/// See the [module](self).
pub(super) struct Server {
    pub(super) deliveries: RefCell<Deliveries>,
    pub(super) judge: RefCell<Judge>,
    pub(super) random: RefCell<Rng>,
    /// The true time, in milliseconds; nobody's clock has to show it.
    clock: Cell<i64>,
    /// Round trips take their time and fail. Otherwise they are made at once.
    pub(super) is_troubled: Cell<bool>,
    /// Three of so many round trips fail.
    pub(super) luck: Cell<u32>,
    late: RefCell<Vec<Vec<Write>>>,
    /// Commands that take.
    pub(super) takes: Cell<usize>,
    pub(super) trace: Trace,
}

impl Server {
    pub(super) fn new(random: Rng, start: i64, trace: Trace) -> Self {
        Server {
            deliveries: RefCell::default(),
            judge: RefCell::default(),
            random: random.into(),
            clock: start.into(),
            is_troubled: false.into(),
            luck: u32::MAX.into(),
            late: RefCell::default(),
            takes: Cell::default(),
            trace,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.get())
    }

    /// The true time goes on, and with it the time in which rests are measured.
    pub(super) fn advance(&self, millis: i64) {
        self.clock.set(self.clock.get() + millis);
        let _ = tokio::time::advance(Duration::from_millis(millis.unsigned_abs())).now_or_never();
        self.trace.note(|| format!("+ {millis} ms"));
    }

    pub(super) fn chance(&self, one_in: u32) -> bool {
        self.random.borrow_mut().u32(..one_in) == 0
    }

    pub(super) fn below(&self, bound: usize) -> usize {
        self.random.borrow_mut().usize(..bound.max(1))
    }

    /// Somebody else has a turn, or several.
    pub(super) async fn dawdle(&self, most: usize) {
        let polls = self.below(most);
        Pause(polls as u8).await;
    }

    /// A round trip is on its way.
    pub(super) async fn pause(&self) {
        if self.is_troubled.get() {
            // One in some takes much longer than what goes out beside it.
            let most = if self.chance(6) { 40 } else { 3 };
            Pause(1 + self.below(most) as u8).await;
        }
    }

    /// Between two documents of one command others may have their turn.
    async fn breathe(&self) {
        if self.is_troubled.get() && self.chance(6) {
            Pause(1).await;
        }
    }

    fn fault(&self) -> Option<Fault> {
        if !self.is_troubled.get() {
            return None;
        }
        match self.random.borrow_mut().u32(..self.luck.get()) {
            0 => Some(Fault::Refused),
            1 => Some(Fault::AnswerLost),
            2 => Some(Fault::Late),
            _ => None,
        }
    }

    /// Reads at one instant.
    pub(super) async fn read<T>(&self, what: &str, look: impl FnOnce(&Deliveries) -> T) -> Result<T> {
        self.pause().await;
        if self.fault().is_some() {
            self.trace.note(|| format!("{what} fails"));
            return Err(unavailable());
        }
        Ok(look(&self.deliveries.borrow()))
    }

    /// Runs a command of several statements; returns how many deliveries they changed.
    pub(super) async fn command(&self, statements: Vec<Write>) -> Result<u64> {
        self.pause().await;
        let fault = self.fault();
        match fault {
            Some(Fault::Refused) => self.trace.note(|| "a write fails".to_owned()),
            Some(Fault::Late) => {
                self.trace.note(|| "a write is held up".to_owned());
                self.late.borrow_mut().push(statements);
            }
            Some(Fault::AnswerLost) => drop(self.execute(&statements).await),
            None => return Ok(self.execute(&statements).await),
        }
        Err(unavailable())
    }

    async fn execute(&self, statements: &[Write]) -> u64 {
        let mut changed = 0;
        for write in statements {
            let ids: Vec<String> = self.deliveries.borrow().keys().cloned().collect();
            for id in ids {
                if self.apply(write, &id) {
                    changed += 1;
                    self.breathe().await;
                }
            }
        }
        changed
    }

    fn apply(&self, write: &Write, id: &str) -> bool {
        let mut deliveries = self.deliveries.borrow_mut();
        let Some(document) = deliveries.get_mut(id).filter(|document| matches(document, &write.filter))
        else {
            return false;
        };
        let before = document.clone();
        (write.change)(document);
        let after = document.clone();
        self.trace.note(|| format!("{:?} {id}: {}", write.purpose, difference(&before, &after)));
        self.judge.borrow_mut().wrote(&write.purpose, before, after, &deliveries, self.now());
        true
    }

    /// A command whose sender has given up on it arrives.
    pub(super) fn let_one_arrive(&self) {
        let arrived = self.late.borrow_mut().pop();
        for write in arrived.into_iter().flatten() {
            let ids: Vec<String> = self.deliveries.borrow().keys().cloned().collect();
            self.trace.note(|| "what was held up arrives".to_owned());
            ids.iter().for_each(|id| _ = self.apply(&write, id));
        }
    }

    /// Those that pass, in the order of claims.
    fn oldest(deliveries: &Deliveries, filter: &Document, limit: usize) -> Vec<Document> {
        let mut found: Vec<&Document> = deliveries.values().filter(|one| matches(one, filter)).collect();
        found.sort_by(|a, b| order(a, b, "dueAt").then_with(|| order(a, b, "_id")));
        found.into_iter().take(limit).cloned().collect()
    }

    /// The first of each key in the order of sequences, by key.
    fn first_of_keys(deliveries: &Deliveries, filter: &Document) -> Vec<Document> {
        let mut firsts: BTreeMap<&str, &Document> = BTreeMap::new();
        for one in deliveries.values().filter(|one| matches(one, filter)) {
            let key = one.get_str("key").unwrap_or_default();
            let first = firsts.entry(key).or_insert(one);
            if order(one, first, "sequence").is_lt() {
                *first = one;
            }
        }
        firsts.into_values().cloned().collect()
    }

    async fn heads_of(&self, keys: &HashSet<HandlerKey>) -> Result<Vec<Document>> {
        let mut heads = Vec::new();
        for (handler, keys) in by_handler(keys).into_iter().collect::<BTreeMap<_, _>>() {
            self.pause().await;
            for key in BTreeSet::from_iter(keys) {
                self.breathe().await;
                let filter = open_filter(handler, doc! { "$in": [key] });
                heads.extend(Self::first_of_keys(&self.deliveries.borrow(), &filter));
            }
        }
        if self.fault().is_some() { Err(unavailable()) } else { Ok(heads) }
    }
}

fn order(a: &Document, b: &Document, field: &str) -> std::cmp::Ordering {
    let value = |document: &Document| document.get(field).cloned().unwrap_or(Bson::Null);
    compare(&value(a), &value(b)).unwrap_or(std::cmp::Ordering::Equal)
}

fn unavailable() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the connection is gone")
}

fn difference(before: &Document, after: &Document) -> String {
    let fields = after.iter().filter(|(field, value)| before.get(field) != Some(value));
    let mut shown: Vec<String> = fields.map(|(field, value)| format!("{field}={value}")).collect();
    shown.extend(before.keys().filter(|field| !after.contains_key(field)).map(|field| format!("-{field}")));
    shown.join(" ")
}

fn candidate(mut document: Document) -> Option<Candidate> {
    document.remove(UNREAD_FIELD);
    Candidate::read(raw(&document))
}

/// A document as the driver hands it out.
pub(super) fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("a document that can be encoded")
}

fn handler_key(document: &Document) -> HandlerKey {
    let text = |field| document.get_str(field).unwrap_or_default().to_owned();
    (text("handler"), text("key"))
}

fn id(document: &Document) -> String {
    document.get_str("_id").unwrap_or_default().to_owned()
}

impl Rounds for Server {
    async fn page(&self, request: PageRequest<'_>) -> Result<Page> {
        let filter = page_filter(&request);
        let found = self.read("page", |all| Self::oldest(all, &filter, request.size)).await?;
        let is_full = found.len() == request.size;
        self.trace.note(|| format!("page {:?}", found.iter().map(id).collect::<Vec<_>>()));
        Ok(Page { candidates: found.into_iter().filter_map(candidate).collect(), is_full })
    }

    async fn unkeyed(&self, handlers: &[String], now: Timestamp, limit: usize) -> Result<Vec<Candidate>> {
        let filter = unkeyed_filter(handlers, now);
        let found = self.read("unkeyed", |all| Self::oldest(all, &filter, limit)).await?;
        self.trace.note(|| format!("unkeyed {:?}", found.iter().map(id).collect::<Vec<_>>()));
        Ok(found.into_iter().filter_map(candidate).collect())
    }

    async fn due_heads(&self, handler: &str, until: Timestamp) -> Result<Vec<DueHead>> {
        let filter = open_filter(handler, doc! { "$gte": "" });
        let heads = self.read("due heads", |all| Self::first_of_keys(all, &filter)).await?;
        let due = heads.iter().filter_map(|head| {
            let due_at = head.get_datetime("dueAt").ok()?;
            let key = head.get_str("key").ok()?.to_owned();
            let is_due = due_at.timestamp_millis() <= until.as_millis();
            is_due.then(|| DueHead { place: (*due_at, id(head)), key })
        });
        let due: Vec<DueHead> = due.collect();
        self.trace.note(|| format!("due heads {due:?}"));
        Ok(due)
    }

    async fn lowest_parked(&self, handlers: &[String]) -> Result<Vec<(HandlerKey, Bson)>> {
        let mut lowest = Vec::new();
        for handler in handlers {
            let filter = parked_filter(handler);
            let found = self.read("lowest parked", |all| Self::first_of_keys(all, &filter)).await?;
            let keyed = found.iter().filter(|one| one.contains_key("key"));
            lowest.extend(keyed.filter_map(|one| Some((handler_key(one), one.get("sequence")?.clone()))));
        }
        Ok(lowest)
    }

    async fn heads(&self, keys: &HashSet<HandlerKey>) -> Result<HashMap<HandlerKey, Head>> {
        let heads = self.heads_of(keys).await?;
        self.trace.note(|| format!("heads {:?}", heads.iter().map(id).collect::<Vec<_>>()));
        let pairs = heads.iter().filter_map(|head| {
            Some((handler_key(head), Head { id: id(head), sequence: head.get("sequence")?.clone() }))
        });
        Ok(pairs.collect())
    }

    async fn whole_heads(&self, keys: &HashSet<HandlerKey>) -> Result<Vec<Candidate>> {
        let heads = self.heads_of(keys).await?;
        self.trace.note(|| format!("whole heads {:?}", heads.iter().map(id).collect::<Vec<_>>()));
        Ok(heads.into_iter().filter_map(candidate).collect())
    }

    async fn live(
        &self,
        keys: &HashSet<HandlerKey>,
        now: Timestamp,
    ) -> Result<HashMap<HandlerKey, Vec<String>>> {
        let mut live: HashMap<HandlerKey, Vec<String>> = HashMap::new();
        if keys.is_empty() {
            return Ok(live);
        }
        self.pause().await;
        for handler_key in BTreeSet::from_iter(keys.iter().cloned()) {
            self.breathe().await;
            let filter = live_filter(&HashSet::from([handler_key.clone()]), now);
            let ids: Vec<String> =
                self.deliveries.borrow().values().filter(|one| matches(one, &filter)).map(id).collect();
            live.insert(handler_key, ids);
        }
        self.trace.note(|| format!("live {live:?}"));
        if self.fault().is_some() { Err(unavailable()) } else { Ok(live) }
    }

    async fn candidates(&self, ids: Vec<String>, now: Timestamp) -> Result<Vec<Candidate>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let filter = due_filter(&ids, now);
        let found = self.read("candidates", |all| Self::oldest(all, &filter, usize::MAX)).await?;
        Ok(found.into_iter().filter_map(candidate).collect())
    }

    async fn take(&self, take: Take<'_>) -> Result<u64> {
        self.takes.set(self.takes.get() + 1);
        let statements = take.groups.iter().map(|(pin, members)| {
            let purpose = Purpose::Take { token: take.token.as_str().to_owned(), now: take.grant.now };
            Write::of_statement(purpose, lease_statement(pin, members, &take))
        });
        self.command(statements.collect()).await
    }

    async fn won(&self, ids: &[&str], token: &LeaseToken) -> Result<Vec<Delivery>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let filter = won_filter(ids, token);
        let found = self.read("won", |all| Self::oldest(all, &filter, usize::MAX)).await?;
        Ok(found.iter().filter_map(|document| read_delivery(&raw(document)).ok()).collect())
    }

    async fn put_back(&self, candidates: &[&Candidate], token: &LeaseToken) -> Result<()> {
        let purpose = || Purpose::Undo { token: token.as_str().to_owned() };
        let statements =
            candidates.iter().map(|candidate| Write::of_statement(purpose(), candidate.undo(token)));
        self.command(statements.collect()).await.map(drop)
    }

    async fn park(&self, ids: &[String]) -> Result<()> {
        self.command(vec![Write::of_statement(Purpose::Lane, parking_statement(ids))]).await.map(drop)
    }
}
