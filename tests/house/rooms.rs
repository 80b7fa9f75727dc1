//! The directions between the rooms, read from the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, and the rooms that each may name.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("model", vec![]),
        ("clock", vec!["model"]),
        ("store", vec!["model"]),
        ("ops", vec!["model", "clock", "store"]),
        ("handler", vec!["model", "clock", "store"]),
        ("dispatch", vec!["model", "clock", "store", "handler"]),
        ("monitor", vec!["model", "clock", "store", "ops", "dispatch"]),
        ("config", vec!["model"]),
        ("cli", vec!["model", "clock", "store", "ops", "handler", "dispatch", "monitor", "config"]),
    ])
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let inside = folders.iter().flat_map(|folder| sources(folder));
    files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .chain(inside)
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The code of a file, without comments and without its unit tests, which may build what they need.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source");
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The room of a source: the folder, or the file, right below `src`.
fn room(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).expect("a source below src");
    let first = inside.components().next().expect("a name").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn no_room_uses_one_that_it_may_not() {
    let allowed = allowed();
    let mut broken = Vec::new();
    let mut seen = 0;
    for path in sources(&root().join("src")) {
        let Some(may_use) = allowed.get(room(&path).as_str()) else { continue };
        seen += 1;
        let code = code(&path);
        for other in allowed.keys().filter(|other| **other != room(&path) && !may_use.contains(other)) {
            if code.contains(&format!("crate::{other}")) || code.contains(&format!("relayctl::{other}")) {
                broken.push(format!("{} uses {other}", path.display()));
            }
        }
    }
    assert!(seen > 40, "only {seen} sources were looked at");
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn each_library_is_known_to_its_room_alone() {
    let homes = [
        ("mongodb::", vec!["store/mongo"]),
        ("bson::", vec!["store/mongo"]),
        // The words of a choice are listed once, for the command line and the configuration file alike.
        ("clap::", vec!["cli", "config/choices.rs"]),
        ("clap_", vec!["cli"]),
        ("anyhow", vec!["cli"]),
        ("comfy_table", vec!["cli/render"]),
        ("dialoguer", vec!["cli"]),
        ("indicatif", vec!["cli"]),
        ("anstream", vec!["cli"]),
        ("nix::", vec!["handler", "cli", "clock.rs"]),
        ("hyper", vec!["monitor"]),
        ("prometheus_client", vec!["monitor"]),
        ("sd_notify", vec!["cli"]),
        ("toml::", vec!["config"]),
    ];
    let mut broken = Vec::new();
    for path in sources(&root().join("src")) {
        let code = code(&path);
        for (library, homes) in &homes {
            let at_home = homes.iter().any(|home| path.starts_with(root().join("src").join(home)));
            if !at_home && code.contains(library) {
                broken.push(format!("{} uses {library}", path.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn the_binary_declares_nothing() {
    let main = code(&root().join("src/main.rs"));
    assert!(!main.contains("mod ") && main.lines().count() < 10, "{main}");
}

/// The driver's other number mode turns every BSON number into a map; see `Cargo.toml`.
#[test]
fn nothing_asks_for_arbitrary_precision() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    let asked: Vec<_> = manifest
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains("arbitrary_precision"))
        .collect();
    assert_eq!(asked, Vec::<&str>::new());
}
