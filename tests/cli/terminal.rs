//! What is different on a terminal: colours, widths and control characters.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};
use relayctl::model::NewEvent;
use serde_json::json;

use crate::harness::{Sandbox, ago, buried, event, finish, wait_until};

/// Everything that a command shows on a terminal of a width, and its exit code.
fn on_terminal(mut command: Command, columns: u16) -> (String, i32) {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None).unwrap();
    let stream = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
    // Once nobody holds the other end any more, reading ends.
    drop((command, pty.slave));
    let screen = std::thread::spawn(move || read_screen(pty.master));
    wait_until("the command ends", || child.try_wait().unwrap().is_some());
    let code = child.wait().unwrap().code().unwrap();
    (screen.join().unwrap().replace("\r\n", "\n"), code)
}

fn read_screen(master: OwnedFd) -> String {
    let mut bytes = Vec::new();
    // The end of a terminal shows as an error, after everything was read.
    let _ = File::from(master).read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn sample() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a").key("order-17")], ago(605));
    sandbox.settle(
        "projector",
        &buried("POST https://warehouse.example/orders: 503 Service Unavailable"),
        ago(185),
    );
    let odd = NewEvent::new("\u{1b}[31mtype", json!({})).id("b").handler("確認メール").key("שלום");
    sandbox.append(&[odd], ago(65));
    sandbox
}

pub fn on(sandbox: &Sandbox, line: &str, columns: u16, variables: &[(&str, &str)]) -> String {
    let mut command = sandbox.command();
    command.env("TERM", "xterm-256color").envs(variables.iter().copied()).args(line.split(' '));
    let (screen, code) = on_terminal(command, columns);
    assert_eq!(code, 0, "{screen}");
    screen
}

pub fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, colour)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = colour.split_once('m').expect("a colour ends").1;
    }
    plain + rest
}

#[test]
fn a_listing_fits_80_columns() {
    let sandbox = sample();
    let (first, second) = (sandbox.delivery_of("a"), sandbox.delivery_of("b"));
    let screen = without_colours(&on(&sandbox, "list", 80, &[]));
    let screen = screen.replace(&first, "AAAAAAAA-AAAA-AAAA-AAAA-AAAAAAAAAAAA");
    let screen = screen.replace(&second, "BBBBBBBB-BBBB-BBBB-BBBB-BBBBBBBBBBBB");
    insta::assert_snapshot!(screen, @r#"
    ID                                    STATUS   HANDLER     WHEN         TRY
    AAAAAAAA-AAAA-AAAA-AAAA-AAAAAAAAAAAA  dead     projector   died 3m ago    1
        order.placed.v1  key order-17
        POST https://warehouse.example/orders: 503 Service Unavailable
    BBBBBBBB-BBBB-BBBB-BBBB-BBBBBBBBBBBB  pending  確認メール  due 1m ago     0
        \x1b[31mtype  key שלום
    "#);
}

#[test]
fn a_terminal_has_colours_and_a_pipe_has_none() {
    let sandbox = sample();
    assert!(on(&sandbox, "list", 80, &[]).contains("\u{1b}[31mdead\u{1b}[0m"));
    assert!(!sandbox.go("list").quiet_stdout().contains('\u{1b}'));
    assert!(!sandbox.go("list --nonsense").exits(2).stderr.contains('\u{1b}'));
}

#[test]
fn colours_follow_the_customs() {
    let sandbox = sample();
    let on_a_terminal =
        |line: &str, variable: (&str, &str)| on(&sandbox, line, 80, &[variable]).contains('\u{1b}');
    assert!(!on_a_terminal("list", ("NO_COLOR", "1")));
    assert!(!on_a_terminal("list", ("TERM", "dumb")));
    assert!(!on_a_terminal("list", ("CLICOLOR", "0")));
    assert!(!on_a_terminal("list --color never", ("CLICOLOR_FORCE", "1")));
    assert!(on_a_terminal("list --color always", ("NO_COLOR", "1")));
    let piped = |line: &str, variable: (&str, &str)| {
        let mut command = sandbox.command();
        command.env(variable.0, variable.1).args(line.split(' '));
        finish(command).exits(0).stdout.contains('\u{1b}')
    };
    assert!(piped("list", ("CLICOLOR_FORCE", "1")));
    assert!(piped("list --color always", ("TERM", "dumb")));
    assert!(!piped("list -o json --color always", ("CLICOLOR_FORCE", "1")));
}

#[test]
fn machine_formats_on_a_terminal_have_no_controls() {
    let sandbox = sample();
    for format in ["json", "jsonl", "csv", "ids"] {
        let screen = on(&sandbox, &format!("list -o {format}"), 80, &[]);
        assert!(!screen.contains('\u{1b}'), "{format}: {screen:?}");
        assert!(screen.contains("[31mtype") || format == "ids", "{format}: {screen:?}");
    }
}

#[test]
fn the_first_page_of_a_wide_terminal_is_one_line_a_row() {
    let sandbox = sample();
    let screen = without_colours(&on(&sandbox, "list", 200, &[]));
    assert_eq!(screen.lines().count(), 3, "{screen}");
    assert!(screen.contains("503 Service Unavailable"), "{screen}");
}

#[test]
fn a_pipe_gets_everything_whatever_the_width() {
    let sandbox = sample();
    let mut command = sandbox.command();
    command.env("COLUMNS", "20").arg("list");
    let text = finish(command).quiet_stdout();
    assert!(text.contains("503 Service Unavailable") && !text.contains('…'), "{text}");
    assert_eq!(text.lines().count(), 3);
}
