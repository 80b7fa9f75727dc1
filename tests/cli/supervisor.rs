//! A worker as a service of systemd: what it tells on the socket of the service manager.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::Status;

use crate::harness::{Sandbox, event, finish, free_port, relayctl, wait_until};

/// A service manager, as far as a worker knows of it, and what it was told.
struct Manager {
    socket: UnixDatagram,
    told: Vec<String>,
}

impl Manager {
    fn of(sandbox: &Sandbox) -> Manager {
        let socket = UnixDatagram::bind(sandbox.home.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Manager { socket, told: Vec::new() }
    }

    /// Takes what is there.
    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(count) = self.socket.recv(&mut bytes) {
            let text = String::from_utf8(bytes[..count].to_vec()).unwrap();
            self.told.extend(text.lines().map(str::to_owned));
        }
    }

    fn until(&mut self, word: &str, times: usize) {
        wait_until(word, || {
            self.listen();
            self.count(word) >= times
        });
    }

    fn count(&self, word: &str) -> usize {
        self.told.iter().filter(|line| line.starts_with(word)).count()
    }
}

/// A worker that is managed.
struct Worker(Child);

impl Worker {
    fn start(sandbox: &Sandbox, variables: &[(&str, &str)], arguments: &[&str]) -> Worker {
        let mut command = sandbox.command();
        command.env("NOTIFY_SOCKET", sandbox.home.path().join("notify")).envs(variables.iter().copied());
        command.arg("run").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        Worker(command.spawn().unwrap())
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    fn ends(&mut self) {
        wait_until("it ends", || self.0.try_wait().unwrap().is_some());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_is_told_of_the_start_the_numbers_and_the_end_and_its_watchdog_is_patted() {
    let sandbox = Sandbox::new();
    let mut manager = Manager::of(&sandbox);
    sandbox.append(&[event("e-1")], SystemClock.now());
    let line = format!(
        "projector=cp /proc/self/environ {0}/environ; while ! test -e {0}/go; do sleep 0.01; done",
        sandbox.home.path().display()
    );
    let mut worker = Worker::start(&sandbox, &[("WATCHDOG_USEC", "200000")], &["--handler", &line]);
    manager.until("READY=1", 1);
    manager.until("WATCHDOG=1", 3);
    wait_until("the command runs", || sandbox.home.path().join("environ").exists());
    assert_eq!(manager.count("STOPPING"), 0);
    worker.send(Signal::SIGTERM);
    manager.until("STOPPING=1", 1);
    // It drains, and its loop turns all the while.
    let patted = manager.count("WATCHDOG=1");
    manager.until("WATCHDOG=1", patted + 2);
    sandbox.file("go", "");
    worker.ends();
    manager.listen();
    assert_eq!((manager.count("READY=1"), manager.count("STOPPING=1")), (1, 1), "{:?}", manager.told);
    assert!(manager.count("STATUS=") > 0, "{:?}", manager.told);
    let status = manager.told.iter().find(|line| line.starts_with("STATUS=")).unwrap();
    assert!(status.contains(" in flight, ") && status.ends_with(" done"), "{status}");
    let environ = std::fs::read_to_string(sandbox.home.path().join("environ")).unwrap();
    assert!(environ.contains("RELAY_EVENT_ID=e-1"), "{environ}");
    assert!(!environ.contains("NOTIFY_SOCKET") && !environ.contains("WATCHDOG"), "{environ}");
}

#[test]
fn a_watchdog_for_another_process_is_left_alone() {
    let sandbox = Sandbox::new();
    let mut manager = Manager::of(&sandbox);
    sandbox.append(&[event("e-1")], SystemClock.now());
    let variables = [("WATCHDOG_USEC", "20000"), ("WATCHDOG_PID", "1")];
    let mut worker = Worker::start(&sandbox, &variables, &["--once", "projector", "--", "sleep", "0.3"]);
    worker.ends();
    manager.listen();
    assert_eq!(manager.count("WATCHDOG"), 0, "{:?}", manager.told);
    // One that ends by itself stops as well.
    assert_eq!((manager.count("READY=1"), manager.count("STOPPING=1")), (1, 1), "{:?}", manager.told);
}

#[test]
fn a_worker_that_cannot_connect_is_never_ready() {
    let sandbox = Sandbox::new();
    let mut manager = Manager::of(&sandbox);
    let mut command = relayctl(sandbox.home.path());
    let url = format!("mongodb://127.0.0.1:{}/x?replicaSet=r", free_port());
    command.env("NOTIFY_SOCKET", sandbox.home.path().join("notify"));
    command.args(["run", "--connect-timeout", "1s", "--store", &url, "projector", "--", "true"]);
    finish(command).exits(4);
    manager.listen();
    assert_eq!(manager.told, Vec::<String>::new());
}

#[test]
fn a_manager_that_is_gone_is_warned_about_and_work_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e-1")], SystemClock.now());
    let mut command = sandbox.command();
    command.env("NOTIFY_SOCKET", sandbox.home.path().join("nobody"));
    command.args(["run", "--once", "projector", "--", "true"]);
    let ran = finish(command).exits(0);
    assert!(ran.stderr.contains("warning    the service manager was not told: "), "{}", ran.stderr);
    assert_eq!(sandbox.deliveries()[0].status, Status::Completed);
}
