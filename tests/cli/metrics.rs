//! `run --metrics`: a worker that is watched over HTTP, from its start to its end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{NewEvent, Status};

use crate::harness::{Sandbox, event, free_port, wait_until};

/// A worker that answers, and the file that it logs to.
struct Watched {
    child: Child,
    log: PathBuf,
    address: String,
}

impl Watched {
    fn start(sandbox: &Sandbox, url: &str, arguments: &[&str]) -> Watched {
        let log = sandbox.home.path().join("log");
        let mut command = sandbox.command();
        command.env("RELAYCTL_STORE", url).args(["run", "--metrics", "127.0.0.1:0"]).args(arguments);
        let child = command.stderr(File::create(&log).unwrap()).stdout(Stdio::null()).spawn().unwrap();
        let mut watched = Watched { child, log, address: String::new() };
        wait_until("the log tells the address", || {
            let log = watched.log();
            let found = log.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics\n"));
            watched.address = found.map(|(address, _)| address.to_owned()).unwrap_or_default();
            found.is_some()
        });
        watched
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The status and body of an answer; `None` when nobody answers any more.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head[9..12].parse().ok()?, body.to_owned()))
    }

    fn value(&self, series: &str) -> f64 {
        let (status, text) = self.get("/metrics").expect("an answer");
        assert_eq!(status, 200);
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    fn ends(&mut self) -> Option<i32> {
        wait_until("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line that touches the file `running`, and waits for the file `go`.
fn waiting_line(sandbox: &Sandbox) -> String {
    let home = sandbox.home.path().display();
    format!("projector=touch {home}/running; while ! test -e {home}/go; do sleep 0.01; done")
}

#[test]
fn a_worker_answers_until_its_very_end_and_says_when_it_drains() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e-1"), event("e-2")], SystemClock.now());
    let mut worker = Watched::start(&sandbox, &sandbox.url, &["--handler", &waiting_line(&sandbox)]);
    wait_until("the command runs", || sandbox.home.path().join("running").exists());
    wait_until("it is ready", || worker.get("/readyz") == Some((200, "ok\n".into())));
    assert_eq!(worker.value("relayctl_deliveries_in_flight{handler=\"projector\"}"), 1.0);
    assert_eq!(worker.value("relayctl_queue_depth{handler=\"projector\"}"), 1.0);
    assert!(worker.value("relayctl_oldest_due_age_seconds{handler=\"projector\"}") > 0.0);
    worker.send(Signal::SIGTERM);
    wait_until("it drains", || worker.get("/readyz") == Some((503, "the worker drains\n".into())));
    assert_eq!(worker.get("/healthz").unwrap().0, 200);
    assert_eq!(worker.value("relayctl_ready"), 0.0);
    assert_eq!(worker.value("relayctl_deliveries_in_flight{handler=\"projector\"}"), 1.0);
    sandbox.file("go", "");
    assert_eq!(worker.ends(), Some(0));
    assert_eq!(worker.get("/healthz"), None);
}

#[test]
fn an_address_that_is_taken_ends_it_before_anything_is_claimed() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e-1")], SystemClock.now());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = sandbox.run(["run", "--once", "--metrics", &address, "projector", "--", "true"]).exits(1);
    let message = format!("error: cannot listen on {address} for --metrics\n");
    refused.complains(&message).complains("hint: another worker may have it");
    assert_eq!(sandbox.deliveries()[0].attempts, 0);
    sandbox
        .run(["run", "--metrics", "localhost:9187", "projector", "--", "true"])
        .exits(2)
        .complains("IP:PORT");
}

#[test]
fn a_json_log_tells_where_it_answers_and_ipv6_is_fine() {
    let sandbox = Sandbox::new();
    let run = ["run", "--once", "--log-format", "json", "--metrics", "[::1]:0", "projector", "--", "true"];
    let ran = sandbox.run(run).exits(0);
    let first: serde_json::Value = serde_json::from_str(ran.stderr.lines().next().unwrap()).unwrap();
    assert_eq!(first["event"], "listening");
    assert!(first["address"].as_str().unwrap().starts_with("[::1]:"), "{first}");
    let everywhere = format!(":{}", free_port());
    sandbox.run(["run", "--once", "--metrics", &everywhere, "projector", "--", "true"]).exits(0);
}

/// Stands between a worker and the server, and can hold everything back, as a server that is stopped does.
struct Frontier {
    port: u16,
    is_closed: Arc<AtomicBool>,
}

impl Frontier {
    fn to(server: String) -> Frontier {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&server).unwrap());
                let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let both_ways = [(from, to), (far, near)];
                for (from, to) in both_ways {
                    let closed = closed.clone();
                    std::thread::spawn(move || carry(from, to, &closed));
                }
            }
        });
        Frontier { port, is_closed }
    }

    fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_closed: &AtomicBool) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn heavy_while_the_store_hangs_it_is_healthy_not_ready_and_still_answers() {
    let sandbox = Sandbox::new();
    let (_, rest) = sandbox.url.split_once("//").unwrap();
    let (host, _) = rest.split_once('/').unwrap();
    let frontier = Frontier::to(host.to_owned());
    let url = format!("mongodb://127.0.0.1:{}/{}?directConnection=true", frontier.port, sandbox.database);
    let worker = Watched::start(&sandbox, &url, &["projector", "--", "true"]);
    wait_until("it is ready", || worker.get("/readyz").is_some_and(|(status, _)| status == 200));
    frontier.close(true);
    wait_until("it notices", || {
        let (status, said) = worker.get("/readyz").unwrap();
        status == 503 && said.starts_with("the store has not answered for ")
    });
    let errors = "relayctl_store_errors_total{kind=\"unavailable\"}";
    assert_eq!((worker.get("/healthz").unwrap().0, worker.value(errors)), (200, 0.0));
    assert_eq!(worker.value("relayctl_ready"), 0.0);
    assert!(worker.value("relayctl_queue_depth{handler=\"projector\"}").is_nan());
    frontier.close(false);
    wait_until("it is ready again", || worker.get("/readyz").is_some_and(|(status, _)| status == 200));
    sandbox.append(&[event("e-1")], SystemClock.now());
    let completed = "relayctl_deliveries_completed_total{handler=\"projector\"}";
    wait_until("it works again", || worker.value(completed) == 1.0);
}

