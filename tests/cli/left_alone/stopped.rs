//! Workers that are stopped for longer than their leases last, as by a terminal's Ctrl-Z or a debugger, and then go on.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::Status;

use super::processes;
use super::trace::{self, line_that_tells};
use super::worker::{Worker, let_pass, within};
use crate::harness::{Sandbox, wait_until};
use crate::stock::order;

const KEYS: usize = 6;
const PER_KEY: usize = 5;

fn append_keyed(sandbox: &Sandbox) {
    let key = |number: usize| format!("k{}", number % KEYS);
    let events: Vec<_> = (0..KEYS * PER_KEY).map(|number| order().key(key(number))).collect();
    sandbox.append(&events, SystemClock.now());
}

/// The ids of what the worker holds.
fn held_by(sandbox: &Sandbox, worker: &Worker) -> BTreeSet<String> {
    let owner = format!(":{}", worker.pid());
    let held = sandbox.deliveries().into_iter();
    held.filter(|one| one.lease_owner.as_ref().is_some_and(|name| name.ends_with(&owner)))
        .map(|one| one.id.to_string())
        .collect()
}

/// Three workers; the first is stopped while it has commands, until others have all that it held, and goes on then.
fn stop_one_of_three(sandbox: &Sandbox, ticks: usize) -> (Vec<super::worker::End>, usize) {
    append_keyed(sandbox);
    let line = format!("projector={}", line_that_tells(sandbox, ticks));
    let arguments = ["--lease", "2s", "--concurrency", "4", "--handler", &line];
    let first = sandbox.work("first", &arguments);
    wait_until("the first has its hands full", || processes::of_deliveries(sandbox.home.path()).len() >= 4);
    sandbox.wait_for_renewals();
    let others = ["second", "third"].map(|name| sandbox.work(name, &arguments));
    first.send(Signal::SIGSTOP);
    let held = held_by(sandbox, &first);
    assert!(!held.is_empty(), "the first holds something");
    within(Duration::from_secs(40), "others have what the first held", || {
        held.is_disjoint(&held_by(sandbox, &first))
    });
    within(Duration::from_secs(100), "all are done", || {
        sandbox.completed_by_now() == (KEYS * PER_KEY) as u64
    });
    first.send(Signal::SIGCONT);
    first.until("finished");
    let ends: Vec<_> = [first].into_iter().chain(others).map(Worker::drains).collect();
    ends.iter().for_each(super::worker::End::adds_up);
    (ends, held.len())
}

fn all_in_order_and_one_at_a_time(sandbox: &Sandbox) {
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Completed));
    let lines = trace::read(sandbox);
    assert_eq!(trace::overlaps(&lines), [] as [&trace::Line; 0]);
    assert_eq!(trace::out_of_order(&lines), [] as [&trace::Line; 0]);
    let ended = |line: &&trace::Line| line.what == "end";
    let done: BTreeSet<_> = lines.iter().filter(ended).map(|line| (&line.key, line.sequence)).collect();
    assert_eq!(done.len(), KEYS * PER_KEY, "each has run to its end");
}

/// Their commands end while their worker is stopped; nobody waits for them, and what they did is done once more.
#[test]
fn heavy_the_late_outcomes_of_a_stopped_worker_are_refused() {
    let sandbox = Sandbox::new();
    let (ends, held) = stop_one_of_three(&sandbox, 40);
    all_in_order_and_one_at_a_time(&sandbox);
    let [first, second, third] = ends.try_into().unwrap();
    let is_lost = |entry: &&serde_json::Value| entry["outcome"] == "lease-lost";
    let lost = first.log.iter().filter(is_lost).count();
    assert_eq!((lost, first.counted("leaseLost")), (held, held as u64), "{:#?}", first.log);
    let completed = [&first, &second, &third].map(|end| end.counted("completed")).iter().sum::<u64>();
    assert_eq!(completed, (KEYS * PER_KEY) as u64, "each is completed once");
}

/// Their commands would go on for much longer than the leases of their stopped worker.
#[test]
fn heavy_no_command_of_a_stopped_worker_runs_beside_that_of_another() {
    let sandbox = Sandbox::new();
    stop_one_of_three(&sandbox, 200);
    all_in_order_and_one_at_a_time(&sandbox);
}

/// What the guard ended has not failed: where nobody else took the delivery it is given back.
#[test]
fn a_command_that_was_ended_for_a_stopped_worker_spends_no_attempt() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.pending(1).try_into().unwrap();
    let home = sandbox.home.path();
    let line = format!("projector=until test -e {}/go; do sleep 0.05; done", home.display());
    let worker = sandbox.work("worker", &["--lease", "1s", "--handler", &line]);
    wait_until("the command runs", || !processes::of_deliveries(home).is_empty());
    sandbox.wait_for_renewals();
    worker.send(Signal::SIGSTOP);
    wait_until("the command is ended", || processes::of_deliveries(home).is_empty());
    sandbox.file("go", "");
    worker.send(Signal::SIGCONT);
    wait_until("it is done", || sandbox.status(&id) == Status::Completed);
    let end = worker.drains();
    assert_eq!((end.counted("released"), end.counted("retried")), (1, 0), "{:#?}", end.log);
    let delivery = sandbox.get(&id);
    assert_eq!((delivery.attempts, &delivery.errors[..]), (1, &[][..]));
}

/// The guard forgets a delivery when it is answered, also where its child stays or has others of the same batch.
#[test]
fn a_child_that_stays_is_not_ended_with_the_leases_of_what_it_answered() {
    let sandbox = Sandbox::new();
    let text = r#"
        [handlers.projector]
        types = ["*"]
        mode = "lines"
        batch = 2
        lease = "1s"
        shell = '''
            answer() {
                id=${1##*'"deliveryId":"'}
                printf '{"id":"%s","ok":true}\n' "${id%%\"*}"
            }
            while IFS= read -r batch; do
                echo $$ >> pids
                answer "${batch%,\{*}"
                until test -e go; do sleep 0.05; done
                answer "$batch"
            done
        '''
    "#;
    let file = sandbox.file("handlers.toml", text).display().to_string();
    sandbox.pending(2);
    let worker = sandbox.work("worker", &["--handlers", &file]);
    wait_until("the first is answered", || sandbox.completed_by_now() == 1);
    // Longer than its lease, while the other one is renewed.
    let_pass(Duration::from_millis(1_500));
    sandbox.file("go", "");
    wait_until("both are done", || sandbox.completed_by_now() == 2);
    let_pass(Duration::from_millis(1_500));
    sandbox.pending(2);
    wait_until("all are done", || sandbox.completed_by_now() == 4);
    worker.drains();
    let pids = std::fs::read_to_string(sandbox.home.path().join("pids")).unwrap();
    let pids: BTreeSet<_> = pids.lines().collect();
    assert_eq!(pids.len(), 1, "the child was replaced");
}

/// A guard is not needed for the work, but somebody has to know that it is gone.
#[test]
fn a_worker_whose_guard_was_killed_goes_on_and_says_so() {
    let sandbox = Sandbox::new();
    let worker = sandbox.work("worker", &["projector", "--", "true"]);
    worker.until("started");
    let [guard] = processes::below(worker.pid()).try_into().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guard.pid), Signal::SIGKILL).unwrap();
    worker.until("warning");
    sandbox.pending(3);
    wait_until("all are done", || sandbox.completed_by_now() == 3);
    let end = worker.drains();
    let told = end.log.iter().find(|entry| entry["event"] == "warning").unwrap()["message"].clone();
    assert!(told.as_str().unwrap().starts_with("its guard is gone"), "{told}");
}
