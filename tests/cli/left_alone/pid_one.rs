//! The worker as the first process of a container, where every orphan becomes its child.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::model::Status;

use super::processes::{self, Process};
use super::worker::{Worker, within};
use crate::harness::Sandbox;

const DELIVERIES: usize = 1_000;

/// How many zombies may be seen at once: one that just ended and was not yet waited for is no fault. There are three for each
/// of the deliveries under way, and one for each orphan that ends.
const UNDER_WAY: usize = 100;

/// Leaves three behind: one in its group, one in a session of its own, and one in a group of its own in the same session.
/// The first gets TERM from the worker; the others end by themselves.
const DOUBLE_FORK: &str = "projector=exec >/dev/null 2>&1
    (sleep 9 &); setsid -f sh -c '(sleep 0.05 &)'; bash -c 'set -m; sleep 0.05 & true'";

/// `None` where this user may not make namespaces.
fn namespace() -> Option<Command> {
    const ARGUMENTS: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let mut command = Command::new("unshare");
    let tried = Command::new("unshare").args(ARGUMENTS).arg("true").status();
    command.args(ARGUMENTS);
    tried.is_ok_and(|status| status.success()).then_some(command)
}

/// A worker that is the first process of its namespace, where that is possible, and what every orphan becomes a child of.
fn first_process(sandbox: &Sandbox, arguments: &[&str]) -> (Worker, i32) {
    let plain = sandbox.command();
    let mut command = namespace().expect(
        "this user may not make a PID namespace (unshare --pid --fork --mount-proc --kill-child): run this test as root",
    );
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.arg(plain.get_program()).arg("run").args(["--log-format", "json"]).args(arguments);
    let worker = sandbox.start_worker("worker", command);
    worker.until("started");
    let first = processes::below(worker.pid())[0].pid;
    (worker, first)
}

fn zombies(first: i32) -> Vec<Process> {
    processes::below(first).into_iter().filter(|process| process.state == 'Z').collect()
}

#[test]
fn heavy_the_first_process_of_a_container_leaves_no_zombie() {
    let sandbox = Sandbox::new();
    sandbox.pending(DELIVERIES);
    let (worker, first) = first_process(&sandbox, &["--concurrency", "16", "--handler", DOUBLE_FORK]);
    let mut most = 0;
    within(Duration::from_secs(150), "all are done", || {
        let zombies = zombies(first);
        most = most.max(zombies.len());
        sandbox.completed_by_now() == DELIVERIES as u64
    });
    assert!(most <= UNDER_WAY, "{most} zombies at once");
    within(Duration::from_secs(10), "orphans end, and nobody is left but the worker", || {
        processes::below(first).iter().all(|process| is_worker(process.pid))
    });
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Completed && one.attempts == 1));
    kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
    let end = worker.ends();
    assert_eq!(end.status.code(), Some(0), "{:?}", end.log.last());
    assert_eq!(end.counted("completed"), DELIVERIES as u64);
}

/// Whether this is the worker rather than something that it started.
fn is_worker(pid: i32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|program| program.ends_with("relayctl"))
}
