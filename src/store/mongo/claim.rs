//! Claiming in a bounded number of round trips, however many deliveries are taken.
//!
//! MongoDB has no rows to lock and skip, so a claim is optimistic. Each page of due deliveries takes three steps, each
//! one round trip or several side by side:
//!
//! 1. *look*: a page of the claim index, and the parked heads; for the keys among them, the head of each (the unfinished
//!    delivery of the lowest sequence, by a skip scan of the `open` index) and the live leases. Unkeyed deliveries and heads
//!    without a live lease are eligible. Where the page holds little but blocked deliveries, the next look is at the unkeyed
//!    ones and the heads of all keys, which costs with the number of keys and not with that of what waits behind them.
//! 2. *take*: one update command with a fresh token, one statement for each state that was seen. Its filter is evaluated
//!    for each document in one go, and a delivery that was taken is no longer due: one claimer wins.
//! 3. *confirm*: reads what was won, and looks at heads and live leases again. A delivery that is not its key's head, or
//!    that runs beside another one, is put back as it was found.
//!
//! # Why no two of a key run at once
//! Of two confirmed takes of one handler and key, let the later acknowledged one be B, the other A. B's confirmation
//! begins after both writes, and sees A unfinished under a live lease; so B is put back. A claimer that yields to a
//! delivery which itself yields leaves both where they were, and the next claim finds the head free.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt as _;
use futures_util::future::{try_join, try_join_all};
use mongodb::bson::{Bson, DateTime, Document, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::documents::{date, integer, read_delivery};
use super::error::classify;
use super::{MongoStore, schema};
use crate::model::{IdKind, Lease, LeaseToken, Timestamp};
use crate::store::{ClaimRequest, Claimed, PARKING_THRESHOLD, Result, StoreError};

const DOING: &str = "claiming deliveries";

/// Candidates on a page: some more than asked for, since some are blocked.
const SMALLEST_PAGE: usize = 64;
const LARGEST_PAGE: usize = 1_000;

/// The most candidates to meet in the claim scan. Where so many would not do, the heads are looked for instead.
const MOST_SCANNED: usize = 2_000;

/// Deliveries parked in one write.
const PARK_BATCH: usize = 10_000;

/// The earliest date, to bound a date from below.
pub(super) const BEGINNING: DateTime = DateTime::MIN;

/// See [`Store::claim`](crate::store::Store::claim).
pub(super) async fn claim(store: &MongoStore, request: &ClaimRequest) -> Result<Vec<Claimed>> {
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Vec::new());
    }
    let mut claim = Claim { store, request, token: None, won: Vec::new(), blocked: HashMap::new() };
    match claim.run().await {
        // What was taken is the caller's to run: the error will be back with the next call.
        Err(_) if !claim.won.is_empty() => Ok(claim.won),
        Err(error) => Err(error),
        Ok(()) => Ok(claim.won),
    }
}

/// A handler and a key.
type HandlerKey = (String, String);

/// What a candidate was like when it was read.
#[derive(Clone, Debug)]
struct Candidate {
    id: String,
    handler: String,
    key: Option<String>,
    due_at: DateTime,
    /// The fields that a take changes, as they were; absent ones are left out.
    before: Document,
}

/// The fields that a take changes.
const TAKEN_FIELDS: [&str; 8] =
    ["status", "lane", "attempts", "dueAt", "updatedAt", "leaseToken", "leaseOwner", "leaseExpiresAt"];

impl Candidate {
    /// `None` for a document that no claim could have written back.
    fn read(document: &RawDocument) -> Option<Self> {
        let key = match document.get("key").ok()? {
            Some(RawBsonRef::String(key)) => Some(key.to_owned()),
            None | Some(RawBsonRef::Null) => None,
            Some(_) => return None,
        };
        let mut before = Document::new();
        for field in TAKEN_FIELDS {
            if let Some(value) = document.get(field).ok()? {
                before.insert(field, Bson::try_from(RawBson::from(value)).ok()?);
            }
        }
        Some(Candidate {
            id: document.get_str("_id").ok()?.to_owned(),
            handler: document.get_str("handler").ok()?.to_owned(),
            key,
            due_at: document.get_datetime("dueAt").ok()?,
            before,
        })
    }

