//! Running the binary, and preparing the store that it works on.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, Failure, FailureKind, ListQuery, NewEvent, Timestamp};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{ClaimRequest, Outcome, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// No command of these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a command ended, and what it wrote.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The exit code; a panic or a signal has none that a test could expect.
    pub fn code(&self) -> i32 {
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }

    /// Makes sure of the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Ended {
        assert_eq!(self.code(), code, "{self:#?}");
        self
    }

    /// Standard output of a command that is done and had nothing to say.
    #[track_caller]
    pub fn quiet_stdout(self) -> String {
        let ended = self.exits(0);
        assert_eq!(ended.stderr, "");
        ended.stdout
    }

    /// Standard output as one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// The binary with an environment that holds nothing but what is given here.
pub fn relayctl(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relayctl"));
    command
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin")
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end, which has to come in time.
pub fn finish(mut command: Command) -> Ended {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut command = tokio::process::Command::from(command);
        let output = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, output).await.expect("the command ends in time");
        let output = output.expect("the binary runs");
        Ended {
            status: output.status,
            stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
        }
    })
}

/// Waits until something holds.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The server that `dev/test` offers.
pub fn server() -> String {
    std::env::var("RELAYCTL_TEST_MONGODB_URI").unwrap_or_else(|_| {
        panic!("RELAYCTL_TEST_MONGODB_URI is not set: run these tests with dev/test, which starts a server")
    })
}

/// The URL of a database on the server at `uri`.
pub fn url_of(uri: &str, database: &str) -> String {
    let (hosts, options) = uri.split_once("/?").unwrap_or((uri.trim_end_matches('/'), ""));
    format!("{hosts}/{database}?{options}")
}

/// A home directory and a database of its own, which is dropped at the end.
pub struct Sandbox {
    pub home: TempDir,
    pub url: String,
    pub database: String,
    runtime: Runtime,
    client: mongodb::Client,
    store: MongoStore,
}

impl Sandbox {
    /// A database in which `setup` was run.
    pub fn new() -> Sandbox {
        Sandbox::on(&server())
    }

    /// The same on another server.
    pub fn on(uri: &str) -> Sandbox {
        let sandbox = Sandbox::empty_on(uri);
        sandbox.runtime.block_on(sandbox.store.setup()).expect("setup");
        sandbox
    }

    /// An empty database.
    pub fn without_schema() -> Sandbox {
        Sandbox::empty_on(&server())
    }

    fn empty_on(uri: &str) -> Sandbox {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let database = format!("cli_{}_{number}_{}", std::process::id(), SystemClock.now().as_millis());
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(mongodb::Client::with_uri_str(uri)).expect("a client");
        let options = MongoOptions { database: Some(database.clone()), ..MongoOptions::default() };
        let store = {
            let _guard = runtime.enter();
            MongoStore::new(&client, options).expect("a store")
        };
        let home = tempfile::tempdir().expect("a temporary directory");
        Sandbox { home, url: url_of(uri, &database), database, runtime, client, store }
    }

    /// The binary, with the store in its environment.
    pub fn command(&self) -> Command {
        let mut command = relayctl(self.home.path());
        command.env("RELAYCTL_STORE", &self.url);
        command
    }

