//! A shop with an outbox: a database of its own, deliveries in every state, and the binary beside it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{
    Delivery, DeliveryId, Event, Failure, FailureKind, ListQuery, NewEvent, Status, Timestamp,
};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{ClaimRequest, Fenced, Outcome, Settlement, Store as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};

/// How long anything may take before a test gives it up.
const PATIENCE: Duration = Duration::from_secs(60);

pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const DAY: Duration = Duration::from_secs(86_400);

/// The handler that things are for unless said otherwise.
pub const HANDLER: &str = "projector";

pub struct Shop {
    pub store: MongoStore,
    uri: String,
    database: String,
    home: tempfile::TempDir,
}

/// Runs a case in a shop of its own, which is gone afterwards even if the case panics.
pub async fn visit(case: impl AsyncFnOnce(&Shop)) {
    let shop = Shop::open().await;
    shop.store.setup().await.expect("setup");
    shop.run(case).await;
}

/// The same in a shop that is not set up.
pub async fn visit_before_setup(case: impl AsyncFnOnce(&Shop)) {
    Shop::open().await.run(case).await;
}

impl Shop {
    async fn open() -> Shop {
        let uri = std::env::var("RELAYCTL_TEST_MONGODB_URI").expect(
            "RELAYCTL_TEST_MONGODB_URI names no replica set: run the tests with dev/test, or start one with dev/mongo",
        );
        let database = format!("relayctl_cli_{}", uuid::Uuid::now_v7().simple());
        let options = MongoOptions { database: Some(database.clone()), ..MongoOptions::default() };
        let store = MongoStore::connect(&uri, options).await.expect("connect");
        Shop { store, uri, database, home: tempfile::tempdir().expect("a folder") }
    }

    async fn run(self, case: impl AsyncFnOnce(&Shop)) {
        let verdict = AssertUnwindSafe(case(&self)).catch_unwind().await;
        self.store.database().drop().await.expect("drop");
        self.store.close().await;
        if let Err(panic) = verdict {
            resume_unwind(panic);
        }
    }

    // ---- what is in it -----------------------------------------------------------------------------------------

    pub fn ago(&self, duration: Duration) -> Timestamp {
        SystemClock.now().saturating_sub(duration)
    }

    pub async fn append(&self, events: &[NewEvent], at: Timestamp) -> Vec<DeliveryId> {
        let appended = self.store.append(events, at).await.expect("append");
        appended.into_iter().flat_map(|event| event.deliveries).map(|delivery| delivery.id).collect()
    }

    pub async fn pending(&self, count: usize) -> Vec<DeliveryId> {
        self.append(&vec![event(); count], self.ago(SECOND)).await
    }

    /// Deliveries that a worker took `ago`, under a lease that lasts a minute.
    pub async fn processing(&self, count: usize, ago: Duration) -> Vec<Settlement> {
        let at = self.ago(ago);
        self.append(&vec![event(); count], at).await;
        let handlers = vec![HANDLER.to_owned()];
        let lease = Duration::from_secs(60);
        let request = ClaimRequest { handlers, limit: count, lease, owner: "worker".to_owned(), now: at };
        let claimed = self.store.claim(&request).await.expect("claim");
        assert_eq!(claimed.len(), count);
        claimed
            .into_iter()
            .map(|claimed| Settlement { lease: claimed.lease, outcome: Outcome::Complete })
            .collect()
    }

    pub async fn completed(&self, count: usize, ago: Duration) -> Vec<DeliveryId> {
        self.finished(count, ago, Outcome::Complete).await
    }

    pub async fn dead(&self, count: usize) -> Vec<DeliveryId> {
        self.dead_since(count, SECOND).await
    }

    pub async fn dead_since(&self, count: usize, ago: Duration) -> Vec<DeliveryId> {
        let failure = Failure::new(FailureKind::Failed, "connection refused");
        self.finished(count, ago, Outcome::Bury { failure }).await
    }

    async fn finished(&self, count: usize, ago: Duration, outcome: Outcome) -> Vec<DeliveryId> {
        let mut settlements = self.processing(count, ago).await;
        settlements.iter_mut().for_each(|settlement| settlement.outcome = outcome.clone());
        let fenced = self.store.settle(&settlements, self.ago(ago)).await.expect("settle");
        assert!(fenced.iter().all(|&fenced| fenced == Fenced::Applied));
        settlements.into_iter().map(|settlement| settlement.lease.delivery_id).collect()
    }

    pub async fn all(&self) -> Vec<Delivery> {
        self.store.list(&ListQuery::default()).map(|delivery| delivery.expect("a delivery")).collect().await
    }

    pub async fn get(&self, id: &DeliveryId) -> Delivery {
        self.store.get(id).await.expect("get").unwrap_or_else(|| panic!("delivery {id} is there"))
    }

