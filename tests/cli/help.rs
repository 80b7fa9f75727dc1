//! Help, version, and slips on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;

use crate::harness::{Ended, finish, relayctl};

fn run(arguments: &[impl AsRef<OsStr>]) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.args(arguments);
    finish(command)
}

const COMMANDS: &[&str] = &[
    "setup",
    "publish",
    "list",
    "show",
    "stats",
    "errors",
    "explain",
    "requeue",
    "bury",
    "purge",
    "keys",
    "recover",
    "export",
    "import",
    "backfill",
    "run",
    "completions",
    "man",
];

#[test]
fn every_command_has_short_and_long_help() {
    for command in COMMANDS {
        let long = run(&[command, "--help"]).quiet_stdout();
        assert!(long.contains(&format!("Usage: relayctl {command}")), "{long}");
        assert!(
            long.contains("Examples:\n  relayctl") && long.contains("Exit status:\n    0  done"),
            "{long}"
        );
        let short = run(&[command, "-h"]).quiet_stdout();
        assert!(short.len() < long.len() && !short.contains("Exit status"), "{short}");
        assert!(long.lines().all(|line| line.chars().count() <= 110), "{long}");
    }
}

#[test]
fn the_help_of_the_whole_names_every_command() {
    let help = run(&["--help"]).quiet_stdout();
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    assert_eq!(run(&["help"]).quiet_stdout(), help);
    assert!(run(&["--version"]).quiet_stdout().starts_with("relayctl 0."));
}

#[test]
fn a_slip_exits_2_on_standard_error() {
    let slips: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["list", "--nonsense"],
        &["list", "--limit", "0"],
        &["list", "--limit", "5", "--all"],
        &["list", "--status", "DEAD"],
        &["list", "--type", "a*b"],
        &["list", "--type", ""],
        &["list", "--handler", ""],
        &["list", "--since", "yesterday"],
        &["list", "--overdue", "9999999999999d"],
        &["list", "--overdue", "5"],
        &["list", "--min-attempts", "-1"],
        &["list", "--lane", "fast"],
        &["list", "--sort", "size"],
        &["list", "--color", "sometimes"],
        &["list", "-q", "-v"],
        &["setup", "--check", "--print"],
        &["show"],
        &["show", ""],
        &["stats", "--by", "moon"],
        &["completions", "tcsh"],
        &["completions"],
    ];
    for slip in slips {
        let ended = run(slip).exits(2);
        assert_eq!(ended.stdout, "", "{slip:?}");
        assert!(!ended.stderr.is_empty(), "{slip:?}");
    }
}

#[test]
fn arguments_that_are_not_text_are_refused() {
    let odd = OsString::from_vec(b"list\xff".to_vec());
    for arguments in [
        vec![odd.clone()],
        vec!["list".into(), "--handler".into(), odd.clone()],
        vec!["show".into(), odd.clone()],
        vec!["list".into(), "--store".into(), odd.clone()],
        vec!["list".into(), "-o".into(), odd],
    ] {
        assert_eq!(run(&arguments).exits(2).stdout, "", "{arguments:?}");
    }
}
