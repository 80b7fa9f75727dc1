//! SIGHUP: `run` reads its handlers file again.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, NewEvent, Status};
use serde_json::{Value, json};

use crate::harness::{Sandbox, event, wait_until};

/// A worker with a handlers file, and a log that can be read while it runs.
struct Worker<'s> {
    sandbox: &'s Sandbox,
    process: Child,
}

impl<'s> Worker<'s> {
    fn start(sandbox: &'s Sandbox, handlers: &str) -> Worker<'s> {
        sandbox.write_handlers(handlers);
        let file = sandbox.path_of_handlers();
        Worker::spawn(sandbox, sandbox.command(), &["run", "--handlers", &file, "--poll-interval", "50ms"])
    }

    fn spawn(sandbox: &'s Sandbox, mut command: Command, arguments: &[&str]) -> Worker<'s> {
        let log = File::create(sandbox.home.path().join("log")).unwrap();
        command.args(arguments).args(["--log-format", "json"]).stdout(Stdio::null()).stderr(log);
        let worker = Worker { sandbox, process: command.spawn().unwrap() };
        wait_until("the worker has begun", || !worker.told("started").is_empty());
        worker
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// What the log tells of such events.
    fn told(&self, event: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.sandbox.home.path().join("log")).unwrap();
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let entries = whole.map(|line| serde_json::from_str::<Value>(line).expect(line));
        entries.filter(|entry| entry["event"] == event).collect()
    }

    /// Sends SIGHUP, and waits for what the log tells of it.
    fn hangs_up(&self, event: &str) -> Value {
        let before = self.told(event).len();
        self.send(Signal::SIGHUP);
        wait_until(&format!("the log tells of `{event}`"), || self.told(event).len() > before);
        self.told(event).pop().unwrap()
    }

    /// Asks it to drain, and waits for its end.
    fn ends(&mut self) -> Option<i32> {
        self.send(Signal::SIGTERM);
        self.process.wait().unwrap().code()
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sandbox {
    fn path_of_handlers(&self) -> String {
        self.home.path().join("handlers.toml").display().to_string()
    }

    /// Puts a new file in the place of the old one, as a whole.
    fn write_handlers(&self, toml: &str) {
        let new = self.file("handlers.new", toml);
        std::fs::rename(new, self.path_of_handlers()).unwrap();
    }

    fn publish_for(&self, handler: &str, id: &str) {
        self.append(&[NewEvent { handlers: vec![handler.into()], ..event(id) }], SystemClock.now());
    }

    fn of_event(&self, id: &str) -> Delivery {
        self.deliveries().into_iter().find(|one| one.event_id.as_str() == id).expect("a delivery")
    }

    fn completes(&self, id: &str) {
        wait_until(&format!("{id} is completed"), || self.of_event(id).status == Status::Completed);
    }

    fn wait_for_file(&self, file: &str) {
        wait_until(&format!("{file} is there"), || self.home.path().join(file).exists());
    }
}

const AUDIT: &str = "[handlers.audit]\ntypes = ['*']\nshell = 'cat >> audited'\n";

const WAITING: &str = "touch running; while ! test -e go; do sleep 0.01; done";

// ---- a file that is well -------------------------------------------------------------------------------------------

#[test]
fn the_unit_of_the_examples_reloads_a_worker() {
    let sandbox = Sandbox::new();
    let mut worker = Worker::start(&sandbox, "[handlers.one]\ntypes = ['*']\nshell = 'true'\n");
    sandbox.write_handlers("[handlers.two]\ntypes = ['*']\nshell = 'true'\n");
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/systemd/relayctl.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let reload = unit.lines().find_map(|line| line.strip_prefix("ExecReload=")).expect("it can be reloaded");
    let line = reload.replace("$MAINPID", &worker.process.id().to_string());
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
    wait_until("it has read its file again", || !worker.told("reloaded").is_empty());
    let reloaded = worker.told("reloaded").pop().unwrap();
    assert_eq!((&reloaded["added"], &reloaded["removed"]), (&json!(["two"]), &json!(["one"])));
    assert_eq!(worker.ends(), Some(0));
}

#[test]
fn the_new_handlers_are_in_force_while_a_command_of_the_old_ones_goes_on() {
    let sandbox = Sandbox::new();
    let mailer =
        format!("[handlers.mailer]\ntypes = ['*']\nshell = '{WAITING}; echo $V > version'\nlease = '2s'\n");
    let mut worker = Worker::start(&sandbox, &format!("{AUDIT}{mailer}env = {{ V = 'old' }}\n"));
    sandbox.publish_for("mailer", "e-1");
    sandbox.wait_for_file("running");
    let leased = sandbox.of_event("e-1").lease_expires_at;

    let printer = "[handlers.printer]\ntypes = ['*']\nshell = 'cat >> printed'\n";
    sandbox.write_handlers(&format!("{AUDIT}{printer}"));
    let reloaded = worker.hangs_up("reloaded");
    assert_eq!((&reloaded["added"], &reloaded["removed"]), (&json!(["printer"]), &json!(["mailer"])));
    assert_eq!((&reloaded["changed"], &reloaded["unchanged"]), (&json!([]), &json!(["audit"])));
    assert_eq!(reloaded["level"], "info");
    for (handler, id) in [("printer", "e-2"), ("audit", "e-3"), ("mailer", "e-4")] {
        sandbox.publish_for(handler, id);
    }
    sandbox.completes("e-2");
    sandbox.completes("e-3");
    wait_until("its lease is renewed", || sandbox.of_event("e-1").lease_expires_at > leased);
    sandbox.file("go", "");
    sandbox.completes("e-1");
    assert_eq!(std::fs::read_to_string(sandbox.home.path().join("version")).unwrap(), "old\n");
    assert_eq!((sandbox.of_event("e-1").attempts, sandbox.of_event("e-1").errors.len()), (1, 0));
    let left = sandbox.of_event("e-4");
    assert_eq!((left.status, left.attempts), (Status::Pending, 0));

    // It comes back, as another one.
    sandbox.write_handlers(&format!("{AUDIT}{printer}{mailer}env = {{ V = 'new' }}\n"));
    assert_eq!(worker.hangs_up("reloaded")["added"], json!(["mailer"]));
    sandbox.completes("e-4");
    assert_eq!(std::fs::read_to_string(sandbox.home.path().join("version")).unwrap(), "new\n");
    let same = worker.hangs_up("reloaded");
    assert_eq!(same["unchanged"], json!(["audit", "mailer", "printer"]));
    assert_eq!(worker.ends(), Some(0));
}

#[test]
fn people_read_what_has_changed() {
    let sandbox = Sandbox::new();
    sandbox.write_handlers(&format!("{AUDIT}[handlers.mailer]\ntypes = ['*']\nshell = 'true'\n"));
    let worker = sandbox.start(&["run", "--handlers", &sandbox.path_of_handlers()]);
    sandbox.publish_for("audit", "e-1");
    sandbox.completes("e-1");
    let printer = "[handlers.printer]\ntypes = ['*']\nshell = 'cat >> printed'\n";
    sandbox.write_handlers(&format!("{}{printer}", AUDIT.replace("'*'", "'order.*'")));
    sandbox.publish_for("printer", "e-2");
    worker.send(Signal::SIGHUP);
    sandbox.completes("e-2");
    worker.send(Signal::SIGTERM);
    worker.ends().exits(0).complains("reloaded   added printer; changed audit; removed mailer\n");
}

/// Also for a handler that is the same.
#[test]
fn what_is_published_is_for_the_subscribers_of_the_new_file() {
    let sandbox = Sandbox::new();
    let line = r#"echo "{\"publish\": {\"type\": \"invoice.made.v1\", \"id\": \"of-$RELAY_EVENT_ID\", \"payload\": 1}}""#;
    let billing =
        format!("[handlers.billing]\ntypes = ['order.*']\nshell = '''{line}'''\ntransactional = true\n");
    let archive = "[handlers.archive]\ntypes = ['invoice.*']\nshell = 'true'\n";
    let mut worker = Worker::start(&sandbox, &format!("{billing}{archive}"));
    let subscribers = |id: &str| -> BTreeSet<String> {
        sandbox.publish_for("billing", id);
        sandbox.completes(id);
        let invoice = format!("of-{id}");
        let of_invoice = || sandbox.deliveries().into_iter().filter(|one| one.event_id.as_str() == invoice);
        wait_until("they have it", || of_invoice().all(|one| one.status == Status::Completed));
        wait_until("that is told", || {
            let told = worker.told("finished");
            of_invoice().all(|one| told.iter().any(|entry| entry["deliveryId"] == one.id.as_str()))
        });
        of_invoice().map(|one| one.handler).collect()
    };
    assert_eq!(subscribers("e-1"), ["archive".to_owned()].into());
    let ledger = "[handlers.ledger]\ntypes = ['invoice.*']\nshell = 'true'\n";
    sandbox.write_handlers(&format!("{billing}{archive}{ledger}"));
    assert_eq!(worker.hangs_up("reloaded")["unchanged"], json!(["archive", "billing"]));
    assert_eq!(subscribers("e-2"), ["archive".to_owned(), "ledger".to_owned()].into());
    let late = "[handlers.late]\ntypes = ['invoice.*']\nshell = 'true'\nlease = '10ms'\n";
    sandbox.write_handlers(&format!("{billing}{archive}{ledger}{late}"));
    worker.hangs_up("reload-refused");
    assert_eq!(subscribers("e-refused"), ["archive".to_owned(), "ledger".to_owned()].into());
    sandbox.write_handlers(&format!("{billing}{archive}{}", ledger.replace("invoice", "order")));
    worker.hangs_up("reloaded");
    assert_eq!(subscribers("e-3"), ["archive".to_owned()].into());
    assert_eq!(worker.told("warning").len(), 0);
    sandbox.publish_for("archive", "e-4");
    sandbox.completes("e-4");
    wait_until("a foreign type is warned about", || worker.told("warning").len() == 1);
    sandbox.write_handlers(&format!("{billing}{}", archive.replace("invoice.*", "*")));
    worker.hangs_up("reloaded");
    sandbox.append(
        &[NewEvent { event_type: "user.left".into(), handlers: vec!["archive".into()], ..event("e-5") }],
        SystemClock.now(),
    );
    sandbox.completes("e-5");
    assert_eq!(worker.ends(), Some(0));
    assert_eq!(worker.told("warning").len(), 1);
}

// ---- a file that is not --------------------------------------------------------------------------------------------

#[test]
fn a_broken_file_is_refused_and_the_old_handlers_work_on() {
    let sandbox = Sandbox::new();
    let mut worker = Worker::start(&sandbox, AUDIT);
    let handlers = sandbox.path_of_handlers();
    let of_mailer = |line: &str| format!("{AUDIT}[handlers.mailer]\ntypes = ['*']\n{line}\n");
    let broken = [
        ("[handlers.mailer".to_owned(), "is not a valid handlers file: TOML parse error at line 1"),
        (String::new(), "has no [handlers.NAME]"),
        (of_mailer("shell = 'true'\ntime_out = '5s'"), "`handlers.mailer.time_out` is unknown"),
        (of_mailer("shell = 'true'\ntimeout = '5'"), "handler `mailer`: timeout: `5` is not a duration"),
        (of_mailer("command = ['./not-there']"), "handler mailer: "),
        (of_mailer("shell = 'true'\nworkdir = 'no/such'"), "handler mailer: "),
        (of_mailer("shell = 'true'\non_dead = ['no-such-command']"), "handler mailer: on_dead: "),
        (of_mailer("shell = 'true'\nuser = 'no such user'"), "handler `mailer`: user: "),
        (of_mailer("shell = 'true'\nlease = '10ms'"), "lease of handler mailer: must be at least 1s"),
        (
            of_mailer("shell = 'true'\ntransactional = true\nwrites = ['relaybus_events']"),
            "handler mailer: writes: ",
        ),
    ];
    for (number, (toml, reason)) in broken.iter().enumerate() {
        sandbox.write_handlers(toml);
        let refused = worker.hangs_up("reload-refused");
        let error = refused["error"].as_str().unwrap();
        assert!(error.contains(reason) && error.contains(&handlers), "{reason}: {error}");
        assert_eq!(refused["level"], "error");
        let id = format!("e-{number}");
        sandbox.publish_for("audit", &id);
        sandbox.completes(&id);
    }
    std::fs::remove_file(&handlers).unwrap();
    let refused = worker.hangs_up("reload-refused");
    assert!(refused["error"].as_str().unwrap().contains("No such file"), "{refused}");
    sandbox.write_handlers(&of_mailer("shell = 'true'"));
    let reloaded = worker.hangs_up("reloaded");
    assert_eq!((&reloaded["added"], &reloaded["unchanged"]), (&json!(["mailer"]), &json!(["audit"])));
    assert_eq!(worker.told("reloaded").len(), 1);
    assert_eq!(worker.ends(), Some(0));
}

/// The file is a pipe that nobody writes to.
#[test]
fn a_file_that_does_not_end_holds_up_neither_the_work_nor_the_end() {
    let sandbox = Sandbox::new();
    let mut worker = Worker::start(&sandbox, AUDIT);
    std::fs::remove_file(sandbox.path_of_handlers()).unwrap();
    mkfifo(sandbox.path_of_handlers().as_str(), Mode::S_IRWXU).unwrap();
    worker.send(Signal::SIGHUP);
    for number in 0..20 {
        let id = format!("e-{number}");
        sandbox.publish_for("audit", &id);
        sandbox.completes(&id);
    }
    // Whoever writes to it is read, and the signals that came meanwhile are one.
    worker.send(Signal::SIGHUP);
    worker.send(Signal::SIGHUP);
    let mailer = format!("{AUDIT}[handlers.mailer]\ntypes = ['*']\nshell = '{WAITING}'\n");
    std::fs::write(sandbox.path_of_handlers(), &mailer).unwrap();
    wait_until("the file is in force", || !worker.told("reloaded").is_empty());
    assert_eq!(worker.told("reloaded")[0]["added"], json!(["mailer"]));
    sandbox.publish_for("mailer", "e-last");
    sandbox.wait_for_file("running");
    worker.send(Signal::SIGHUP);
    worker.send(Signal::SIGTERM);
    wait_until("it is not waited for", || !worker.told("reload-ignored").is_empty());
    sandbox.file("go", "");
    assert_eq!(worker.process.wait().unwrap().code(), Some(0));
    assert_eq!(sandbox.of_event("e-last").status, Status::Completed);
}

// ---- when it is not the time ---------------------------------------------------------------------------------------

#[test]
fn without_a_file_it_is_ignored_with_a_word() {
    let sandbox = Sandbox::new();
    let mut worker = Worker::spawn(&sandbox, sandbox.command(), &["run", "--handler", "projector=true"]);
    let ignored = worker.hangs_up("reload-ignored");
    assert_eq!(ignored["reason"], "there is no handlers file to read again");
    sandbox.publish_for("projector", "e-1");
    sandbox.completes("e-1");
    assert_eq!(worker.ends(), Some(0));
}

/// As with nohup, which wants it to survive: it does.
#[test]
fn it_is_obeyed_where_whoever_started_the_worker_has_it_ignored() {
    let sandbox = Sandbox::new();
    sandbox.write_handlers(AUDIT);
    let mut command = sandbox.command();
    let relayctl = command.get_program().to_owned();
    command = {
        let mut shell = Command::new("/bin/sh");
        shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(relayctl).stdin(Stdio::null());
        shell
    };
    let mut worker = Worker::spawn(&sandbox, command, &["run", "--handlers", &sandbox.path_of_handlers()]);
    assert_eq!(worker.hangs_up("reloaded")["unchanged"], json!(["audit"]));
    assert_eq!(worker.ends(), Some(0));
}

#[test]
fn in_a_drain_it_is_ignored() {
    let sandbox = Sandbox::new();
    let mailer = format!("[handlers.mailer]\ntypes = ['*']\nshell = '{WAITING}'\n");
    let mut worker = Worker::start(&sandbox, &mailer);
    sandbox.publish_for("mailer", "e-1");
    sandbox.wait_for_file("running");
    worker.send(Signal::SIGTERM);
    wait_until("it drains", || !worker.told("draining").is_empty());
    sandbox.write_handlers(AUDIT);
    sandbox.publish_for("audit", "e-2");
    assert_eq!(worker.hangs_up("reload-ignored")["reason"], "the worker is ending");
    sandbox.file("go", "");
    assert_eq!(worker.process.wait().unwrap().code(), Some(0));
    assert_eq!(sandbox.of_event("e-1").status, Status::Completed);
    assert_eq!(sandbox.of_event("e-2").status, Status::Pending);
    assert!(worker.told("reloaded").is_empty());
}

// ---- under load ----------------------------------------------------------------------------------------------------

#[test]
fn heavy_two_hundred_times_under_load_every_delivery_runs_once() {
    const EACH: usize = 1_000;
    let sandbox = Sandbox::new();
    let events = |handler: &str| -> Vec<NewEvent> {
        let event = |i| NewEvent { handlers: vec![handler.into()], ..event(&format!("{handler}-{i}")) };
        (0..EACH).map(event).collect()
    };
    sandbox.append(&events("mailer"), SystemClock.now());
    sandbox.append(&events("printer"), SystemClock.now());
    let handler = |name: &str, rest: &str| {
        format!("[handlers.{name}]\ntypes = ['*']\nshell = 'echo $RELAY_EVENT_ID >> {name}.runs'\n{rest}\n")
    };
    let version = |i: usize| {
        let printer = handler("printer", "concurrency = 2");
        let mailer = match i % 4 {
            0 => return printer,
            1 => handler("mailer", "concurrency = 4"),
            2 => handler("mailer", "concurrency = 1\nlease = '30s'"),
            _ => handler("mailer", "concurrency = 2\nenv = { X = 'y' }"),
        };
        format!("{printer}{mailer}")
    };
    let mut worker = Worker::start(&sandbox, &version(1));
    for i in 0..200 {
        sandbox.write_handlers(&version(i));
        // Every third one is followed by the next while it is under way.
        match i % 3 {
            0 => worker.send(Signal::SIGHUP),
            _ => drop(worker.hangs_up("reloaded")),
        }
    }
    sandbox.write_handlers(&version(3));
    worker.send(Signal::SIGHUP);
    let is_done = || sandbox.deliveries().iter().all(|one| one.status == Status::Completed);
    wait_until("all is done", is_done);
    assert!(sandbox.deliveries().iter().all(|one| one.attempts == 1 && one.errors.is_empty()));
    for name in ["mailer", "printer"] {
        let runs = std::fs::read_to_string(sandbox.home.path().join(format!("{name}.runs"))).unwrap();
        let different: BTreeSet<_> = runs.lines().collect();
        assert_eq!((runs.lines().count(), different.len()), (EACH, EACH), "{name}");
    }
    let last = worker.told("finished").pop().unwrap()["time"].clone();
    let reloads: Vec<_> =
        worker.told("reloaded").into_iter().filter(|one| one["time"].as_str() < last.as_str()).collect();
    let removals = reloads.iter().filter(|one| one["removed"] == json!(["mailer"])).count();
    assert!(reloads.len() >= 100 && removals >= 10, "{} while it worked, {removals} removals", reloads.len());
    assert_eq!(worker.told("crashed").len() + worker.told("reload-refused").len(), 0);
    assert_eq!(worker.ends(), Some(0));
    let stopped = worker.told("stopped").pop().unwrap();
    assert_eq!((&stopped["completed"], &stopped["leaseLost"]), (&json!(2 * EACH), &json!(0)), "{stopped}");
}