    /// The oldest first.
    fn by_age(a: &Self, b: &Self) -> std::cmp::Ordering {
        (a.due_at, &a.id).cmp(&(b.due_at, &b.id))
    }

    fn handler_key(&self) -> Option<HandlerKey> {
        self.key.clone().map(|key| (self.handler.clone(), key))
    }

    /// What the write pins: absent and null are one.
    fn pin(&self) -> (Bson, Bson) {
        let seen = |field| self.before.get(field).cloned().unwrap_or(Bson::Null);
        (seen("status"), seen("attempts"))
    }

    fn attempts(&self) -> i64 {
        match self.before.get("attempts") {
            Some(Bson::Int32(attempts)) => i64::from(*attempts),
            Some(Bson::Int64(attempts)) => *attempts,
            Some(Bson::Double(attempts)) => *attempts as i64,
            _ => 0,
        }
    }

    /// The statement that puts it back as it was, as long as the lease is ours.
    ///
    /// The due time of a pending delivery is its `availableAt`, which a take leaves alone: it may have been requeued
    /// between look and take.
    fn undo(&self, token: &LeaseToken) -> Document {
        let value =
            |(field, value): (&String, &Bson)| (field.clone(), Bson::from(doc! { "$literal": value }));
        let mut set: Document = self.before.iter().map(value).collect();
        if self.before.get_str("status").is_ok_and(|status| status == "pending") {
            set.insert("dueAt", doc! { "$ifNull": ["$availableAt", self.due_at] });
        }
        let absent: Vec<&str> =
            TAKEN_FIELDS.into_iter().filter(|field| !self.before.contains_key(field)).collect();
        let mut update = vec![doc! { "$set": set }];
        if !absent.is_empty() {
            update.push(doc! { "$unset": absent });
        }
        let fence = doc! { "_id": &self.id, "status": "processing", "leaseToken": token.as_str() };
        doc! { "q": fence, "u": update, "hint": { "_id": 1 } }
    }
}

/// The blocked deliveries of a key that one claim met.
type Blocked = HashMap<HandlerKey, HashSet<String>>;

/// One claim in progress.
struct Claim<'a> {
    store: &'a MongoStore,
    request: &'a ClaimRequest,
    token: Option<LeaseToken>,
    won: Vec<Claimed>,
    blocked: Blocked,
}

/// A place in the order of claims: due time, and id.
type Place = (DateTime, String);

/// A stretch of the claim scan.
struct Page {
    candidates: Vec<Candidate>,
    /// The place of the last one that the scan met.
    last: Option<Place>,
    /// Whether more may follow.
    is_full: bool,
}

/// Who may run of each key.
#[derive(Default)]
struct KeyStates {
    /// The head of each key.
    heads: HashMap<HandlerKey, String>,
    /// The deliveries that run under a live lease.
    live: HashMap<HandlerKey, Vec<String>>,
}

impl KeyStates {
    /// Whether `id` is the head of its key, and no other delivery of the key runs.
    fn allows(&self, handler_key: &HandlerKey, id: &str) -> bool {
        let is_head = self.heads.get(handler_key).is_some_and(|head| head == id);
        is_head && self.live.get(handler_key).is_none_or(|live| live.iter().all(|other| other == id))
    }
}

