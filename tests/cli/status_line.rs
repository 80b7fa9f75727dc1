//! A worker on a terminal, as it is seen there: one line of numbers, and above it what is worth a line.

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, ttyname};
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::NewEvent;

use crate::harness::{Sandbox, event, wait_until};

const ROWS: u16 = 60;

/// A worker on a terminal that draws what it is told to.
struct Drawn {
    child: Child,
    terminal: PathBuf,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Drawn {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn columns_of(columns: u16) -> NonZeroU16 {
    NonZeroU16::new(columns).unwrap()
}

impl Drawn {
    fn start(mut command: Command, columns: u16) -> Drawn {
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let terminal = ttyname(&pty.slave).unwrap();
        let stream = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        // Once nobody holds the other end any more, reading ends.
        drop((command, pty.slave));
        let parser = vt100::Parser::new(columns_of(ROWS), columns_of(columns), 0);
        let screen = Arc::new(Mutex::new(parser));
        let (mut master, drawing) = (File::from(pty.master), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                drawing.lock().unwrap().process(&bytes[..count]);
            }
        });
        Drawn { child, terminal, screen, reader: Some(reader) }
    }

    /// The lines that are seen now.
    fn lines(&self) -> Vec<String> {
        let text = self.screen.lock().unwrap().screen().contents();
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// The line that is written over, when it is there.
    fn status(&self) -> Option<String> {
        self.lines().pop().filter(|line| line.contains(" in flight  "))
    }

    fn until_status(&self, what: &str, holds: impl Fn(&str) -> bool) {
        wait_until(what, || self.status().is_some_and(|status| holds(&status)));
    }

    /// Makes the terminal narrower, for the worker and for who draws.
    fn resize(&self, columns: u16) {
        let mut screen = self.screen.lock().unwrap();
        let mut stty = Command::new("stty");
        stty.arg("-F").arg(&self.terminal).args(["cols", &columns.to_string()]);
        assert!(stty.status().unwrap().success());
        screen.set_size(columns_of(ROWS), columns_of(columns));
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for its end; what is left on the screen, and the exit code. The cursor has to be at the start of a line and
    /// to be seen.
    fn ends(mut self) -> (Vec<String>, Option<i32>) {
        wait_until("it ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let lines = {
            self.reader.take().unwrap().join().unwrap();
            let screen = self.screen.lock().unwrap();
            assert!(!screen.screen().hide_cursor() && screen.screen().cursor_position().1 == 0);
            screen.screen().contents()
        };
        (lines.lines().map(str::to_owned).collect(), code)
    }
}

impl Sandbox {
    fn drawn(&self, columns: u16, arguments: &[&str]) -> Drawn {
        let mut command = self.command();
        command.env("TERM", "xterm-256color").args(arguments);
        Drawn::start(command, columns)
    }

    fn with_events(count: usize) -> Sandbox {
        let sandbox = Sandbox::new();
        let events: Vec<NewEvent> = (0..count).map(|i| event(&format!("e-{i}"))).collect();
        sandbox.append(&events, SystemClock.now());
        sandbox
    }
}

/// The first words of each line behind its time.
fn words(lines: &[String]) -> Vec<String> {
    let word = |line: &String| line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    lines.iter().map(word).collect()
}

/// Waits for the file `go`.
const WAITING: &str = "projector=while ! test -e \"$HOME/go\"; do sleep 0.01; done";

#[test]
fn numbers_stand_in_one_line_and_are_gone_at_the_end() {
    let sandbox = Sandbox::with_events(40);
    let worker = sandbox.drawn(80, &["run", "--concurrency", "4", "--handler", WAITING]);
    worker.until_status("four run", |status| status.starts_with("4 in flight  0 done  0/s  "));
    sandbox.file("go", "");
    worker.until_status("all is done", |status| status.starts_with("0 in flight  40 done  "));
    assert_eq!(worker.lines().len(), 2, "{:?}", worker.lines());
    worker.send(Signal::SIGINT);
    let (lines, code) = worker.ends();
    assert_eq!(
        (words(&lines), code),
        (["started", "draining", "stopped"].map(String::from).to_vec(), Some(0))
    );
    assert!(lines[2].ends_with("40 completed"), "{lines:?}");
}

#[test]
fn a_terminal_may_become_narrow_while_it_runs() {
    let sandbox = Sandbox::with_events(1);
    let worker = sandbox.drawn(80, &["run", "--handler", WAITING]);
    worker.until_status("it runs", |status| status.starts_with("1 in flight"));
    sandbox.go("pause projector").exits(0);
    worker.until_status("it is paused", |status| status.contains("paused: projector  0/s  "));
    worker.resize(40);
    worker.until_status("it fits", |status| status == "1 in flight  0 done  paused: projector");
    sandbox.go("resume projector").exits(0);
    worker.until_status("it goes on", |status| status.starts_with("1 in flight  0 done  0/s  "));
    assert_eq!(worker.lines().iter().filter(|line| line.contains("in flight")).count(), 1);
    worker.send(Signal::SIGTERM);
    worker.until_status("it drains", |status| status.starts_with("draining  1 in flight"));
    worker.send(Signal::SIGTERM);
    let (lines, code) = worker.ends();
    assert!(!lines.iter().any(|line| line.contains("in flight")), "{lines:?}");
    assert_eq!(code, Some(130));
}

#[test]
fn of_a_flood_of_deaths_a_few_have_a_line() {
    let sandbox = Sandbox::with_events(50);
    let file = sandbox.file(
        "handlers.toml",
        "[handlers.projector]\ntypes = ['*']\nbreaker = 'off'\nshell = 'echo no route to host >&2; exit 65'",
    );
    let file = file.display().to_string();
    let (lines, code) = sandbox.drawn(200, &["run", "--once", "--handlers", &file]).ends();
    assert_eq!(words(&lines), ["started", "dead", "dead", "dead", "dead", "stopped"], "{lines:?}");
    assert!(lines[1].ends_with("attempt 1 of 5: exit status 65: no route to host"), "{lines:?}");
    assert!(lines[4].ends_with("dead       projector  and 47 more like this"), "{lines:?}");
    assert_eq!(code, Some(3));
}

#[test]
fn who_wants_the_flood_gets_it_and_who_cannot_have_the_line_too() {
    let sandbox = Sandbox::with_events(5);
    let flood = |arguments: &[&str], term: &str, more: usize| {
        let mut command = sandbox.command();
        command.env("TERM", term).args(arguments).args(["projector", "--", "true"]);
        let (lines, code) = Drawn::start(command, 100).ends();
        assert_eq!(code, Some(0));
        let count =
            lines.iter().filter(|line| line.contains("completed") && line.contains("order.placed")).count();
        assert_eq!(count, more, "{arguments:?} {term}: {lines:?}");
        assert!(!lines.iter().any(|line| line.contains("in flight")), "{lines:?}");
    };
    flood(&["run", "--max-deliveries", "1"], "xterm", 0);
    flood(&["run", "--max-deliveries", "1", "-v"], "xterm", 1);
    flood(&["run", "--max-deliveries", "1"], "dumb", 1);
    flood(&["run", "--max-deliveries", "1", "-q"], "xterm", 0);
    let run = ["run", "--once", "--log-format", "json", "projector", "--", "true"];
    let (lines, _) = sandbox.drawn(1_000, &run).ends();
    assert!(lines.iter().all(|line| line.starts_with('{')), "{lines:?}");
}

#[test]
fn without_colours_there_is_a_line_all_the_same() {
    let sandbox = Sandbox::with_events(1);
    let mut command = sandbox.command();
    command.env("TERM", "xterm").env("NO_COLOR", "1").args(["run", "--handler", WAITING]);
    let worker = Drawn::start(command, 80);
    worker.until_status("it runs", |status| status.starts_with("1 in flight"));
    let is_coloured = |screen: &vt100::Screen| {
        let cells = (0..ROWS).flat_map(|row| (0..80).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bold() || cell.dim())
    };
    assert!(!is_coloured(worker.screen.lock().unwrap().screen()));
    sandbox.file("go", "");
    worker.until_status("it is done", |status| status.contains("1 done"));
    worker.send(Signal::SIGTERM);
    worker.ends();
}
