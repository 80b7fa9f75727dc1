//! Where settings come from, and which of them wins.

use std::os::unix::ffi::OsStringExt as _;

use tempfile::TempDir;

use crate::harness::{Ended, finish, relayctl, write_config};

/// What a source says is a scheme that no store answers to, so that the error tells which source won.
struct Sources {
    home: TempDir,
    environment: Vec<(&'static str, &'static str)>,
}

impl Sources {
    fn new(config: &str) -> Sources {
        let home = tempfile::tempdir().unwrap();
        write_config(home.path(), config);
        Sources { home, environment: Vec::new() }
    }

    fn env(mut self, name: &'static str, value: &'static str) -> Sources {
        self.environment.push((name, value));
        self
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let mut command = relayctl(self.home.path());
        command.envs(self.environment.iter().copied()).args(arguments);
        finish(command)
    }

    #[track_caller]
    fn wins(&self, arguments: &[&str], scheme: &str, origin: &str) {
        let ended = self.run(&[arguments, &["list"]].concat()).exits(2);
        assert!(ended.stderr.contains(&format!("`{scheme}`")), "{scheme}: {ended:?}");
        assert!(ended.stderr.contains(origin), "{origin}: {ended:?}");
    }
}

const TWO_PROFILES: &str = "[profiles.default]\nstore = \"from-default://h\"\n\
                            [profiles.other]\nstore = \"from-other://h\"\n";

#[test]
fn a_flag_wins_over_everything() {
    let sources = Sources::new(TWO_PROFILES).env("RELAYCTL_STORE", "from-env://h");
    sources.wins(&["--store", "from-flag://h"], "from-flag", "--store");
    sources.wins(&["--store", "from-flag://h", "--profile", "other"], "from-flag", "--store");
}

#[test]
fn a_profile_that_is_named_in_the_command_wins_over_the_environment() {
    let sources = Sources::new(TWO_PROFILES).env("RELAYCTL_STORE", "from-env://h");
    sources.wins(&["--profile", "other"], "from-other", "store of profile `other` in ");
}

#[test]
fn the_environment_wins_over_a_profile_that_is_not_named() {
    let sources = Sources::new(TWO_PROFILES).env("RELAYCTL_STORE", "from-env://h");
    sources.wins(&[], "from-env", "RELAYCTL_STORE");
    let sources = sources.env("RELAYCTL_PROFILE", "other");
    sources.wins(&[], "from-env", "RELAYCTL_STORE");
}

#[test]
fn profiles_are_found_by_name() {
    Sources::new(TWO_PROFILES).wins(&[], "from-default", "profile `default`");
    Sources::new(TWO_PROFILES).env("RELAYCTL_PROFILE", "other").wins(&[], "from-other", "profile `other`");
    let chosen = format!("default_profile = \"other\"\n{TWO_PROFILES}");
    Sources::new(&chosen).wins(&[], "from-other", "profile `other`");
    Sources::new(&chosen).wins(&["--profile", "default"], "from-default", "profile `default`");
}

#[test]
fn an_empty_variable_counts_as_absent() {
    let sources = Sources::new(TWO_PROFILES).env("RELAYCTL_STORE", "").env("RELAYCTL_PROFILE", "");
    sources.wins(&[], "from-default", "profile `default`");
}

#[test]
fn xdg_config_home_moves_the_file() {
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir(elsewhere.path().join("relayctl")).unwrap();
    let file = elsewhere.path().join("relayctl/config.toml");
    std::fs::write(file, "[profiles.default]\nstore = \"from-xdg://h\"\n").unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.env("XDG_CONFIG_HOME", elsewhere.path()).arg("list");
    assert!(finish(command).exits(2).stderr.contains("`from-xdg`"));
}

#[test]
fn a_profile_that_does_not_exist_is_an_error_that_names_those_that_do() {
    let ended = Sources::new(TWO_PROFILES).run(&["--profile", "live", "list"]).exits(2);
    assert!(ended.stderr.contains("there is no profile `live` in "), "{ended:?}");
    assert!(ended.stderr.contains("default, other"), "{ended:?}");
}

#[test]
fn an_unknown_key_is_an_error_that_names_file_and_key() {
    let ended = Sources::new("[profiles.default]\nstroe = \"x\"\n").run(&["list"]).exits(2);
    assert!(
        ended.stderr.contains("config.toml") && ended.stderr.contains("profiles.default.stroe"),
        "{ended:?}"
    );
}