impl Claim<'_> {
    async fn run(&mut self) -> Result<()> {
        let size = (self.request.limit.saturating_mul(2)).clamp(SMALLEST_PAGE, LARGEST_PAGE);
        let (mut page, parked) = try_join(self.page(None, size), self.parked_heads()).await?;
        page.candidates.extend(parked);
        page.candidates.sort_by(Candidate::by_age);
        let mut met = 0;
        loop {
            let eligible = self.take_from(&page.candidates).await?;
            met += page.candidates.len();
            if self.missing() == 0 || !page.is_full {
                break;
            }
            let is_fruitful = self.missing().saturating_mul(met) <= eligible.saturating_mul(MOST_SCANNED);
            let Some(last) = page.last.clone().filter(|_| is_fruitful && met < MOST_SCANNED) else {
                self.take_heads().await?;
                break;
            };
            page = self.page(Some(&last), LARGEST_PAGE).await?;
        }
        self.park().await
    }

    fn missing(&self) -> usize {
        self.request.limit - self.won.len()
    }

    /// Due deliveries in lane ready, the oldest first, behind a place in that order. Documents that make no sense are no
    /// candidates.
    async fn page(&self, after: Option<&Place>, size: usize) -> Result<Page> {
        let mut due = doc! { "$lte": date(self.request.now) };
        let mut filter = doc! { "handler": { "$in": &self.request.handlers }, "lane": "ready" };
        if let Some((due_at, id)) = after {
            due.insert("$gte", *due_at);
            filter.insert("$or", vec![doc! { "dueAt": { "$gt": *due_at } }, doc! { "_id": { "$gt": id } }]);
        }
        filter.insert("dueAt", due);
        let by_claim = Hint::Name(schema::CLAIM.to_owned());
        let documents = self.read(filter, by_claim, Some((doc! { "dueAt": 1, "_id": 1 }, size))).await?;
        let candidates: Vec<Candidate> =
            documents.iter().filter_map(|document| Candidate::read(document)).collect();
        let last = candidates.last().map(|last| (last.due_at, last.id.clone()));
        Ok(Page { candidates, last, is_full: documents.len() == size })
    }

    async fn read(
        &self,
        filter: Document,
        hint: Hint,
        order: Option<(Document, usize)>,
    ) -> Result<Vec<RawDocumentBuf>> {
        let mut fields = doc! { "handler": 1, "key": 1 };
        fields.extend(TAKEN_FIELDS.into_iter().map(|field| (field.to_owned(), Bson::Int32(1))));
        let deliveries = self.store.deliveries();
        let mut find = deliveries.find(filter).hint(hint).projection(fields);
        if let Some((sort, limit)) = order {
            find = find.sort(sort).limit(limit as i64).batch_size(limit as u32 + 1);
        }
        let cursor = find.await.map_err(|error| classify(DOING, error))?;
        cursor.try_collect().await.map_err(|error| classify(DOING, error))
    }

    /// Where the scan meets little but blocked deliveries, what can run is found without meeting these: unkeyed deliveries
    /// have a stretch of the `open` index to themselves, and the heads of all keys are a skip scan of the rest.
    async fn take_heads(&mut self) -> Result<()> {
        let mut tried = HashSet::new();
        loop {
            let (unkeyed, heads) = try_join(self.unkeyed(), self.due_heads(&tried)).await?;
            let mut candidates: Vec<Candidate> = unkeyed.into_iter().chain(heads).collect();
            candidates.retain(|candidate| tried.insert(candidate.id.clone()));
            if candidates.is_empty() {
                return Ok(());
            }
            candidates.sort_by(Candidate::by_age);
            self.take_from(&candidates).await?;
            if self.missing() == 0 {
                return Ok(());
            }
        }
    }

    /// The oldest due deliveries without a key.
    async fn unkeyed(&self) -> Result<Vec<Candidate>> {
        let due = doc! { "$lte": date(self.request.now) };
        let filter = doc! {
            "handler": { "$in": &self.request.handlers },
            "key": null,
            "sequence": null,
            "dueAt": due,
        };
        let by_open = Hint::Name(schema::OPEN.to_owned());
        let limit = self.missing().clamp(SMALLEST_PAGE, LARGEST_PAGE);
        let documents = self.read(filter, by_open, Some((doc! { "dueAt": 1, "_id": 1 }, limit))).await?;
        Ok(documents.iter().filter_map(|document| Candidate::read(document)).collect())
    }

    /// The due heads of all keys but those that were tried, the oldest [`LARGEST_PAGE`] of them.
    async fn due_heads(&self, tried: &HashSet<String>) -> Result<Vec<Candidate>> {
        let now = date(self.request.now);
        let scans = self.request.handlers.iter().map(|handler| async move {
            group(self.store, schema::OPEN, due_heads_pipeline(handler, now)).await
        });
        let groups = try_join_all(scans).await?.concat();
        let mut heads: Vec<Place> = groups
            .iter()
            .filter_map(|group| {
                Some((*group.get_datetime("due").ok()?, group.get_str("head").ok()?.to_owned()))
            })
            .collect();
        heads.retain(|(_, id)| !tried.contains(id));
        heads.sort();
        heads.truncate(LARGEST_PAGE);
        self.candidates(heads.into_iter().map(|(_, id)| id).collect()).await
    }

    /// The parked heads that are due: they may run, although the claim scan leaves them out.
    async fn parked_heads(&self) -> Result<Vec<Candidate>> {
        let parked = self.request.handlers.iter().map(|handler| lowest_parked(self.store, handler));
        let parked: Vec<(HandlerKey, Bson)> = try_join_all(parked).await?.concat();
        if parked.is_empty() {
            return Ok(Vec::new());
        }
        let keys = parked.iter().map(|(handler_key, _)| handler_key.clone()).collect();
        let heads: HashMap<HandlerKey, Head> = heads(self.store, &keys).await?;
        let freed = parked.iter().filter_map(|(handler_key, lowest)| {
            heads.get(handler_key).filter(|head| head.sequence == *lowest).map(|head| head.id.clone())
        });
        self.candidates(freed.collect()).await
    }

    /// Those of these deliveries that are due.
    async fn candidates(&self, ids: Vec<String>) -> Result<Vec<Candidate>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let filter = doc! { "_id": { "$in": ids }, "dueAt": { "$lte": date(self.request.now) } };
        let documents = self.read(filter, Hint::Keys(doc! { "_id": 1 }), None).await?;
        Ok(documents.iter().filter_map(|document| Candidate::read(document)).collect())
    }

    /// Takes what is eligible on a page, the oldest first, until the limit is reached or the page is used up.
    ///
    /// Returns how many were eligible.
    async fn take_from(&mut self, page: &[Candidate]) -> Result<usize> {
        let keys: HashSet<HandlerKey> = page.iter().filter_map(Candidate::handler_key).collect();
        let states = key_states(self.store, &keys, self.request.now).await?;
        let mut eligible = Vec::new();
        for candidate in page {
            match candidate.handler_key() {
                Some(handler_key) if !states.allows(&handler_key, &candidate.id) => {
                    self.blocked.entry(handler_key).or_default().insert(candidate.id.clone());
                }
                _ => eligible.push(candidate),
            }
        }
        let mut left = eligible.as_slice();
        while self.missing() > 0 && !left.is_empty() {
            let (now, later) = left.split_at(self.missing().min(left.len()));
            self.take(now).await?;
            left = later;
        }
        Ok(eligible.len())
    }

    /// Takes candidates, confirms them, and puts back those that may not run.
    async fn take(&mut self, candidates: &[&Candidate]) -> Result<()> {
        let token = self.token();
        self.write_leases(candidates, &token).await?;
        let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.id.as_str()).collect();
        let keys: HashSet<HandlerKey> =
            candidates.iter().filter_map(|candidate| candidate.handler_key()).collect();
        let won = self.won_of(&ids, &token);
        let (won, states) = try_join(won, key_states(self.store, &keys, self.request.now)).await?;
        let mut undo = Vec::new();
        for candidate in candidates {
            let Some(claimed) = won.get(&candidate.id) else { continue };
            match candidate.handler_key() {
                Some(handler_key) if !states.allows(&handler_key, &candidate.id) => {
                    undo.push(candidate.undo(&token))
                }
                _ => self.won.push(claimed.clone()),
            }
        }
        self.store.update_deliveries("putting deliveries back", undo).await?;
        Ok(())
    }

    fn token(&mut self) -> LeaseToken {
        let fresh = || LeaseToken::from(self.store.ids.next(IdKind::LeaseToken, self.request.now));
        self.token.get_or_insert_with(fresh).clone()
    }

    /// One command. When its answer is lost, the confirmation finds out what it did.
    async fn write_leases(&self, candidates: &[&Candidate], token: &LeaseToken) -> Result<()> {
        let mut alike: Vec<((Bson, Bson), Vec<&Candidate>)> = Vec::new();
        for candidate in candidates {
            let pin = candidate.pin();
            match alike.iter_mut().find(|(other, _)| *other == pin) {
                Some((_, members)) => members.push(candidate),
                None => alike.push((pin, vec![candidate])),
            }
        }
        let statements = alike.into_iter().map(|(pin, members)| self.lease_statement(pin, &members, token));
        match self.store.update_deliveries(DOING, statements.collect()).await {
            Err(error) if error.kind() == crate::store::ErrorKind::Unavailable => Ok(()),
            result => result.map(|_| ()),
        }
    }

    fn lease_statement(
        &self,
        (status, attempts): (Bson, Bson),
        members: &[&Candidate],
        token: &LeaseToken,
    ) -> Document {
        let ids: Vec<&str> = members.iter().map(|candidate| candidate.id.as_str()).collect();
        let expires_at = date(self.request.now.saturating_add(self.request.lease));
        let attempt = members.first().map_or(0, |candidate| candidate.attempts()).saturating_add(1);
        doc! {
            "q": { "_id": { "$in": ids }, "status": status, "attempts": attempts, "dueAt": { "$lte": date(self.request.now) } },
            "u": { "$set": {
                "status": "processing",
                "lane": "ready",
                "attempts": integer(attempt),
                "leaseToken": token.as_str(),
                "leaseOwner": &self.request.owner,
                "leaseExpiresAt": expires_at,
                "dueAt": expires_at,
                "updatedAt": date(self.request.now),
            } },
            "multi": true,
            "hint": { "_id": 1 },
        }
    }

    async fn won_of(&self, ids: &[&str], token: &LeaseToken) -> Result<HashMap<String, Claimed>> {
        let deliveries = self.store.deliveries();
        let cursor = deliveries.find(doc! { "_id": { "$in": ids }, "leaseToken": token.as_str() }).await;
        let cursor = cursor.map_err(|error| classify(DOING, error))?;
        let documents: Vec<RawDocumentBuf> =
            cursor.try_collect().await.map_err(|error| classify(DOING, error))?;
        // One that makes no sense is left to its lease; it will be met, and counted, again.
        let deliveries = documents.iter().filter_map(|document| read_delivery(document).ok());
        let claimed = deliveries.map(|delivery| {
            let lease = Lease { delivery_id: delivery.id.clone(), token: token.clone() };
            (delivery.id.as_str().to_owned(), Claimed { lease, delivery })
        });
        Ok(claimed.collect())
    }

    /// Parks the keys of which this claim met many blocked deliveries.
    async fn park(&mut self) -> Result<()> {
        let many =
            std::mem::take(&mut self.blocked).into_values().filter(|ids| ids.len() >= PARKING_THRESHOLD);
        let ids: Vec<String> = many.flatten().collect();
        for batch in ids.chunks(PARK_BATCH) {
            let statement = doc! {
                "q": { "_id": { "$in": batch }, "lane": "ready", "status": "pending" },
                "u": { "$set": { "lane": "parked" } },
                "multi": true,
                "hint": { "_id": 1 },
            };
            self.store.update_deliveries("parking deliveries", vec![statement]).await?;
        }
        Ok(())
    }
}

