//! `pause` and `resume`, and what else holds a handler back, with workers that really run.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{NewEvent, Status, Timestamp};
use serde_json::{Value, json};

use crate::harness::{Sandbox, event, wait_until};

/// A worker that writes its log into a file.
struct Worker {
    process: Child,
    log: std::path::PathBuf,
}

impl Worker {
    fn start(sandbox: &Sandbox, name: &str, arguments: &[&str]) -> Worker {
        let log = sandbox.home.path().join(format!("{name}.log"));
        let mut command = sandbox.command();
        command.arg("run").args(arguments).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Worker { process: command.spawn().unwrap(), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn tells(&self, what: &str) {
        wait_until(&format!("the worker tells `{what}`"), || self.log().contains(what));
    }

    /// Asks it to drain, and waits for its end.
    fn ends(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn events(prefix: &str, handler: &str, count: usize) -> Vec<NewEvent> {
    let event = |n| NewEvent { handlers: vec![handler.into()], ..event(&format!("{prefix}-{n}")) };
    (0..count).map(event).collect()
}

fn now() -> Timestamp {
    SystemClock.now()
}

/// How many lines the commands of a handler have written.
fn runs(sandbox: &Sandbox, file: &str) -> usize {
    std::fs::read_to_string(sandbox.home.path().join(file)).unwrap_or_default().lines().count()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

fn statuses(sandbox: &Sandbox, status: Status) -> usize {
    sandbox.deliveries().iter().filter(|delivery| delivery.status == status).count()
}

#[test]
fn two_workers_obey_a_pause_and_the_end_of_it() {
    let sandbox = Sandbox::new();
    let home = sandbox.home.path().display();
    let (projector, mailer) =
        (format!("projector=echo x >> {home}/projector"), format!("mailer=echo x >> {home}/mailer"));
    let arguments = ["--handler", &projector, "--handler", &mailer];
    let workers = ["one", "two"].map(|name| Worker::start(&sandbox, name, &arguments));
    sandbox.append(&events("before", "projector", 4), now());
    wait_until("all are handled", || runs(&sandbox, "projector") == 4);

    let asked = Instant::now();
    sandbox.run(["pause", "projector", "--reason", "the shop is closed"]).exits(0);
    workers.iter().for_each(|worker| worker.tells("paused     projector by "));
    // The promise is a second; a machine under load gets more.
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    sandbox.append(&events("during", "projector", 4), now());
    sandbox.append(&events("during-too", "mailer", 8), now());
    wait_until("the other handler goes on", || statuses(&sandbox, Status::Completed) == 12);
    assert_eq!((runs(&sandbox, "projector"), statuses(&sandbox, Status::Pending)), (4, 4));
    let shown = sandbox.run(["show", &sandbox.delivery_of("during-0")]).quiet_stdout();
    assert!(
        shown.contains("Its handler is paused since ") && shown.contains(": the shop is closed"),
        "{shown}"
    );
    assert!(shown.contains("relayctl resume projector"), "{shown}");

    let resumed = sandbox.go("resume projector").exits(0);
    assert!(resumed.stdout.starts_with("Resumed projector, which was paused since "), "{resumed:?}");
    workers.iter().for_each(|worker| worker.tells("resumed    projector"));
    wait_until("what waited is handled", || runs(&sandbox, "projector") == 8);
    assert_eq!(workers.map(Worker::ends), [Some(0), Some(0)]);
}

#[test]
fn a_pause_ends_by_itself_and_a_run_until_empty_waits_for_that() {
    let sandbox = Sandbox::new();
    sandbox.append(&events("e", "projector", 1), now());
    let paused = sandbox.go("pause projector --until 2s -o json").exits(0).json();
    let until = time(&paused["pausedUntil"]);
    assert!(until.since(time(&paused["pausedAt"])) == Duration::from_secs(2), "{paused}");
    // Cron has nothing to do.
    let once = sandbox.go("run --once projector -- true").exits(0);
    assert!(once.stderr.contains("nothing was due"), "{once:?}");
    assert_eq!(statuses(&sandbox, Status::Pending), 1);
    let ran = sandbox.go("run --until-empty projector -- true").exits(0);
    assert!(
        ran.stderr.contains("paused     projector until ") && ran.stderr.contains("resumed    projector")
    );
    let [delivery] = sandbox.deliveries().try_into().unwrap();
    assert!(delivery.completed_at.unwrap() >= until);
}

#[test]
fn a_report_says_what_changed_and_the_same_again_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.append(&events("e", "projector", 1), now());
    let dry = sandbox.go("pause projector -n -o json").exits(0).json();
    assert_eq!((&dry["dryRun"], &dry["changed"]), (&json!(true), &json!(true)));
    assert_eq!(
        sandbox.go("pause projector -n").quiet_stdout(),
        "Would pause projector until it is resumed.\n"
    );
    assert_eq!(sandbox.go("stats -o json").exits(0).json()["handlers"][0]["paused"], Value::Null);

    let paused = sandbox.go("pause projector --reason closed -o json").exits(0).json();
    let fields: Vec<&str> = paused.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["command", "dryRun", "changed", "handler", "pausedAt", "reason", "by"]);
    assert_eq!((&paused["command"], &paused["changed"]), (&json!("pause"), &json!(true)));
    assert!(paused["by"].as_str().unwrap().contains('@'), "{paused}");
    let again = sandbox.go("pause projector --reason closed -o json").exits(0).json();
    assert_eq!((&again["changed"], &again["pausedAt"]), (&json!(false), &paused["pausedAt"]));
    assert!(sandbox.go("pause projector --reason closed").quiet_stdout().contains("nothing changed"));
    let longer = sandbox.go("pause projector --until 1h -o json").exits(0).json();
    assert_eq!((&longer["changed"], &longer["pausedAt"]), (&json!(true), &paused["pausedAt"]));
    assert_eq!((&longer["reason"], longer["pausedUntil"].is_string()), (&Value::Null, true));

    let stats = sandbox.go("stats -o json").exits(0).json();
    let pause = &stats["handlers"][0]["paused"];
    assert_eq!((&pause["pausedAt"], &pause["by"]), (&paused["pausedAt"], &paused["by"]));

    assert_eq!(sandbox.go("resume projector -n -o json").exits(0).json()["changed"], true);
    let resumed = sandbox.go("resume projector -o json").exits(0).json();
    assert_eq!((&resumed["changed"], &resumed["ended"]["pausedAt"]), (&json!(true), &paused["pausedAt"]));
    let again = sandbox.go("resume projector -o json").exits(0).json();
    assert_eq!(
        again,
        json!({"command": "resume", "dryRun": false, "handler": "projector", "changed": false})
    );
    assert_eq!(sandbox.go("resume projector").quiet_stdout(), "projector is not paused; nothing changed.\n");
}

#[test]
fn a_handler_that_nobody_published_for_is_paused_with_a_warning() {
    let sandbox = Sandbox::new();
    let paused = sandbox.go("pause maler").exits(0);
    assert_eq!(paused.stdout, "Paused maler until it is resumed.\n");
    assert!(
        paused.stderr.starts_with("warning: there is no delivery of a handler `maler` in "),
        "{paused:?}"
    );
    let stats = sandbox.go("stats").quiet_stdout();
    assert!(stats.contains("maler    paused  now") && stats.contains("resumed  "), "{stats}");
}

#[test]
fn an_end_that_has_passed_or_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new();
    let past = sandbox.go("pause projector --until 2020-01-01T00:00:00Z").exits(2);
    assert!(past.stderr.contains("has passed already") && past.stderr.contains("--until 30m"), "{past:?}");
    let zone = sandbox.go("pause projector --until 2099-01-01T00:00:00").exits(2);
    assert!(zone.stderr.contains("no offset"), "{zone:?}");
    sandbox.go("pause projector --until 0s").exits(2);
    sandbox.go("pause").exits(2);
    assert_eq!(sandbox.go("resume projector -o json").exits(0).json()["changed"], false);
}

/// What people wrote cannot reach the terminal.
#[test]
fn a_reason_is_shown_and_not_obeyed() {
    let sandbox = Sandbox::new();
    sandbox.run(["pause", "projector", "--reason", "a\u{1b}[2Jb"]).exits(0);
    let stats = sandbox.go("stats").quiet_stdout();
    assert!(stats.contains("a\\x1b[2Jb") && !stats.contains('\u{1b}'), "{stats}");
}

// ---- the circuit breaker and the rate ------------------------------------------------------------------------------

fn handlers_file(sandbox: &Sandbox, rest: &str) -> String {
    let file = sandbox.home.path().join("handlers.toml");
    std::fs::write(&file, format!("[handlers.projector]\ntypes = [\"*\"]\n{rest}\n")).unwrap();
    file.display().to_string()
}

#[test]
fn an_outage_opens_the_breaker_which_the_store_shows_and_burns_nothing() {
    let sandbox = Sandbox::new();
    sandbox.append(&events("e", "projector", 10), now());
    let file = handlers_file(
        &sandbox,
        "shell = 'echo no route to host >&2; exit 1'\nmax_attempts = 1\n\
         breaker = { failures = 3, pause = '1h', max = '2h' }",
    );
    let worker = Worker::start(&sandbox, "one", &["--handlers", &file]);
    worker.tells("breaker    projector  3 failures in a row, a rest of 1h: exit status 1: no route to host");
    let seen = || sandbox.go("stats -o json").exits(0).json()["handlers"][0]["breakers"].clone();
    wait_until("the breaker is reported", || seen() != json!([]));
    let breaker = seen()[0].clone();
    assert_eq!((&breaker["handler"], &breaker["failures"]), (&json!("projector"), &json!(3)));
    assert!(breaker["worker"].as_str().unwrap().ends_with(&format!(":{}", worker.process.id())), "{breaker}");
    let stats = sandbox.go("stats").quiet_stdout();
    assert!(
        stats.contains("breaker open") && stats.contains("3 failures in a row: exit status 1"),
        "{stats}"
    );
    let pending = sandbox.deliveries().into_iter().find(|one| one.status == Status::Pending).unwrap();
    let shown = sandbox.run(["show", pending.id.as_str()]).quiet_stdout();
    assert!(shown.contains("leaves its handler alone since "), "{shown}");
    assert_eq!((statuses(&sandbox, Status::Dead), statuses(&sandbox, Status::Pending)), (3, 7));
    assert_eq!(worker.ends(), Some(0));
    assert_eq!(seen(), json!([]));
}

#[test]
fn a_handler_starts_no_more_often_than_its_rate() {
    let sandbox = Sandbox::new();
    sandbox.append(&events("e", "projector", 6), now());
    let file = handlers_file(&sandbox, "shell = 'true'\nrate = '5/s'\nconcurrency = 6");
    let began = Instant::now();
    sandbox.run(["run", "--once", "--handlers", &file]).exits(0);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(statuses(&sandbox, Status::Completed), 6);
}
