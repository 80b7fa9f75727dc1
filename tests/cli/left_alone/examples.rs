//! Every file of `examples/handlers` at work: a new file, or a new handler in one, that nothing here runs fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mongodb::bson::doc;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{NewEvent, Status};
use serde_json::json;

use crate::harness::Sandbox;

/// What a handler is tried with: an event for it, and a file in which its work shows, with a text that shows it.
struct Trial {
    handler: &'static str,
    event_type: &'static str,
    effect: (&'static str, &'static str),
}

const fn trial(
    handler: &'static str,
    event_type: &'static str,
    effect: (&'static str, &'static str),
) -> Trial {
    Trial { handler, event_type, effect }
}

/// Of each file, each of its handlers.
fn trials() -> BTreeMap<&'static str, Vec<Trial>> {
    let lines = vec![
        trial("counter", "order.placed.v1", ("relayctl-orders.count", "order.placed.v1 ")),
        trial("archive", "order.placed.v1", ("relayctl-archive.jsonl", "\"handler\":\"archive\"")),
    ];
    let handlers = vec![
        trial("print", "order.placed.v1", ("relayctl-events.jsonl", "\"handler\":\"print\"")),
        trial("projector", "order.placed.v1", ("relayctl-orders/o_17.json", "\"key\":\"o/17\"")),
        trial("gateway", "order.placed.v1", ("relayctl-cloudevents.jsonl", "\"partitionkey\":\"o/17\"")),
        trial("mailer", "customer.registered.v1", ("relayctl-mails.txt", "To: a@example.org")),
        // What it publishes goes to the handler `print`.
        trial("invoice", "order.paid.v1", ("relayctl-events.jsonl", "\"type\":\"invoice.made.v1\"")),
    ];
    BTreeMap::from([("handlers.toml", handlers), ("lines.toml", lines)])
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/handlers")
}

fn names(ending: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let ours = entries.filter(|path| path.extension().is_some_and(|found| found == ending));
    ours.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The folder as it stands, but for the place of what is written.
fn copy_to(sandbox: &Sandbox) {
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replace("/tmp/", &format!("{}/", sandbox.home.path().display()));
        let copy = sandbox.file(path.file_name().unwrap().to_str().unwrap(), text);
        fs::set_permissions(copy, path.metadata().unwrap().permissions()).unwrap();
    }
}

#[test]
fn each_handler_of_each_example_does_its_work() {
    let trials = trials();
    assert_eq!(names("toml"), trials.keys().map(ToString::to_string).collect(), "files, and trials of them");
    for (file, trials) in trials {
        let sandbox = Sandbox::new();
        copy_to(&sandbox);
        let file = sandbox.home.path().join(file).display().to_string();
        let listed = sandbox.run(["run", "--handlers", &file, "--check", "-o", "json"]).exits(0).json();
        let handlers: BTreeSet<_> =
            listed.as_array().unwrap().iter().map(|one| one["handler"].as_str().unwrap()).collect();
        assert_eq!(handlers, trials.iter().map(|trial| trial.handler).collect(), "handlers of {file}");
        try_all(&sandbox, &file, &trials);
    }
}

fn try_all(sandbox: &Sandbox, file: &str, trials: &[Trial]) {
    let payload = json!({ "email": "a@example.org", "total": 4 });
    let event =
        |trial: &Trial| NewEvent::new(trial.event_type, payload.clone()).key("o/17").handler(trial.handler);
    sandbox.append(&trials.iter().map(event).collect::<Vec<_>>(), SystemClock.now());
    sandbox.run(["run", "--until-empty", "--handlers", file]).exits(0);
    for trial in trials {
        let (effect, text) = trial.effect;
        let written = fs::read_to_string(sandbox.home.path().join(effect)).unwrap_or_default();
        assert!(written.contains(text), "{} left no `{text}` in {effect}: {written}", trial.handler);
    }
    let deliveries = sandbox.deliveries();
    assert!(
        deliveries.iter().all(|one| one.status == Status::Completed && one.attempts == 1),
        "{deliveries:#?}"
    );
    if trials.iter().any(|trial| trial.handler == "invoice") {
        let count = |collection: &'static str| {
            sandbox.with_database(async move |database| {
                database.collection::<mongodb::bson::Document>(collection).count_documents(doc! {}).await
            })
        };
        assert_eq!((count("invoices").unwrap(), count("invoice_totals").unwrap()), (1, 1));
    }
}

/// A script that no handler calls is run by nothing above.
#[test]
fn each_script_of_the_examples_belongs_to_a_handler() {
    let files: String =
        names("toml").iter().map(|name| fs::read_to_string(folder().join(name)).unwrap()).collect();
    let is_called =
        |name: &String| files.lines().any(|line| !line.starts_with('#') && line.contains(&**name));
    let idle: Vec<_> = names("sh").into_iter().filter(|name| !is_called(name)).collect();
    assert_eq!(idle, [""; 0]);
    let known: BTreeSet<_> = names("toml").into_iter().chain(names("sh")).collect();
    let all: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(all, known, "a file of a kind that nothing here runs");
}
