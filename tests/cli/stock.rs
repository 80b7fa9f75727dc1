//! What tests of changing commands need: deliveries in every state, and the binary as scripts, cron and people at a
//! terminal run it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, DeliveryId, Event, Failure, FailureKind, NewEvent, Status, Timestamp};
use relayctl::store::{ClaimRequest, Fenced, Outcome, Repair, RepairOutcome, Settlement, Store as _};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::runtime::Runtime;

use crate::harness::{Ended, Sandbox, wait_until, write_config};

/// No command of these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const DAY: Duration = Duration::from_secs(86_400);

/// The handler that things are for unless said otherwise.
pub const HANDLER: &str = "projector";

/// So long before now.
pub fn before(duration: Duration) -> Timestamp {
    SystemClock.now().saturating_sub(duration)
}

/// An event for [`HANDLER`].
pub fn order() -> NewEvent {
    NewEvent::new("order.placed.v1", json!({"total": 12})).handler(HANDLER)
}

// ---- what is in the store ----------------------------------------------------------------------------------------

impl Sandbox {
    /// Appends events created at `at`; the ids of their deliveries.
    pub fn deliver(&self, events: &[NewEvent], at: Timestamp) -> Vec<DeliveryId> {
        let appended = self.with_store(async |store| store.append(events, at).await).expect("append");
        appended.into_iter().flat_map(|event| event.deliveries).map(|delivery| delivery.id).collect()
    }

    pub fn pending(&self, count: usize) -> Vec<DeliveryId> {
        self.deliver(&vec![order(); count], before(SECOND))
    }

    /// Deliveries that a worker took so long ago, under a lease of a minute, and what it would report of them.
    pub fn processing(&self, count: usize, ago: Duration) -> Vec<Settlement> {
        let now = before(ago);
        self.deliver(&vec![order(); count], now);
        let (handlers, lease) = (vec![HANDLER.to_owned()], Duration::from_secs(60));
        let request = ClaimRequest { handlers, limit: count, lease, owner: "worker".to_owned(), now };
        let claimed = self.with_store(async |store| store.claim(&request).await).expect("claim");
        assert_eq!(claimed.len(), count);
        claimed
            .into_iter()
            .map(|claimed| Settlement { lease: claimed.lease, outcome: Outcome::Complete })
            .collect()
    }

    pub fn completed(&self, count: usize, ago: Duration) -> Vec<DeliveryId> {
        self.finished(count, ago, &Outcome::Complete)
    }

    pub fn dead(&self, count: usize) -> Vec<DeliveryId> {
        self.dead_since(count, SECOND)
    }

    pub fn dead_since(&self, count: usize, ago: Duration) -> Vec<DeliveryId> {
        let failure = Failure::new(FailureKind::Failed, "connection refused");
        self.finished(count, ago, &Outcome::Bury { failure })
    }

    fn finished(&self, count: usize, ago: Duration, outcome: &Outcome) -> Vec<DeliveryId> {
        let mut settlements = self.processing(count, ago);
        settlements.iter_mut().for_each(|settlement| settlement.outcome = outcome.clone());
        assert!(self.report(&settlements, ago).iter().all(|&fenced| fenced == Fenced::Applied));
        settlements.into_iter().map(|settlement| settlement.lease.delivery_id).collect()
    }

    /// A worker reports so long ago.
    pub fn report(&self, settlements: &[Settlement], ago: Duration) -> Vec<Fenced> {
        self.with_store(async |store| store.settle(settlements, before(ago)).await).expect("settle")
    }

    /// An operator gives a delivery up so long ago.
    pub fn bury(&self, id: &DeliveryId, ago: Duration) {
        let bury = Repair::Bury { reason: "not needed".to_owned() };
        let buried = self.with_store(async |store| store.repair(id, &bury, before(ago)).await).expect("bury");
        assert_eq!(buried, RepairOutcome::Changed);
    }

    pub fn get(&self, id: &DeliveryId) -> Delivery {
        let delivery = self.with_store(async |store| store.get(id).await).expect("get");
        delivery.unwrap_or_else(|| panic!("delivery {id} is there"))
    }

    pub fn status(&self, id: &DeliveryId) -> Status {
        self.get(id).status
    }

    /// How many deliveries there are in each status.
    pub fn census(&self) -> BTreeMap<Status, usize> {
        let mut census = BTreeMap::new();
        for delivery in self.deliveries() {
            *census.entry(delivery.status).or_default() += 1;
        }
        census
    }

    /// The events of all deliveries.
    pub fn events(&self) -> Vec<Event> {
        let mut ids: Vec<_> = self.deliveries().into_iter().map(|delivery| delivery.event_id).collect();
        ids.dedup();
        self.with_store(async |store| store.events(&ids).await).expect("events")
    }
}

// ---- the binary --------------------------------------------------------------------------------------------------

