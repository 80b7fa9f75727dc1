//! `run` with commands that stay and with batches, from the handlers file to the log.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{NewEvent, Status};
use serde_json::{Value, json};

use crate::harness::{Sandbox, wait_until};

fn example(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/handlers").join(file);
    std::fs::read_to_string(path).expect("an example")
}

fn with_program(sandbox: &Sandbox, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let file = sandbox.file(name, text);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("an executable file");
}

fn append(sandbox: &Sandbox, handler: &str, count: usize) {
    let events: Vec<_> = (0..count)
        .map(|i| NewEvent::new("order.placed.v1", json!({ "number": i })).handler(handler))
        .collect();
    sandbox.append(&events, SystemClock.now());
}

fn lines_of(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn the_example_of_commands_that_stay_works() {
    let sandbox = Sandbox::new();
    let home = sandbox.home.path().display().to_string();
    let file = sandbox.file("lines.toml", example("lines.toml").replace("/tmp", &home));
    for program in ["count.sh", "archive.sh"] {
        with_program(&sandbox, program, &example(program));
    }
    append(&sandbox, "counter", 30);
    append(&sandbox, "archive", 30);
    let file = file.display().to_string();
    let listed = sandbox.run(["run", "--handlers", &file, "--check", "-o", "json"]).exits(0).json();
    let shown: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["mode"], &one["batch"], &one["concurrency"]))
        .collect();
    assert_eq!(
        shown,
        [(&json!("process"), &json!(100), &json!(200)), (&json!("lines"), &Value::Null, &json!(1))]
    );
    sandbox.run(["run", "--handlers", &file, "--until-empty"]).exits(0);
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Completed && one.attempts == 1));
    assert_eq!(lines_of(&sandbox.home.path().join("relayctl-orders.count")).len(), 30);
    let batches = lines_of(&sandbox.home.path().join("relayctl-archive.jsonl"));
    let archived = batches.iter().map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap().len());
    assert_eq!(archived.sum::<usize>(), 30);
    assert!(batches.len() < 30, "there were no batches: {}", batches.len());
}

#[test]
fn a_drain_ends_the_children_and_the_log_has_what_they_said() {
    let sandbox = Sandbox::new();
    append(&sandbox, "mailer", 1);
    let text = r#"
        [handlers.mailer]
        types = ["*"]
        mode = "lines"
        shell = '''
            echo hello >&2
            while IFS= read -r event; do
                id=${event##*'"deliveryId":"'}
                printf '{"id":"%s","ok":true}\n' "${id%%\"*}"
            done
            touch farewell
        '''
    "#;
    let file = sandbox.file("handlers.toml", text).display().to_string();
    let worker = sandbox.start(&["run", "--handlers", &file, "--log-format", "json"]);
    wait_until("the delivery is done", || {
        sandbox.deliveries().iter().all(|one| one.status == Status::Completed)
    });
    assert!(!sandbox.home.path().join("farewell").exists(), "the child stays");
    worker.send(Signal::SIGTERM);
    let ran = worker.ends().exits(0);
    assert!(sandbox.home.path().join("farewell").exists(), "the child found the end of its input");
    let log: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = log.iter().find(|entry| entry["event"] == "child-said").expect("what the child said");
    assert_eq!((&said["handler"], &said["message"]), (&json!("mailer"), &json!("hello")));
    assert_eq!(log.last().unwrap()["event"], "stopped", "{}", ran.stderr);
}
