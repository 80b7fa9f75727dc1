//! A store in a database of its own, and the raw collections behind it.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use relayctl::model::{NewEvent, Timestamp};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{ClaimRequest, Claimed, Store};
use serde_json::json;

/// The instant at which every test begins.
pub const NOW: Timestamp = Timestamp::from_millis(1_764_528_000_000);

/// How long leases last here.
pub const LEASE: Duration = Duration::from_secs(30);

/// The URL of the replica set that the tests run on.
pub fn uri() -> String {
    std::env::var("RELAYCTL_TEST_MONGODB_URI").expect(
        "RELAYCTL_TEST_MONGODB_URI names no replica set: run the tests with dev/test, or start one with dev/mongo start",
    )
}

/// A store that is set up, in a database that goes away with it.
pub struct Fixture {
    pub store: MongoStore,
    pub database: String,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with_options("").await
    }

    /// A store that is reached through a URL with further options.
    pub async fn with_options(options: &str) -> Self {
        let fixture = Self::bare(options).await;
        fixture.store.setup().await.expect("setup");
        fixture
    }

    /// The same without collections.
    pub async fn bare(options: &str) -> Self {
        let database = format!("relayctl_mongo_{}", uuid::Uuid::now_v7().simple());
        let uri = uri();
        let separator = if uri.contains('?') { '&' } else { '?' };
        let options = if options.is_empty() { String::new() } else { format!("{separator}{options}") };
        let mongo = MongoOptions { database: Some(database.clone()), ..MongoOptions::default() };
        let store = MongoStore::connect(&format!("{uri}{options}"), mongo).await.expect("connect");
        Fixture { store, database }
    }

    /// Ends the test: drops the database and closes the connections.
    pub async fn end(self) {
        self.store.client().database(&self.database).drop().await.expect("drop");
        self.store.close().await;
    }

    pub fn raw(&self, collection: &str) -> Collection<Document> {
        self.store.database().collection(&format!("relaybus_{collection}"))
    }

    pub fn deliveries(&self) -> Collection<Document> {
        self.raw("deliveries")
    }

    /// A document as it is stored.
    pub async fn delivery(&self, id: &str) -> Document {
        self.deliveries()
            .find_one(doc! { "_id": id })
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("delivery {id} is there"))
    }

    /// Stores a document of another client, with its event unless the test has stored one.
    pub async fn insert(&self, delivery: Document) {
        self.deliveries().insert_one(delivery).await.expect("insert");
    }

    pub async fn claim(&self, limit: usize, now: Timestamp) -> Vec<Claimed> {
        self.store.claim(&claim_request(&["h"], limit, now)).await.expect("claim")
    }

    pub async fn append(&self, events: &[NewEvent]) -> Vec<String> {
        let appended = self.store.append(events, NOW).await.expect("append");
        appended
            .iter()
            .flat_map(|event| event.deliveries.iter().map(|delivery| delivery.id.to_string()))
            .collect()
    }
}

pub fn claim_request(handlers: &[&str], limit: usize, now: Timestamp) -> ClaimRequest {
    let handlers = handlers.iter().map(|handler| (*handler).to_owned()).collect();
    ClaimRequest { handlers, limit, lease: LEASE, owner: "worker".into(), now }
}

/// An event for handler `h`.
pub fn event() -> NewEvent {
    NewEvent::new("order.placed.v1", json!({ "orderId": "o-1" })).handler("h")
}

pub fn later(seconds: u64) -> Timestamp {
    NOW.saturating_add(Duration::from_secs(seconds))
}

pub fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| claimed.delivery.id.as_str()).collect()
}

/// What a delivery needs at the least, as another client might write it.
pub fn minimal(id: &str) -> Document {
    doc! {
        "_id": id,
        "eventId": format!("event of {id}"),
        "handler": "h",
        "status": "pending",
        "lane": "ready",
        "dueAt": mongodb::bson::DateTime::from_millis(NOW.as_millis()),
    }
}

/// A client that keeps every command that it sends.
pub async fn spied_client() -> (Client, Arc<std::sync::Mutex<Vec<Document>>>) {
    spied_client_at(&uri()).await
}

/// The same for a URL with options of its own.
pub async fn spied_client_at(uri: &str) -> (Client, Arc<std::sync::Mutex<Vec<Document>>>) {
    let sent = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut options = mongodb::options::ClientOptions::parse(uri).await.expect("uri");
    let keep = sent.clone();
    options.command_event_handler = Some(mongodb::event::EventHandler::callback(move |event| {
        if let mongodb::event::command::CommandEvent::Started(started) = event {
            keep.lock().unwrap().push(started.command);
        }
    }));
    (Client::with_options(options).expect("client"), sent)
}

/// A server of a test's own, which goes away with it.
pub struct Server {
    name: String,
    pub uri: String,
}

impl Server {
    pub fn start(name: &str, options: &[&str]) -> Self {
        let name = format!("test-{name}-{}", std::process::id());
        let uri = dev_mongo(&[&["start", "--name", &name], options].concat());
        Server { name, uri }
    }

    /// Starts it again, with its data, wherever it was.
    pub fn restart(&self) {
        dev_mongo(&["restart", "--name", &self.name]);
    }

    /// `host:port` of each member.
    pub fn hosts(&self) -> Vec<String> {
        let hosts = self.uri.trim_start_matches("mongodb://").split('/').next().unwrap_or_default();
        hosts.split(',').map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        dev_mongo(&["stop", "--wipe", "--name", &self.name]);
    }
}

fn dev_mongo(arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dev/mongo");
    let output = std::process::Command::new(script).args(arguments).output().expect("dev/mongo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "dev/mongo {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}
