//! The README's examples, run in their order, each block as a shell script on a fresh database, and its configuration
//! file, used as it stands.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).expect("the README")
}

/// The blocks in a language that a newcomer would paste, without those that name something of the reader's own.
fn blocks(readme: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in readme.lines() {
        match (&mut block, line) {
            (None, line) if line == fence => block = Some(String::new()),
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
        self.command(script).output().expect("bash runs")
    }

    fn command(&self, script: &str) -> Command {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = [binary().parent().expect("a folder").to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&inherited));
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", std::env::join_paths(folders).expect("a PATH"))
            .env("HOME", self.folder.path())
            .env("RELAYCTL_STORE", &self.store)
            .env("RELAYCTL_DATABASE", &self.database);
        command
    }

    /// Writes the configuration file where relayctl looks for it, as its owner's alone.
    fn configure(&self, config: &str) {
        let folder = self.folder.path().join(".config/relayctl");
        fs::create_dir_all(&folder).expect("a folder");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(folder.join("config.toml"));
        file.and_then(|mut file| file.write_all(config.as_bytes())).expect("a configuration file");
    }

    /// Like a newcomer who has nothing but the configuration file.
    fn shell_with_profiles_only(&self, script: &str) -> (Option<i32>, String) {
        let output = self.command(script).env_remove("RELAYCTL_STORE").output().expect("bash runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn every_example_works() {
    let blocks = blocks(&readme(), "sh");
    let stage = Stage::new();
    let mut ran = 0;
    for block in blocks.iter().filter(|block| !block.starts_with("dev/")) {
        let output = stage.shell(block);
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.status.signal()), (Some(0), None), "{block}\n{shown}");
        ran += 1;
    }
    assert!(ran >= 8, "only {ran} examples were found");
    // What the text says of them: two orders were placed, two paid, one shipped and one returned, one invoice was due and
    // made, and all of them were handled.
    let handled = fs::read_to_string(stage.folder.path().join("receipts.jsonl")).expect("receipts");
    assert_eq!(handled.lines().count(), 6, "{handled}");
    let invoices = fs::read_to_string(stage.folder.path().join("invoices.jsonl")).expect("invoices");
    assert_eq!(invoices.lines().count(), 1, "{invoices}");
    // One more was paid, and written both before and behind its snooze.
    let labels = fs::read_to_string(stage.folder.path().join("labels.jsonl")).expect("labels");
    assert_eq!(labels.matches(r#""source":"/shop/orders""#).count(), 2, "{labels}");
    let counted = stage.shell("relayctl stats -o json");
    let counted: serde_json::Value = serde_json::from_slice(&counted.stdout).expect("JSON");
    assert_eq!((&counted["total"], &counted["completed"]), (&9.into(), &9.into()), "{counted}");
    drop_database(&stage);
}

#[test]
fn the_profiles_can_be_used() {
    let blocks = blocks(&readme(), "toml");
    let [example] = blocks.as_slice() else { panic!("one configuration file was expected: {blocks:?}") };
    let stage = Stage::new();
    let config = example.replace("mongodb://127.0.0.1:27017/shop?replicaSet=rs0", &stage.store);
    assert_ne!(&config, example, "the example names another store");
    stage.configure(&config);
    for command in ["--profile dev setup", "--profile dev stats", "stats"] {
        let (code, told) = stage.shell_with_profiles_only(&format!("relayctl {command}"));
        assert_eq!(code, Some(0), "{command}: {told}");
    }
    let (code, told) = stage.shell_with_profiles_only("relayctl --profile production stats");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("store_file of profile `production`"), "{told}");
    assert!(told.contains("cannot read /run/secrets/outbox-url"), "{told}");
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
