//! What goes wrong before a command can do its work: one clear message, the right exit code, no password.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{
    Ended, Sandbox, StandaloneServer, finish, free_port, relayctl, server, url_of, wait_until,
};

const PASSWORD: &str = "hunter2";

fn list_of(url: &str) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.env("RELAYCTL_STORE", url).args(["list", "-v"]);
    let began = Instant::now();
    let ended = finish(command);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}: {ended:?}", began.elapsed());
    ended
}

#[track_caller]
fn assert_one_message(ended: &Ended, code: i32) {
    assert_eq!(ended.code(), code, "{ended:?}");
    assert_eq!(ended.stdout, "");
    let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{ended:?}");
    assert!(ended.stderr.contains("\nhint: "), "{ended:?}");
    assert!(!ended.stderr.contains(PASSWORD), "{ended:?}");
}

#[test]
fn a_dead_port() {
    let port = free_port();
    let ended = list_of(&format!("mongodb://u:{PASSWORD}@127.0.0.1:{port}/shop?replicaSet=rs0"));
    assert_one_message(&ended, 4);
    assert!(ended.stderr.contains(&format!("127.0.0.1:{port}")), "{ended:?}");
}

#[test]
fn a_server_that_accepts_and_says_nothing() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    assert_one_message(&list_of(&format!("mongodb://u:{PASSWORD}@127.0.0.1:{port}/shop")), 4);
}

#[test]
fn a_wrong_password() {
    let url = url_of(&server(), "shop").replace("mongodb://", &format!("mongodb://somebody:{PASSWORD}@"));
    let ended = list_of(&url);
    assert_one_message(&ended, 4);
    assert!(ended.stderr.contains("password"), "{ended:?}");
}

#[test]
fn a_malformed_url() {
    for url in [
        format!("mongodb://u:{PASSWORD}@host:port:x/shop"),
        format!("mongodb://u:{PASSWORD}@/shop"),
        format!("mongodb://u:{PASSWORD}@host/shop?w=-1"),
        format!("mongodb://u:x/{PASSWORD}@host/shop"),
        format!("postgres://u:{PASSWORD}@host/shop"),
        format!("u:{PASSWORD}@host"),
        "mongodb://127.0.0.1:1".to_owned(),
    ] {
        let ended = list_of(&url);
        assert_one_message(&ended, 2);
        assert!(ended.stderr.contains("RELAYCTL_STORE"), "{url}: {ended:?}");
    }
}

#[test]
fn a_standalone_server() {
    let server = StandaloneServer::start();
    for options in ["", "?replicaSet=rs0"] {
        let ended = list_of(&format!("mongodb://127.0.0.1:{}/shop{options}", server.port));
        assert_one_message(&ended, 5);
        assert!(ended.stderr.contains("standalone") && ended.stderr.contains("--replSet"), "{ended:?}");
    }
}

#[test]
fn another_replica_set() {
    let url = url_of(&server(), "shop").replace("replicaSet=", "replicaSet=not-");
    assert_one_message(&list_of(&url), 5);
}

#[test]
fn a_missing_schema() {
    let sandbox = Sandbox::without_schema();
    for line in ["list", "list -o json", "stats", "show some-id"] {
        let ended = sandbox.go(line);
        assert_one_message(&ended, 5);
        assert!(ended.stderr.contains("relayctl setup"), "{ended:?}");
    }
}

#[test]
fn no_store_at_all() {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.arg("list");
    let ended = finish(command);
    assert_one_message(&ended, 2);
    for way in
        ["--store mongodb://", "export RELAYCTL_STORE=", "[profiles.default]", ".config/relayctl/config.toml"]
    {
        assert!(ended.stderr.contains(way), "{way}: {ended:?}");
    }
}

#[test]
fn a_password_in_the_wrong_place_is_not_repeated() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("mongodb://u:{PASSWORD}@host/shop");
    for arguments in [
        vec!["list", &url],
        vec!["list", "--database", &url],
        vec!["list", "--prefix", &url],
        vec!["list", "--since", &url],
        vec!["list", "--cursor", &url],
        vec!["list", "-o", &url],
        vec![&url],
        vec!["--store", &url, "list", "--nonsense"],
        vec!["--profile", &url, "list"],
    ] {
        let mut command = relayctl(home.path());
        command.args(&arguments);
        let ended = finish(command).exits(2);
        assert!(
            !ended.stderr.contains(PASSWORD) && !ended.stdout.contains(PASSWORD),
            "{arguments:?}: {ended:?}"
        );
    }
}

#[test]
fn a_signal_ends_a_command_that_waits() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let home = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = relayctl(home.path());
        command
            .args(["list", "--connect-timeout", "1h", "--store"])
            .arg(format!("mongodb://127.0.0.1:{port}/shop"));
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        // It listens for signals before it connects.
        silent.accept().unwrap();
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        wait_until("the command ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

#[test]
fn one_signal_ends_a_listing_whose_reader_is_stuck() {
    let sandbox = Sandbox::new();
    let padding = "x".repeat(500);
    let events: Vec<_> = (0..500).map(|n| crate::harness::event(&format!("{padding}{n}"))).collect();
    sandbox.append(&events, crate::harness::ago(10));
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = sandbox.command();
    command.args(["list", "--all", "-o", "jsonl"]);
    let mut child = command.stdout(writer.try_clone().unwrap()).spawn().unwrap();
    wait_until("the pipe is full", || !takes_more(&writer));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    wait_until("the command ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(reader);
}

fn takes_more(pipe: &impl AsFd) -> bool {
    let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
    poll(&mut ready, PollTimeout::ZERO).unwrap() > 0
}