impl Sandbox {
    /// A file in the home directory.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// A profile with these settings, named `production`.
    pub fn production(&self, settings: &str) {
        write_config(self.home.path(), &format!("[profiles.production]\n{settings}\n"));
    }

    /// Runs the binary with a text on its standard input.
    pub fn run_reading(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Ended {
        self.start(arguments).reads_to_its_end(input.as_ref())
    }

    /// Starts the binary with a standard input that stays open.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command();
        command.args(arguments);
        Running::start(command)
    }

    /// Runs a script in which `relayctl` is the binary.
    pub fn sh(&self, script: &str) -> Ended {
        let script = format!("relayctl() {{ {} \"$@\"; }}\n{script}", env!("CARGO_BIN_EXE_relayctl"));
        let binary = self.command();
        let mut shell = Command::new("sh");
        shell.env_clear().args(["-c", &script]);
        shell.envs(binary.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Running::start(shell).reads_to_its_end(&[])
    }

    /// Starts the binary on a terminal of 100 columns.
    pub fn at_terminal(&self, arguments: &[&str]) -> Terminal {
        let mut command = self.command();
        command.env("TERM", "xterm").args(arguments);
        Terminal::start(command)
    }
}

/// A command that runs, behind pipes.
pub struct Running {
    runtime: Runtime,
    child: Child,
    input: ChildStdin,
}

impl Running {
    /// Starts a command with a standard input that stays open.
    pub fn start(mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let runtime = Runtime::new().expect("a runtime");
        let _guard = runtime.enter();
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("it runs");
        let input = child.stdin.take().expect("a pipe");
        drop(_guard);
        Running { runtime, child, input }
    }

    pub fn types(&mut self, text: &str) {
        self.runtime.block_on(self.input.write_all(text.as_bytes())).expect("type");
    }

    pub fn interrupt(&self) {
        self.send(Signal::SIGINT);
    }

    pub fn send(&self, signal: Signal) {
        let pid = self.child.id().expect("it runs").try_into().expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("a signal");
    }

    /// Waits for its end while its standard input stays open.
    pub fn ends(self) -> Ended {
        let Running { runtime, child, input } = self;
        let ended = runtime.block_on(wait(child));
        drop(input);
        ended
    }

    /// A command that ends early leaves some of its input unread.
    fn reads_to_its_end(self, text: &[u8]) -> Ended {
        let Running { runtime, child, mut input } = self;
        let writing = async move {
            let _ = input.write_all(text).await;
        };
        runtime.block_on(async { tokio::join!(wait(child), writing).0 })
    }
}

async fn wait(child: Child) -> Ended {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("it ends in time").expect("output");
    Ended {
        status: output.status,
        stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// A command that runs on a terminal.
pub struct Terminal {
    child: std::process::Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let stream = || Stdio::from(pty.slave.try_clone().expect("a stream"));
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().expect("it runs");
        // Once nobody holds the other end any more, reading ends.
        drop((command, pty.slave));
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut master, shown) = (File::from(pty.master), Arc::clone(&screen));
        let keyboard = master.try_clone().expect("a keyboard");
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of a terminal shows as an error, after everything was read.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                shown.lock().expect("the screen").extend(&bytes[..count]);
            }
        });
        Terminal { child, keyboard, screen, reader }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("the screen")).replace("\r\n", "\n")
    }

    /// Waits until `text` is on the screen.
    pub fn until(&self, text: &str) {
        wait_until(text, || self.shown().contains(text));
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("type");
    }

    /// Types `text` until it ends. A key that comes before the question reads keys may be lost.
    pub fn insists(mut self, text: &str) -> Ended {
        wait_until("it ends", || {
            let _ = self.keyboard.write_all(text.as_bytes());
            self.child.try_wait().expect("wait").is_some()
        });
        self.ends()
    }

    /// Waits for its end; both of its streams are in `stdout`.
    pub fn ends(mut self) -> Ended {
        wait_until("it ends", || self.child.try_wait().expect("wait").is_some());
        let status = self.child.wait().expect("wait");
        let Terminal { reader, keyboard, screen, .. } = self;
        reader.join().expect("the reader");
        drop(keyboard);
        let stdout = String::from_utf8_lossy(&screen.lock().expect("the screen")).replace("\r\n", "\n");
        Ended { status, stdout, stderr: String::new() }
    }
}

impl Ended {
    /// Standard output is exactly this.
    #[track_caller]
    pub fn prints(self, text: &str) -> Ended {
        assert_eq!(self.stdout, text, "{self:#?}");
        self
    }

    /// Standard error mentions this.
    #[track_caller]
    pub fn complains(self, text: &str) -> Ended {
        assert!(self.stderr.contains(text), "no `{text}`: {self:#?}");
        self
    }

    /// Standard error is empty.
    #[track_caller]
    pub fn without_noise(self) -> Ended {
        assert_eq!(self.stderr, "", "{self:#?}");
        self
    }
}
