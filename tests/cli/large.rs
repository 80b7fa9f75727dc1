//! A store that is far larger than what may be held in memory: everything streams.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use mongodb::bson::{DateTime, Document, doc};
use nix::sys::resource::{UsageWho, getrusage};

use crate::harness::{Sandbox, ago};

/// One listing of these takes some 60 MB of JSON, and held as objects several times as much.
const DELIVERIES: i64 = 150_000;

/// What a command may take at the most.
const LIMIT_KB: i64 = 100 * 1024;

fn fill(sandbox: &Sandbox) {
    let since = ago(86_400).as_millis();
    sandbox.with_database(async |database| {
        let deliveries = database.collection::<Document>("relaybus_deliveries");
        let events = database.collection::<Document>("relaybus_events");
        for start in (0..DELIVERIES).step_by(20_000) {
            let range = start..(start + 20_000).min(DELIVERIES);
            let batch = range.clone().map(|n| delivery(n, DateTime::from_millis(since + n)));
            deliveries.insert_many(batch).ordered(false).await.unwrap();
            let batch =
                range.map(|n| doc! { "_id": format!("e{n:07}"), "type": "t", "payload": {}, "headers": {} });
            events.insert_many(batch).ordered(false).await.unwrap();
        }
    });
}

fn delivery(n: i64, at: DateTime) -> Document {
    doc! {
        "_id": format!("d{n:07}"), "eventId": format!("e{n:07}"), "eventType": "order.placed.v1",
        "handler": format!("h{}", n % 3), "status": "pending", "lane": "ready", "attempts": 0,
        "availableAt": at, "dueAt": at, "createdAt": at, "updatedAt": at,
    }
}

/// The most memory that any command so far took, in kB.
fn peak_kb() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss()
}

#[test]
fn heavy_commands_on_a_large_store_stream() {
    let sandbox = Sandbox::new();
    fill(&sandbox);
    sandbox.go("list").exits(0);
    sandbox.go("list --status pending --handler h1 --sort due --reverse -o json").exits(0);
    let counted = sandbox.go("stats -o json").exits(0).json();
    assert_eq!(counted["pending"], DELIVERIES);
    let purge = sandbox.go("purge --dry-run --completed-before 0s --dead-before 0s -o json").exits(0).json();
    assert_eq!(purge["matched"], 0);
    for format in ["jsonl", "table"] {
        let mut command = sandbox.command();
        command.args(["list", "--all", "-o", format]);
        let lines = count_lines(command);
        assert!(lines >= DELIVERIES, "{format}: {lines} lines");
    }
    assert!(peak_kb() < LIMIT_KB, "{} kB", peak_kb());
}

/// Reads as a slow consumer would, which holds nothing itself.
fn count_lines(mut command: Command) -> i64 {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = 0;
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).unwrap() > 0 {
        lines += 1;
        line.clear();
    }
    output.read_to_end(&mut line).unwrap();
    assert!(child.wait().unwrap().success());
    lines
}
