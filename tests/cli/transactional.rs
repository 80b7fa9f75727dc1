//! `run` with transactional handlers: what a command writes is done with the completion.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, NewEvent, Status};
use serde_json::json;

use crate::harness::{Sandbox, event, wait_until};

impl Sandbox {
    fn documents(&self, collection: &str) -> Vec<Document> {
        let find = async |database: mongodb::Database| {
            database.collection::<Document>(collection).find(doc! {}).await?.try_collect().await
        };
        self.with_database(find).expect("find")
    }

    fn handlers(&self, toml: &str) -> String {
        self.file("handlers.toml", toml).display().to_string()
    }

    fn of_handler(&self, handler: &str) -> Delivery {
        let found = self.deliveries().into_iter().find(|delivery| delivery.handler == handler);
        found.unwrap_or_else(|| panic!("{handler} has a delivery"))
    }
}

const BILLING: &str = r#"
    [handlers.projector]
    types = ["order.*"]
    shell = "./bill.sh"
    transactional = true
    writes = ["invoices"]
    backoff = { kind = "fixed", base = "1h" }

    [handlers.archive]
    types = ["invoice.*"]
    shell = "cat >> archive.jsonl"
"#;

/// A sandbox with one event for a command of these lines.
fn billing(lines: &str) -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e-1").key("order-17")], SystemClock.now());
    let script = sandbox.file("bill.sh", format!("#!/bin/sh\nIFS= read -r event\n{lines}\n"));
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = sandbox.handlers(BILLING);
    (sandbox, file)
}

#[test]
fn what_a_command_writes_is_done_and_published_to_the_subscribers_of_the_file() {
    let (sandbox, file) = billing(
        r#"printf '{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7, "for": %s}}}\n' "$event"
        echo '{"publish": {"type": "invoice.made", "payload": {"invoice": 7}, "key": "order-17"}}'"#,
    );
    sandbox.run(["run", "--until-empty", "--handlers", &file]).exits(0);
    let [invoice] = sandbox.documents("invoices").try_into().unwrap();
    assert_eq!(invoice.get_document("for").unwrap().get_str("eventId").unwrap(), "e-1");
    assert_eq!(sandbox.of_handler("projector").status, Status::Completed);
    let archived = std::fs::read_to_string(sandbox.home.path().join("archive.jsonl")).unwrap();
    let archived: serde_json::Value = serde_json::from_str(&archived).unwrap();
    assert_eq!((&archived["payload"], &archived["causationId"]), (&json!({"invoice": 7}), &json!("e-1")));
    assert_eq!(archived["sequence"], json!(2));
}

#[test]
fn a_refused_line_is_told_in_the_log_and_kept_with_the_delivery() {
    let (sandbox, file) = billing(
        r#"echo '{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7}}}'
        echo '{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7}}}'"#,
    );
    let ran = sandbox.run(["run", "--once", "--handlers", &file]).exits(0);
    let duplicate = "line 2: insertOne in invoices failed: E11000 duplicate key error";
    ran.complains(&format!(": {duplicate}"));
    assert!(sandbox.of_handler("projector").last_error.unwrap().starts_with(duplicate));
    assert_eq!(sandbox.documents("invoices"), []);

    let (sandbox, file) = billing("echo; echo done");
    sandbox.run(["run", "--once", "--handlers", &file]).exits(0);
    let error = sandbox.of_handler("projector").last_error;
    assert_eq!(error.as_deref(), Some("line 2: is not valid JSON: expected value at column 1"));
}

#[test]
fn the_outboxs_own_collections_are_refused_before_anything_is_leased() {
    let (sandbox, _) = billing("true");
    let file = sandbox.handlers(&BILLING.replace("\"invoices\"", "\"invoices\", \"relaybus_deliveries\""));
    sandbox
        .run(["run", "--once", "--handlers", &file])
        .exits(2)
        .complains("handler projector: writes: collection `relaybus_deliveries` is the outbox's own");
    assert_eq!(sandbox.of_handler("projector").attempts, 0);
    let other = ["--prefix", "other_", "setup"];
    sandbox.run(other).exits(0);
    sandbox.run(["--prefix", "other_", "run", "--once", "--handlers", &file]).exits(0);
}

/// A worker that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many connections the server has from a client of this name.
fn connections_of(sandbox: &Sandbox, name: &str) -> usize {
    let operations = doc! { "$currentOp": { "allUsers": true, "idleConnections": true } };
    let look = async |database: mongodb::Database| {
        let admin = database.client().database("admin");
        let pipeline = [operations, doc! { "$match": { "appName": name } }];
        let cursor = admin.aggregate(pipeline).read_concern(ReadConcern::local()).await?;
        cursor.try_collect::<Vec<Document>>().await
    };
    sandbox.with_database(look).unwrap().len()
}

