//! The README's examples, run in their order, each block as a shell script on a fresh database.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The blocks that a newcomer would paste, without those that name something of the reader's own.
fn blocks(readme: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in readme.lines() {
        match (&mut block, line) {
            (None, "```sh") => block = Some(String::new()),
            (Some(text), "```") => {
                blocks.push(std::mem::take(text));
                block = None;
            }
            (Some(text), line) => *text += &format!("{line}\n"),
            (None, _) => {}
        }
    }
    blocks
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_relayctl"))
}

struct Stage {
    folder: tempfile::TempDir,
    store: String,
    database: String,
}

impl Stage {
    fn new() -> Self {
        let store = std::env::var("RELAYCTL_TEST_MONGODB_URI").expect("run the tests with dev/test");
        let database = format!("relayctl_readme_{}", uuid::Uuid::now_v7().simple());
        Stage { folder: tempfile::tempdir().expect("a folder"), store, database }
    }

    fn shell(&self, script: &str) -> Output {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = [binary().parent().expect("a folder").to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&inherited));
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", std::env::join_paths(folders).expect("a PATH"))
            .env("HOME", self.folder.path())
            .env("RELAYCTL_STORE", &self.store)
            .env("RELAYCTL_DATABASE", &self.database)
            .output()
            .expect("bash runs")
    }
}

#[test]
fn every_example_works() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let blocks = blocks(&readme);
    let stage = Stage::new();
    let mut ran = 0;
    for block in blocks.iter().filter(|block| !block.starts_with("dev/")) {
        let output = stage.shell(block);
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.status.signal()), (Some(0), None), "{block}\n{shown}");
        ran += 1;
    }
    assert!(ran >= 8, "only {ran} examples were found");
    // What the text says of them: two orders were placed, two paid and one shipped, and all of them were handled.
    let handled = fs::read_to_string(stage.folder.path().join("receipts.jsonl")).expect("receipts");
    assert_eq!(handled.lines().count(), 5, "{handled}");
    let counted = stage.shell("relayctl stats -o json");
    let counted: serde_json::Value = serde_json::from_slice(&counted.stdout).expect("JSON");
    assert_eq!((&counted["total"], &counted["completed"]), (&5.into(), &5.into()), "{counted}");
    drop_database(&stage);
}

#[test]
fn the_demo_shows_what_it_says() {
    let output = Command::new(root().join("dev/demo"))
        .env("RELAYCTL_BIN", binary())
        .env_remove("RELAYCTL_STORE")
        .output()
        .expect("dev/demo runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{said}");
    for command in ["setup", "publish", "list --status dead", "show", "requeue", "purge"] {
        assert!(shown.contains(&format!("$ relayctl {command}")), "{command} is not in {shown}");
    }
}

fn drop_database(stage: &Stage) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = mongodb::Client::with_uri_str(&stage.store).await.expect("a client");
        client.database(&stage.database).drop().await.expect("drop");
    });
}
