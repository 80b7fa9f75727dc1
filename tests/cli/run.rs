//! `run`: a worker, from its handlers to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, FailureKind, NewEvent, Status};
use serde_json::{Value, json};

use crate::harness::{Sandbox, event, free_port, relayctl, wait_until};

impl Sandbox {
    /// Appends these events now.
    fn publish(&self, events: &[NewEvent]) {
        self.append(events, SystemClock.now());
    }

    fn only_delivery(&self) -> Delivery {
        let [delivery] = self.deliveries().try_into().expect("one delivery");
        delivery
    }

    /// Waits for a file that a handler's command writes.
    fn wait_for(&self, file: &str) {
        wait_until("the command runs", || self.home.path().join(file).exists());
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.home.path().join(file)).expect("a file")
    }

    fn path_of(&self, file: &str) -> String {
        self.home.path().join(file).display().to_string()
    }
}

/// The words of each line of a log, without its time.
fn words(log: &str) -> Vec<Vec<&str>> {
    log.lines().map(|line| line.split_whitespace().skip(1).collect()).collect()
}

// ---- what a command gets, and what becomes of it -----------------------------------------------------------------

#[test]
fn a_command_gets_the_event_and_completes_the_delivery() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1").key("order-17")]);
    let file = sandbox.path_of("seen");
    let ran = sandbox.run(["run", "--once", "projector", "--", "sh", "-c", "cat > \"$0\"", &file]).exits(0);
    let seen: Value = serde_json::from_str(&sandbox.read("seen")).unwrap();
    assert_eq!((&seen["eventId"], &seen["payload"]), (&json!("e-1"), &json!({"order": "e-1"})));
    assert_eq!(
        (&seen["key"], &seen["sequence"], &seen["attempt"]),
        (&json!("order-17"), &json!(1), &json!(1))
    );
    assert_eq!(sandbox.only_delivery().status, Status::Completed);
    assert_eq!(ran.stdout, "");
    let log = words(&ran.stderr);
    assert_eq!(log[0][..3], ["started", "for", "projector"]);
    let id = sandbox.delivery_of("e-1");
    assert_eq!(log[1][..4], ["completed", "projector", "order.placed.v1", &id]);
    assert_eq!(log[2], ["stopped", "1", "completed"]);
}

#[test]
fn a_failing_command_is_told_with_its_last_words() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let ran = sandbox.run(["run", "--once", "--handler", "projector=echo no route to host >&2; exit 3"]);
    ran.exits(0).complains("attempt 1 of 5, again in ").complains(": exit status 3: no route to host\n");
    let delivery = sandbox.only_delivery();
    assert_eq!((delivery.status, delivery.attempts), (Status::Pending, 1));
    assert_eq!(delivery.last_error.as_deref(), Some("exit status 3: no route to host"));
}

#[test]
fn a_quiet_worker_tells_its_troubles_alone() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    sandbox.run(["run", "-q", "--once", "projector", "--", "true"]).exits(0).without_noise();
    sandbox.publish(&[event("e-2")]);
    let ran = sandbox.run(["run", "-q", "--once", "projector", "--", "sh", "-c", "exit 65"]).exits(3);
    assert_eq!(words(&ran.stderr)[0][0], "dead");
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn a_json_log_is_one_object_a_line() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1").key("k")]);
    let ran = sandbox
        .run(["run", "--log-format", "json", "--once", "projector", "--", "sh", "-c", "exit 78"])
        .exits(3);
    let log: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = log.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "finished", "stopped"]);
    let finished = &log[1];
    assert_eq!(finished["deliveryId"], json!(sandbox.delivery_of("e-1")));
    assert_eq!((&finished["outcome"], &finished["kind"]), (&json!("dead"), &json!("rejected")));
    assert_eq!(finished["error"], json!("exit status 78"));
}

#[test]
fn no_child_sees_where_the_store_is() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let file = sandbox.path_of("environ");
    let copy = ["run", "--once", "projector", "--", "cp", "/proc/self/environ", &file];
    sandbox.run(copy).exits(0);
    let environ = sandbox.read("environ");
    assert!(environ.contains("RELAY_EVENT_ID=e-1\0") && environ.contains("TZ=UTC\0"), "{environ}");
    assert!(!environ.contains("mongodb://") && !environ.contains("RELAYCTL"), "{environ}");
}

// ---- which handlers ------------------------------------------------------------------------------------------------

