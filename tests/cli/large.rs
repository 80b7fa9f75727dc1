//! A store that is far larger than what may be held in memory: everything streams.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};

use crate::harness::{Sandbox, ago};

/// One listing of these takes some 60 MB of JSON, and held as objects several times as much.
const DELIVERIES: i64 = 150_000;

/// What goes elsewhere: some 60 MB of JSON as well, as each line has its event.
const TRANSFERRED: i64 = 100_000;

/// What a command may take at the most.
const LIMIT_KB: i64 = 100 * 1024;

fn fill(sandbox: &Sandbox, deliveries_in_all: i64) {
    let since = ago(86_400).as_millis();
    sandbox.with_database(async |database| {
        let deliveries = database.collection::<Document>("relaybus_deliveries");
        let events = database.collection::<Document>("relaybus_events");
        for start in (0..deliveries_in_all).step_by(20_000) {
            let range = start..(start + 20_000).min(deliveries_in_all);
            let batch = range.clone().map(|n| delivery(n, DateTime::from_millis(since + n)));
            deliveries.insert_many(batch).ordered(false).await.unwrap();
            let batch = range.map(|n| event(n, DateTime::from_millis(since + n)));
            events.insert_many(batch).ordered(false).await.unwrap();
        }
    });
}

fn event(n: i64, at: DateTime) -> Document {
    doc! {
        "_id": format!("e{n:07}"), "type": "order.placed.v1", "payload": { "n": n }, "headers": {}, "key": key(n),
        "sequence": n, "createdAt": at,
    }
}

fn key(n: i64) -> String {
    format!("k{}", n % 1_000)
}

fn delivery(n: i64, at: DateTime) -> Document {
    doc! {
        "_id": format!("d{n:07}"), "eventId": format!("e{n:07}"), "eventType": "order.placed.v1",
        "handler": format!("h{}", n % 3), "key": key(n), "sequence": n, "status": "pending", "lane": "ready", "attempts": 0,
        "availableAt": at, "dueAt": at, "createdAt": at, "updatedAt": at,
        "lastError": format!("order {n} at step {} is unknown", ["one", "two"][(n % 2) as usize]),
    }
}

#[test]
fn heavy_commands_on_a_large_store_stream() {
    let sandbox = Sandbox::new();
    fill(&sandbox, DELIVERIES);
    let counted = sandbox.go("stats -o json").exits(0).json();
    assert_eq!(counted["pending"], DELIVERIES);
    let purge = "purge --dry-run --completed-before 0s --dead-before 0s -o json";
    assert_eq!(sandbox.go(purge).exits(0).json()["matched"], 0);
    let page = "list --status pending --handler h1 --sort due --reverse -o json";
    let errors = "errors --status pending --handler h1";
    let group = sandbox.go(&format!("{errors} --limit 1 -o ids")).exits(0).stdout;
    let of_group = format!("bury --dry-run --handler h1 --group {}", group.trim());
    for (line, least) in
        [("list", 50), (page, 50), ("stats", 3), (purge, 1), (errors, 3), (of_group.as_str(), 1)]
    {
        assert_streams(&sandbox, line, least);
    }
    for format in ["jsonl", "table"] {
        assert_streams(&sandbox, &format!("list --all -o {format}"), DELIVERIES);
    }
}

#[test]
fn heavy_a_large_store_goes_elsewhere_in_little_memory() {
    let sandbox = Sandbox::new();
    fill(&sandbox, TRANSFERRED);
    sandbox.go("--prefix lab_ setup -q").exits(0);
    let file = sandbox.home.path().join("all.jsonl");
    let file = file.to_str().unwrap();
    assert_streams(&sandbox, &format!("export --file {file}"), 1);
    assert_streams(&sandbox, &format!("--prefix lab_ import {file} --batch-size 500"), 1);
    let counted = sandbox.go("--prefix lab_ stats -o json").exits(0).json();
    assert_eq!(counted["pending"], TRANSFERRED);
    assert_streams(&sandbox, "backfill --handler late --type order.* -n", 1);
}

/// The command prints at least so many lines, and takes no more memory than it may.
fn assert_streams(sandbox: &Sandbox, line: &str, least: i64) {
    let mut command = sandbox.command();
    let mut child =
        command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let watcher = std::thread::spawn(move || peak_kb(id));
    let lines = count_lines(BufReader::new(child.stdout.take().unwrap()));
    let peak = watcher.join().unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
    assert!(lines >= least, "{line}: {lines} lines");
    assert!((1..LIMIT_KB).contains(&peak), "{line}: {peak} kB");
}

/// Reads as a consumer does who holds nothing.
fn count_lines(mut output: impl BufRead) -> i64 {
    let mut lines = 0;
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).unwrap() > 0 {
        lines += 1;
        line.clear();
    }
    lines
}

/// The most memory that a process took in its life, in kB: looked at until it has none left. Its own count, as the one of
/// all children would be that of other tests too.
fn peak_kb(id: u32) -> i64 {
    let mut peak = 0;
    while let Some(kb) = high_water_mark(id) {
        peak = kb;
        std::thread::sleep(Duration::from_millis(1));
    }
    peak
}

/// `None` once the process has ended, reaped or not.
fn high_water_mark(id: u32) -> Option<i64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
