//! The store on MongoDB 6.0 or newer, a replica set or a sharded cluster: the home of the full model.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use relayctl::model::{NewEvent, Timestamp};
//! use relayctl::store::mongo::{MongoOptions, MongoStore};
//! use serde_json::json;
//!
//! let client = mongodb::Client::with_uri_str("mongodb://localhost:27017/?replicaSet=rs0").await?;
//! let store = MongoStore::new(&client, MongoOptions { database: Some("shop".into()), ..Default::default() })?;
//!
//! let now = Timestamp::from_millis(1_764_528_000_000);
//! let placed = NewEvent::new("order.placed.v1", json!({ "orderId": "o-1" })).key("o-1").handler("receipts");
//!
//! let mut session = client.start_session().await?;
//! session.start_transaction().await?;
//! let orders = client.database("shop").collection("orders");
//! orders.insert_one(mongodb::bson::doc! { "_id": "o-1" }).session(&mut session).await?;
//! store.append_in(&mut session, &[placed], now).await?;
//! session.commit_transaction().await?;
//! # Ok(()) }
//! ```

mod append;
mod backfill;
mod claim;
mod connect;
mod controls;
mod documents;
mod error;
mod exact;
mod export;
mod filter;
mod groups;
mod import;
mod inquire;
mod json;
mod key_locks;
mod key_order;
mod leases;
mod list;
mod names;
mod repair;
mod retention;
mod schema;
mod settle;
mod statistics;
mod transaction;
mod watch;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use mongodb::bson::{DateTime, Document, RawDocumentBuf, doc};
use mongodb::options::{DatabaseOptions, Hint, ReadConcern, UpdateModifications, WriteConcern};
use mongodb::{Client, ClientSession, Collection, Database};

use self::claim::backlog::Memory;
use self::error::classify;
use self::key_locks::KeyLocks;
use self::leases::Leases;
use self::names::Names;
use super::{
    BackfillPage, BackfillRequest, Capabilities, ClaimRequest, Claimed, ErrorKind, Extended, Fenced,
    Imported, PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Repair, RepairOutcome, Result, Settlement,
    SetupFinding, SetupReport, Store, StoreError, TransactionWork,
};
use crate::model::{
    Appended, Delivery, DeliveryId, Event, EventId, ExportLine, Filter, HandlerActivity, IdSource,
    KeySequence, KeyState, Lease, ListQuery, NewEvent, Pause, QueueDepth, Selection, Statistics, Timestamp,
    TrippedBreaker, UuidV7,
};

pub use schema::setup_script;
pub use transaction::MongoTransaction;

/// What the names of the collections begin with, unless another prefix is given.
pub const DEFAULT_PREFIX: &str = "relaybus_";

/// The earliest date, to bound a date from below.
const BEGINNING: DateTime = DateTime::MIN;

/// Documents in the first answer to a query: all of them, in all but extreme cases. The server's own choice is 101.
const ALL_AT_ONCE: u32 = 10_000;

/// A plain write that an open transaction of somebody else holds up is given up after this time.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// How to reach an outbox on MongoDB.
#[derive(Clone, Debug)]
pub struct MongoOptions {
    /// The database; the one that the URL names when absent.
    pub database: Option<String>,
    /// What the names of the collections begin with: letters, digits, `_` and `-`.
    pub prefix: String,
    /// How long to wait for the first answer.
    pub connect_timeout: Duration,
    /// How long later calls wait for a primary before they fail; a worker wants more than an election takes.
    pub patience: Duration,
}

impl Default for MongoOptions {
    fn default() -> Self {
        let five_seconds = Duration::from_secs(5);
        MongoOptions {
            database: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            connect_timeout: five_seconds,
            patience: five_seconds,
        }
    }
}

/// An outbox on MongoDB. Cloning it is cheap; clones share the connections.
#[derive(Clone)]
pub struct MongoStore {
    database: Database,
    names: Arc<Names>,
    ids: Arc<dyn IdSource>,
    key_locks: Arc<KeyLocks>,
    memory: Arc<Memory>,
    leases: Arc<Leases>,
    location: Arc<str>,
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MongoStore").field(&self.location).finish()
    }
}

impl MongoStore {
    /// Connects to the deployment at `url`, and makes sure that it answers and has transactions.
    ///
    /// # Errors
    /// See [`open`](super::open).
    pub async fn connect(url: &str, options: MongoOptions) -> Result<Self> {
        let connected = connect::connect(url, &options).await?;
        let location = format!("mongodb://{}/{}", connected.hosts, connected.database);
        let store =
            Self::new(&connected.client, MongoOptions { database: Some(connected.database), ..options })?;
        Ok(MongoStore { location: location.into(), ..store })
    }