#[test]
fn a_file_describes_handlers_and_their_limits() {
    let sandbox = Sandbox::new();
    let file = sandbox.file(
        "handlers.toml",
        r#"
        [handlers.projector]
        types = ["order.*"]
        shell = "test -e ready || { touch ready; echo not yet >&2; exit 75; }"
        backoff = { kind = "fixed", base = "50ms" }

        [handlers.mailer]
        types = ["order.*"]
        command = ["./mail", "hello"]
        timeout = "200ms"
        max_attempts = 1
        "#,
    );
    let script = sandbox.file("mail", "#!/bin/sh\nexec sleep 60\n");
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = file.display().to_string();
    sandbox.run(["publish", "order.placed.v1", "--handlers", &file]).exits(0);
    sandbox.run(["run", "--until-empty", "--handlers", &file]).exits(3);
    let deliveries = sandbox.deliveries();
    let of = |name: &str| deliveries.iter().find(|delivery| delivery.handler == name).unwrap();
    assert_eq!((of("projector").status, of("projector").attempts), (Status::Completed, 2));
    assert_eq!(of("projector").errors[0].message, "exit status 75: not yet");
    assert_eq!((of("mailer").status, &of("mailer").errors[0].kind), (Status::Dead, &FailureKind::Timeout));
    assert_eq!(of("mailer").last_error.as_deref(), Some("timed out after 200ms"));
}