/// The head of a key.
struct Head {
    id: String,
    sequence: Bson,
}

async fn key_states(store: &MongoStore, keys: &HashSet<HandlerKey>, now: Timestamp) -> Result<KeyStates> {
    if keys.is_empty() {
        return Ok(KeyStates::default());
    }
    let (heads, live) = try_join(heads(store, keys), live_leases(store, keys, now)).await?;
    Ok(KeyStates {
        heads: heads.into_iter().map(|(handler_key, head)| (handler_key, head.id)).collect(),
        live,
    })
}

/// The unfinished delivery of the lowest sequence of each key: one skip scan a handler, within the index.
async fn heads(store: &MongoStore, keys: &HashSet<HandlerKey>) -> Result<HashMap<HandlerKey, Head>> {
    let mut by_handler: HashMap<&str, Vec<&str>> = HashMap::new();
    for (handler, key) in keys {
        by_handler.entry(handler).or_default().push(key);
    }
    let scans = by_handler.into_iter().map(|(handler, keys)| async move {
        let groups = group(store, schema::OPEN, head_pipeline(handler, &keys)).await?;
        let heads = groups.into_iter().filter_map(|group| {
            let head =
                Head { id: group.get_str("head").ok()?.to_owned(), sequence: group.get("sequence")?.clone() };
            Some(((handler.to_owned(), group.get_str("_id").ok()?.to_owned()), head))
        });
        Ok::<_, StoreError>(heads.collect::<Vec<_>>())
    });
    Ok(try_join_all(scans).await?.into_iter().flatten().collect())
}

