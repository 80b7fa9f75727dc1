//! What was printed when the server was killed in the middle of it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use mongodb::bson::{DateTime, Document, doc};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Sandbox, ago, wait_until};
use crate::left_alone::server::Server;

/// Far more than a pipe holds, and than the server sends in one reply.
const DELIVERIES: i64 = 60_000;

fn fill(sandbox: &Sandbox) {
    let at = DateTime::from_millis(ago(3_600).as_millis());
    let event =
        |n| doc! { "_id": format!("e{n}"), "type": "t", "payload": n, "headers": {}, "createdAt": at };
    let delivery = |n| {
        doc! {
            "_id": format!("d{n}"), "eventId": format!("e{n}"), "eventType": "t", "handler": "h", "status": "pending",
            "lane": "ready", "attempts": 0, "availableAt": at, "dueAt": at, "createdAt": at, "updatedAt": at,
        }
    };
    sandbox.with_database(async |database| {
        let insert = async |name: &str, documents: Vec<Document>| {
            let collection = database.collection::<Document>(name);
            collection.insert_many(documents).ordered(false).await.unwrap();
        };
        insert("relaybus_events", (0..DELIVERIES).map(event).collect()).await;
        insert("relaybus_deliveries", (0..DELIVERIES).map(delivery).collect()).await;
    });
}

/// What `line` printed until the server was killed under it, its message, and its exit code.
fn cut_short(line: &str) -> (String, String, i32) {
    let server = Server::start(&line.replace(' ', ""), &[]);
    let sandbox = Sandbox::on(&server.uri);
    fill(&sandbox);
    let mut command = sandbox.command();
    command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    for _ in 0..10 {
        output.read_line(&mut printed).unwrap();
    }
    // Nobody reads on before it is dead, and the pipe holds little.
    server.send(Signal::SIGKILL);
    wait_until("the server is dead", || server.is_dead());
    output.read_to_string(&mut printed).unwrap();
    let ended = child.wait_with_output().unwrap();
    (printed, String::from_utf8(ended.stderr).unwrap(), ended.status.code().unwrap())
}

fn assert_cut_short(line: &str, count: impl FnOnce(&str) -> usize) {
    let (printed, said, code) = cut_short(line);
    assert_eq!(code, 4, "{line}: {said}");
    assert!(said.contains("error: "), "{line}: {said}");
    let count = count(&printed);
    assert!((5..DELIVERIES as usize).contains(&count), "{line}: {count} of {DELIVERIES}");
}

fn objects(text: &str) -> usize {
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(all.iter().all(Value::is_object));
    all.len()
}

#[test]
fn heavy_lines_are_whole() {
    assert_cut_short("list --all -o jsonl", objects);
}

#[test]
fn heavy_a_document_is_closed() {
    assert_cut_short("list --all -o json", |text| serde_json::from_str::<Vec<Value>>(text).unwrap().len());
}

#[test]
fn heavy_rows_of_csv_have_all_their_fields() {
    assert_cut_short("list --all -o csv", |text| {
        let commas = |line: &str| line.matches(',').count();
        let expected = commas(text.lines().next().unwrap());
        assert!(text.ends_with('\n') && text.lines().all(|line| commas(line) == expected));
        text.lines().count()
    });
}

#[test]
fn heavy_an_export_is_cut_between_lines() {
    assert_cut_short("export", objects);
}