#[test]
fn a_file_says_what_stdin_and_exit_codes_are_and_what_the_dead_get() {
    let sandbox = Sandbox::new();
    let file = sandbox.file(
        "handlers.toml",
        r#"
        [handlers.projector]
        types = ["order.*"]
        shell = "cat > event; exit 9"
        stdin = "cloudevents"
        exit_codes = { done = [9] }

        [handlers.mailer]
        types = ["order.*"]
        shell = "cat > payload; echo no address >&2; exit 4"
        stdin = "payload"
        exit_codes = { bury = [4] }
        on_dead = "cat >> dead; echo $RELAY_FAILURE_KIND $RELAY_DELIVERY_ID >> kinds"

        [handlers.audit]
        types = ["order.*"]
        shell = "test -e asked || { touch asked; echo 'retry-after: 50ms'; exit 75; }"
        backoff = { kind = "fixed", base = "1h" }
        nice = 1

        [handlers.pager]
        types = ["order.*"]
        shell = "exit 65"
        on_dead = ["sh", "-c", "echo nobody answers >&2; exit 1"]
        "#,
    );
    let file = file.display().to_string();
    sandbox.run(["run", "--check", "--handlers", &file]).exits(0);
    sandbox
        .run(["publish", "order.placed.v1", "--key", "o-1", "--payload", r#"{"n":1}"#, "--handlers", &file])
        .exits(0);
    let ran = sandbox.run(["run", "--until-empty", "--handlers", &file, "--log-format", "json"]).exits(3);
    let deliveries = sandbox.deliveries();
    let of = |name: &str| deliveries.iter().find(|delivery| delivery.handler == name).unwrap();
    let event: Value = serde_json::from_str(&sandbox.read("event")).unwrap();
    assert_eq!((&event["specversion"], &event["source"]), (&json!("1.0"), &json!("/relayctl")));
    assert_eq!((&event["partitionkey"], &event["data"]), (&json!("o-1"), &json!({"n": 1})));
    assert_eq!(of("projector").status, Status::Completed);
    assert_eq!(sandbox.read("payload"), "{\"n\":1}\n");
    assert_eq!((of("mailer").status, of("mailer").attempts), (Status::Dead, 1));
    let dead: Value = serde_json::from_str(&sandbox.read("dead")).unwrap();
    assert_eq!(dead["failure"], json!({"kind": "rejected", "message": "exit status 4: no address"}));
    assert_eq!(sandbox.read("kinds"), format!("rejected {}\n", of("mailer").id));
    assert_eq!((of("audit").status, of("audit").attempts), (Status::Completed, 2));
    assert_eq!(of("pager").last_error.as_deref(), Some("exit status 65"));
    let entries = ran.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let failed: Vec<_> = entries.filter(|entry| entry["event"] == "on-dead-failed").collect();
    assert_eq!(failed.len(), 1, "{}", ran.stderr);
    assert_eq!(
        (&failed[0]["handler"], &failed[0]["error"]),
        (&json!("pager"), &json!("exit status 1: nobody answers"))
    );
}

#[test]
fn a_snooze_puts_a_delivery_off_and_costs_no_attempt() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let line = "echo 'snooze: 1h'; exit 75";
    let ran = sandbox
        .run(["run", "--once", "--max-attempts", "1", "--handler", &format!("projector={line}")])
        .exits(0);
    assert!(ran.stderr.contains("snoozed"), "{}", ran.stderr);
    let delivery = sandbox.only_delivery();
    assert_eq!((delivery.status, delivery.attempts, &delivery.errors[..]), (Status::Pending, 0, &[][..]));
    let ahead = delivery.available_at.since(SystemClock.now());
    assert!(Duration::from_secs(3_000) < ahead && ahead <= Duration::from_secs(3_600), "{ahead:?}");
}

#[test]
fn an_attempt_whose_worker_died_is_told_and_remembered() {
    let sandbox = Sandbox::new();
    let [crashed] = sandbox.processing(1, Duration::from_secs(3_600)).try_into().expect("one");
    let before = sandbox.get(&crashed.lease.delivery_id);
    let worker = before.lease_owner.expect("an owner");
    let handler = format!("{}=true", before.handler);
    let ran = sandbox.run(["run", "--once", "--handler", &handler, "--log-format", "json"]).exits(0);
    let entries = ran.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<_> = entries.filter(|entry| entry["event"] == "crashed").collect();
    assert_eq!((found.len(), &found[0]["attempt"]), (1, &json!(1)), "{}", ran.stderr);
    let delivery = sandbox.get(&crashed.lease.delivery_id);
    assert_eq!((delivery.status, delivery.attempts, delivery.errors.len()), (Status::Completed, 2, 1));
    assert_eq!((delivery.errors[0].attempt, &delivery.errors[0].kind), (1, &FailureKind::Crashed));
    assert!(delivery.errors[0].message.contains(&worker), "{:?}", delivery.errors);
}

/// The folder as it stands, but for the place of what is written.
#[test]
fn the_example_handlers_do_what_they_say() {
    let sandbox = Sandbox::new();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/handlers");
    for example in std::fs::read_dir(&examples).unwrap() {
        let example = example.unwrap().path();
        let text = std::fs::read_to_string(&example).unwrap().replace("/tmp/", &sandbox.path_of(""));
        let copy = sandbox.file(example.file_name().unwrap().to_str().unwrap(), &text);
        std::fs::set_permissions(copy, example.metadata().unwrap().permissions()).unwrap();
    }
    let file = sandbox.path_of("handlers.toml");
    sandbox.run(["run", "--check", "--handlers", &file]).exits(0);
    let publish = |event_type: &str, payload: &str, key: &[&str]| {
        let arguments = ["publish", event_type, "--payload", payload, "--handlers", &file];
        sandbox.run(arguments.into_iter().chain(key.iter().copied())).exits(0);
    };
    publish("order.placed.v1", r#"{"total":4}"#, &["--key", "o/1"]);
    publish("order.placed.v1", r#"{"total":5}"#, &[]);
    publish("customer.registered.v1", r#"{"email":"a@example.org"}"#, &[]);
    sandbox.run(["run", "--until-empty", "--handlers", &file]).exits(3);
    let statuses = sandbox.deliveries().into_iter().map(|delivery| (delivery.handler, delivery.status));
    let mut statuses: Vec<_> = statuses.collect();
    statuses.sort();
    let (done, dead) = (Status::Completed, Status::Dead);
    let expected = [
        ("gateway", done),
        ("gateway", done),
        ("gateway", done),
        ("mailer", done),
        ("print", done),
        ("print", done),
        ("print", done),
        ("projector", done),
        ("projector", dead),
    ];
    assert_eq!(statuses, expected.map(|(handler, status)| (handler.to_owned(), status)));
    assert!(sandbox.read("relayctl-orders/o_1.json").contains(r#""total":4"#));
    assert!(sandbox.read("relayctl-mails.txt").starts_with("To: a@example.org\n"));
    assert_eq!(sandbox.read("relayctl-events.jsonl").lines().count(), 3);
    assert!(sandbox.read("relayctl-cloudevents.jsonl").contains(r#""source":"/shop/orders""#));
    assert!(sandbox.read("relayctl-dead.jsonl").contains("has no key"));
}

#[test]
fn deliveries_of_other_handlers_are_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1").handler("somebody-else")]);
    sandbox.run(["run", "--until-empty", "projector", "--", "true"]).exits(0);
    let statuses: BTreeMap<_, _> =
        sandbox.deliveries().into_iter().map(|delivery| (delivery.handler, delivery.status)).collect();
    assert_eq!(statuses["projector"], Status::Completed);
    assert_eq!(statuses["somebody-else"], Status::Pending);
}

#[test]
fn an_event_of_a_foreign_type_runs_and_is_warned_about_once() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1"), event("e-2")]);
    let ran = sandbox.run(["run", "--once", "projector", "--type", "user.*", "--", "true"]).exits(0);
    let warning = "handler projector is meant for user.* and was sent an event of type order.placed.v1";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{}", ran.stderr);
    assert!(sandbox.deliveries().iter().all(|delivery| delivery.status == Status::Completed));
}

#[test]
fn a_check_lists_the_handlers_and_connects_to_nothing() {
    let home = tempfile::tempdir().unwrap();
    let check = |arguments: &[&str]| {
        let mut command = relayctl(home.path());
        command.args(["run", "--check", "-o", "json"]).args(arguments);
        crate::harness::finish(command)
    };
    let listed = check(&["--handler", "mailer=./mail.sh | tee x", "--lease", "2m"]).exits(0).json();
    let expected = json!([{
        "handler": "mailer", "types": [], "command": "./mail.sh | tee x", "concurrency": 1, "timeout": "30s",
        "lease": "2m", "maxAttempts": 5, "breaker": "10 failures, 30s to 10m", "mode": "process",
    }]);
    assert_eq!(listed, expected);
    check(&["mailer", "--", "no-such-command"])
        .exits(2)
        .complains("there is no command `no-such-command` in PATH");
    check(&["--handlers", "/no/such/file"]).exits(2).complains("cannot read /no/such/file");
    let file = home.path().join("handlers.toml");
    let refused = |key: &str, reason: &str| {
        std::fs::write(&file, format!("[handlers.mailer]\ntypes = ['*']\nshell = 'true'\n{key}\n")).unwrap();
        check(&["--handlers", &file.display().to_string()]).exits(2).complains(reason);
    };
    refused("exit_codes = { done = [3], bury = [3] }", "handler `mailer`: exit_codes: 3 is there twice");
    refused(
        "on_dead = ['no-such-command']",
        "handler mailer: on_dead: there is no command `no-such-command`",
    );
    refused("source = '/shop'", "handler `mailer`: source: is for stdin");
    refused("user = 'no such user'", "handler `mailer`: user: ");
    refused("user = 'nobody'\nnice = -1", "handler `mailer`: ");
}

#[test]
fn a_handler_that_cannot_work_is_refused_before_anything_is_leased() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let file =
        sandbox.file("handlers.toml", "[handlers.projector]\ntypes = ['*']\nshell = 'true'\ntime_out = '5s'");
    let file = file.display().to_string();
    let refused = sandbox.run(["run", "--handlers", &file]).exits(2);
    refused.complains("handlers.toml: `handlers.projector.time_out` is unknown");
    sandbox.run(["run", "projector", "--", "./not-there"]).exits(2).complains("`./not-there`");
    sandbox.run(["run", "--lease", "10ms", "projector", "--", "true"]).exits(2).complains("at least 1s");
    for arguments in [
        vec!["run"],
        vec!["run", "projector"],
        vec!["run", "--handler", "projector"],
        vec!["run", "projector", "--handler", "a=b", "--", "true"],
        vec!["run", "--once", "--until-empty", "projector", "--", "true"],
        vec!["run", "--type", "*.v1", "projector", "--", "true"],
    ] {
        sandbox.run(arguments).exits(2);
    }
    assert_eq!(sandbox.only_delivery().attempts, 0);
}

#[test]
fn a_store_that_cannot_be_used_is_told_at_once() {
    let sandbox = Sandbox::without_schema();
    sandbox.run(["run", "projector", "--", "true"]).exits(5).complains("relayctl setup");
    sandbox.configure("[profiles.default]\nread_only = true");
    sandbox.run(["run", "projector", "--", "true"]).exits(2).complains("read-only");
    let mut command = relayctl(sandbox.home.path());
    command
        .args(["run", "projector", "--store"])
        .arg(format!("mongodb://127.0.0.1:{}/x?replicaSet=r", free_port()));
    command.args(["--", "true"]);
    sandbox.configure("");
    let started = Instant::now();
    crate::harness::finish(command).exits(4);
    assert!(started.elapsed() < Duration::from_secs(7), "{:?}", started.elapsed());
}

// ---- how it ends ---------------------------------------------------------------------------------------------------

#[test]
fn it_ends_after_as_many_deliveries_as_it_was_told() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1"), event("e-2"), event("e-3")]);
    sandbox.run(["run", "--max-deliveries", "2", "--concurrency", "8", "projector", "--", "true"]).exits(0);
    let count = sandbox.deliveries().iter().filter(|delivery| delivery.status == Status::Completed).count();
    assert_eq!(count, 2);
}

/// A line that touches the file `running`, and waits for the file `go`.
fn waiting_line(sandbox: &Sandbox) -> String {
    let home = sandbox.home.path().display();
    format!("projector=touch {home}/running; while ! test -e {home}/go; do sleep 0.01; done")
}

#[test]
fn the_first_signal_drains() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let sandbox = Sandbox::new();
        sandbox.publish(&[event("e-1"), event("e-2")]);
        let worker = sandbox.start(&["run", "--handler", &waiting_line(&sandbox)]);
        sandbox.wait_for("running");
        worker.send(signal);
        sandbox.file("go", "");
        let ended = worker.ends().exits(0).complains("draining").complains("stopped    1 completed");
        assert!(!ended.stderr.contains("stopping"), "{}", ended.stderr);
        let mut statuses: Vec<_> = sandbox.deliveries().iter().map(|delivery| delivery.status).collect();
        statuses.sort();
        assert_eq!(statuses, [Status::Pending, Status::Completed]);
    }
}

#[test]
fn the_second_signal_stops_the_command_and_gives_its_delivery_back() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let worker = sandbox.start(&["run", "--handler", &waiting_line(&sandbox)]);
    sandbox.wait_for("running");
    worker.send(Signal::SIGTERM);
    worker.send(Signal::SIGINT);
    worker.ends().exits(130).complains("stopped    1 released");
    let delivery = sandbox.only_delivery();
    assert_eq!((delivery.status, delivery.attempts, delivery.lease_owner), (Status::Pending, 0, None));
}

#[test]
fn the_grace_is_as_long_as_it_was_told() {
    let sandbox = Sandbox::new();
    sandbox.publish(&[event("e-1")]);
    let worker = sandbox.start(&["run", "--grace", "100ms", "--handler", &waiting_line(&sandbox)]);
    sandbox.wait_for("running");
    worker.send(Signal::SIGTERM);
    worker.ends().exits(0).complains("stopping   1 delivery").complains("stopped    1 released");
    assert_eq!(sandbox.only_delivery().attempts, 0);
}

#[test]
fn what_a_killed_worker_left_is_finished_by_another_in_order() {
    const KEYS: usize = 5;
    const EVENTS: usize = 60;
    let sandbox = Sandbox::new();
    let events: Vec<_> =
        (0..EVENTS).map(|i| event(&format!("e-{i}")).key(format!("k{}", i % KEYS))).collect();
    sandbox.publish(&events);
    let line =
        format!("projector=echo $RELAY_KEY $RELAY_SEQUENCE >> {}; sleep 0.02", sandbox.path_of("trace"));
    let arguments = ["run", "--until-empty", "--lease", "2s", "--concurrency", "4", "--handler", &line];
    let worker = sandbox.start(&arguments);
    let traced = || std::fs::read_to_string(sandbox.path_of("trace")).unwrap_or_default();
    wait_until("the worker is in the middle of it", || traced().lines().count() >= EVENTS / 4);
    worker.send(Signal::SIGKILL);
    assert!(worker.ends().status.code().is_none());
    let before = sandbox.deliveries().iter().filter(|delivery| delivery.status == Status::Completed).count();
    assert!(before < EVENTS, "all was done before the worker was killed");

    sandbox.run(arguments).exits(0);
    assert!(sandbox.deliveries().iter().all(|delivery| delivery.status == Status::Completed));
    let trace = traced();
    let mut latest = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for line in trace.lines() {
        let (key, sequence) = line.split_once(' ').unwrap();
        let sequence: usize = sequence.parse().unwrap();
        let last = latest.insert(key, sequence).unwrap_or(0);
        assert!(sequence == last + 1 || sequence == last, "{key}: {sequence} came after {last}");
        seen.insert((key, sequence));
    }
    assert_eq!(seen.len(), EVENTS);
}
