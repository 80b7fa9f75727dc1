//! Commands on a host whose clock is wrong: what they do to the store goes by the server's clock.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, Status, Timestamp};
use serde_json::json;

use crate::harness::{Ended, Sandbox, buried, event, finish, wait_until};
use crate::stock::{HOUR, Running, before};

const MINUTE: Duration = Duration::from_secs(60);

/// What the clocks of these tests are wrong by.
const WRONG: [&str; 2] = ["+10m", "-10m"];

/// What may lie between two looks at the clock here.
const A_MOMENT: Duration = Duration::from_secs(30);

impl Sandbox {
    /// The binary on a host whose clock is wrong. The monotonic clock of such a host is as good as any.
    fn on_a_host_that_is_off_by(&self, error: &str, arguments: &[&str]) -> Command {
        let mut command = self.on_a_host_with_another_clock(arguments);
        command.env("FAKETIME", error);
        command
    }

    /// The same with a clock whose error stands in a file, and can change.
    fn on_a_host_that_is_off_by_what_is_in(&self, file: &str, arguments: &[&str]) -> Command {
        let mut command = self.on_a_host_with_another_clock(arguments);
        command.env("FAKETIME_TIMESTAMP_FILE", self.home.path().join(file)).env("FAKETIME_NO_CACHE", "1");
        command
    }

    fn on_a_host_with_another_clock(&self, arguments: &[&str]) -> Command {
        let library = std::env::var_os("RELAYCTL_LIBFAKETIME").expect(
            "RELAYCTL_LIBFAKETIME is not set: run these tests with dev/test, which finds a libfaketime",
        );
        let mut command = self.command();
        command.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1").args(arguments);
        command
    }

    fn off_by(&self, error: &str, line: &str) -> Ended {
        finish(self.on_a_host_that_is_off_by(error, &line.split_whitespace().collect::<Vec<_>>()))
    }

    fn delivery(&self, event: &str) -> Delivery {
        let found = self.deliveries().into_iter().find(|delivery| delivery.event_id.as_str() == event);
        found.unwrap_or_else(|| panic!("event {event} has a delivery"))
    }

    /// A command that notes that it runs, and ends when the file `go` is there.
    fn waiting(&self, note: &str) -> String {
        let home = self.home.path().display();
        format!(
            "projector=echo $RELAY_EVENT_ID >> {home}/{note}; while ! test -e {home}/go; do sleep 0.01; done"
        )
    }

    /// A command that notes that it runs.
    fn noting(&self, note: &str) -> String {
        format!("projector=echo $RELAY_EVENT_ID >> {}/{note}", self.home.path().display())
    }

    fn notes(&self, note: &str) -> String {
        std::fs::read_to_string(self.home.path().join(note)).unwrap_or_default()
    }

    /// A worker that has a delivery under a live lease.
    fn holder(&self, command: Command) -> Running {
        let holder = Running::start(command);
        wait_until("the command runs", || !self.notes("held").is_empty());
        holder
    }
}

/// Whether an instant is what it should be, seen from the clock of the test, which is the server's.
#[track_caller]
fn assert_about(instant: Timestamp, expected: Timestamp) {
    let apart = instant.since(expected).max(expected.since(instant));
    assert!(apart < A_MOMENT, "{instant} is not about {expected}");
}

fn in_an_hour() -> Timestamp {
    SystemClock.now().saturating_add(HOUR)
}

/// While `holder` has the delivery, neither a worker nor `recover` take it.
fn is_left_alone(sandbox: &Sandbox, holder: Running, mut taker: impl FnMut(&[&str]) -> Command) {
    let held = sandbox.delivery("e-1");
    assert_eq!((held.status, held.attempts), (Status::Processing, 1));
    let ran = finish(taker(&["run", "--once", "--handler", &sandbox.noting("taken")])).exits(0);
    ran.complains("nothing was due");
    assert_eq!(sandbox.notes("taken"), "");
    finish(taker(&["recover"])).exits(0).prints("Nothing to recover.\n");
    let after = sandbox.delivery("e-1");
    assert_eq!((after.status, &after.lease_token), (Status::Processing, &held.lease_token));

    sandbox.file("go", "");
    holder.send(Signal::SIGTERM);
    holder.ends().exits(0).complains("1 completed");
    let done = sandbox.delivery("e-1");
    assert_eq!((done.status, done.attempts), (Status::Completed, 1));
    assert_about(done.completed_at.unwrap(), SystemClock.now());
}

#[test]
fn a_worker_with_a_wrong_clock_takes_no_live_lease() {
    for error in WRONG {
        let sandbox = Sandbox::new();
        sandbox.append(&[event("e-1")], SystemClock.now());
        let mut holder = sandbox.command();
        holder.args(["run", "--handler", &sandbox.waiting("held")]);
        let holder = sandbox.holder(holder);
        is_left_alone(&sandbox, holder, |arguments| sandbox.on_a_host_that_is_off_by(error, arguments));
    }
}

#[test]
fn a_worker_with_a_wrong_clock_keeps_its_lease() {
    for error in WRONG {
        let sandbox = Sandbox::new();
        sandbox.append(&[event("e-1")], SystemClock.now());
        let line = sandbox.waiting("held");
        let holder = sandbox.holder(sandbox.on_a_host_that_is_off_by(error, &["run", "--handler", &line]));
        let expires_at = sandbox.delivery("e-1").lease_expires_at.unwrap();
        assert_about(expires_at, SystemClock.now().saturating_add(MINUTE));
        is_left_alone(&sandbox, holder, |arguments| {
            let mut taker = sandbox.command();
            taker.args(arguments);
            taker
        });
    }
}

