//! The worker as the first process of a container, where every orphan becomes its child.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::model::Status;

use super::processes::{self, Process};
use super::worker::{Worker, within};
use crate::harness::{Sandbox, wait_until};

const DELIVERIES: usize = 1_000;

/// How many zombies may be seen at once: one that just ended and was not yet waited for is no fault. There are three for each
/// of the deliveries under way, and one for each orphan that ends.
const UNDER_WAY: usize = 100;

/// Leaves three behind: one in its group, one in a session of its own, and one in a group of its own in the same session.
/// The first gets TERM from the worker; the others end by themselves.
const DOUBLE_FORK: &str = "projector=exec >/dev/null 2>&1
    (sleep 9 &); setsid -f sh -c '(sleep 0.05 &)'; bash -c 'set -m; sleep 0.05 & true'";

/// Starts a program as the first process of a namespace, as root or as a user who may be root in one; `None` where neither
/// is allowed.
fn namespace() -> Option<Command> {
    const ROOT: &[&str] = &["--pid", "--fork", "--mount-proc", "--kill-child"];
    const USER: &[&str] = &["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(arguments);
        command
    };
    let works = |arguments: &&&[&str]| {
        let tried = unshare(arguments).arg("true").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    [ROOT, USER].iter().find(works).map(|arguments| unshare(arguments))
}

/// A worker, and the process of it whose children orphans become.
#[expect(clippy::print_stderr, reason = "whoever reads the results has to know")]
fn first_process(sandbox: &Sandbox, arguments: &[&str]) -> (Worker, i32) {
    let Some(mut command) = namespace() else {
        eprintln!(
            "NOT TRIED AS THE FIRST PROCESS: this user may not make a PID namespace. \
             What follows only shows that a worker takes the exit status of its own children."
        );
        let worker = sandbox.work("worker", arguments);
        worker.until("started");
        let pid = worker.pid();
        return (worker, pid);
    };
    let plain = sandbox.command();
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

/// As far as a service manager can tell, the first process is the worker.
#[test]
fn the_first_process_ends_as_its_worker_does() {
    let sandbox = Sandbox::new();
    sandbox.pending(1);
    let (worker, _) = first_process(&sandbox, &["--once", "projector", "--", "sh", "-c", "exit 65"]);
    assert_eq!(worker.ends().status.code(), Some(3));

    sandbox.pending(1);
    let (worker, first) = first_process(&sandbox, &["projector", "--", "sleep", "300"]);
    wait_until("the command runs", || !processes::of_deliveries(sandbox.home.path()).is_empty());
    kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
    worker.until("draining");
    kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
    assert_eq!(worker.ends().status.code(), Some(130));
    assert_eq!(processes::of_deliveries(sandbox.home.path()), [0; 0]);

    let (worker, first) = first_process(&sandbox, &["projector", "--", "sleep", "300"]);
    let children = processes::below(first);
    if let Some(child) = children.into_iter().find(|one| one.parent == first && is_worker(one.pid)) {
        kill(Pid::from_raw(child.pid), Signal::SIGKILL).unwrap();
        assert_eq!(worker.ends().status.code(), Some(1));
    }
}