/// Every predicate is a bound of the index, or the scan would have to fetch documents and could not skip.
pub(super) fn head_pipeline(handler: &str, keys: &[&str]) -> Vec<Document> {
    vec![
        doc! { "$match": { "handler": handler, "key": { "$in": keys }, "dueAt": { "$gte": BEGINNING } } },
        doc! { "$sort": { "key": 1, "sequence": 1 } },
        doc! { "$group": { "_id": "$key", "head": { "$first": "$_id" }, "sequence": { "$first": "$sequence" } } },
    ]
}

/// The heads of all keys of a handler, those that are due.
pub(super) fn due_heads_pipeline(handler: &str, now: DateTime) -> Vec<Document> {
    vec![
        doc! { "$match": { "handler": handler, "key": { "$gte": "" }, "dueAt": { "$gte": BEGINNING } } },
        doc! { "$sort": { "key": 1, "sequence": 1 } },
        doc! { "$group": { "_id": "$key", "head": { "$first": "$_id" }, "due": { "$first": "$dueAt" } } },
        doc! { "$match": { "due": { "$lte": now } } },
    ]
}

/// The keys of a handler that have parked deliveries, with the lowest sequence among these.
async fn lowest_parked(store: &MongoStore, handler: &str) -> Result<Vec<(HandlerKey, Bson)>> {
    let groups = group(store, schema::PARKED, parked_pipeline(handler)).await?;
    let lowest = groups.into_iter().filter_map(|group| {
        let key = group.get_str("_id").ok()?.to_owned();
        Some(((handler.to_owned(), key), group.get("sequence")?.clone()))
    });
    Ok(lowest.collect())
}