#[test]
fn a_worker_whose_clock_jumps_takes_no_live_lease() {
    for error in WRONG {
        let sandbox = Sandbox::new();
        sandbox.append(&[event("e-1")], SystemClock.now());
        let mut holder = sandbox.command();
        holder.args(["run", "--handler", &sandbox.waiting("held")]);
        let holder = sandbox.holder(holder);
        sandbox.file("error", "+0");
        let line = sandbox.noting("jumper");
        let arguments = ["run", "--concurrency", "4", "--handler", &line];
        let jumper = Running::start(sandbox.on_a_host_that_is_off_by_what_is_in("error", &arguments));
        sandbox.append(&[event("e-2")], SystemClock.now());
        wait_until("the other worker runs", || sandbox.notes("jumper") == "e-2\n");
        sandbox.file("error", error);
        // It claims once more behind the jump.
        sandbox.append(&[event("e-3")], SystemClock.now());
        wait_until("e-3 is done", || sandbox.delivery("e-3").status == Status::Completed);
        assert_eq!(sandbox.notes("jumper"), "e-2\ne-3\n");
        assert_about(sandbox.delivery("e-3").completed_at.unwrap(), SystemClock.now());
        jumper.send(Signal::SIGTERM);
        jumper.ends().exits(0).complains("2 completed");
        is_left_alone(&sandbox, holder, |arguments| sandbox.on_a_host_that_is_off_by(error, arguments));
    }
}

#[test]
fn times_that_are_given_count_from_the_servers_clock() {
    for error in WRONG {
        let sandbox = Sandbox::new();
        sandbox.off_by(error, "publish t --id e-1 --handler projector --delay 1h").exits(0);
        let published = sandbox.delivery("e-1");
        assert_about(published.created_at, SystemClock.now());
        assert_about(published.available_at, in_an_hour());

        sandbox.append(&[event("e-2")], before(5 * MINUTE));
        let listed = |line: &str| sandbox.off_by(error, line).exits(0).stdout;
        let [first, second] = ["e-1", "e-2"].map(|event| format!("{}\n", sandbox.delivery_of(event)));
        assert_eq!(listed("list -o ids --since 7m --until 3m"), second);
        assert_eq!(listed("list -o ids --overdue 3m"), second);
        assert_eq!(listed("list -o ids --since 3m"), first);
        let table = listed("list");
        assert!(table.contains("5m ago") && table.contains("in 59m"), "{table}");

        assert_eq!(sandbox.settle("projector", &buried("no"), SystemClock.now()), 1);
        sandbox.off_by(error, "requeue --handler projector --delay 1h --yes").exits(0);
        let requeued = sandbox.delivery("e-2");
        assert_eq!(requeued.status, Status::Pending);
        assert_about(requeued.available_at, in_an_hour());
        sandbox.off_by(error, "bury --handler projector --since 3m --yes").exits(0);
        let statuses = ["e-1", "e-2"].map(|event| sandbox.delivery(event).status);
        assert_eq!(statuses, [Status::Dead, Status::Pending]);
    }
}

#[test]
fn what_is_old_enough_is_told_by_the_servers_clock() {
    for error in WRONG {
        let sandbox = Sandbox::new();
        sandbox.completed(1, 65 * MINUTE);
        sandbox.completed(1, 55 * MINUTE);
        sandbox
            .off_by(error, "purge --completed-before 1h")
            .exits(0)
            .prints("Deleted 1 delivery. With them went 1 event that no delivery refers to any more.\n");
        sandbox.off_by(error, "pause projector --until 1h").exits(0);
        let stats = sandbox.off_by(error, "stats -o json").exits(0).json();
        let until = &stats["handlers"][0]["paused"]["pausedUntil"];
        assert_about(until.as_str().unwrap().parse().unwrap(), in_an_hour());
        sandbox
            .off_by(error, "pause projector --until 2001-01-01T00:00:00Z")
            .exits(2)
            .complains("has passed");
        let shown = sandbox.off_by(error, "stats").exits(0).stdout;
        assert!(shown.contains("in 59m"), "{shown}");
        sandbox.off_by(error, "resume projector").exits(0);
        assert_eq!(sandbox.off_by(error, "recover -o json").exits(0).json()["changed"], json!(0));
    }
}

#[test]
fn a_wrong_clock_is_told() {
    let sandbox = Sandbox::new();
    for (error, words) in [("+10m", "10m ahead of"), ("-10m", "10m behind")] {
        let told = format!("this host's clock is {words} the server's");
        let line = ["run", "--once", "projector", "--", "true"];
        let ran = finish(sandbox.on_a_host_that_is_off_by(error, &line)).exits(0);
        assert_eq!(ran.stderr.matches(&told).count(), 1, "{}", ran.stderr);
        for line in ran.stderr.lines() {
            let time = line.split_whitespace().next().unwrap().parse().unwrap();
            assert_about(time, SystemClock.now());
        }
        sandbox.off_by(error, "list -v").exits(0).complains(&told);
        let quiet = sandbox.off_by(error, "list").exits(0);
        assert!(!quiet.stderr.contains("clock"), "{}", quiet.stderr);
    }
    let line = ["run", "--once", "projector", "--", "true"];
    assert!(!sandbox.run(line).exits(0).stderr.contains("clock"));
    assert!(!sandbox.go("list -v").exits(0).stderr.contains("clock"));
}