    /// Runs the binary with these arguments.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ended {
        let mut command = self.command();
        command.args(arguments);
        finish(command)
    }

    /// Runs the binary with arguments that are separated by spaces.
    pub fn go(&self, line: &str) -> Ended {
        self.run(line.split_whitespace())
    }

    /// Writes the configuration file.
    pub fn configure(&self, toml: &str) {
        write_config(self.home.path(), toml);
    }

    /// Does something with the store.
    pub fn with_store<T>(&self, work: impl AsyncFnOnce(&MongoStore) -> T) -> T {
        self.runtime.block_on(work(&self.store))
    }

    /// Appends events, created at `now`.
    pub fn append(&self, events: &[NewEvent], now: Timestamp) {
        self.with_store(async |store| store.append(events, now).await).expect("append");
    }

    /// Claims what is due at `now` for a handler and reports an outcome for all of it.
    pub fn settle(&self, handler: &str, outcome: &Outcome, now: Timestamp) -> usize {
        let claimed = self.claim(handler, Duration::from_secs(60), now);
        self.with_store(async |store| {
            let store: &dyn Store = store;
            for delivery in &claimed {
                let lease = delivery.lease().expect("a claimed delivery has a lease");
                let _ = store.settle_one(&lease, outcome.clone(), now).await.expect("settle");
            }
        });
        claimed.len()
    }

    /// Claims what is due at `now` for a handler.
    pub fn claim(&self, handler: &str, lease: Duration, now: Timestamp) -> Vec<Delivery> {
        let request = ClaimRequest {
            handlers: vec![handler.to_owned()],
            limit: 100,
            lease,
            owner: "worker-host:4711".to_owned(),
            now,
        };
        let claimed = self.with_store(async |store| store.claim(&request).await).expect("claim");
        claimed.into_iter().map(|claimed| claimed.delivery).collect()
    }

    /// All deliveries, in order of creation.
    pub fn deliveries(&self) -> Vec<Delivery> {
        use futures_util::TryStreamExt as _;
        let query = ListQuery::default();
        self.with_store(async |store| store.list(&query).try_collect().await).expect("list")
    }

    /// The id of the delivery of an event.
    pub fn delivery_of(&self, event: &str) -> String {
        let found = self.deliveries().into_iter().find(|delivery| delivery.event_id.as_str() == event);
        found.unwrap_or_else(|| panic!("event {event} has a delivery")).id.to_string()
    }

    /// Does something with the database past the store, as another client could.
    pub fn with_database<T>(&self, work: impl AsyncFnOnce(mongodb::Database) -> T) -> T {
        self.runtime.block_on(work(self.client.database(&self.database)))
    }

    /// Inserts a document past the store.
    pub fn insert_raw(&self, collection: &str, document: mongodb::bson::Document) {
        self.with_database(async |database| database.collection(collection).insert_one(document).await)
            .expect("insert");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The data of a server that is a test's own goes with it; by now it may be dead.
        if self.url != url_of(&server(), &self.database) {
            return;
        }
        let database = self.client.database(&self.database);
        let _ = self.runtime.block_on(async { database.drop().await });
    }
}

/// Writes the configuration file below a home directory.
pub fn write_config(home: &Path, toml: &str) {
    let directory = home.join(".config").join("relayctl");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("config.toml"), toml).expect("a file");
}

/// So many seconds before now.
pub fn ago(seconds: u64) -> Timestamp {
    SystemClock.now().saturating_sub(Duration::from_secs(seconds))
}

/// An event with an id of its own, for the handler `projector`.
pub fn event(id: &str) -> NewEvent {
    NewEvent::new("order.placed.v1", json!({ "order": id })).id(id).handler("projector")
}

/// The outcome of a handler that gives up.
pub fn buried(message: &str) -> Outcome {
    Outcome::Bury { failure: Failure::new(FailureKind::Rejected, message) }
}

/// A mongod of its own without a replica set, which ends with it.
pub struct StandaloneServer {
    process: std::process::Child,
    pub port: u16,
    _data: TempDir,
}

impl StandaloneServer {
    /// Starts one and waits until it listens.
    pub fn start() -> StandaloneServer {
        let binary = std::env::var_os("RELAYCTL_MONGOD")
            .expect("RELAYCTL_MONGOD is not set: run these tests with dev/test, which finds a mongod");
        let data = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let process = Command::new(binary)
            .args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--quiet", "--wiredTigerCacheSizeGB", "0.25"])
            .arg("--port")
            .arg(port.to_string())
            .arg("--dbpath")
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mongod runs");
        wait_until("mongod listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        StandaloneServer { process, port, _data: data }
    }
}

impl Drop for StandaloneServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port on which nobody listens.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
