//! A server of a test's own, to which it can do what it likes.

use std::process::Command;

use mongodb::bson::{Document, doc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::Sandbox;

/// One that goes away at the end of the test.
pub struct Server {
    name: String,
    pub uri: String,
}

impl Server {
    pub fn start(name: &str, options: &[&str]) -> Server {
        let name = format!("test-{name}-{}", std::process::id());
        let uri = dev_mongo(&[&["start", "--name", &name], options].concat());
        Server { name, uri: uri.trim().to_owned() }
    }

    /// Sends a signal to all its processes.
    pub fn send(&self, signal: Signal) {
        for pid in self.pids() {
            kill(Pid::from_raw(pid), signal).expect("a signal");
        }
    }

    /// Whether none of its processes is there any more.
    pub fn is_dead(&self) -> bool {
        self.pids().is_empty()
    }

    fn pids(&self) -> Vec<i32> {
        let data = format!("/mongo/{}/", self.name);
        let is_ours = |pid: &i32| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            arguments.any(|argument| argument.starts_with("--dbpath=") && argument.contains(&data))
        };
        super::processes::all().into_iter().map(|process| process.pid).filter(is_ours).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.send(Signal::SIGCONT);
        dev_mongo(&["stop", "--wipe", "--name", &self.name]);
    }
}

fn dev_mongo(arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dev/mongo");
    let output = Command::new(script).args(arguments).output().expect("dev/mongo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "dev/mongo {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

impl Sandbox {
    /// How many deliveries match.
    pub fn count(&self, filter: Document) -> u64 {
        let count = async |database: mongodb::Database| {
            database.collection::<Document>("relaybus_deliveries").count_documents(filter).await
        };
        self.with_database(count).expect("count")
    }

    /// How many deliveries are completed.
    pub fn completed_by_now(&self) -> u64 {
        self.count(doc! { "status": "completed" })
    }

    /// Runs a command of administrators.
    pub fn administer(&self, command: Document) -> mongodb::error::Result<Document> {
        self.with_database(async |database| database.client().database("admin").run_command(command).await)
    }
}