#[test]
fn heavy_fifty_who_ask_all_the_time_keep_nothing_from_its_work() {
    const EVENTS: usize = 2_000;
    let sandbox = Sandbox::new();
    let events: Vec<NewEvent> = (0..EVENTS).map(|i| event(&format!("e-{i}"))).collect();
    sandbox.append(&events, SystemClock.now());
    let run = ["--concurrency", "8", "projector", "--", "/bin/true"];
    let worker = Watched::start(&sandbox, &sandbox.url, &run);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..50)
            .map(|i| {
                let path = ["/metrics", "/healthz", "/readyz", "/metrics", "/nothing"][i % 5];
                let (worker, is_done) = (&worker, &is_done);
                scope.spawn(move || {
                    let mut answers = 0;
                    while !is_done.load(Ordering::SeqCst) {
                        assert!(worker.get(path).is_some(), "{path} was not answered");
                        answers += 1;
                    }
                    answers
                })
            })
            .collect();
        let completed = "relayctl_deliveries_completed_total{handler=\"projector\"}";
        wait_until("all is done", || worker.value(completed) == EVENTS as f64);
        is_done.store(true, Ordering::SeqCst);
        assert!(asking.into_iter().all(|one| one.join().unwrap() > 0));
    });
    assert_eq!(worker.value("relayctl_run_seconds_count{handler=\"projector\"}"), EVENTS as f64);
    assert!(sandbox.deliveries().iter().all(|delivery| delivery.status == Status::Completed));
    assert!(!worker.log().contains("warning"), "{}", worker.log());
}
