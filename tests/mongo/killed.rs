//! The only server is killed in the middle of an export and of an import by the real binary, and comes back.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mongodb::Collection;
use mongodb::bson::{Document, doc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::model::NewEvent;
use relayctl::store::Store;
use relayctl::store::mongo::{MongoOptions, MongoStore};
use serde_json::{Value, json};

use crate::fixture::{NOW, Server};

const EVENTS: usize = 3_000;

/// Events so large that what waits in pipes and buffers is a small part of all.
const PADDING: usize = 4_000;

async fn connect(server: &Server) -> MongoStore {
    let options = MongoOptions {
        database: Some("killed".into()),
        patience: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(60),
        ..MongoOptions::default()
    };
    MongoStore::connect(&server.uri, options).await.expect("connect")
}

/// Kills the process that serves, and no other.
async fn kill_server(store: &MongoStore) {
    let status = store.database().run_command(doc! { "serverStatus": 1 }).await.expect("status");
    let pid = status.get_i64("pid").expect("a pid");
    kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), Signal::SIGKILL).expect("a signal");
}

fn relayctl(server: &Server, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relayctl"));
    command.env_clear().env("HOME", "/nonexistent").env("RELAYCTL_STORE", &server.uri);
    command.env("RELAYCTL_DATABASE", "killed").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

async fn fill(store: &MongoStore) {
    store.setup().await.expect("setup");
    let events: Vec<NewEvent> = (0..EVENTS)
        .map(|n| {
            NewEvent::new("t", json!({"n": n, "padding": "x".repeat(PADDING)}))
                .key(format!("k{}", n % 7))
                .handler("h")
        })
        .collect();
    for events in events.chunks(500) {
        store.append(events, NOW).await.expect("append");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_killed_server_ends_an_export_in_whole_lines_and_an_import_that_can_be_repeated() {
    let server = Server::start("killed", &[]);
    let store = connect(&server).await;
    fill(&store).await;
    let all = export_all(&server);
    assert_eq!(all.len(), EVENTS);
    let file = tempfile::tempdir().expect("a folder");
    let left = export_from_a_server_that_dies(&server, &store, file.path()).await;
    assert_eq!(left, all[..left.len()]);
    server.restart();
    let store = connect(&server).await;
    import_into_a_server_that_dies(&server, &store, &all).await;
    store.close().await;
}

fn export_all(server: &Server) -> Vec<String> {
    let ended = relayctl(server, &["export"]).wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

/// The lines that were written before the end. A file that was asked for is not there.
async fn export_from_a_server_that_dies(
    server: &Server,
    store: &MongoStore,
    folder: &std::path::Path,
) -> Vec<String> {
    let mut child = relayctl(server, &["export"]);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    output.read_line(&mut text).expect("a line");
    kill_server(store).await;
    output.read_to_string(&mut text).expect("the rest");
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{told}");
    assert!(told.starts_with("error: exporting deliveries failed: "), "{told}");
    assert!(text.ends_with("}\n"), "the last line is whole");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!((1..EVENTS).contains(&lines.len()), "{} lines", lines.len());
    for line in &lines {
        serde_json::from_str::<Value>(line).expect("JSON");
    }
    let path = folder.join("all.jsonl");
    let ended =
        relayctl(server, &["export", "--connect-timeout", "1s", "--file", path.to_str().expect("UTF-8")]);
    assert_eq!(ended.wait_with_output().expect("it ends").status.code(), Some(4));
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), 0);
    lines
}

/// Whoever imports is killed first, and then the server under the next one, which waits for it to come back.
async fn import_into_a_server_that_dies(server: &Server, store: &MongoStore, all: &[String]) {
    assert!(relayctl(server, &["--prefix", "again_", "setup"]).wait().expect("it ends").success());
    let imported = store.database().collection::<Document>("again_deliveries");
    let (mut child, input) = start_import(server, &all[..EVENTS / 2]);
    let before = wait_for_more_than(&imported, 0).await;
    child.kill().expect("kill");
    child.wait().expect("it ends");
    drop(input);

    let (child, mut input) = start_import(server, &all[..EVENTS / 2]);
    wait_for_more_than(&imported, before).await;
    kill_server(store).await;
    server.restart();
    write_lines(&mut input, &all[EVENTS / 2..]);
    drop(input);
    let report = report(child);
    assert_eq!((&report["matched"], &report["failed"]), (&json!(EVENTS), &json!(0)), "{report}");
    assert!(report["skipped"].as_u64() >= Some(before), "{report}");

    let (child, input) = start_import(server, all);
    drop(input);
    assert_eq!(self::report(child)["skipped"], EVENTS);
    let again = relayctl(server, &["--prefix", "again_", "export"]).wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8(again.stdout).expect("UTF-8").lines().collect::<Vec<_>>(), all);
}

/// An import that has read these lines, or will, and waits for more.
fn start_import(server: &Server, lines: &[String]) -> (Child, std::process::ChildStdin) {
    let import = ["--prefix", "again_", "import", "-", "--batch-size", "50", "-o", "json"];
    let mut child = relayctl(server, &import);
    let mut input = child.stdin.take().expect("a pipe");
    write_lines(&mut input, lines);
    (child, input)
}

fn report(import: Child) -> Value {
    let ended = import.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

async fn wait_for_more_than(deliveries: &Collection<Document>, count: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = deliveries.count_documents(doc! {}).await.expect("count");
        if now > count {
            return now;
        }
        assert!(Instant::now() < deadline, "waited in vain for more than {count} deliveries");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A command that ends early leaves some of its input unread.
fn write_lines(input: &mut impl Write, lines: &[String]) {
    let _ = lines.iter().try_for_each(|line| writeln!(input, "{line}"));
    let _ = input.flush();
}
