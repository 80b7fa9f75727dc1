//! The committed completions and manual pages are what the binary makes.

use std::collections::BTreeMap;
use std::path::Path;

use crate::harness::{finish, relayctl};

fn made(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.args(arguments);
    finish(command).exits(0).stdout
}

fn files_in(directory: &Path) -> BTreeMap<String, String> {
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let entries = entries.map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

fn committed(directory: &str) -> BTreeMap<String, String> {
    files_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory))
}

#[track_caller]
fn assert_same(made: &BTreeMap<String, String>, committed: &BTreeMap<String, String>) {
    assert_eq!(made.keys().collect::<Vec<_>>(), committed.keys().collect::<Vec<_>>(), "run dev/generate");
    for (name, text) in made {
        assert!(committed[name] == *text, "{name} is not what the binary makes: run dev/generate");
    }
}

#[test]
fn completions() {
    let shells = [("bash", "relayctl.bash"), ("zsh", "_relayctl"), ("fish", "relayctl.fish")];
    let made = shells.map(|(shell, file)| (file.to_owned(), made(&["completions", shell])));
    assert_same(&BTreeMap::from(made), &committed("completions"));
}

#[test]
fn manual_pages() {
    let directory = tempfile::tempdir().unwrap();
    made(&["man", directory.path().join("new").to_str().unwrap()]);
    let made_files = files_in(&directory.path().join("new"));
    assert_same(&made_files, &committed("man"));
    assert_eq!(made(&["man"]), made_files["relayctl.1"]);
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "").unwrap();
    let mut command = relayctl(home.path());
    command.arg("man").arg(home.path().join("file"));
    let ended = finish(command).exits(1);
    assert!(ended.stderr.contains("cannot write manual pages to "), "{ended:?}");
}