    /// An outbox in a database of a client that the application has already. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` when no database is named, or a name is not plain.
    pub fn new(client: &Client, options: MongoOptions) -> Result<Self> {
        names::check_prefix(&options.prefix)?;
        let name =
            options.database.or_else(|| client.default_database().map(|database| database.name().to_owned()));
        let name = name.ok_or_else(|| StoreError::new(ErrorKind::Invalid, "no database is named"))?;
        names::check_database(&name)?;
        let concerns = DatabaseOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::majority())
            .selection_criteria(connect::primary())
            .build();
        let location = format!("MongoDB database {name}");
        Ok(MongoStore {
            database: client.database_with_options(&name, concerns),
            names: Arc::new(Names::with_prefix(&options.prefix)),
            ids: Arc::new(UuidV7::default()),
            key_locks: Arc::default(),
            memory: Arc::default(),
            leases: Arc::default(),
            location: location.into(),
        })
    }

    /// Takes identifiers from another source; for tests that want to foretell them.
    pub fn with_ids(mut self, ids: Arc<dyn IdSource>) -> Self {
        self.ids = ids;
        self
    }

    /// The database of the outbox.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The client that it is reached through.
    pub fn client(&self) -> &Client {
        self.database.client()
    }

    /// [`Transaction::append`](super::Transaction::append) in a transaction that the caller started on `session`.
    ///
    /// # Errors
    /// `Misconfigured` when no transaction is started on the session: each write would stand alone. See
    /// [`Transaction::append`](super::Transaction::append) for the others.
    pub async fn append_in(
        &self,
        session: &mut ClientSession,
        events: &[NewEvent],
        now: Timestamp,
    ) -> Result<Vec<Appended>> {
        transaction::require_started(session).await?;
        append::append(self, session, events, now).await
    }

    /// [`Transaction::complete`](super::Transaction::complete) in a transaction that the caller started on `session`.
    ///
    /// # Errors
    /// `Misconfigured` when no transaction is started on the session.
    pub async fn complete_in(
        &self,
        session: &mut ClientSession,
        lease: &Lease,
        now: Timestamp,
    ) -> Result<Fenced> {
        transaction::require_started(session).await?;
        settle::complete_in(self, session, lease, now).await
    }

    /// Starts a transaction that the caller commits or aborts.
    ///
    /// # Errors
    /// `Unavailable` when no session can be had.
    pub async fn begin(&self) -> Result<MongoTransaction> {
        MongoTransaction::begin(self).await
    }

    /// Payloads and deliveries are read and written as raw documents alone: see [`json`].
    fn deliveries(&self) -> Collection<RawDocumentBuf> {
        self.database.collection(&self.names.deliveries)
    }

    fn event_collection(&self) -> Collection<RawDocumentBuf> {
        self.database.collection(&self.names.events)
    }

    fn key_collection(&self) -> Collection<RawDocumentBuf> {
        self.database.collection(&self.names.key_sequences)
    }

    fn control_collection(&self) -> Collection<Document> {
        self.database.collection(&self.names.controls)
    }

    /// Updates one delivery, if it passes the filter; returns whether it did. The driver sends it again after a lost
    /// connection, and the server does it once.
    async fn update_delivery(
        &self,
        doing: &str,
        filter: Document,
        update: UpdateModifications,
    ) -> Result<bool> {
        let deliveries = self.deliveries();
        let update = deliveries.update_one(filter, update).hint(Hint::Keys(doc! { "_id": 1 }));
        match tokio::time::timeout(WRITE_PATIENCE, update.into_future()).await {
            Ok(result) => Ok(result.map_err(|error| classify(doing, error))?.matched_count > 0),
            Err(_) => {
                let message = format!("{doing} failed: no answer within {WRITE_PATIENCE:?}");
                Err(StoreError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Several update statements on the deliveries in one round trip; returns how many documents changed. After a lost connection its
    /// outcome is unknown, as the driver cannot send it again.
    async fn update_deliveries(&self, doing: &str, statements: Vec<Document>) -> Result<u64> {
        self.send_updates(doing, statements, false).await
    }

    /// The same, each statement after the one before it, and none after one that failed.
    async fn update_deliveries_in_order(&self, doing: &str, statements: Vec<Document>) -> Result<u64> {
        self.send_updates(doing, statements, true).await
    }

    async fn send_updates(&self, doing: &str, statements: Vec<Document>, in_order: bool) -> Result<u64> {
        if statements.is_empty() {
            return Ok(0);
        }
        let command = doc! {
            "update": &self.names.deliveries,
            "updates": statements,
            "ordered": in_order,
            "writeConcern": { "w": "majority" },
            "maxTimeMS": i64::try_from(WRITE_PATIENCE.as_millis()).unwrap_or(i64::MAX),
        };
        let reply = self.database.run_command(command).selection_criteria(connect::primary()).await;
        settle::changed_by(doing, reply.map_err(|error| classify(doing, error))?)
    }
}

#[async_trait]
impl Store for MongoStore {
    fn location(&self) -> String {
        self.location.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { parking: true, durable: true }
    }

    async fn setup(&self) -> Result<SetupReport> {
        connect::check_deployment(&self.database).await?;
        schema::setup(&self.database, &self.names).await
    }

    async fn check_setup(&self) -> Result<Vec<SetupFinding>> {
        schema::check(&self.database, &self.names).await
    }

    async fn server_time(&self) -> Result<Option<Timestamp>> {
        connect::server_time(&self.database).await.map(Some)
    }

    async fn close(&self) {
        self.client().clone().shutdown().immediate(true).await;
    }

    async fn transaction(&self, work: &mut TransactionWork<'_>) -> Result<()> {
        transaction::run(self, work).await
    }

    fn check_writes(&self, collections: &[String]) -> Result<()> {
        write::check(self, collections)
    }

    async fn append(&self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        transaction::append(self, events, now).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>> {
        claim::claim(self, request).await
    }

    async fn events(&self, ids: &[EventId]) -> Result<Vec<Event>> {
        list::events(self, ids).await
    }

    async fn settle(&self, settlements: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>> {
        settle::settle(self, settlements, now).await
    }

    fn wake_ups(&self, handlers: &[String]) -> Option<BoxStream<'static, Result<()>>> {
        Some(watch::wake_ups(self, handlers))
    }

    async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>> {
        list::get(self, id).await
    }

    fn list(&self, query: &ListQuery) -> BoxStream<'_, Result<Delivery>> {
        list::list(self, query.clone())
    }

    async fn count(&self, selection: &Selection) -> Result<u64> {
        list::count(self, selection).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        statistics::statistics(self).await
    }

    async fn queue_depths(&self, handlers: &[String]) -> Result<Vec<QueueDepth>> {
        statistics::queue_depths(self, handlers).await
    }

    async fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> Result<KeyState> {
        inquire::key_state(self, handler, key, now).await
    }

    async fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> Result<u64> {
        inquire::waiting_behind(self, handler, key, sequence).await
    }

    async fn handler_activity(&self, handler: &str, now: Timestamp) -> Result<HandlerActivity> {
        inquire::handler_activity(self, handler, now).await
    }

    async fn repair(&self, id: &DeliveryId, repair: &Repair, now: Timestamp) -> Result<RepairOutcome> {
        repair::repair(self, id, repair, now).await
    }

    async fn repair_selected(
        &self,
        ids: &[DeliveryId],
        selection: &Selection,
        repair: &Repair,
        now: Timestamp,
    ) -> Result<u64> {
        repair::repair_selected(self, ids, selection, repair, now).await
    }

    async fn recover(&self, handlers: &[String], now: Timestamp) -> Result<u64> {
        repair::recover(self, handlers, now).await
    }

    async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeBatch> {
        retention::purge_batch(self, request).await
    }

    async fn count_purgeable(&self, request: &PurgeRequest) -> Result<u64> {
        retention::count_purgeable(self, request).await
    }

    fn export(&self, filter: &Filter, cutoff: Timestamp) -> BoxStream<'_, Result<ExportLine>> {
        export::export(self, filter.clone(), cutoff)
    }

    async fn import(&self, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>> {
        import::import(self, lines, dry_run).await
    }

    async fn events_without(&self, request: &BackfillRequest) -> Result<BackfillPage> {
        backfill::events_without(self, request).await
    }

    async fn extend(&self, events: &[EventId], handler: &str, now: Timestamp) -> Result<Extended> {
        backfill::extend(self, events, handler, now).await
    }

    fn key_sequences(&self, prefix: Option<&str>) -> BoxStream<'_, Result<KeySequence>> {
        list::key_sequences(self, prefix)
    }

    async fn prune_keys(&self, request: &PruneRequest) -> Result<PruneBatch> {
        retention::prune_keys(self, request).await
    }

    async fn pauses(&self, now: Timestamp) -> Result<Vec<Pause>> {
        controls::pauses(self, now).await
    }

    async fn pause(&self, pause: &Pause) -> Result<Option<Pause>> {
        controls::pause(self, pause).await
    }

    async fn resume(&self, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
        controls::resume(self, handler, now).await
    }

    async fn tripped_breakers(&self, now: Timestamp) -> Result<Vec<TrippedBreaker>> {
        controls::tripped_breakers(self, now).await
    }

    async fn report_breaker(&self, breaker: &TrippedBreaker, now: Timestamp) -> Result<()> {
        controls::report_breaker(self, breaker, now).await
    }

    async fn forget_breaker(&self, handler: &str, worker: &str) -> Result<()> {
        controls::forget_breaker(self, handler, worker).await
    }
}