pub(super) fn parked_pipeline(handler: &str) -> Vec<Document> {
    vec![
        doc! { "$match": { "handler": handler, "lane": "parked" } },
        doc! { "$sort": { "key": 1, "sequence": 1 } },
        doc! { "$group": { "_id": "$key", "sequence": { "$first": "$sequence" } } },
    ]
}

async fn group(store: &MongoStore, index: &str, pipeline: Vec<Document>) -> Result<Vec<Document>> {
    let deliveries = store.deliveries();
    let cursor = deliveries.aggregate(pipeline).hint(Hint::Name(index.to_owned())).batch_size(10_000).await;
    let cursor = cursor.map_err(|error| classify(DOING, error))?;
    cursor.try_collect().await.map_err(|error| classify(DOING, error))
}

/// The deliveries of these keys that run under a live lease.
async fn live_leases(
    store: &MongoStore,
    keys: &HashSet<HandlerKey>,
    now: Timestamp,
) -> Result<HashMap<HandlerKey, Vec<String>>> {
    let deliveries = store.deliveries();
    let cursor = deliveries
        .find(live_filter(keys, now))
        .projection(doc! { "handler": 1, "key": 1 })
        .hint(Hint::Name(schema::RUNNING.to_owned()))
        .await
        .map_err(|error| classify(DOING, error))?;
    let documents: Vec<RawDocumentBuf> =
        cursor.try_collect().await.map_err(|error| classify(DOING, error))?;
    let mut live: HashMap<HandlerKey, Vec<String>> = HashMap::new();
    for document in &documents {
        let text = |field| document.get_str(field).map(str::to_owned);
        if let (Ok(id), Ok(handler), Ok(key)) = (text("_id"), text("handler"), text("key")) {
            live.entry((handler, key)).or_default().push(id);
        }
    }
    Ok(live)
}

pub(super) fn live_filter(keys: &HashSet<HandlerKey>, now: Timestamp) -> Document {
    let handlers: HashSet<&str> = keys.iter().map(|(handler, _)| handler.as_str()).collect();
    let keys: HashSet<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
    doc! {
        "handler": { "$in": handlers.into_iter().collect::<Vec<_>>() },
        "key": { "$in": keys.into_iter().collect::<Vec<_>>() },
        "status": "processing",
        "dueAt": { "$gt": date(now) },
    }
}