    pub async fn status(&self, id: &DeliveryId) -> Status {
        self.get(id).await.status
    }

    /// How many deliveries there are in each status.
    pub async fn census(&self) -> BTreeMap<Status, usize> {
        let mut census = BTreeMap::new();
        for delivery in self.all().await {
            *census.entry(delivery.status).or_default() += 1;
        }
        census
    }

    pub async fn events(&self) -> Vec<Event> {
        let mut ids: Vec<_> = self.all().await.into_iter().map(|delivery| delivery.event_id).collect();
        ids.dedup();
        self.store.events(&ids).await.expect("events")
    }

    // ---- the binary --------------------------------------------------------------------------------------------

    /// A file in the home of whoever runs the binary.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// The binary, with nothing on its standard input.
    pub async fn relayctl(&self, arguments: &[&str]) -> Ran {
        self.relayctl_reading(arguments, "").await
    }

    pub async fn relayctl_reading(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relayctl"));
        let mut running = self.start(command.args(arguments));
        let _ = running.input.write_all(input.as_ref()).await;
        running.ends_after_input().await
    }

    /// The binary, with a standard input that stays open and never says anything.
    pub fn start_relayctl(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relayctl"));
        self.start(command.args(arguments))
    }

    /// A script in which `relayctl` is the binary.
    pub async fn sh(&self, script: &str) -> Ran {
        let script = format!("relayctl() {{ {} \"$@\"; }}\n{script}", env!("CARGO_BIN_EXE_relayctl"));
        self.start(Command::new("sh").args(["-c", &script])).ends_after_input().await
    }

    /// The binary at a terminal of 100 columns; what it prints on either stream is in `stdout`.
    pub fn at_terminal(&self, arguments: &[&str]) -> Running {
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let command = format!("stty cols 100; {} {}", env!("CARGO_BIN_EXE_relayctl"), words.join(" "));
        let mut script = Command::new("script");
        self.start(
            script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).env("TERM", "xterm"),
        )
    }

    fn start(&self, command: &mut Command) -> Running {
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name != "PATH") {
            command.env_remove(variable);
        }
        let mut child = command
            .env("HOME", self.home.path())
            .env("RELAYCTL_STORE", &self.uri)
            .env("RELAYCTL_DATABASE", &self.database)
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("spawn");
        let input = child.stdin.take().expect("a pipe");
        Running { child, input, seen: Vec::new() }
    }
}

/// An event for [`HANDLER`].
pub fn event() -> NewEvent {
    NewEvent::new("order.placed.v1", json!({"total": 12})).handler(HANDLER)
}

/// A binary that runs.
pub struct Running {
    child: Child,
    pub input: ChildStdin,
    seen: Vec<u8>,
}

impl Running {
    /// Reads standard output until `text` is on it.
    pub async fn until(&mut self, text: &str) {
        let output = self.child.stdout.as_mut().expect("a pipe");
        let seen = &mut self.seen;
        let reading = async {
            while !String::from_utf8_lossy(seen).contains(text) {
                let read = output.read_buf(seen).await.expect("read");
                assert!(read > 0, "`{text}` was not printed: {}", String::from_utf8_lossy(seen));
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("`{text}` was not printed"));
    }

    pub async fn types(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).await.expect("type");
        self.input.flush().await.expect("type");
    }

    pub fn interrupt(&self) {
        let pid = self.child.id().expect("it runs").try_into().expect("a pid");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGINT)
            .expect("kill");
    }

    /// Waits for its end while its standard input stays open.
    pub async fn ends(self) -> Ran {
        let Running { child, input, seen } = self;
        let ran = wait(child, seen).await;
        drop(input);
        ran
    }

    async fn ends_after_input(self) -> Ran {
        let Running { child, input, seen } = self;
        drop(input);
        wait(child, seen).await
    }
}

async fn wait(child: Child, mut seen: Vec<u8>) -> Ran {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("it ends in time").expect("output");
    seen.extend(output.stdout);
    Ran {
        code: output.status.code().expect("it ended by itself"),
        stdout: String::from_utf8(seen).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// A binary that has run.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// It ended with `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Standard output is exactly this.
    #[track_caller]
    pub fn prints(self, text: &str) -> Ran {
        assert_eq!(self.stdout, text, "{self:#?}");
        self
    }

    /// Standard error mentions this.
    #[track_caller]
    pub fn complains(self, text: &str) -> Ran {
        assert!(self.stderr.contains(text), "no `{text}`: {self:#?}");
        self
    }

    /// Standard error is empty.
    #[track_caller]
    pub fn without_noise(self) -> Ran {
        assert_eq!(self.stderr, "", "{self:#?}");
        self
    }

    /// Standard output as one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Waits until `condition` holds.
pub async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "it did not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