#[test]
fn a_worker_that_is_killed_between_the_command_and_its_transaction_leaves_no_trace() {
    let (sandbox, file) = billing(
        r#"echo '{"write": {"collection": "invoices", "op": "updateOne", "filter": {"_id": 1}, "update": {"$inc": {"count": 1}}}}'
        echo $$ >> pids"#,
    );
    sandbox.insert_raw("invoices", doc! { "_id": 1, "count": 0 });
    let mut blocking = sandbox.with_store(async |store| store.begin().await).unwrap();
    let touch = async |database: mongodb::Database| {
        let invoices = database.collection::<Document>("invoices");
        let touch = doc! { "$set": { "touched": true } };
        invoices.update_one(doc! { "_id": 1 }, touch).session(blocking.session()).await
    };
    sandbox.with_database(touch).unwrap();

    let mut command = sandbox.command();
    command.env("RELAYCTL_STORE", format!("{}&appName={}", sandbox.url, sandbox.database));
    command.args(["run", "--lease", "2s", "--handlers", &file]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut worker = Running(command.spawn().unwrap());
    let pids = || std::fs::read_to_string(sandbox.home.path().join("pids")).unwrap_or_default();
    wait_until("the command has ended", || {
        let pids = pids();
        pids.ends_with('\n') && !Path::new("/proc").join(pids.trim()).exists()
    });
    assert_eq!(sandbox.of_handler("projector").status, Status::Processing);
    assert_ne!(connections_of(&sandbox, &sandbox.database), 0, "it is not known by its name");
    kill(Pid::from_raw(worker.0.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    worker.0.wait().unwrap();
    // What it had sent may still be under way, and would begin a transaction that nobody ends.
    wait_until("the server has forgotten it", || connections_of(&sandbox, &sandbox.database) == 0);
    sandbox.with_store(async |_| blocking.commit().await).unwrap();

    sandbox.run(["run", "--until-empty", "--lease", "2s", "--handlers", &file]).exits(0);
    let delivery = sandbox.of_handler("projector");
    assert_eq!((delivery.status, delivery.attempts), (Status::Completed, 2));
    assert_eq!(sandbox.documents("invoices"), [doc! { "_id": 1, "count": 1, "touched": true }]);
    assert_eq!(pids().lines().count(), 2);
}

// ---- the example -----------------------------------------------------------------------------------------------------

/// A copy of the examples that writes nowhere else than below the sandbox.
fn examples(sandbox: &Sandbox) -> PathBuf {
    let target = sandbox.home.path().join("handlers");
    std::fs::create_dir(&target).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/handlers");
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let copy = target.join(path.file_name().unwrap());
        std::fs::copy(&path, &copy).unwrap();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let text = std::fs::read_to_string(&copy).unwrap();
            let text = text.replace("/tmp/", &format!("{}/", sandbox.home.path().display()));
            std::fs::write(&copy, text).unwrap();
        }
    }
    target.join("handlers.toml")
}

#[test]
fn the_example_makes_invoices() {
    let sandbox = Sandbox::new();
    let file = examples(&sandbox).display().to_string();
    let paid = |id: &str| {
        NewEvent::new("order.paid.v1", json!({"note": "it's \"paid\" \\ 100%"})).id(id).handler("invoice")
    };
    sandbox.append(&[paid("e-1"), paid("e-2")], SystemClock.now());
    sandbox.run(["run", "--until-empty", "--handlers", &file]).exits(0);
    let invoices = sandbox.documents("invoices");
    let of = |invoice: &Document| invoice.get_document("for").unwrap().get_str("eventId").unwrap().to_owned();
    assert_eq!(invoices.iter().map(of).collect::<BTreeSet<_>>(), ["e-1", "e-2"].map(str::to_owned).into());
    assert!(invoices.iter().all(|invoice| matches!(invoice.get("madeAt"), Some(Bson::DateTime(_)))));
    assert_eq!(sandbox.documents("invoice_totals"), [doc! { "_id": "all", "count": 2 }]);
    // The handler `print` of the file subscribes to everything, and so to what was published.
    let printed = std::fs::read_to_string(sandbox.home.path().join("relayctl-events.jsonl")).unwrap();
    assert_eq!(printed.matches("\"type\":\"invoice.made.v1\"").count(), 2, "{printed}");
}
