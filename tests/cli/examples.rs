//! The units and the crontab in `examples/`: systemd understands them, and every command in them does what it is there for.

use std::path::PathBuf;
use std::process::Command;

use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::Status;

use crate::harness::{Sandbox, event};

const INSTALLED: &str = "/usr/local/bin/relayctl";
const HANDLERS: &str = "/etc/relayctl/handlers.toml";

fn example(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands of a unit.
fn commands(unit: &str) -> Vec<String> {
    unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).map(str::to_owned).collect()
}

impl Sandbox {
    /// Runs a command of an example, with a handlers file that is there and these arguments behind it.
    fn run_example(&self, command: &str, more: &[&str]) {
        let handlers =
            self.file("handlers.toml", "[handlers.projector]\ntypes = ['*']\nshell = 'cat > \"$HOME/seen\"'");
        let command = command.replace(HANDLERS, &handlers.display().to_string());
        let mut words = command.split_whitespace();
        assert!(matches!(words.next(), Some(INSTALLED | "relayctl")), "{command}");
        let ended = self.run(words.chain(more.iter().copied()));
        assert_eq!(ended.code(), 0, "{command}: {ended:#?}");
    }
}

#[test]
fn every_command_of_the_units_is_understood() {
    let sandbox = Sandbox::new();
    let [worker] = commands(&example("systemd/relayctl.service")).try_into().unwrap();
    sandbox.run_example(&worker, &["--check"]);
    let upkeep = commands(&example("systemd/relayctl-purge.service"));
    assert_eq!(upkeep.len(), 2);
    upkeep.iter().for_each(|command| sandbox.run_example(command, &[]));
}

#[test]
fn a_stop_leaves_the_commands_their_grace() {
    let unit = example("systemd/relayctl.service");
    let seconds = |text: &str| text.trim_end_matches('s').parse::<u64>().unwrap();
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).map(seconds).unwrap();
    let grace = unit.split_once("--grace ").unwrap().1.split_whitespace().next().map(seconds).unwrap();
    assert!(stop >= grace + 10, "{stop} s for a grace of {grace} s");
}

#[test]
fn every_line_of_the_crontab_does_its_work() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e-1")], SystemClock.now());
    let crontab = example("cron/relayctl");
    let is_job = |line: &&str| !line.is_empty() && !line.starts_with('#') && !line.contains('=');
    let jobs: Vec<&str> = crontab.lines().filter(is_job).collect();
    assert_eq!(jobs.len(), 4, "{jobs:?}");
    for job in jobs {
        let words: Vec<&str> = job.split_whitespace().collect();
        assert_eq!(words[5], "relayctl", "the user of {job}");
        sandbox.run_example(&words[6..].join(" "), &[]);
    }
    assert_eq!(sandbox.deliveries()[0].status, Status::Completed);
}

#[test]
fn systemd_understands_the_units() {
    // A host without systemd cannot say.
    let Ok(_) = Command::new("systemd-analyze").arg("--version").output() else { return };
    let folder = tempfile::tempdir().unwrap();
    let units = ["relayctl.service", "relayctl-purge.service", "relayctl-purge.timer"].map(|name| {
        let unit = example(&format!("systemd/{name}")).replace(INSTALLED, env!("CARGO_BIN_EXE_relayctl"));
        let path = folder.path().join(name);
        std::fs::write(&path, unit).unwrap();
        path
    });
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    // It also tells of the host's own units, which are none of ours.
    assert!(!said.contains("relayctl"), "{said}");
    assert!(verified.status.success(), "{said}");
}