#[test]
fn a_store_that_is_given_twice_is_an_error() {
    let config = "[profiles.default]\nstore = \"a://h\"\nstore_command = \"echo b://h\"\n";
    let ended = Sources::new(config).run(&["list"]).exits(2);
    assert!(ended.stderr.contains("more than once: store, store_command"), "{ended:?}");
}

#[test]
fn a_file_or_a_command_can_give_the_url() {
    let sources = Sources::new("[profiles.default]\nstore_file = \"url.txt\"\n");
    let file = sources.home.path().join(".config/relayctl/url.txt");
    std::fs::write(file, "from-file://h\nmore\n").unwrap();
    sources.wins(&[], "from-file", "store_file of profile `default`");
    let command = "[profiles.default]\nstore_command = \"echo from-command://h\"\n";
    Sources::new(command).wins(&[], "from-command", "store_command of profile `default`");
}

#[test]
fn a_file_or_a_command_that_gives_none_is_an_error() {
    for (config, reason) in [
        ("store_file = \"nowhere\"", "cannot read"),
        ("store_command = \"exit 3\"", "the command failed (exit status: 3)"),
        ("store_command = \"true\"", "empty first line"),
    ] {
        let ended = Sources::new(&format!("[profiles.default]\n{config}\n")).run(&["list"]).exits(2);
        assert!(ended.stderr.contains(reason) && ended.stderr.contains("profile `default`"), "{ended:?}");
    }
}

#[test]
fn a_command_for_the_url_leaves_standard_input_alone() {
    let sandbox = crate::harness::Sandbox::new();
    sandbox.configure(&format!("[profiles.default]\nstore_command = \"cat >&2; echo '{}'\"\n", sandbox.url));
    let input = sandbox.home.path().join("events.jsonl");
    std::fs::write(&input, "{\"type\": \"t\", \"payload\": 1, \"handlers\": [\"h\"]}\n").unwrap();
    let mut command = relayctl(sandbox.home.path());
    command.args(["publish", "--jsonl", "-", "-q"]).stdin(std::fs::File::open(input).unwrap());
    finish(command).exits(0);
    assert_eq!(sandbox.deliveries().len(), 1);
}

#[test]
fn output_and_names_come_from_a_profile_too() {
    let sources = Sources::new("[profiles.default]\nprefix = \"mine_\"\ndatabase = \"shop\"\n");
    let script = sources.run(&["setup", "--print"]).quiet_stdout();
    assert!(script.contains("mine_events") && script.contains("getSiblingDB(\"shop\")"), "{script}");
    let script = sources.run(&["setup", "--print", "--prefix", "flag_"]).quiet_stdout();
    assert!(script.contains("flag_events") && !script.contains("mine_"), "{script}");
    let sources = sources.env("RELAYCTL_PREFIX", "env_").env("RELAYCTL_DATABASE", "market");
    let script = sources.run(&["setup", "--print"]).quiet_stdout();
    assert!(script.contains("env_events") && script.contains("getSiblingDB(\"market\")"), "{script}");
}

#[test]
fn a_name_that_cannot_be_used_is_refused_with_its_source() {
    let sources = Sources::new("").env("RELAYCTL_PREFIX", "a.b");
    let ended = sources.run(&["setup", "--print"]).exits(2);
    assert!(ended.stderr.contains("RELAYCTL_PREFIX: `a.b` is not a prefix"), "{ended:?}");
    let ended = Sources::new("").run(&["setup", "--print", "--database", "a/b"]).exits(2);
    assert!(ended.stderr.contains("--database: `a/b` is not a database name"), "{ended:?}");
}

#[test]
fn no_source_shows_a_password() {
    let url = "nothing://u:hunter2@h/db?tlsCertificateKeyFilePassword=hunter2";
    let quoted = format!("\"{url}\"");
    let configs = [
        format!("[profiles.default]\nstore = {quoted}\n"),
        format!("[profiles.default]\nstore = {quoted}\nstoer = {quoted}\n"),
        format!("[profiles.default]\nstore = [{quoted}]\n"),
        format!("[profiles.default]\nstore = \"{url}\n"),
        format!("[profiles.default]\nstore_command = \"echo '{url}'\"\n"),
    ];
    for config in configs {
        let ended = Sources::new(&config).run(&["-v", "list"]).exits(2);
        assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
    }
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.env("RELAYCTL_STORE", std::ffi::OsString::from_vec(vec![0xff, 0xfe])).arg("list");
    let ended = finish(command).exits(2);
    assert!(ended.stderr.contains("RELAYCTL_STORE: the value is not valid UTF-8"), "{ended:?}");
}
