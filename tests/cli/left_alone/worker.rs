//! Workers that run while a test does something to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::model::Status;
use serde_json::Value;

use crate::harness::{Sandbox, wait_until};

/// A worker whose log goes to a file, as that of a service does. It is killed at the end of the test.
pub struct Worker {
    child: Child,
    log: PathBuf,
}

/// How a worker ended.
#[derive(Debug)]
pub struct End {
    pub status: ExitStatus,
    pub log: Vec<Value>,
}

impl Sandbox {
    /// Starts `relayctl run` with these arguments; `name` is that of its log.
    pub fn work(&self, name: &str, arguments: &[&str]) -> Worker {
        let mut command = self.command();
        command.args(["run", "--log-format", "json"]).args(arguments);
        self.start_worker(name, command)
    }

    /// Starts what becomes a worker.
    pub fn start_worker(&self, name: &str, mut command: Command) -> Worker {
        let log = self.home.path().join(format!("{name}.log"));
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).expect("a log")).spawn();
        Worker { child: child.expect("it runs"), log }
    }
}

impl Sandbox {
    /// Waits until the lease of everything that runs now was renewed. Long before that the guard knows of its command, which it
    /// does not in the moment of the start.
    pub fn wait_for_renewals(&self) {
        let leases = || {
            let running = self.deliveries().into_iter().filter(|one| one.status == Status::Processing);
            running.map(|one| (one.id, one.lease_expires_at)).collect::<BTreeMap<_, _>>()
        };
        let before = leases();
        wait_until("leases are renewed", || {
            let now = leases();
            before.iter().all(|(id, expires_at)| now.get(id).is_none_or(|renewed| renewed > expires_at))
        });
    }
}

impl Worker {
    pub fn pid(&self) -> i32 {
        self.child.id().try_into().expect("a pid")
    }

    pub fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a signal");
    }

    /// The log as far as it is written. What is no entry is an error, for people to read.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).expect("a log");
        let whole_lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let entries = whole_lines.filter(|line| line.starts_with('{'));
        entries.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }

    /// How often something was logged.
    pub fn count(&self, event: &str) -> usize {
        count(&self.log(), event)
    }

    /// Waits until something is logged.
    pub fn until(&self, event: &str) {
        wait_until(event, || self.count(event) > 0);
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    /// Waits for its end.
    pub fn ends(mut self) -> End {
        wait_until("the worker ends", || !self.runs());
        End { status: self.child.wait().expect("wait"), log: self.log() }
    }

    /// Asks it to drain, and waits for its end, which has to be a clean one.
    pub fn drains(self) -> End {
        self.send(Signal::SIGTERM);
        let end = self.ends();
        assert_eq!(end.status.code(), Some(0), "{:#?}", end.log);
        end
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    /// What the worker counted under this name.
    #[track_caller]
    pub fn counted(&self, name: &str) -> u64 {
        let stopped = self.log.iter().find(|entry| entry["event"] == "stopped").expect("the last entry");
        stopped[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stopped}"))
    }

    /// Makes sure that what was claimed has come to exactly one end.
    #[track_caller]
    pub fn adds_up(&self) {
        let ends = ["completed", "retried", "dead", "released", "leaseLost", "snoozed"];
        let ended: u64 = ends.iter().map(|name| self.counted(name)).sum();
        assert_eq!(self.counted("claimed"), ended, "{:#?}", self.log.last());
    }

    /// How often something was logged.
    pub fn count(&self, event: &str) -> usize {
        count(&self.log, event)
    }
}

fn count(log: &[Value], event: &str) -> usize {
    log.iter().filter(|entry| entry["event"] == event).count()
}

/// Waits until something holds that may take longer than most things.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits, since this is about what happens while time passes. The only way to see that something does *not* happen.
pub fn let_pass(time: Duration) {
    std::thread::sleep(time);
}
